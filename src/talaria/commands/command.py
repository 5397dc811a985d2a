"""Commands: how a text is parsed into one, how it is answered, and commands of plug-ins and skills."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from talaria.core.delivery import Button
from talaria.core.entries import EntryBody
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.specs import PinnedSpec
from talaria.core.turns import Sender

_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)
_WITH_DIGITS = re.compile(r"/([A-Za-z][A-Za-z0-9_-]*)(?:\s+(.*))?", re.DOTALL)  # extra commands may have them
_NUMBER_DIGITS = 10  # a longer text is not taken for a number; Python refuses to convert very long ones


class Command(msgspec.Struct, frozen=True):
    """A parsed command. `name` is lower case, without the slash."""

    name: str
    args: str = ""


def parse_command(text: str, *, with_digits: bool = False) -> Command | None:
    """Return the command if the first word is a slash and letters. `/usr/bin/env` and `/ 2` are messages."""
    match = (_WITH_DIGITS if with_digits else _COMMAND).fullmatch(text.strip())
    return Command(match[1].lower(), (match[2] or "").strip()) if match else None


def parse_number(text: str) -> int | None:
    """Return the whole number that the text is, if it is one of ordinary length."""
    return int(text) if text.isdecimal() and len(text) < _NUMBER_DIGITS else None


class CommandResult(msgspec.Struct, frozen=True):
    """The answer to a command that has been carried out, and what is committed with it.

    `buttons` are shown below the reply on channels that have buttons. `entries` are appended to the session's
    log, under its lease, with the `specs` that they name. The sessions `ends` are ended before the reply is
    sent.
    """

    reply: str
    entries: tuple[EntryBody, ...] = ()
    buttons: tuple[Button, ...] = ()
    specs: tuple[PinnedSpec, ...] = ()
    ends: tuple[SessionId, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A call of an extra command. After a crash the same call, with the same `turn_id`, may be made again."""

    name: str
    args: str
    turn_id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    sender: Sender


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraCommand:
    """A command of a plug-in or a skill. `origin` says whose it is, such as `plugin:weather`.

    It has `run`, which answers it without a model, or `message`, which returns the text that the model gets
    in place of the command and its arguments. `message` does not block. `run` raises `TalariaError` for a
    failure that the person should read. A command that `is_control` works while a turn runs; others wait.
    """

    name: str
    help: str
    origin: str
    arguments: str = ""
    run: Callable[[CommandCall], Awaitable[str]] | None = None
    message: Callable[[str], str] | None = None
    is_control: bool = False

    def describe(self) -> str:
        usage = f"/{self.name} {self.arguments}".rstrip()
        return f"{usage}: {self.help} ({self.origin})"
