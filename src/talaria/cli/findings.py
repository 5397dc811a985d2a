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


def shell(*words: str | Path) -> str:
    """A command line out of its words."""
    return shlex.join(map(str, words))
