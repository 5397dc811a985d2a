"""`GET /api/events`: the states of all turns that the caller may see, as they change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final, Self

import msgspec

from talaria.channels.http.request import Request
from talaria.channels.http.response import EVENT_STREAM, EventStream, Response, StreamTiming
from talaria.channels.http.turn_api import MAX_LISTED, read_last_event
from talaria.core.errors import ErrorInfo
from talaria.core.ids import ChatKey, SessionId, TurnId, channel_of
from talaria.core.messages import TokenUsage
from talaria.core.text import clean_line
from talaria.core.turns import Turn, TurnState
from talaria.gateway import Gateway
from talaria.turns.feed import TurnChange

_encode = msgspec.json.Encoder().encode
_LINE: Final = 80  # characters of a message
_PAGE: Final = 32  # changes that are written at once
_COMMIT_SECONDS: Final = 30.0  # between the recorded end of a turn and its being told, at most


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


class FeedApi:
    def __init__(self, gateway: Gateway, timing: StreamTiming) -> None:
        self._gateway = gateway
        self._timing = timing

    async def events(self, request: Request) -> EventStream | Response:
        """Begins with the turns that are not over. With `Last-Event-ID`, turns that have ended since that
        event come first. Ends when the gateway has drained its turns."""
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
        with live.feed.listen(sees, gateway.limits) as listener:
            if since:
                async for data in self._ended_since(since, within):
                    yield data
            now = gateway.clock.now()
            open_turns = [
                TurnChange.of(each.turn, now, each.model, each.spent)
                for each in live
                if sees(each.turn.chat_key)
            ]
            known = {change.id for change in open_turns}
            for change in live.feed.elsewhere:
                if change.id not in known and sees(change.chat_key):
                    open_turns.append(change)
            for data in _pages(open_turns):
                yield data
            yield _event(now, "ready", FeedReady(len(open_turns)))
            while changes := await listener.take():
                if listener.missed:
                    yield _event(gateway.clock.now(), "lagged", FeedLagged(listener.missed))
                    listener.missed = 0
                for data in _pages(changes):
                    yield data

    async def _ended_since(self, since: float, within: str) -> AsyncGenerator[bytes, None]:
        histories, since = self._gateway.store.histories, since - _COMMIT_SECONDS
        turns = await histories.recent(MAX_LISTED, within)
        if len(turns) == MAX_LISTED and turns[-1].accepted_at > since:
            yield _event(since, "lagged", FeedLagged(None))
        for turn in reversed(turns):
            if turn.state.is_final and (turn.ended_at or 0.0) >= since:
                yield _told(await self._recorded(turn))

    async def _recorded(self, turn: Turn) -> TurnChange:
        """Return the last change of a turn that is over."""
        at = turn.ended_at or turn.accepted_at
        history = await self._gateway.store.histories.history(turn.id)
        if history is None or not history.usage:
            return TurnChange.of(turn, at)
        last = history.usage[-1]
        return TurnChange.of(turn, at, f"{last.provider}/{last.model}", history.record.spent)


def _pages(changes: Iterable[TurnChange]) -> Iterable[bytes]:
    """Yield the events in pieces of bounded size."""
    page: list[bytes] = []
    for change in changes:
        page.append(_told(change))
        if len(page) == _PAGE:
            yield b"".join(page)
            page.clear()
    if page:
        yield b"".join(page)


def _told(change: TurnChange) -> bytes:
    return _event(change.at, change.state.value, FeedTurn.of(change))


def _event(at: float, name: str, data: msgspec.Struct) -> bytes:
    """The id is the time in milliseconds, so it means the same to the next process."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (int(at * 1000), name.encode(), _encode(data))
