"""uvicorn's HTTP protocol with bounds on what a client can send, and on how slowly it may send and read."""

from __future__ import annotations

import asyncio
import ipaddress
import select
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from talaria.channels.http.connections import ClientConnections
from talaria.channels.http.request import Message, Send, new_request_id
from talaria.channels.http.response import STATUS, error_body
from talaria.core.errors import ErrorInfo
from talaria.core.limits import Limits

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

_MAX_HEAD: Final = 64 << 10  # bytes of a head, and of all that lies between two pieces of a body
_STRANGER_SECONDS: Final = 10.0  # for reading a response
_MAX_URL: Final = 8 << 10  # bytes; its decoding is slow
_MAX_PIPELINE: Final = 16  # requests that wait behind the one that is being answered
_FED: Final = 16 << 10  # bytes that are parsed in one go
_FEED_SECONDS: Final = 0.002

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)  # the client has closed; only Linux tells

_NOT_HTTP: Final = ErrorInfo("bad_request", "This is not valid HTTP.", "Speak HTTP/1.1 to this port.")
_HEAD_TOO_LARGE: Final = ErrorInfo(
    "head_too_large",
    "The request line and headers are larger than 64 KiB.",
    "Send what is large in the body.",
)
_URL_TOO_LARGE: Final = ErrorInfo(
    "head_too_large",
    "The path and query of the request are larger than 8 KiB.",
    "Send what is large in the body.",
)
_HEAD_TOO_SLOW: Final = "The head of the request did not come in time."
_TOO_MANY: Final = "Too many connections are open."


