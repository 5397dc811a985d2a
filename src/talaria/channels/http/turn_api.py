"""Messages and turns: `POST …/messages`, `/api/turns/ID/events` with the events of a turn, and `/api/events`
with the states of all turns."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Final, Self

import msgspec

from talaria.channels.http.part import HttpSettings
from talaria.channels.http.request import ClientDisconnected, Request, quoted, read_number
from talaria.channels.http.response import EVENT_STREAM, EventStream, Response, StreamTiming, json_response
from talaria.core.errors import BadRequest, ErrorInfo
from talaria.core.events import EVENT_NAMES, FINAL_EVENTS, Cancelled, Done, Event, Reset
from talaria.core.ids import ChatKey, SessionId, TurnId, channel_of
from talaria.core.messages import Part, Text, TokenUsage
from talaria.core.spending import Spent
from talaria.core.tasks import wait_future
from talaria.core.text import clean_line
from talaria.core.turns import Inbound, Turn, TurnState
from talaria.core.views import view_of
from talaria.gateway import Gateway
from talaria.operations.sessions import SessionLookup
from talaria.operations.turns import (
    AcceptedTurn,
    StepView,
    TurnView,
    no_such_turn,
)
from talaria.turns.feed import Change, RecordChange, TurnChange
from talaria.turns.live import LiveTurn
from talaria.turns.slash import asks_model

_MOST_RECENT: Final = 200  # turns that ended while a client of the feed was away
_MAX_WAIT: Final = 3600.0
_SECONDS: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}")
# Most turns of quick models are over by then, and watching for a disconnect costs a task.
_UNWATCHED: Final = 0.05
_LAST_EVENT: Final = 1_000_000_000  # the number of the last event of every turn
_PIECE: Final = 32 << 10  # characters of a reply that are encoded at once
_LINE: Final = 80  # characters of a message in the feed
_FEED_PAGE: Final = 32  # changes that are written at once
_COMMIT_SECONDS: Final = 30.0  # between the recorded end of a turn and its being told, at most
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
        async for _, event in live.follow(after):
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


# -- the states of all turns ------------------------------------------------------------------------------


class FeedTurn(msgspec.Struct, frozen=True):
    """The state of a turn at the time `at`. `text` is the beginning of its message. `model` (provider/name)
    is empty until it is known. `cost_usd` is an exact decimal, or null if it is not known."""

    id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    channel: str
    state: TurnState
    at: float
    accepted_at: float
    ended_at: float | None
    text: str
    model: str
    usage: TokenUsage | None
    cost_usd: str | None
    error: ErrorInfo | None

    @classmethod
    def of(cls, change: TurnChange) -> Self:
        return cls(
            change.id,
            change.session_id,
            change.chat_key,
            channel_of(change.chat_key),
            change.state,
            change.at,
            change.accepted_at,
            change.ended_at,
            clean_line(change.text, _LINE),
            change.model,
            change.usage,
            change.spent.cost_usd if change.spent.calls else None,
            change.error,
        )


class FeedReady(msgspec.Struct, frozen=True):
    """All turns that are not over were told. From here on changes follow as they happen."""

    turns: int


class FeedLagged(msgspec.Struct, frozen=True):
    """Changes were left out, because the client read too slowly or was away for too long. `missed` is their
    number, or None if it is not known."""

    missed: int | None


class FeedReset(msgspec.Struct, frozen=True):
    """Changes of sessions, questions and jobs may be missing: read their lists again."""


class FeedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a session, question, job or reply at the time `at`. `title` is that of a session;
    `decision` and `by` tell how a question was decided, and by which sender."""

    id: str
    chat_key: ChatKey
    channel: str
    at: float
    session_id: SessionId | None = None
    turn_id: TurnId | None = None
    title: str = ""
    decision: str = ""
    by: str = ""

    @classmethod
    def of(cls, change: RecordChange) -> Self:
        return view_of(cls, change, channel=channel_of(change.chat_key))


