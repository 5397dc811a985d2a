"""A session's background processes: commands that outlive the call, the agent and the gateway."""

from __future__ import annotations

from enum import StrEnum

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
