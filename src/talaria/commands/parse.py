"""Telling commands from messages."""

from __future__ import annotations

import re

import msgspec

_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)


class Command(msgspec.Struct, frozen=True):
    """`name` is lower case, without the slash."""

    name: str
    args: str = ""


def parse_command(text: str) -> Command | None:
    """A text whose first word is a slash and letters; `/usr/bin/env` and `/ 2` are messages."""
    match = _COMMAND.fullmatch(text.strip())
    return Command(match[1].lower(), (match[2] or "").strip()) if match else None
