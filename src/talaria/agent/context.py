"""The context of a turn, which its agent does not keep: limits, tools, and the receiver of its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import msgspec

from talaria.access.budgets import TurnBudget
from talaria.core.clock import Clock
from talaria.core.delegates import Delegate
from talaria.core.entries import Note
from talaria.core.events import Event
from talaria.core.ids import TurnId
from talaria.core.messages import ToolCall, ToolResult, UserMessage
from talaria.core.questions import Question, QuestionDraft
from talaria.core.redaction import Redactor
from talaria.core.tools import ToolSpec
from talaria.core.turns import Turn
from talaria.observe.metrics import Metrics

if TYPE_CHECKING:
    from talaria.agent.warm import WarmAgent


class TurnTools(Protocol):
    """The session's tools, bound to one turn."""

    def spec(self, name: str) -> ToolSpec | None: ...

    async def question(self, call: ToolCall) -> QuestionDraft | None:
        """Return what to ask a person before the call may run; None if it may run unasked."""
        ...

    async def hand_out(self, call: ToolCall, n: int, earlier: int) -> Sequence[Delegate] | ToolResult:
        """Return the delegates for which the call, step `n`, has to wait, or its result if it hands out none.
        The turn has handed out `earlier` tasks before."""
        ...

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Hold a slot for one call inside the block. Entering waits while too many calls run."""
        ...

    async def run(
        self, call: ToolCall, question: Question | None = None, delegates: Sequence[Delegate] = ()
    ) -> ToolResult:
        """Run a call to its result; a failure is a result too. `question` is the one that was put about the
        call, if one was, with its decision. `delegates` are those that it has waited for. Raises nothing but
        `CancelledError`."""
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


class NoteSource(Protocol):
    """News for sessions, such as the ends of background processes."""

    async def waiting(self, turn: Turn, agent: WarmAgent, *, is_first: bool) -> Sequence[Note]:
        """Return the notes that the log of the turn's session does not have yet. `agent` answers the turn. A
        turn asks before each model call; `is_first` is True for the first one. Raises nothing."""
        ...

    async def told(self, turn: Turn, notes: Sequence[Note]) -> None:
        """The log has these notes, also those of other sources. Raises nothing."""
        ...


class TurnNotes:
    """The notes of all sources for one turn."""

    __slots__ = ("_agent", "_is_first", "_sources", "_turn")

    def __init__(self, sources: Sequence[NoteSource], turn: Turn, agent: WarmAgent) -> None:
        self._sources = sources
        self._turn = turn
        self._agent = agent
        self._is_first = True

    async def waiting(self) -> Sequence[Note]:
        is_first, self._is_first = self._is_first, False
        found: list[Note] = []
        for source in self._sources:
            found += await source.waiting(self._turn, self._agent, is_first=is_first)
        return found

    async def told(self, notes: Sequence[Note]) -> None:
        for source in self._sources:
            await source.told(self._turn, notes)


class TurnContext(msgspec.Struct, frozen=True):
    """The context that a turn gives to its loop. With `tools` None, tool calls belong to the caller and end
    the turn. With `steering` None, no message can join the turn; with `notes` None, no note. `redactor` takes
    the gateway's secrets out of what the model says. Calls of a turn that `gives_way` wait for those of other
    turns. `handed_out` starts delegates in the background, once they are committed."""

    turn_id: TurnId
    emit: Callable[[Event], None]
    max_steps: int
    tools: TurnTools | None
    clock: Clock
    metrics: Metrics
    budget: TurnBudget
    reasoning: str | None = None
    max_output: int | None = None
    sampling: bytes = b""
    streams_parts: bool = False
    steering: Steering | None = None
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    notes: TurnNotes | None = None
    gives_way: bool = False
    handed_out: Callable[[Sequence[Delegate]], None] = lambda delegates: None
