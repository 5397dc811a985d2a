"""Messages and turns: `POST …/messages`, and `/api/turns` with the events of a turn as they happen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

import msgspec

from talaria.channels.http.request import ClientDisconnected, Request, quoted, read_number
from talaria.channels.http.response import EventStream, Response, StreamTiming, json_response
from talaria.channels.http.settings import HttpSettings
from talaria.commands.slash import asks_model
from talaria.core.errors import BadRequest
from talaria.core.events import EVENT_NAMES, FINAL_EVENTS, Cancelled, Done, Event, Reset
from talaria.core.ids import TurnId
from talaria.core.messages import Part, Text
from talaria.core.spending import Spent
from talaria.core.tasks import wait_future
from talaria.core.turns import Inbound, Turn, TurnState
from talaria.gateway import Gateway
from talaria.operations.sessions import SessionLookup
from talaria.operations.turn_views import (
    AcceptedTurn,
    StepView,
    TurnView,
    no_such_turn,
)
from talaria.turns.live import LiveTurn

MAX_LISTED: Final = 200  # turns
_MAX_WAIT: Final = 3600.0
_SECONDS: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}")
# Most turns of quick models are over by then, and watching for a disconnect costs a task.
_UNWATCHED: Final = 0.05
_LAST_EVENT: Final = 1_000_000_000  # the number of the last event of every turn
_PIECE: Final = 32 << 10  # characters of a reply that are encoded at once
_NO_REPLY: Final = b'"reply":""'
_encode = msgspec.json.Encoder().encode


class MessageBody(msgspec.Struct):
    text: str = ""
    files: list[str] = []
    model: str | None = None


class TurnApi:
    def __init__(self, gateway: Gateway, settings: HttpSettings, timing: StreamTiming) -> None:
        self._gateway = gateway
        self._is_member = gateway.peers is not None
        self._turns = gateway.turns
        self._max_body = settings.max_body
        self._keep_alive = timing.keep_alive
        self._lookup = SessionLookup(gateway)

    async def send(self, request: Request) -> Response:
        """Answer 202 once the message is durable; with `?wait=` 200 and the turn, if it ends in time."""
        seconds = _read_wait(request)
        key = request.idempotency_key()
        message = await request.json(MessageBody, self._max_body)
        if not (message.text.strip() or message.files):
            raise BadRequest("The field `text` is empty.", "Write something, or name `files`.")
        chat = await self._lookup.chat(request.params["x"], request.call)
        parts: tuple[Part, ...] = (Text(message.text),) if message.text.strip() else ()
        if message.files:
            parts += await self._gateway.uploads.parts(chat, message.files, request.caller.uploader)
        live = await self._turns.submit(
            Inbound(chat, request.caller.sender, parts, key, message.model or None)
        )
        turn = live.turn
        if seconds > 0:
            turn = await wait_for_turn(request, live, seconds)
            if turn.state.is_final:
                return json_response(await self._view(live, turn))
        return json_response(AcceptedTurn(turn.id, turn.session_id, turn.state), 202)

    async def events(self, request: Request) -> EventStream | Response:
        """A client that leaves stops nothing; with `Last-Event-ID` it gets the events after that one. If that
        was the last event, the answer is 204, which keeps a browser from asking again."""
        after = read_last_event(request)
        live = await self._find(request)
        has_seen_end = after == _LAST_EVENT if self._is_member else after >= _LAST_EVENT
        if has_seen_end and live.turn.state.is_final:
            return Response(b"", 204)
        if live.is_recorded:  # read for this client alone; a turn that runs is shared by all followers
            request.hold(len(live.turn.reply or ""))
        events = self._stream(live, after)
        return EventStream(events, keep_alive=self._keep_alive, metrics=self._gateway.metrics)

    async def _find(self, request: Request) -> LiveTurn:
        """Raise `NotFound` for a turn that does not exist or that the caller may not see."""
        turn_id = TurnId(request.params["id"])
        live = await self._turns.find(turn_id)
        if not request.call.sees(live.turn.chat_key):
            raise no_such_turn(turn_id)
        return live

    async def _stream(self, live: LiveTurn, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the events whose ids are above `after`.

        The id of an event is its number in this process. After a restart numbers begin again at 1, and a
        resumed turn starts with `reset`: then `after` is ignored, and all events follow. In a cluster an id
        also says which gateway has counted: its `stream` is in the digits above the number. A client whose
        `after` was counted by another gateway gets `reset` before all events. The last event of every turn
        has the same id.
        """
        if live.is_recorded:
            async for data in self._recorded_end(live, after):
                yield data
            return
        base = live.stream * _LAST_EVENT if self._is_member else 0
        if base and after and after // _LAST_EVENT != live.stream:
            after = 0
            for data in _encode_event(base, Reset()):
                yield data
        async with aclosing(live.follow()) as events:
            async for number, event in events:
                if number == 1 and isinstance(event, Reset):
                    after = 0
                event_id = _LAST_EVENT if isinstance(event, FINAL_EVENTS) else base + number
                if event_id > after:
                    for data in _encode_event(event_id, event):
                        yield data

    async def _recorded_end(self, live: LiveTurn, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the last event of a turn that is known from its row only, if the turn is over. If the turn
        was begun more than once, the events that the client has may be void."""
        turn = live.turn
        if not turn.state.is_final:
            return
        if after and turn.attempts > 1:
            after += 1
            for data in _encode_event(after, Reset()):
                yield data
        async for _, event in self._turns.follow(live, after):
            for data in _encode_event(_LAST_EVENT, event):
                yield data

    async def _view(self, live: LiveTurn, turn: Turn) -> TurnView:
        """Return a settled turn. The store is asked only for times of tool calls, which are not in memory."""
        if not asks_model(turn.command):
            return TurnView.of(turn, (), Spent())
        if turn.state is TurnState.DONE and len(live.steps) == 1:
            return TurnView.of(turn, (StepView.of(live.steps[0]),), live.spent)
        record = await self._gateway.store.turn_record(turn.id)
        if record is None:  # a message that came again, of a session that was deleted
            return TurnView.of(turn, (), Spent())
        return TurnView.recorded(record)


async def wait_for_turn(request: Request, live: LiveTurn, seconds: float | None = None) -> Turn:
    """Return the turn once it is settled, or as it is after `seconds`.

    Raises `ClientDisconnected` if the client leaves first; the turn continues.
    """
    settled = live.settled
    if not settled.done():
        await wait_future(settled, _UNWATCHED if seconds is None else min(seconds, _UNWATCHED))
    if settled.done() or (seconds is not None and seconds <= _UNWATCHED):
        return live.turn
    left = None if seconds is None else seconds - _UNWATCHED
    gone = asyncio.create_task(request.wait_disconnect(), name="waiting client")
    try:
        await asyncio.wait((settled, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not settled.done():
            raise ClientDisconnected
    finally:
        gone.cancel()
        await asyncio.wait((gone,))
    return live.turn


def _encode_event(event_id: int, event: Event) -> Iterator[bytes]:
    """Yield an event in pieces. Each follower gets the whole reply again with the last event, so a long reply
    is encoded as far as the follower reads."""
    head = b"id: %d\nevent: %b\ndata: " % (event_id, EVENT_NAMES[type(event)].encode())
    if not isinstance(event, (Done, Cancelled)) or len(event.reply) <= _PIECE:
        yield b"%b%b\n\n" % (head, _encode(event))
        return
    # The event is encoded without its reply, whose pieces are put between the quotes.
    before, _, after = _encode(msgspec.structs.replace(event, reply="")).partition(_NO_REPLY)
    yield head + before + _NO_REPLY[:-1]
    for start in range(0, len(event.reply), _PIECE):
        yield _encode(event.reply[start : start + _PIECE])[1:-1]
    yield b'"%b\n\n' % after


def read_last_event(request: Request) -> int:
    return read_number("Last-Event-ID", request.header(b"last-event-id") or "0")


def _read_wait(request: Request) -> float:
    given = request.query().get("wait")
    if given is None:
        return 0.0
    if _SECONDS.fullmatch(given) is None:
        raise BadRequest(f"wait={quoted(given)} is no number of seconds.", "Write for example ?wait=30.")
    return min(float(given), _MAX_WAIT)
