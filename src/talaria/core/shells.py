"""A session's shell and background processes: commands, their output and their end."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import msgspec

from talaria.core.ids import SessionId, TurnId

OutputSink: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Takes the output of a command piece by piece. The command waits for it, so that memory is bounded."""


@dataclass(frozen=True, slots=True)
class ShellState:
    """The state that a session's next command finds. `cwd` is a path inside the sandbox; empty means the
    folder of the chat. `changed` and `removed` are the variables that commands exported and unset."""

    cwd: str = ""
    changed: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A text for the shell. `seconds` is its time limit. With `tty` it runs in a terminal of its own."""

    text: str
    seconds: float
    tty: bool = False


@dataclass(frozen=True, slots=True)
class ShellEnd:
    """The end of a command. `code` is its exit code; 128 + n if signal n ended it, as a shell tells it.

    `cwd` is where the next command begins. `waited` names the program that waited for input, if the command
    was ended for that. `note` tells the model what else it should know; it is empty, or a sentence.
    """

    code: int
    cwd: str
    timed_out: bool = False
    waited: str = ""
    note: str = ""

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that ended the command, if one did."""
        try:
            return signal.Signals(self.code - 128)
        except ValueError:
            return None


# -- a session's background processes: commands that outlive the call, the agent and the gateway ----------


class ProcessState(StrEnum):
    """LOST: the process is gone, and nobody knows how it ended."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


class ProcessInfo(msgspec.Struct, frozen=True):
    """A background process. `code` is its exit code once it has ended; 128 + n if signal n ended it.

    `written` is the number of bytes that it has printed. `wakes`: the session gets a turn when it ends. `why`
    says what kept it from running, or why it is lost.
    """

    id: str
    session_id: SessionId
    command: str
    state: ProcessState
    started_at: float
    ended_at: float | None = None
    code: int | None = None
    written: int = 0
    wakes: bool = False
    why: str = ""


class ProcessOutput(msgspec.Struct, frozen=True):
    """A part of a process's output. `begin` and `end` are its offsets; bytes between `wanted`, the offset
    that was asked for, and `begin` are gone."""

    info: ProcessInfo
    text: str
    wanted: int
    begin: int
    end: int


class ProcessStart(msgspec.Struct, frozen=True):
    """A text for the shell that is to run in the background. `turn_id` is the turn that asks for it."""

    text: str
    turn_id: TurnId
    wakes: bool = False