class FeedApi:
    def __init__(self, gateway: Gateway, timing: StreamTiming) -> None:
        self._gateway = gateway
        self._timing = timing

    async def events(self, request: Request) -> EventStream | Response:
        """Begins with the turns that are not over. With `Last-Event-ID`, turns that have ended since that
        event come first, and changes of records, or `reset`. Ends when the gateway has drained its turns."""
        since = read_last_event(request) / 1000
        if request.method == "HEAD":
            return Response(b"", media_type=EVENT_STREAM)
        within = request.caller.prefix(self._gateway.settings.agent.name)
        return EventStream(
            self._stream(request.caller.may_see, within, since),
            keep_alive=self._timing.keep_alive,
            metrics=self._gateway.metrics,
            header_delay=self._timing.header_delay,
        )

    async def _stream(
        self, sees: Callable[[ChatKey], bool], within: str, since: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events. Raises `Overloaded` if too many clients listen."""
        gateway, live = self._gateway, self._gateway.turns.live
        records = live.feed.records_since(since) if since else ()
        with live.feed.listen(sees, gateway.limits, wants_records=True) as listener:
            if records is None:
                yield _feed_event(since, "reset", FeedReset())
            for data in _pages(each for each in records or () if sees(each.chat_key)):
                yield data
            if since:
                async for data in self._ended_since(since, within):
                    yield data
            now = gateway.clock.now()
            open_turns = self._open_turns(sees, now)
            for data in _pages(open_turns):
                yield data
            yield _feed_event(now, "ready", FeedReady(len(open_turns)))
            del open_turns
            while changes := await listener.take():
                if listener.missed:
                    yield _feed_event(gateway.clock.now(), "lagged", FeedLagged(listener.missed))
                    listener.missed = 0
                for data in _pages(changes):
                    yield data
                changes, data = (), b""  # the next ones may be hours away, for thousands of listeners

    def _open_turns(self, sees: Callable[[ChatKey], bool], now: float) -> list[TurnChange]:
        live = self._gateway.turns.live
        found = [TurnChange.of(each.turn, now, each.model, each.spent) for each in live]
        known = {change.id for change in found}
        found += (change for change in live.feed.elsewhere if change.id not in known)
        return [change for change in found if sees(change.chat_key)]

    async def _ended_since(self, since: float, within: str) -> AsyncGenerator[bytes, None]:
        histories, since = self._gateway.store.histories, since - _COMMIT_SECONDS
        turns = await histories.recent(_MOST_RECENT, within)
        if len(turns) == _MOST_RECENT and turns[-1].accepted_at > since:
            yield _feed_event(since, "lagged", FeedLagged(None))
        for turn in reversed(turns):
            if turn.state.is_final and (turn.ended_at or 0.0) >= since:
                yield _encode_change(await self._recorded(turn))

    async def _recorded(self, turn: Turn) -> TurnChange:
        """Return the last change of a turn that is over."""
        at = turn.ended_at or turn.accepted_at
        history = await self._gateway.store.histories.history(turn.id)
        if history is None or not history.usage:
            return TurnChange.of(turn, at)
        last = history.usage[-1]
        return TurnChange.of(turn, at, f"{last.provider}/{last.model}", history.record.spent)


def _pages(changes: Iterable[Change]) -> Iterable[bytes]:
    """Yield the events in pieces of bounded size."""
    page: list[bytes] = []
    for change in changes:
        page.append(_encode_change(change))
        if len(page) == _FEED_PAGE:
            yield b"".join(page)
            page.clear()
    if page:
        yield b"".join(page)


def _encode_change(change: Change) -> bytes:
    if isinstance(change, RecordChange):
        return _feed_event(change.at, change.what, FeedRecord.of(change))
    return _feed_event(change.at, change.state.value, FeedTurn.of(change))


def _feed_event(at: float, name: str, data: msgspec.Struct) -> bytes:
    """The id is the time in milliseconds, so it means the same to the next process."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (int(at * 1000), name.encode(), _encode(data))
