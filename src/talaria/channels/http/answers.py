"""Answers: whole ones, and streams of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from talaria.channels.http.calls import Call
from talaria.channels.http.errors import RawHeaders, Refused, error_body, status_of
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.observe.metrics import Metrics

JSON = b"application/json"
KEEP_ALIVE = b": keep-alive\n\n"
_STREAM: RawHeaders = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
_CLOSE = (b"connection", b"close")
_encode = msgspec.json.Encoder().encode


class Reply(Protocol):
    """What an endpoint returns."""

    @property
    def status(self) -> int: ...

    async def respond(self, call: Call) -> None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. When the caller still sends a body that nobody wants, its rest is read first."""

    body: bytes
    status: int = 200
    headers: RawHeaders = ()
    media_type: bytes = JSON

    async def respond(self, call: Call) -> None:
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", self.media_type),
            (b"content-length", b"%d" % len(self.body)),
            *self.headers,
        ]
        if call.is_read:
            await call.start(self.status, headers)
            await call.write(self.body, is_last=True)
            return
        headers.append(_CLOSE)
        await call.start(self.status, headers)
        await call.write(self.body, is_last=False)
        await call.discard()
        await call.write(b"", is_last=True)


def json_answer(value: Any, status: int = 200, headers: RawHeaders = ()) -> Answer:
    return Answer(_encode(value), status, headers)


def error_answer(error: ErrorInfo, status: int | None = None, headers: RawHeaders = ()) -> Answer:
    return Answer(error_body(error), status or status_of(error), headers)


def refusal(error: TalariaError) -> Answer:
    if isinstance(error, Refused):
        return error_answer(error.info(), error.status, error.headers)
    return error_answer(error.info())


class EventStream:
    """Server-sent events from `events`, with a comment whenever `keep_alive` seconds have passed.

    The headers leave with the first event or after `patience` seconds. An error that comes before both is
    raised and becomes a proper answer; one that comes later is told in the stream, as `tell` writes it. When
    the caller leaves, `events` is closed and `on_leave` awaited.
    """

    status = 200

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        keep_alive: float,
        metrics: Metrics,
        patience: float = 0.0,
        headers: RawHeaders = (),
        tell: Callable[[ErrorInfo], bytes] | None = None,
        on_leave: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._events = events
        self._keep_alive = keep_alive
        self._metrics = metrics
        self._patience = patience
        self._headers = headers
        self._tell = tell
        self._on_leave = on_leave

    async def respond(self, call: Call) -> None:
        with self._metrics.event_stream():
            await self._respond(call)

    async def _respond(self, call: Call) -> None:
        if self._patience <= 0:
            await self._open(call)
        pump = asyncio.create_task(self._pump(call), name="event stream")
        gone = asyncio.create_task(call.until_gone(), name="event stream's client")
        try:
            patience = self._keep_alive if call.has_started else self._patience
            while not (
                await asyncio.wait((pump, gone), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            )[0]:
                await self._open(call)
                await call.write(KEEP_ALIVE, is_last=False)
                patience = self._keep_alive
            if pump.done():
                pump.result()
            elif self._on_leave is not None:
                await self._on_leave()
        finally:
            pump.cancel()
            gone.cancel()
            await asyncio.wait((pump, gone))

    async def _pump(self, call: Call) -> None:
        end = b""
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    await self._open(call)
                    await call.write(data, is_last=False)
        except TalariaError as error:
            if self._tell is None or not call.has_started:
                raise
            end = self._tell(error.info())
        await self._open(call)
        await call.write(end, is_last=True)

    async def _open(self, call: Call) -> None:
        if not call.has_started:
            await call.start(self.status, [*_STREAM, *self._headers])


async def stay(call: Call, settled: asyncio.Future[Any], seconds: float | None) -> bool:
    """Wait for `settled`, at most `seconds`, while the caller is there. False: they left first."""
    gone = asyncio.create_task(call.until_gone(), name="waiting client")
    try:
        await asyncio.wait((settled, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return settled.done() or not gone.done()
    finally:
        gone.cancel()
        await asyncio.wait((gone,))
