"""What a check of `talaria doctor` finds."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path

import msgspec

from talaria.core.errors import TalariaError


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """`fix` says what to do; `command` does it when it is pasted into a shell. In it, `talaria` at the start
    of a command stands for this program on this home."""

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


def end_command(pid: object) -> str:
    """Ends a process of ours. Empty when the number means another one here, as that of a gateway in a
    container does."""
    try:
        is_ours = b"talaria" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        is_ours = not Path("/proc/self").exists()  # not to be seen on this system
    return f"kill {pid}" if is_ours else ""


def type_key(variable: str) -> str:
    """Typed in unseen, not pasted: a key does not belong into a shell's history."""
    return f"read -rs {variable} && export {variable}"


def shell(*words: str | Path) -> str:
    """A command line out of its words."""
    return shlex.join(map(str, words))
