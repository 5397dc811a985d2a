from __future__ import annotations

import subprocess
import sys

# Blocks that are freed one by one, below others that stay, as transcripts of sessions that leave.
SCRIPT = """
from talaria.observe.health import return_large_blocks
assert return_large_blocks()

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before, kept = rss(), []
for size in range(1, 16):
    rows = [b"x" * (size << 20) for _ in range(6)]
    kept.append(b"x" * 1000)
    del rows
print(rss() - before)
"""


def test_large_blocks_that_are_freed_leave_the_process() -> None:
    left = int(subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True).stdout)
    assert left < 4 << 20
