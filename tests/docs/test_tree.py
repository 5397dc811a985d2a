"""The repository contains text and small pictures, and no files that a run has made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LARGEST, LARGEST_GOLDEN = 250_000, 500_000


def test_nothing_large_or_left_behind_is_tracked() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    present = [path for path in tracked if path.is_file()]
    assert len(present) > 100
    golden = ROOT / "tests" / "golden"
    limits = {path: LARGEST_GOLDEN if golden in path.parents else LARGEST for path in present}
    assert [path for path, limit in limits.items() if path.stat().st_size > limit] == []
    assert [path for path in present if path.suffix in {".db", ".log", ".pyc", ".gguf", ".whl"}] == []
