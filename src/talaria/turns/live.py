"""Turns that are under way in this process: their events, their end, and how they are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from enum import Enum, auto

import msgspec

from talaria.agent.loop import Answer
from talaria.commands.slash import asks_model
from talaria.core.events import FINAL_EVENTS, Delta, Event, ModelLoading, ReasoningDelta, Reset, ToolOutput
from talaria.core.ids import ChatKey, TurnId
from talaria.core.ledger import Began
from talaria.core.turns import Turn

_MERGE_BELOW = 1024


class StopReason(Enum):
    """Why a turn was told to stop. A person's wish or its deadline ends it; after a lost lease it can be
    resumed."""

    USER = auto()
    DEADLINE = auto()
    LOST = auto()


class CallOptions(msgspec.Struct, frozen=True):
    """What a stateless caller asks of the model call; never stored, since such a call is never resumed."""

    reasoning: str | None = None
    max_output: int | None = None
    sampling: bytes = b""


NO_OPTIONS = CallOptions()


class HeadStart(msgspec.Struct, frozen=True):
    """A turn that was begun when it was accepted. `asked_at` is when its lease was asked for."""

    began: Began
    asked_at: float


class LiveTurn:
    """One unsettled turn. Events are numbered from 1; who follows late gets them all from the beginning.

    Text that nobody has read yet is joined, so a long answer without listeners stays a few strings.
    """

    def __init__(
        self, turn: Turn, options: CallOptions = NO_OPTIONS, head_start: HeadStart | None = None
    ) -> None:
        self.turn = turn
        self.options = options
        self.head_start = head_start
        self.answer: Answer | None = None
        self.reason: StopReason | None = None
        self.has_begun = False
        self.began_at: float | None = None
        self.is_taken_up_again = False
        self.was_begun_here = False
        self.steers: list[LiveTurn] = []
        self.settled: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._events: list[Event] = []
        self._read_up_to = 0
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._task: asyncio.Task[object] | None = None
        self._steering: asyncio.Future[None] | None = None
        if turn.attempts and head_start is None:
            self._events.append(Reset())

    def emit(self, event: Event) -> None:
        events = self._events
        if len(events) > self._read_up_to and (merged := _merge(events[-1], event)) is not None:
            events[-1] = merged
            return
        events.append(event)
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, Event], None]:
        """Events numbered above `after`, until the final one. Leaving early costs nothing."""
        position = after
        while True:
            while position < len(self._events):
                event = self._events[position]
                position += 1
                self._read_up_to = max(self._read_up_to, position)
                yield position, event
                if isinstance(event, FINAL_EVENTS):
                    return
            if self.settled.done():
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)

    def settle(self, turn: Turn, event: Event) -> None:
        """The turn is over: `turn` is its row as committed."""
        self.turn = turn
        if not self.settled.done():
            self.settled.set_result(turn)
        self.emit(event)

    def abandon(self) -> None:
        """This process lets go of it unsettled; who follows it is told nothing more."""
        if not self.settled.done():
            self.settled.set_result(self.turn)
        self._wake()

    # -- steering -------------------------------------------------------------------------------------------

    def steer(self, live: LiveTurn) -> None:
        """A message that joins this turn; it is settled with it."""
        self.steers.append(live)
        self._wake_steering()

    async def steered(self) -> None:
        """Until another message has joined."""
        waiter = self._steering = asyncio.get_running_loop().create_future()
        await waiter

    def _wake_steering(self) -> None:
        if self._steering is not None and not self._steering.done():
            self._steering.set_result(None)

    # -- stopping -------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """The current task runs this turn from now on, and `stop` cancels it."""
        self._task = asyncio.current_task()

    def leave(self) -> None:
        self._task = None

    def stop(self, reason: StopReason) -> None:
        """Cancels the task that runs it, once. Before `enter` it only leaves the reason to be found."""
        if self.reason is not None or self.settled.done():
            return
        self.reason = reason
        if self._task is not None:
            self._task.cancel()

    def take_up_again(self) -> None:
        """It was left unsettled and is begun anew; a person's wish to stop it stays."""
        self.head_start = None
        self.is_taken_up_again = True
        if self.reason is StopReason.LOST:
            self.reason = None

    def was_stopped_by(self, reason: StopReason) -> bool:
        return self.reason is reason

    def calm(self) -> None:
        """The cancellation of `stop` was taken up; awaits work again."""
        if self._task is not None:
            self._task.uncancel()


def _merge(last: Event, event: Event) -> Event | None:
    """Return one event that says what two unread neighbours say; None if both must be kept."""
    if isinstance(event, (Delta, ReasoningDelta)):
        if type(last) is type(event) and len(last.text) < _MERGE_BELOW:
            return type(event)(last.text + event.text)
    elif isinstance(event, ToolOutput):
        if isinstance(last, ToolOutput) and last.call_id == event.call_id and len(last.text) < _MERGE_BELOW:
            return ToolOutput(event.call_id, last.text + event.text)
    elif isinstance(event, ModelLoading) and isinstance(last, ModelLoading):
        return event  # how far it was by then is of no use
    return None


class LiveTurns:
    """The unsettled turns of this process by id."""

    def __init__(self) -> None:
        self._turns: dict[TurnId, LiveTurn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[LiveTurn]:
        return iter(list(self._turns.values()))

    def open(
        self, turn: Turn, options: CallOptions = NO_OPTIONS, head_start: HeadStart | None = None
    ) -> LiveTurn:
        live = LiveTurn(turn, options, head_start)
        self._turns[turn.id] = live
        return live

    def get(self, turn_id: TurnId) -> LiveTurn | None:
        return self._turns.get(turn_id)

    def close(self, live: LiveTurn) -> None:
        """Forget it; who follows it keeps it until they have read its end."""
        self._turns.pop(live.turn.id, None)

    def running_in(self, chat_key: ChatKey) -> LiveTurn | None:
        """The chat's turn that the model works on now."""
        return next(
            (
                live
                for live in self._turns.values()
                if live.turn.chat_key == chat_key and live.has_begun and asks_model(live.turn.command)
            ),
            None,
        )
