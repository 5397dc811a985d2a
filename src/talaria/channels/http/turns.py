"""`/api/turns`: what became of a message, its events as they happen, and stopping it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from talaria.channels.http.answers import EventStream, Reply, json_answer, stay
from talaria.channels.http.calls import Call
from talaria.channels.http.errors import ClientGone
from talaria.channels.http.parts import HttpParts
from talaria.channels.http.story import StoryDesk
from talaria.channels.http.views import StepView, TurnView
from talaria.commands.slash import asks_model
from talaria.core.errors import BadRequest, NotFound
from talaria.core.events import EVENT_NAMES, FINAL_EVENTS, Event, Reset
from talaria.core.ids import TurnId
from talaria.core.spending import Spent
from talaria.core.turns import Turn, TurnState
from talaria.turns.intake import Receipt
from talaria.turns.live import LiveTurn

_encode = msgspec.json.Encoder().encode

# Most turns of quick models are over by then, and watching whether the caller leaves costs a task.
UNWATCHED: Final = 0.05


class TurnDesk:
    """Waiting for turns and showing them, for every route that does."""

    def __init__(self, parts: HttpParts) -> None:
        self._turns = parts.turns
        self._store = parts.store

    async def wait(self, call: Call, receipt: Receipt, seconds: float | None = None) -> Turn:
        """The turn when it is settled, or as it is after `seconds`. Raises `ClientGone`; stops nothing."""
        brief = UNWATCHED if seconds is None else min(seconds, UNWATCHED)
        turn = await self._turns.wait(receipt, brief)
        live = receipt.live
        if live is None or live.settled.done() or brief == seconds:
            return turn
        if not await stay(call, live.settled, None if seconds is None else seconds - brief):
            raise ClientGone
        return live.turn

    async def view(self, receipt: Receipt, turn: Turn) -> TurnView:
        """A turn that was waited for. The ledger is asked only for what is not known here: when tools ran."""
        answer = receipt.live.answer if receipt.live is not None else None
        if not asks_model(turn.command):
            return TurnView.of(turn, (), Spent())
        if answer is not None and turn.state is TurnState.DONE and len(answer.steps) == 1:
            return TurnView.of(turn, (StepView.of(answer.steps[0]),), answer.spent)
        return await self.recorded(turn.id)

    async def recorded(self, turn_id: TurnId) -> TurnView:
        """A turn as the ledger has it. Raises `NotFound`."""
        story = await self._store.turn_record(turn_id)
        if story is None:
            raise NotFound(f"There is no turn {turn_id}.", "Check the id; old turns may have been pruned.")
        return TurnView.of(story.turn, tuple(map(StepView.of, story.steps)), story.spent)


class TurnRoutes:
    def __init__(self, parts: HttpParts, desk: TurnDesk) -> None:
        self._parts = parts
        self._desk = desk
        self._stories = StoryDesk(parts.histories)

    async def show(self, call: Call) -> Reply:
        """The id may be any name of the turn; see `Histories.find`."""
        return json_answer(await self._stories.tell(call.path("id")))

    async def cancel(self, call: Call) -> Reply:
        receipt = await self._parts.turns.find(TurnId(call.path("id")))
        turn = await self._parts.turns.cancel(receipt)
        return json_answer(await self._desk.recorded(turn.id))

    async def events(self, call: Call) -> Reply:
        """Leaving stops nothing; coming back with `Last-Event-ID` goes on behind it."""
        after = _read_last_event(call)
        receipt = await self._parts.turns.find(TurnId(call.path("id")))
        return EventStream(
            self._stream(receipt, after), keep_alive=self._parts.keep_alive, metrics=self._parts.metrics
        )

    async def _stream(self, receipt: Receipt, after: int) -> AsyncGenerator[bytes, None]:
        """Numbers are counted per process. A resumed turn's first event is `reset`, and after it everything
        is told again, since a number from before the restart means nothing now."""
        if receipt.live is None:
            turn = receipt.turn
            if turn.state.is_final:
                if after and turn.attempts > 1:
                    after += 1
                    yield _event(after, Reset())
                async for number, event in self._parts.turns.follow(receipt, after):
                    yield _event(number, event)
            return
        async with following(receipt.live) as events:
            async for number, event in events:
                if number == 1 and isinstance(event, Reset):
                    after = 0
                if number > after or isinstance(event, FINAL_EVENTS):
                    yield _event(number, event)


def following(live: LiveTurn) -> aclosing[AsyncGenerator[tuple[int, Event], None]]:
    """The turn's events from the first on; who stops listening in the middle leaves nothing behind."""
    return aclosing(live.follow())


def _event(number: int, event: Event) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, EVENT_NAMES[type(event)].encode(), _encode(event))


def _read_last_event(call: Call) -> int:
    given = call.header(b"last-event-id") or "0"
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise BadRequest(f"Last-Event-ID {given!r} is no number.", "Send the id of the last event seen.")
    return int(given)
