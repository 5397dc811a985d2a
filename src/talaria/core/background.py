"""The port of a session's background processes: commands that outlive the call, the agent and the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from talaria.core.ids import SessionId, TurnId


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


class Processes(Protocol):
    """The background processes of a session. They outlive the handle and the gateway, and end with the
    session. Every method raises `ToolError` for an id that the session does not have."""

    async def start(self, order: ProcessStart) -> ProcessInfo:
        """Start a command with the shell's working directory and environment. It is on record before it runs.

        On cancellation it does not run. Raises `ToolError` if it cannot be run, or if too many run.
        """
        ...

    async def list(self) -> Sequence[ProcessInfo]:
        """Return the processes that run, and the last ones that have ended, in the order of their start."""
        ...

    async def poll(self, process_id: str) -> ProcessOutput:
        """Return the output since the last poll."""
        ...

    async def log(self, process_id: str, offset: int | None, limit: int) -> ProcessOutput:
        """Return up to `limit` bytes of output from an offset on; the last ones if `offset` is None."""
        ...

    async def write(self, process_id: str, text: str | None) -> int:
        """Write to the input of the process; None closes it. Return the number of bytes that were taken.

        That is less than all of them if the process does not read for some seconds. Raises `ToolError` if the
        process has ended or its input is closed.
        """
        ...

    async def kill(self, process_id: str) -> ProcessInfo:
        """End the process: politely first, by force after some seconds. Returns when it is gone."""
        ...
