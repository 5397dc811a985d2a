"""The context of a turn, which its agent does not keep: limits, tools, and the receiver of its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from talaria.core.clock import Clock
from talaria.core.entries import Note
from talaria.core.events import Event
from talaria.core.ids import TurnId
from talaria.core.messages import ToolCall, ToolResult, UserMessage
from talaria.core.ports import Budget
from talaria.core.questions import Question, QuestionDraft
from talaria.core.redaction import Redactor
from talaria.core.tools import ToolSpec
from talaria.observe.metrics import Metrics


class TurnTools(Protocol):
    """The session's tools, bound to one turn."""

    def spec(self, name: str) -> ToolSpec | None: ...

    async def question(self, call: ToolCall) -> QuestionDraft | None:
        """Return what to ask a person before the call may run; None if it may run unasked."""
        ...

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Hold a slot for one call inside the block. Entering waits while too many calls run."""
        ...

    async def run(self, call: ToolCall, question: Question | None = None) -> ToolResult:
        """Run a call to its result; a failure is a result too. `question` is the one that was put about the
        call, if one was, with its decision. Raises nothing but `CancelledError`."""
        ...

    async def record_write(self) -> None:
        """Record what a call left in files that the end of an earlier process cut off."""
        ...


class Steer(msgspec.Struct, frozen=True):
    """A message that joins a running turn. `turn_id` is the message's own turn."""

    turn_id: TurnId
    message: UserMessage


class Steering(Protocol):
    """The messages that join one turn while it runs."""

    def waiting(self) -> Sequence[Steer]:
        """Return the messages that may not be in the log yet, in the order of their arrival."""
        ...

    async def arrival(self) -> None:
        """Wait until a message has arrived that the last call of `waiting` did not return."""
        ...


class TurnNotes(Protocol):
    """News for the session of a turn, such as the end of a background process."""

    async def waiting(self) -> Sequence[Note]:
        """Return the notes that the session's log does not have yet. Raises nothing."""
        ...

    async def told(self, notes: Sequence[Note]) -> None:
        """The log has these notes. Raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The context that a turn gives to its loop. With `tools` None, tool calls belong to the caller and end
    the turn. With `steering` None, no message can join the turn; with `notes` None, no note. `redactor` takes
    the gateway's secrets out of what the model says. Calls of a turn that `gives_way` wait for those of other
    turns."""

    turn_id: TurnId
    emit: Callable[[Event], None]
    max_steps: int
    tools: TurnTools | None
    clock: Clock
    metrics: Metrics
    budget: Budget
    reasoning: str | None = None
    max_output: int | None = None
    sampling: bytes = b""
    streams_calls: bool = False
    steering: Steering | None = None
    redactor: Redactor = field(default_factory=Redactor)
    notes: TurnNotes | None = None
    gives_way: bool = False