class _Reading(FlowControl):
    """Flow control that keeps the transport from reading while received data waits to be parsed."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_held = False
        self._is_wanted = True

    def hold(self) -> None:
        self._is_held = True
        super().pause_reading()

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            if self._is_wanted:
                super().resume_reading()

    def pause_reading(self) -> None:
        self._is_wanted = False
        super().pause_reading()

    def resume_reading(self) -> None:
        self._is_wanted = True
        if not self._is_held:
            super().resume_reading()


class AnswerWatcher(Protocol):
    """Is told what becomes of the response to a request."""

    def written(self) -> None:
        """The whole response was written, and the client had not closed its connection before."""

    def ended(self) -> None:
        """The request is over, written or not."""

    def unread(self) -> None:
        """The client has closed its connection without reading the whole response, which was written."""


class ClientConnection(HttpToolsProtocol):
    """A client's connection.

    The head of a request is bounded in size and time. So is everything that a client can send without making
    progress: chunk extensions, trailers, requests behind the current one. Almost every request comes in one
    piece and costs a few attributes. `lost` is done when the connection is closed and everything that was
    written has left or never will.
    """

    def __init__(self, config: Config, state: ServerState, table: ClientConnections) -> None:
        super().__init__(config, state, {"connection": self})
        self.table = table
        self.address = ""
        self.is_trusted = False
        self.held_bytes = 0
        self.idle_since = 0.0  # when the last response was sent; 0 while a request is being answered
        self.written_bytes = 0  # of bodies of responses
        self.unread: Callable[[], None] | None = None  # is called if the last response was not read whole
        self.lost: asyncio.Future[None] = self.loop.create_future()
        self.reading: _Reading = None  # type: ignore[assignment]  # set when the connection is made
        self._answering: RequestResponseCycle | None = None
        self._unfed = bytearray()  # received, and not parsed yet
        self._feeding: asyncio.Handle | None = None
        self._is_in_message = False
        self._is_in_head = False
        self._has_progress = False
        self._unproductive_bytes = 0
        self._head_since: float | None = None  # when the client began to owe the head of a request
        self._left_bytes = 0  # written, and no longer in the transport's buffer
        self._unread_since = self.loop.time()

    @property
    def limits(self) -> Limits:
        return self.table.limits

    @property
    def has_whole_body(self) -> bool:
        """Whether all of the body of the request that is being answered has arrived."""
        return self._answering is not None and not self._answering.more_body

    def has_left(self) -> bool:
        """Return whether the client has closed the connection, also if the event loop has not seen it yet."""
        if self.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _HUNG_UP)
        return bool(poll.poll(0))

    def watch_reading(self, watcher: AnswerWatcher) -> bool:
        """Return whether the client was there when the end of its response was written. `watcher` is told if
        the client does not read it."""
        # By now the gateway itself may have closed the connection.
        is_gone = self.lost.done() if self.transport.is_closing() else self.has_left()
        self.unread = None if is_gone else watcher.unread
        return not is_gone

    # -- events of the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self.reading = _Reading(transport)
        self.address = _address_group(self.client[0] if self.client else "")
        if (hint := self.table.admit(self)) is not None:
            self._refuse(ErrorInfo("overloaded", _TOO_MANY, hint), b"retry-after: 5\r\n")
        self._head_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        self._tell_answering()
        if isinstance(exc, ConnectionError) and self.unread is not None:
            self.unread()  # a system resets a connection that is closed with data in it
        self.unread = None
        self.pipeline.clear()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        # Requests refer to their connection, so this would be a reference cycle.
        self.cycle = self._answering = self.scope = None  # type: ignore[assignment]
        self.app_state.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if len(data) <= _FED and not self._unfed:
            self._feed(data)
        else:
            self._unfed += data
            self._feed_slices()

    def _feed_slices(self) -> None:
        """Parse what has come, for at most 2 ms, and go on in the next round of the loop. Many small chunks
        or requests in one piece of data are so much work that others would notice."""
        if self._feeding is not None:
            return
        end = self.loop.time() + _FEED_SECONDS
        done = 0
        while done < len(self._unfed) and not self.transport.is_closing():
            self._feed(bytes(self._unfed[done : done + _FED]))
            done += _FED
            if self.loop.time() > end:
                break
        del self._unfed[:done]
        if self.transport.is_closing():
            self._unfed.clear()
        elif self._unfed:
            self.reading.hold()
            self._feeding = self.loop.call_soon(self._go_on)
            return
        self.reading.release()

    def _go_on(self) -> None:
        self._feeding = None
        if self.parser is not None:  # it is gone when the connection is lost
            self._feed_slices()

    def _feed(self, data: bytes) -> None:
        self._has_progress = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.table.note("spoke no valid HTTP", self.address)
            self._refuse(_URL_TOO_LARGE if self._is_in_head and len(self.url) > _MAX_URL else _NOT_HTTP)
            return
        except httptools.HttpParserUpgrade:
            pass  # the request is answered, and the connection stays HTTP/1.1
        if not self._is_in_message or self._has_progress:
            self._unproductive_bytes = 0
            return
        self._unproductive_bytes += len(data)
        if self._unproductive_bytes > _MAX_HEAD:
            self.table.note("sent a head without an end", self.address)
            self._refuse(_HEAD_TOO_LARGE)
        elif self._is_in_head and self._head_since is None:
            self._head_since = self.loop.time()

    # -- events of the parser -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_message = self._is_in_head = True

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._has_progress = True
        self._head_since = None
        if len(self.pipeline) >= _MAX_PIPELINE:
            raise RuntimeError("too many requests at once")  # ends the parsing, and with it the connection
        self.idle_since = 0.0
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > _MAX_URL:
            raise RuntimeError("too long")  # ends the parsing

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer, which no handler reads
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._is_in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._is_in_head:
            self._head_since = self.loop.time()
        super().on_response_complete()
        if self._answering is None or self._answering.response_complete:
            self.idle_since = self.loop.time()

    def without_chunks(self, send: Send) -> Send:
        """Return `send` for the request that is being answered, whose client speaks HTTP/1.0. Such a client
        knows no chunks: a response without a length ends with the connection.

        uvicorn chunks every response without a length, and compares the others with their length. So it is
        told not to chunk, and that the length is that of the next piece.
        """
        answering = self._answering
        assert answering is not None
        has_length = True

        async def send_plainly(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name == b"content-length" for name, _ in message["headers"])
                if not has_length:
                    answering.chunked_encoding = False
            elif not has_length:
                answering.expected_content_length = len(message["body"])
            await send(message)

        return send_plainly

    # -- bounds ---------------------------------------------------------------------------------------------

    def trust(self) -> None:
        """A request on this connection has passed the guard."""
        if not self.is_trusted:
            self.is_trusted = True
            self.table.note_trusted(self)

    def check(self, now: float) -> None:
        """Close the connection if the client is too slow."""
        limits = self.limits.now
        if self._head_since is not None and now - self._head_since > limits.request_head.total_seconds():
            self._head_since = None
            hint = self.limits.refuse("request_head")
            if self._is_in_head:
                self._refuse(ErrorInfo("timeout", _HEAD_TOO_SLOW, hint))
            else:
                self.transport.close()  # nothing came at all, so nothing is expected
        unread = self.transport.get_write_buffer_size()
        left = self.written_bytes - unread
        if unread == 0 or left > self._left_bytes:
            self._unread_since, self._left_bytes = now, left
        elif now - self._unread_since > self.patience(limits.slow_reader.total_seconds()):
            self.limits.refuse("slow_reader")
            self.table.note("did not read their response", self.address)
            self.cut()

    def patience(self, seconds: float) -> float:
        """Return for how many of these seconds the gateway waits for this client."""
        return seconds if self.is_trusted else min(seconds, _STRANGER_SECONDS)

    def cut(self) -> None:
        """Close the connection at once. A request that is being answered sees that its client has left."""
        self.table.remove(self)
        self._tell_answering()
        self.transport.abort()

    def _tell_answering(self) -> None:
        """Let the request that is being answered see that its client has left. uvicorn tells only the request
        that came last, which may still wait for its turn."""
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def send_400_response(self, msg: str) -> None:
        self._refuse(_NOT_HTTP)

    def _refuse(self, error: ErrorInfo, headers: bytes = b"") -> None:
        """Answer a client that has no request under way, and close. If one is under way, only close."""
        if self.transport.is_closing():
            return
        if self._answering is not None and not self._answering.response_complete:
            self.cut()
            return
        self._is_in_message = self._is_in_head = False
        self._head_since = None
        status, body = HTTPStatus(STATUS[error.type]), error_body(error) + b"\n"
        headers += b"x-request-id: %b\r\n" % new_request_id()
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b"
            b"connection: close\r\n\r\n%b" % (status, status.phrase.encode(), len(body), headers, body)
        )
        self.transport.close()


def _address_group(address: str) -> str:
    """Return the address of a client, or its network where one client has many addresses (IPv6)."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64))
