"""Turns that this process holds: their state, their events, and how they are interrupted."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from talaria.commands.command import name_question
from talaria.core.clock import Clock
from talaria.core.delegates import Delegate
from talaria.core.events import (
    FINAL_EVENTS,
    Cancelled,
    DelegateChanged,
    Delta,
    Done,
    Event,
    Failed,
    ModelLoading,
    ReasoningDelta,
    Reset,
    ToolCallDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    describe_call,
)
from talaria.core.ids import ChatKey, DelegateId, QuestionId, TurnId, channel_of
from talaria.core.ledger import Began
from talaria.core.questions import Question, QuestionKind
from talaria.core.specs import Completion
from talaria.core.spending import Spent
from talaria.core.text import clean_line
from talaria.core.turns import Step, Turn, TurnState
from talaria.observe.metrics import Metrics
from talaria.turns.feed import StateFeed, question_asked
from talaria.turns.slash import asks_model
from talaria.turns.states import ENDING, INTERRUPTIONS, MOVES, LiveState, check_move

if TYPE_CHECKING:
    from talaria.core.hooks import Hooks


# -- events that are joined while nobody has read them, so that a long answer stays a few strings ---------


_MERGE_BELOW = 1024  # an event with fewer characters takes in the next one


def merge_events(last: Event, event: Event) -> Event | None:
    """Return one event that says what two unread neighbours say; None if both must be kept."""
    if type(last) is not type(event):
        return None
    if isinstance(event, (Delta, ReasoningDelta)):
        if type(last) is type(event) and len(last.text) < _MERGE_BELOW:
            return type(event)(last.text + event.text)
    elif isinstance(event, ToolOutput):
        if isinstance(last, ToolOutput) and last.call_id == event.call_id and len(last.text) < _MERGE_BELOW:
            return ToolOutput(event.call_id, last.text + event.text)
    elif isinstance(event, ToolCallDelta) and isinstance(last, ToolCallDelta):
        is_next = last.index == event.index and not event.call_id
        if is_next and len(last.arguments) < _MERGE_BELOW:
            return msgspec.structs.replace(last, arguments=last.arguments + event.arguments)
    elif isinstance(event, ModelLoading) and isinstance(last, ModelLoading):
        return event  # how far it was by then is of no use
    return None


# -- turns that this process holds: their state, their events, and how they are interrupted ---------------


_MOST_STREAM = 999_999
_LINE = 100  # characters


class CallOptions(msgspec.Struct, frozen=True):
    """A stateless caller's options for the model call. Never stored, because such a call is never resumed."""

    reasoning: str | None = None
    max_output: int | None = None
    sampling: bytes = b""
    streams_parts: bool = False  # pieces of tool calls, and signed thoughts, become events


NO_OPTIONS = CallOptions()


