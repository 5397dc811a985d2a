"""HTTP responses: whole ones, errors, and streams of server-sent events."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
from msgspec import UNSET

from talaria.channels.http.openai_errors import LOG_HINT, is_openai_path, openai_error_body
from talaria.channels.http.request import ClientDisconnected, HttpError, RawHeaders, Request
from talaria.cluster.passed_events import KEEP_ALIVE, LINES
from talaria.core.errors import EmptyAnswer, ErrorInfo, NotFound, Overloaded, TalariaError
from talaria.core.turns import Turn, TurnState
from talaria.observe.metrics import Metrics

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
_STREAM_HEADERS: RawHeaders = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
_FILE_PIECE = 256 << 10
_MOST_RETRY_AFTER = 3600.0  # seconds
STATUS: Mapping[str, int] = {
    "bad_request": 400,
    "context_too_long": 400,
    "unclear_schedule": 400,
    "unauthorized": 401,
    "bad_code": 401,
    "over_budget": 402,
    "forbidden": 403,
    "wrong_origin": 403,
    "not_our_page": 403,
    "token_needed": 403,
    "not_found": 404,
    "wrong_method": 405,
    "timeout": 408,
    "busy": 409,
    "too_little_memory": 409,
    "lease_held": 409,
    "not_current": 409,
    "cancelled": 409,
    "question_closed": 409,
    "head_moved": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "no_such_range": 416,
    "wrong_host": 421,
    "idempotency_conflict": 422,
    "too_many_tries": 429,
    "limit": 429,
    "head_too_large": 431,
    "internal": 500,
    "model": 502,
    "model_refused": 502,
    "answer_too_large": 502,
    "no_model": 503,
    "model_resting": 503,
    "model_unavailable": 503,
    "answer_memory_full": 503,
    "draining": 503,
    "overloaded": 503,
    "store": 503,
    "store_locked": 503,
    "store_damaged": 503,
    "store_gone": 503,
    "stale_fence": 503,
}  # by the type of the error; a type that is not here is 500
# A provider's status that is about the request, or says when to ask again, is the caller's to know. Its 401
# and 403 are about the gateway's own key.
PASSED_ON = frozenset({400, 402, 404, 413, 422, 429})
# The status of a turn that failed after its tools ran. No client sends a request again after this one; some
# do so after 409, 429 and 5xx.
NOT_AGAIN = 424
_QUOTA = "insufficient_quota"
_INTERNAL = ErrorInfo(
    "internal",
    "Something went wrong inside the gateway.",
    "The gateway's log has the details; please report it.",
)
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


# -- errors -----------------------------------------------------------------------------------------------


def error_response(error: Exception, *, is_openai: bool = False) -> Response:
    """Return `{"error": {"type", "message", "hint"}}`, with `is_openai` the form of `openai_errors`.

    An error that is not ours is 500 without its text.
    """
    info = error.info() if isinstance(error, TalariaError) else _INTERNAL
    headers: RawHeaders = error.headers if isinstance(error, HttpError) else ()
    wait = error.retry_after if isinstance(error, Overloaded) else info.retry_after
    status = (error.status if isinstance(error, HttpError) else None) or status_of(info)
    if wait is not UNSET and status in (429, 503):
        headers = (*headers, (b"retry-after", b"%d" % math.ceil(min(max(wait, 1.0), _MOST_RETRY_AFTER))))
    body = openai_error_body(info) if is_openai else error_body(info)
    return Response(body + b"\n", status, headers)


def status_of(error: ErrorInfo) -> int:
    """Return the status of the response with this error."""
    if error.status is not UNSET and error.status in PASSED_ON:
        return error.status
    if error.code == _QUOTA and error.type == "model_refused":
        return 429
    return STATUS.get(error.type, 500)


def error_body(error: ErrorInfo) -> bytes:
    """Return `{"error": {…}}`, without a line end."""
    return _encode({"error": ErrorInfo(error.type, error.message, error.hint or LOG_HINT)})


def nothing_at(request: Request) -> NotFound:
    """Return the error for an unknown path. A client of `/v1` whose base URL lacks it is told so."""
    hint = "docs/http-api.md lists what there is."
    if is_openai_path(request.path) and not request.path.startswith("/v1/"):
        host = request.header(b"host") or "HOST"
        hint = f"The base URL of OpenAI's clients ends in /v1 here: set base_url to http://{host}/v1."
    elif request.path.startswith("/v1/v1/"):
        hint = "The path has /v1 twice: leave it out of the path, or out of the base URL."
    elif request.path.startswith("/v1/"):
        hint = "Here are chat/completions, responses and models; embeddings, audio, images are not offered."
    return NotFound(f"There is nothing at {request.path}.", hint)


def turn_error(turn: Turn, headers: RawHeaders) -> HttpError | None:
    """Return the reason why a turn has no answer, or None if it has one, which may be empty.

    The error is final, so clients that retry by themselves are told not to.
    """
    match turn.state:
        case TurnState.DONE:
            return None
        case TurnState.FAILED:
            error = turn.error or _INTERNAL
            if error.type == EmptyAnswer.type:
                return None
        case TurnState.CANCELLED:
            error = ErrorInfo("cancelled", f"The turn {turn.id} was cancelled.", "Send the message again.")
        case _:
            error = ErrorInfo(
                "draining",
                f"The gateway is shutting down and left the turn {turn.id} unfinished.",
                f"The next start takes it up; GET /api/turns/{turn.id} has its answer then.",
            )
    return HttpError.told(error, (*headers, (b"x-should-retry", b"false")))


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
            gone = asyncio.create_task(request.wait_disconnect(), name="event stream's client")
            try:
                await self._keep_alive_until(request, pump, gone)
                if pump.done():
                    pump.result()
                elif self._on_disconnect is not None:
                    await self._on_disconnect()
            finally:
                pump.cancel()
                gone.cancel()
                await asyncio.wait((pump, gone))

    async def _keep_alive_until(self, request: Request, *tasks: asyncio.Task[None]) -> None:
        """Write comments until one of the tasks is done. None is written within an event, and none for a
        client that has not read what was written before: that has the same effect."""
        timeout = self._keep_alive if request.has_started else self._header_delay
        while not (await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED))[0]:
            timeout = self._keep_alive
            if not self._is_in_event and request.can_write:
                await self._start(request)
                await request.write(self.comment, is_last=False)

    async def _pump(self, request: Request) -> None:
        end = b""
        try:
            async with aclosing(self._events) as events:
                async for data in events:
                    self._is_in_event = True
                    await self._start(request)
                    await request.write(data, is_last=False)
                    self._is_in_event = not data.endswith(self.end_of_event)
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


class LineStream(EventStream):
    """A stream of lines of JSON for another member of the cluster. An empty line keeps it alive."""

    media_type = LINES
    comment = KEEP_ALIVE
    end_of_event = b"\n"


AnyResponse = Response | FileResponse | EventStream
