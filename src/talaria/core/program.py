"""This program: its version, and its name as a user types it."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

# -- the version of this program: as it was built, or as git tells it in a clone --------------------------
# A wheel and an sdist contain the file `talaria/VERSION`, which `hatch_build.py` writes. A clone has no
# such file: every process asks git, so that the version is right after a pull without another installation.


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


# -- the name of this program, as a user types it: `talaria`, or the `./dev` of a clone -------------------


_NAME = "talaria"
# `./dev scripted` is no command of this program: it has other options.
_COMMAND = re.compile(r"`(?:talaria|\./dev) (?!scripted\b)([a-z]+)")
_CLONE = Path(__file__).parents[3]  # of an editable installation


def program() -> str:
    """Return the command that runs this program from the current folder."""
    name = program_name()
    if name == "./dev":
        return name if is_here(_CLONE) else str(_CLONE / "dev")
    if _is_on_path():
        return name
    script = Path(sys.prefix) / "bin" / _NAME
    return shlex.quote(str(script)) if script.is_file() else f"{shlex.quote(sys.executable)} -m {_NAME}"


def program_name() -> str:
    """Return `./dev` in a clone that is not on the path, else `talaria`. It names no folder, so it can be
    shown to people on other machines. The path of a service may be another than that of its user."""
    return "./dev" if (_CLONE / "dev").is_file() and not _is_on_path() else _NAME


def clone_script() -> Path | None:
    """Return the `dev` script of the clone that this program runs from; None for an installed program."""
    script = _CLONE / "dev"
    return script if script.is_file() else None


def is_here(folder: Path) -> bool:
    try:
        return Path.cwd() == folder
    except OSError:  # the current folder was deleted
        return False


def _is_on_path() -> bool:
    found = shutil.which(_NAME)
    return found is not None and Path(found).resolve().is_relative_to(Path(sys.prefix).resolve())


def spoken(text: str) -> str:
    """Replace `talaria VERB` in backticks by the command line that works in this terminal."""
    return text.replace("`talaria ", f"`{program()} ") if "`talaria " in text else text


def spoken_afar(text: str) -> str:
    """Replace `talaria VERB` in backticks by what is typed on the gateway's machine."""
    return text.replace("`talaria ", f"`{program_name()} ") if "`talaria " in text else text


def typed(text: str, command_line: Callable[[str], str]) -> str:
    """Return the text with each command in backticks as `command_line` spells its verb.

    The text may come from another process, which has worded it for its own program.
    """
    return _COMMAND.sub(lambda match: f"`{command_line(match[1])}", text)