class LiveTurn:
    """A turn in this process, which channels can follow.

    `turn` is the row as last known. `state` follows the table in `states`. `settled` is done when the state
    is SETTLED or LET_GO. `repeats` counts how often the same message was submitted again, `callers` how many
    requests of an API wait for the answer.

    Events are numbered from 1. A follower that comes late gets all of them from the beginning. Text that no
    follower has read yet is joined, so a long answer without followers stays a few strings.

    `began` and `asked_at` are set for a turn that was begun when it was accepted; `asked_at` is when its
    lease was asked for. `begins` counts how often this process began the turn, `losses` how often the turn
    lost its lease here. `steers` are the messages that joined it. `questions` and `delegates` are those that
    a parked turn waits for, by id. `below` has the last event about each delegate below it. `model` is the
    session's own (provider/name), once it is known. `completion` is the model's last answer, `steps` and
    `spent` are what led to it; they are set when a model has answered the turn here. `on_park` are called
    when the turn begins to wait, `on_hand_out` with delegates in the background. `is_resumed`: an earlier
    process began the turn, or this one had to begin it again, so the events may lack what the model said
    before."""

    _stream = 0

    def __init__(
        self,
        turn: Turn,
        clock: Clock,
        options: CallOptions = NO_OPTIONS,
        began: Began | None = None,
        asked_at: float = 0.0,
        *,
        feed: StateFeed | None = None,
    ) -> None:
        self.turn = turn
        self._feed = feed
        self.options = options
        self.began = began
        self.asked_at = asked_at
        self.model = ""
        self.completion: Completion | None = None
        self.steps: tuple[Step, ...] = ()
        self.spent = Spent()
        self.repeats = 0
        self.callers = 0
        self.begins = 0
        self.losses = 0
        self.steers: list[LiveTurn] = []
        self.questions: dict[QuestionId, Question] = {}
        self.delegates: dict[DelegateId, Delegate] = {}
        self.below: dict[DelegateId, DelegateChanged] = {}
        self.settled: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self.is_recorded = False
        self.on_park: Sequence[Callable[[LiveTurn], None]] = ()
        self.on_hand_out: Sequence[Callable[[LiveTurn, Sequence[Delegate]], None]] = ()
        self._clock = clock
        self.state = LiveState.QUEUED
        self._task: asyncio.Task[object] | None = None
        self._ran_seconds = 0.0  # in earlier runs
        self._running_since = 0.0
        self._events: list[Event | None] = []  # None: replaced by a later one
        self._read_up_to = 0
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._steering: asyncio.Future[None] | None = None
        self._parking: asyncio.Future[None] | None = None
        self._decided: set[QuestionId | DelegateId] = set()
        self.amending: asyncio.Task[bool] | None = None
        self.is_resumed = bool(turn.attempts and began is None)
        if self.is_resumed:
            self._events.append(Reset())

    @classmethod
    def recorded(cls, turn: Turn, clock: Clock) -> LiveTurn:
        """Return a turn that this process knows from its row only: SETTLED, or LET_GO if another process may
        have it. It has no events but the final one."""
        live = cls(turn, clock)
        live.is_recorded = True
        live._events.clear()
        live.state = LiveState.SETTLED if turn.state.is_final else LiveState.LET_GO
        live.settled.set_result(turn)
        return live

    # -- its state ------------------------------------------------------------------------------------------

    def _move(self, new: LiveState) -> None:
        check_move(self.state, new)
        if self.state is LiveState.RUNNING:
            self._ran_seconds = self.running_seconds()
        self.state = new
        if new is LiveState.RUNNING:
            self._running_since = self._clock.elapsed()
        if self._parking is not None and not self._parking.done():
            self._parking.set_result(None)

    def running_seconds(self) -> float:
        """Return for how long the turn was RUNNING here, and before as far as `add_seconds` tells."""
        if self.state is not LiveState.RUNNING:
            return self._ran_seconds
        return self._ran_seconds + self._clock.elapsed() - self._running_since

    def add_seconds(self, seconds: float) -> None:
        """Count time in which the turn ran before this process had it."""
        self._ran_seconds += seconds

    def start(self) -> None:
        """The turn is taken up, or has to be tried again. An order to end it stays in force."""
        if self.state is not LiveState.STARTING and self.state not in ENDING:
            self._move(LiveState.STARTING)

    def run(self, began: Began) -> None:
        """The turn was begun in the store. If it was stopped meanwhile, it is begun only to be ended."""
        if self.state not in ENDING:
            self._move(LiveState.RUNNING)
        self.began = None
        self.begins += 1
        was_running = self.turn.state is TurnState.RUNNING
        self.turn = msgspec.structs.replace(self.turn, state=TurnState.RUNNING, attempts=began.attempts)
        if not was_running:
            self._tell_state()

    def park(self, questions: Iterable[Question], delegates: Iterable[Delegate] = ()) -> None:
        """The turn waits for a person, or for delegates, unless each of `questions` was decided or has
        expired meanwhile, and each of `delegates` has ended."""
        self._move(LiveState.PARKED)
        self.turn = msgspec.structs.replace(self.turn, state=TurnState.WAITING)
        self._tell_state()
        self.questions = {question.id: question for question in questions}
        self.delegates = {delegate.id: delegate for delegate in delegates}
        if self._feed is not None and self._feed.listeners:
            for question in self.questions.values():
                self._feed.note(question_asked(self.turn, question))
        for tell in self.on_park:
            tell(self)
        self.resume_if_decided()

    def hand_out(self, delegates: Sequence[Delegate]) -> None:
        """The turn goes on while these delegates work in the background."""
        for tell in self.on_hand_out:
            tell(self, delegates)

    def decide(self, key: QuestionId | DelegateId) -> None:
        """The question was decided, or the delegate has ended, in the store. A turn that is not parked yet
        will find that out."""
        self._decided.add(key)
        self.resume_if_decided()

    def has_decided(self, key: QuestionId | DelegateId) -> bool:
        """Return whether `decide` was called for the question or the delegate."""
        return key in self._decided

    def resume_if_decided(self) -> None:
        """Start a parked turn again if nothing that it waits for is open any more."""
        if self.state is not LiveState.PARKED:
            return
        now, decided = self._clock.now(), self._decided
        questions = (each for key, each in self.questions.items() if key not in decided)
        delegates = (each for key, each in self.delegates.items() if key not in decided)
        waits: list[Question | Delegate] = [*questions, *delegates]
        if not any(each.is_open(now) for each in waits):
            self._move(LiveState.STARTING)

    @property
    def decisions(self) -> int:
        """How many decisions about its questions, and ends of its delegates, this process knows."""
        return len(self._decided)

    def open_questions(self) -> list[Question]:
        """Return the questions that a parked turn waits for and that can be decided now."""
        if self.state is not LiveState.PARKED:
            return []
        now, decided = self._clock.now(), self._decided
        return [item for key, item in self.questions.items() if key not in decided and item.is_open(now)]

    def waits_for(self) -> str:
        """Return what a parked turn waits for, in a sentence for those who wait behind it; else ''."""
        if not (asked := self.open_questions()):
            if self.state is not LiveState.PARKED or not self.delegates:
                return ""
            return "This waits until the delegates of the message before it have ended. /agents lists them."
        what = name_question(asked[0])
        if asked[0].kind is QuestionKind.ANSWER:
            return f"This waits until a question is answered: {what}"
        return f"This waits for a decision: {what} — /approve or /deny decides, /stop drops it."

    async def unparked(self) -> None:
        """Wait while the turn is parked. Several tasks may wait."""
        while self.state is LiveState.PARKED:
            if self._parking is None or self._parking.done():
                self._parking = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._parking,))

    def interrupt(self, state: LiveState) -> bool:
        """Stop the turn from outside, for the reason that `state` names, and cancel the task that runs it.

        Return False if the table has no such move: the turn is over, or was interrupted before.
        """
        assert state in INTERRUPTIONS
        if state not in MOVES[self.state]:
            return False
        is_first = self.state not in INTERRUPTIONS
        self._move(state)
        if is_first and self._task is not None:
            self._task.cancel()
        return True

    def stop(self) -> bool:
        """Stop the turn because a person wants it. See `interrupt`."""
        return self.interrupt(LiveState.STOPPING)

    def lose(self) -> None:
        """The session's lease was lost. See `interrupt`."""
        self.losses += self.interrupt(LiveState.LOST)

    def hold_task(self, task: asyncio.Task[object] | None) -> None:
        """From now on `interrupt` cancels `task`; with None it cancels nothing."""
        self._task = task

    def settle(self, turn: Turn) -> None:
        """The turn is over: `turn` is its row as committed. Followers get the final event."""
        self._move(LiveState.SETTLED)
        self.turn = turn
        self.settled.set_result(turn)
        self.emit(final_event(turn))
        self._tell_state()

    def let_go(self) -> None:
        """This process does nothing more with the turn. Followers are told nothing more."""
        self._move(LiveState.LET_GO)
        self.settled.set_result(self.turn)
        self._wake()

    def pass_on(self) -> None:
        """This process does nothing more with the turn, and another one has it. Followers wait for `end`."""
        self._move(LiveState.LET_GO)

    def end(self, turn: Turn) -> None:
        """The turn that was passed on is over, or is not followed any more."""
        self.turn = turn
        self.settled.set_result(turn)
        if turn.state.is_final:
            self.emit(final_event(turn))
        self._wake()

    def _tell_state(self) -> None:
        if self._feed is not None and self._feed.listeners:
            self._feed.tell(self)

    # -- its events -----------------------------------------------------------------------------------------

    @property
    def stream(self) -> int:
        """A random number from 2 to 999,999. The numbers of events mean something within one object only,
        and this tells it from others for the same turn, in this process and in others."""
        if not self._stream:
            self._stream = 2 + secrets.randbelow(_MOST_STREAM - 1)
        return self._stream

    def emit(self, event: Event) -> None:
        events = self._events
        last = events[-1] if len(events) > self._read_up_to else None
        if last is not None and (merged := merge_events(last, event)) is not None:
            events[-1] = merged
            return
        events.append(event)
        if self._waiters:
            self._wake()

    def emit_below(self, event: DelegateChanged) -> None:
        """Emit what a delegate below the turn does now. It takes the place of the last event about the same
        delegate, so hours of them stay one."""
        if (old := self.below.get(event.delegate_id)) is not None:
            number = next(n for n in range(len(self._events) - 1, -1, -1) if self._events[n] is old)
            self._events[number] = event if number >= self._read_up_to else None
        self.below[event.delegate_id] = event
        if old is None or self._events[number] is None:
            self.emit(event)

    def repeat(self, event: Event) -> None:
        """Emit an event that was read from the stream of the process that has the turn."""
        if isinstance(event, DelegateChanged):
            self.emit_below(event)
        else:
            self.emit(event)

    def running_call(self) -> int | None:
        """Return the number of the event that began the tool call that runs; None if no call runs."""
        ended: set[str] = set()
        for number in range(len(self._events), 0, -1):
            event = self._events[number - 1]
            if isinstance(event, ToolFinished):
                ended.add(event.call_id)
            elif isinstance(event, ToolStarted):
                return None if event.call_id in ended else number
        return None

    def doing(self) -> str:
        """Return what the turn does now, in a line: what it waits for, the tool that runs, or the end of what
        the model says."""
        if self.state is LiveState.PARKED:
            return "waiting for a decision" if self.open_questions() else "waiting for its delegates"
        last = self._events[-1] if self._events else None
        if (number := self.running_call()) is not None:
            last = self._events[number - 1]
        if isinstance(last, ToolStarted):
            return describe_call(last.name, last.arguments)
        return clean_line(last.text.rstrip().rpartition("\n")[2], _LINE) if isinstance(last, Delta) else ""

    async def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, Event], None]:
        """Yield the events numbered above `after`, up to the final one. Leaving early costs nothing.

        Of a settled turn that is known from its row only, this is the final event; of a turn that this
        process let go, the events until then.
        """
        if self.is_recorded:
            if self.state is LiveState.SETTLED:
                yield after + 1, final_event(self.turn)
            return
        position = after
        while True:
            while position < len(self._events):
                event = self._events[position]
                position += 1
                self._read_up_to = max(self._read_up_to, position)
                if event is None:
                    continue
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

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    # -- messages that join it ------------------------------------------------------------------------------

    def steer(self, live: LiveTurn) -> None:
        """Let a message join this turn; it is settled with it."""
        self.steers.append(live)
        if self._steering is not None and not self._steering.done():
            self._steering.set_result(None)

    async def steered(self) -> None:
        """Wait until another message has joined."""
        waiter = self._steering = asyncio.get_running_loop().create_future()
        await waiter


