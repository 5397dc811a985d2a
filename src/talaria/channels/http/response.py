"""HTTP responses: whole ones, files, and streams of server-sent events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from talaria.channels.http.request import ClientDisconnected, RawHeaders, Request
from talaria.cluster.signing import KEEP_ALIVE, LINES
from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.tasks import wait_future
from talaria.observe.metrics import Metrics

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
_STREAM_HEADERS: RawHeaders = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
_FILE_PIECE = 256 << 10
_encode = msgspec.json.Encoder().encode


class Response(msgspec.Struct, frozen=True):
    """A whole response."""

    body: bytes
    status: int = 200
    headers: RawHeaders = ()
    media_type: bytes = JSON

    async def send(self, request: Request) -> None:
        """Send the response. If the request's body was not read, discard it and close the connection."""
        headers: list[tuple[bytes, bytes]] = [
            (b"content-type", self.media_type),
            (b"content-length", b"%d" % len(self.body)),
            *self.headers,
        ]
        if request.is_read:
            await request.start_response(self.status, headers)
            await request.write(self.body, is_last=True)
            return
        headers.append((b"connection", b"close"))
        await request.start_response(self.status, headers)
        await request.write(self.body, is_last=False)
        if not request.is_overdue:
            await request.discard_body()
        await request.write(b"", is_last=True)


@dataclass(frozen=True, slots=True)
class FileResponse:
    """A file, or with `part` its first byte and length, read as fast as the client takes it. `send` closes
    it."""

    file: BinaryIO
    headers: RawHeaders = ()
    media_type: bytes = b"application/octet-stream"
    part: tuple[int, int] | None = None

    @property
    def status(self) -> int:
        return 200 if self.part is None else 206

    async def send(self, request: Request) -> None:
        try:
            whole = os.fstat(self.file.fileno()).st_size
            start, size = self.part or (0, whole)
            headers = [(b"content-type", self.media_type), (b"content-length", b"%d" % size), *self.headers]
            if self.part is not None:
                headers.append((b"content-range", b"bytes %d-%d/%d" % (start, start + size - 1, whole)))
                self.file.seek(start)
            await request.start_response(self.status, headers)
            left = 0 if request.method == "HEAD" else size
            while left > 0:
                if request.is_gone:
                    await request.wait_disconnect()
                    raise ClientDisconnected
                data = await asyncio.to_thread(self.file.read, min(left, _FILE_PIECE))
                if not data:  # shorter than it was
                    return
                left -= len(data)
                await request.write(data, is_last=False)
            await request.write(b"", is_last=True)
        finally:
            self.file.close()


def json_response(value: Any, status: int = 200, headers: RawHeaders = ()) -> Response:
    return Response(_encode(value) + b"\n", status, headers)


# -- streams ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """`keep_alive`: seconds between the comments in a silent stream. `header_delay`: seconds for which the
    stream of a completion holds its headers back, so that an early failure can still be an HTTP status."""

    keep_alive: float = 15.0
    header_delay: float = 5.0


DEFAULT_TIMING = StreamTiming()


class EventStream:
    """Server-sent events from `events`, with a comment whenever `keep_alive` seconds have passed.

    The headers are sent with the first event or after `header_delay` seconds. An error that comes before both
    is raised and becomes an ordinary error response; a later one is written into the stream by
    `format_error`. When the client leaves, `events` is closed and `on_disconnect` is awaited.
    """

    status = 200
    media_type = EVENT_STREAM
    comment = b": keep-alive\n\n"
    end_of_event = b"\n\n"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        keep_alive: float,
        metrics: Metrics,
        header_delay: float = 0.0,
        headers: RawHeaders = (),
        format_error: Callable[[ErrorInfo], bytes] | None = None,
        on_disconnect: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._events = events
        self._keep_alive = keep_alive
        self._metrics = metrics
        self._header_delay = header_delay
        self._headers = headers
        self._format_error = format_error
        self._on_disconnect = on_disconnect
        self._is_in_event = False  # the last piece was no whole event, or is still being written

    async def send(self, request: Request) -> None:
        with self._metrics.event_stream():
            if self._header_delay <= 0:
                await self._start(request)
            pump = asyncio.create_task(self._pump(request), name="event stream")
            ended = request.leaving()

            def end(_: object) -> None:
                if not ended.done():
                    ended.set_result(None)

            pump.add_done_callback(end)
            try:
                await self._keep_alive_until(request, ended)
                if pump.done():
                    pump.result()
                elif self._on_disconnect is not None:
                    await self._on_disconnect()
            finally:
                pump.cancel()
                await asyncio.wait((pump,))

    async def _keep_alive_until(self, request: Request, ended: asyncio.Future[None]) -> None:
        """Write comments until `ended` is done. None is written within an event, and none for a client that
        has not read what was written before: that has the same effect."""
        await wait_future(ended, self._keep_alive if request.has_started else self._header_delay)
        while not ended.done():
            if not self._is_in_event and request.can_write:
                await self._start(request)
                await request.write(self.comment, is_last=False)
            await wait_future(ended, self._keep_alive)

    async def _pump(self, request: Request) -> None:
        end = b""
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    self._is_in_event = True
                    await self._start(request)
                    await request.write(data, is_last=False)
                    self._is_in_event = not data.endswith(self.end_of_event)
                    data = b""  # noqa: PLW2901 - the next piece may be hours away
        except TalariaError as error:
            if self._format_error is None or not request.has_started:
                raise
            end = self._format_error(error.info())
        self._is_in_event = True
        await self._start(request)
        await request.write(end, is_last=True)

    async def _start(self, request: Request) -> None:
        if not request.has_started:
            media_type = (b"content-type", self.media_type)
            await request.start_response(self.status, [media_type, *_STREAM_HEADERS, *self._headers])
            request.forget_head()


class LineStream(EventStream):
    """A stream of lines of JSON for another member of the cluster. An empty line keeps it alive."""

    media_type = LINES
    comment = KEEP_ALIVE
    end_of_event = b"\n"


AnyResponse = Response | FileResponse | EventStream
