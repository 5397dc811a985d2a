"""The source of the version whose homes and databases this one continues."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

COMMIT = "0b09dd0e"


@pytest.fixture
def earlier_version(tmp_path: Path) -> Path:
    """The source tree of the earlier version, taken from this clone's history."""
    found = subprocess.run(
        ["git", "archive", COMMIT, "src/talaria"],
        cwd=Path(__file__).parents[2], capture_output=True, check=False,
    )  # fmt: skip
    if found.returncode:
        pytest.skip(f"this is not a clone with the commit {COMMIT}")
    (tmp_path / "earlier").mkdir()
    # The parameter `filter` of `extractall` is newer than Python 3.11.2.
    subprocess.run(["tar", "-x", "-C", tmp_path / "earlier"], input=found.stdout, check=True)
    return tmp_path / "earlier" / "src"