class LiveTurns:
    """The turns of this process that are not over, by id. `on_park` are called with each turn that begins to
    wait for a person or for delegates."""

    def __init__(self, clock: Clock, metrics: Metrics, hooks: Hooks | None = None) -> None:
        self.clock = clock
        self.metrics = metrics
        self._hooks = hooks
        self._turns: dict[TurnId, LiveTurn] = {}
        self._observers: list[Callable[[LiveTurn], None]] = []
        self._followed: Callable[[Turn], LiveTurn] | None = None
        self._relay: Callable[[LiveTurn], None] | None = None
        self.feed = StateFeed(clock.now)
        self.on_park: list[Callable[[LiveTurn], None]] = []
        self.on_hand_out: list[Callable[[LiveTurn, Sequence[Delegate]], None]] = []

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[LiveTurn]:
        return iter(list(self._turns.values()))

    def observe(self, observer: Callable[[LiveTurn], None]) -> None:
        """Call `observer` with each turn that is opened from now on."""
        self._observers.append(observer)

    def accept(self, turn: Turn, options: CallOptions, began: Began | None, asked_at: float) -> LiveTurn:
        """Open a turn that was accepted by this process just now."""
        if self._hooks is not None:
            self._hooks.turn_accepted(turn)
        return self.open(turn, options, began, asked_at)

    def accept_elsewhere(self, turn: Turn) -> LiveTurn:
        """Return a turn that was accepted by this process just now, for another one."""
        if self._hooks is not None:
            self._hooks.turn_accepted(turn)
        return self.find(turn)

    def open(
        self,
        turn: Turn,
        options: CallOptions = NO_OPTIONS,
        began: Began | None = None,
        asked_at: float = 0.0,
    ) -> LiveTurn:
        live = self._turns[turn.id] = LiveTurn(turn, self.clock, options, began, asked_at, feed=self.feed)
        live.on_park = self.on_park
        live.on_hand_out = self.on_hand_out
        for observer in self._observers:
            observer(live)
        if self.feed.listeners:
            self.feed.tell(live)
        return live

    def get(self, turn_id: TurnId) -> LiveTurn | None:
        return self._turns.get(turn_id)

    def use_followed(
        self,
        find: Callable[[Turn], LiveTurn] | None,
        relay: Callable[[LiveTurn], None] | None = None,
    ) -> None:
        """Have `find` return the turns that are not over and that this process does not have. Have `relay`
        feed those that this process accepted and lets go, unless it shuts down."""
        self._followed = find
        self._relay = relay

    def stop_relaying(self) -> None:
        """Tell the followers of turns that are let go from now on nothing more."""
        self._relay = None

    def find(self, turn: Turn) -> LiveTurn:
        """Return the live turn of this row, or one that is fed from elsewhere or known from the row only."""
        if (live := self._turns.get(turn.id)) is not None:
            return live
        if self._followed is not None and not turn.state.is_final:
            return self._followed(turn)
        return LiveTurn.recorded(turn, self.clock)

    def settle(self, live: LiveTurn, turn: Turn) -> None:
        """The turn is over: `turn` is its row as committed. Followers keep the live turn until they have
        read its end."""
        waited = max(0.0, self.clock.now() - turn.accepted_at)
        self.metrics.turn_ended(turn.state, channel_of(turn.chat_key), waited)
        live.settle(turn)
        self._turns.pop(turn.id, None)
        if self._hooks is not None:
            self._hooks.turn_ended(turn)

    def let_go(self, live: LiveTurn) -> None:
        """This process does nothing more with the turn. No effect on a turn that is over."""
        if live.state.is_over:
            return
        self._turns.pop(live.turn.id, None)
        if self._relay is None:
            live.let_go()
        else:
            live.pass_on()
            self._relay(live)

    def running_in(self, chat_key: ChatKey) -> LiveTurn | None:
        """Return the chat's turn that is under way and that a model answers."""
        for live in self._turns.values():
            is_here = live.turn.chat_key == chat_key
            if is_here and live.state is not LiveState.QUEUED and asks_model(live.turn.command):
                return live
        return None

    def waiting_in(self, chat_key: ChatKey) -> int:
        """Return how many turns of the chat wait in its lane."""
        return sum(
            live.state is LiveState.QUEUED and live.turn.merged_into is None for live in self._of(chat_key)
        )

    def has_begun_behind(self, live: LiveTurn) -> bool:
        """Return whether a turn that another process began, and the store has as `waiting` or `running`, is
        queued behind `live`, in the same session.

        The session is held for that turn, so `live` has to make room for it.
        """
        return any(
            other.state is LiveState.QUEUED
            and other.turn.state in (TurnState.WAITING, TurnState.RUNNING)
            and other.turn.merged_into is None
            and other.turn.session_id == live.turn.session_id
            for other in self._of(live.turn.chat_key)
        )

    def _of(self, chat_key: ChatKey) -> Iterator[LiveTurn]:
        return (live for live in self._turns.values() if live.turn.chat_key == chat_key)


def final_event(turn: Turn) -> Event:
    """Return the last event of a settled turn."""
    match turn.state:
        case TurnState.DONE:
            return Done(turn.reply or "", turn.files)
        case TurnState.CANCELLED:
            return Cancelled(turn.reply or "")
        case _:
            assert turn.error is not None
            return Failed(turn.error)
