"""Failpoints kill the process at the hit that was asked for, and cost nothing otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from talaria.core.failpoints import arm

HITS = """
from talaria.core.failpoints import Failpoint, arm, hit
arm({plan!r})
for n in range(1, 4):
    for point in (Failpoint.BEGUN, Failpoint.RAN):
        print(n, point, flush=True)
        hit(point)
"""


@pytest.mark.parametrize(
    ("plan", "last"),
    [
        ("", "3 tool.ran"),
        ("turn.begun", "1 turn.begun"),
        ("turn.begun=2,tool.ran=5", "2 turn.begun"),
        (",turn.begun=9,tool.ran=3", "3 tool.ran"),
    ],
)
def test_the_process_is_killed_at_the_hit_of_the_plan(plan: str, last: str) -> None:
    command = [sys.executable, "-c", HITS.format(plan=plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == last, done.stderr
    assert done.returncode == (-9 if plan else 0)


@pytest.mark.parametrize("plan", ["nowhere", "turn.begun=soon", "=1"])
def test_a_plan_that_names_nothing_is_refused(plan: str) -> None:
    with pytest.raises(ValueError):
        arm(plan)
    arm("")
