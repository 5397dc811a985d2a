"""The version of this program: as it was built, or as git tells it in a clone.

A wheel and an sdist contain the file `talaria/VERSION`, which `hatch_build.py` writes. A clone has no such
file: every process asks git, so that the version is right after a pull without another installation.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_BEFORE_TAGS = "v0.1.0"  # the version that a history without tags follows
_TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?\Z")
_SECONDS = 10


@cache
def this_version() -> str:
    """Return the version of this program: `0.2.0`, or `0.2.0.dev114+g1a2b3c4d` before that release.

    The first call in a process blocks for some milliseconds in a clone, where it runs git.
    """
    return _built(Path(__file__).parents[1]) or describe(Path(__file__).parents[3])


def version_to_build() -> str:
    """Return the version for a wheel of this source. It ends with `.dirty` if tracked files were changed."""
    return _built(Path(__file__).parents[1]) or describe(Path(__file__).parents[3], "--dirty")


def describe(root: Path, *options: str) -> str:
    """Return the version of a source tree by its latest tag `vX.Y.Z`.

    A commit with a tag has its version. Other commits belong to the next minor release (or pre-release) and
    are counted from the tag. A tree without a repository, or without git, gets `.dev0+unknown`.
    """
    # Fixed lengths of the commit's name: every clone builds the same version.
    found = _git(root, "describe", "--tags", "--long", "--abbrev=8", "--match=v[0-9]*", "--always", *options)
    is_changed = found.endswith("-dirty")
    tag, distance, commit = _split(found.removesuffix("-dirty"))
    if not commit:
        return f"{_next(_BEFORE_TAGS)}.dev0+unknown"
    if not _TAG.match(tag):
        tag, distance = _BEFORE_TAGS, _git(root, "rev-list", "--count", "HEAD") or "0"
    elif distance == "0" and not is_changed:
        return tag.removeprefix("v")
    return f"{_next(tag)}.dev{distance}+{commit}{'.dirty' if is_changed else ''}"


def _built(package: Path) -> str:
    try:
        return (package / "VERSION").read_text("ascii").strip()
    except FileNotFoundError:
        return ""


def _split(described: str) -> tuple[str, str, str]:
    """Return tag, distance and `gCOMMIT`. Without a tag, git prints the commit alone."""
    tag, _, rest = described.rpartition("-g")
    if not tag:
        return "", "0", f"g{described}" if described else ""
    tag, _, distance = tag.rpartition("-")
    return tag, distance, f"g{rest}"


def _next(tag: str) -> str:
    match = _TAG.match(tag)
    assert match is not None
    major, minor, patch, stage, number = match.groups()
    if stage:
        return f"{major}.{minor}.{patch}{stage}{int(number) + 1}"
    return f"{major}.{int(minor) + 1}.0"


def _git(root: Path, *arguments: str) -> str:
    """Return what git prints about the repository of exactly this tree. Empty if there is none, or no git."""
    if not (root / ".git").exists():
        return ""
    import subprocess  # noqa: PLC0415 - an installed program does not need it

    # Both are named, because a git hook that runs this sets variables of another repository.
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
