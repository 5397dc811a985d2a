"""The source of the version whose homes and databases this one continues."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

COMMIT = "d44172b7"


@pytest.fixture(scope="session")
def earlier_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the earlier version, from the history of this clone. Its first start compiles it."""
    found = subprocess.run(
        ["git", "archive", COMMIT, "src/talaria"],
        cwd=Path(__file__).parents[2], capture_output=True, check=False,
    )  # fmt: skip
    if found.returncode:
        pytest.skip(f"this is not a clone with the commit {COMMIT}")
    folder = tmp_path_factory.mktemp("earlier")
    # The parameter `filter` of `extractall` is newer than Python 3.11.2.
    subprocess.run(["tar", "-x", "-C", folder], input=found.stdout, check=True)
    return folder / "src"
