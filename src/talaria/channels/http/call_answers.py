"""The answer to a call under `/v1`, whole or as a stream, once its turn is accepted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

from talaria.channels.http.request import ClientDisconnected, HttpError, RawHeaders, Request
from talaria.channels.http.response import EventStream, Response, StreamTiming
from talaria.channels.http.retries import failure_of
from talaria.channels.http.turn_api import wait_for_turn
from talaria.commands.slash import asks_model
from talaria.core.errors import ErrorInfo
from talaria.core.events import Delta, Event, ReasoningDelta, Reset, ToolStarted, UsageReported
from talaria.core.messages import AssistantMessage, TokenUsage
from talaria.core.turns import Turn
from talaria.core.wrapped_calls import inner_call
from talaria.gateway import Gateway
from talaria.turns.intake import is_ephemeral
from talaria.turns.live import LiveTurn


class StreamEncoder(Protocol):
    """Encodes the stream of one answer."""

    def encode(self, event: Event) -> bytes:
        """Return the piece for an event of the turn, or nothing."""
        ...

    def fail(self, error: ErrorInfo, turn: Turn) -> bytes:
        """Return the end of a stream that fails after its status was sent."""
        ...


class CallAnswers:
    def __init__(self, gateway: Gateway, timing: StreamTiming) -> None:
        self._turns = gateway.turns
        self._store = gateway.store
        self._metrics = gateway.metrics
        self._timing = timing

    async def answer(
        self,
        request: Request,
        live: LiveTurn,
        encoder: StreamEncoder | None,
        finish: Callable[[], Awaitable[bytes]],
        *,
        is_stateless: bool,
    ) -> Response | EventStream:
        """Return the answer of a turn. With an `encoder` it is a stream, whose end `finish` returns; without
        one `finish` returns the whole of it. `finish` is called when the turn is done.

        Raises `HttpError` if the turn has no answer. A stateless call is cancelled when the last client that
        waits for it leaves. The turn of a session goes on.
        """
        live.callers += 1

        async def leave() -> None:
            live.callers -= 1
            if is_stateless and not live.callers:
                await self._turns.cancel(live)

        headers = (
            (b"x-talaria-session-id", live.turn.session_id.encode()),
            (b"x-talaria-turn-id", live.turn.id.encode()),
        )
        if encoder is not None:
            return EventStream(
                self._stream(live, encoder, finish, headers),
                keep_alive=self._timing.keep_alive,
                metrics=self._metrics,
                header_delay=self._timing.header_delay,
                headers=headers,
                format_error=lambda error: encoder.fail(error, live.turn),
                on_disconnect=leave,
            )
        try:
            turn = await wait_for_turn(request, live)
        except ClientDisconnected:
            await leave()
            raise
        if (error := await failure_of(self._store, turn, headers)) is not None:
            raise error
        return Response(await finish(), headers=headers)

    async def _stream(
        self,
        live: LiveTurn,
        encoder: StreamEncoder,
        finish: Callable[[], Awaitable[bytes]],
        headers: RawHeaders,
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.events(live)) as events:
            async for _, event in events:
                if data := encoder.encode(event):
                    yield data
        if (error := await failure_of(self._store, live.turn, headers)) is not None:
            raise error
        yield await finish()

    def events(self, live: LiveTurn) -> AsyncGenerator[tuple[int, Event], None]:
        """Return the events of a turn. If this process has not seen all of a session's turn, they come from
        its log, when the turn is over. The same holds from a `Reset` on, without what was told before it."""
        if is_ephemeral(live.turn):
            return live.follow()
        return self._replay(live) if live.is_recorded or live.is_resumed else self._follow(live)

    async def _follow(self, live: LiveTurn) -> AsyncGenerator[tuple[int, Event], None]:
        told = _Told()
        async with aclosing(live.follow()) as events:
            async for number, event in events:
                if isinstance(event, Reset):
                    break
                told.add(event)
                yield number, event
            else:
                return
        async with aclosing(self._replay(live)) as events:
            async for number, event in events:
                if (rest := told.rest_of(event, live.turn)) is not None:
                    yield number, rest

    async def _replay(self, live: LiveTurn) -> AsyncGenerator[tuple[int, Event], None]:
        turn = await self._turns.wait(live)
        if not asks_model(turn.command):
            return
        for entry in await self._store.turn_log(turn.session_id, turn.id):
            said = entry.body
            if isinstance(said, AssistantMessage):
                if thought := "".join(thought.text for thought in said.reasoning):
                    yield entry.seq, ReasoningDelta(thought)
                if said.text:
                    yield entry.seq, Delta(said.text)
                yield entry.seq, UsageReported(TokenUsage(), said.model)  # the end of one answer
                for call in map(inner_call, said.tool_calls):
                    yield entry.seq, ToolStarted(call.id, call.name, call.arguments)


class _Told:
    """The texts of the model calls of one turn as a client was told them, since nothing can be taken back."""

    def __init__(self) -> None:
        self._texts: list[list[str]] = [[]]
        self._thoughts: set[int] = set()  # the calls of which reasoning was told
        self._at = 0  # the call that is replayed

    def add(self, event: Event) -> None:
        match event:
            case Delta(text=text):
                self._texts[-1].append(text)
            case ReasoningDelta():
                self._thoughts.add(len(self._texts) - 1)
            case UsageReported():
                self._texts.append([])

    def rest_of(self, event: Event, turn: Turn) -> Event | None:
        """Return what the client does not know of an event of the log; None if it knows all of it.

        Raises `HttpError` if the turn says something else now than it did.
        """
        is_begun = self._at < len(self._texts)
        match event:
            case Delta(text=text) if is_begun:
                known = "".join(self._texts[self._at])
                if not text.startswith(known):
                    raise _begun_anew(turn)
                return Delta(text[len(known) :]) if len(text) > len(known) else None
            case ReasoningDelta() if self._at in self._thoughts:
                return None
            case UsageReported():
                self._at += 1
                return None if self._at < len(self._texts) else event
        return event


def _begun_anew(turn: Turn) -> HttpError:
    return HttpError(
        "stale_fence",
        "The answer was begun anew, because its gateway or its lease was lost, and it differs from what was "
        "sent before.",
        f"GET /api/turns/{turn.id} has the whole answer.",
    )
