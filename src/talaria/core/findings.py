"""The findings of the checks of `talaria doctor`, and the commands that mend them."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

import msgspec

from talaria.core.errors import TalariaError


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """`fix` says what to do; `command` does it when it is pasted into a shell. In a command, `talaria` stands
    for this program on this home."""

    name: str
    level: Level
    text: str
    fix: str = ""
    command: str = ""


def ok(name: str, text: str) -> Finding:
    return Finding(name, Level.OK, text)


def warn(name: str, text: str, fix: str = "", command: str = "") -> Finding:
    return Finding(name, Level.WARN, text, fix, command)


def problem(name: str, text: str, fix: str = "", command: str = "") -> Finding:
    return Finding(name, Level.PROBLEM, text, fix, command)


def failed(name: str, error: TalariaError, command: str = "") -> Finding:
    return problem(name, error.user_text, error.hint, command)


def install_command(*packages: str) -> str:
    """Return the command that installs packages into the environment that this program runs in."""
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        return shell("pipx", "inject", "talaria-gateway", *packages)
    if find_spec("pip") is None:  # as in the environments that uv makes
        return shell("uv", "pip", "install", "--python", sys.executable, *packages)
    return shell(sys.executable, "-m", "pip", "install", *packages)


def end_command(pid: object) -> str:
    """Return the command that ends a process of Talaria. Empty if the pid belongs to another program here, as
    the pid of a gateway in a container does."""
    try:
        is_ours = b"talaria" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        is_ours = not Path("/proc/self").exists()  # this system does not show it
    return f"kill {pid}" if is_ours else ""


def close_command(path: Path, home: Path) -> str:
    """Return the command that closes a file to other users. Empty if the path or a link leads outside of the
    home: others may need that file."""
    is_inside = path.resolve().is_relative_to(home.resolve())
    return shell("chmod", "600", path) if is_inside else ""


def type_key(variable: str) -> str:
    """Return the command that reads a key without showing it, so that it is not in the shell's history."""
    return f"read -rs {variable} && export {variable}"


def shell(*words: str | Path) -> str:
    """Return a command line, quoted where needed."""
    return shlex.join(map(str, words))
