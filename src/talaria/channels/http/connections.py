"""The connections of the HTTP server: uvicorn's protocol with bounds on what a client can send and how slowly
it may send and read, and the table of all connections, which bounds how many there are and what they hold.

A client is a *stranger* until a request on its connection has passed the guard. Anybody can open connections,
so a stranger's connection is the first that makes room for another, and nothing waits for a stranger long.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import select
import sys
from collections import Counter, deque
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from talaria.channels.http.errors import STATUS, error_body
from talaria.channels.http.request import Message, Send, new_request_id
from talaria.core.errors import ErrorInfo, Overloaded
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
_FEW: Final = 8  # connections of one address that may use the last twentieth of the room
_SWEEP_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 60.0
_MAX_TOLD: Final = 1000  # addresses that are counted for one line in the log
_log = logging.getLogger("talaria.http")


# -- one connection ---------------------------------------------------------------------------------------


class _Signal(asyncio.Event):
    """An event without a queue while nobody waits. An empty queue takes as much memory as a request."""

    def __init__(self) -> None:
        self._value = False
        self._waiters = ()  # type: ignore[assignment]

    async def wait(self) -> Literal[True]:
        if not self._waiters:
            self._waiters = deque()
        return await super().wait()


class _Pipeline(list[Any]):
    """Requests that wait, which are almost always none."""

    __slots__ = ()

    def appendleft(self, waiting: Any) -> None:
        self.insert(0, waiting)


class _Reading(FlowControl):
    """Flow control that keeps the transport from reading while received data waits to be parsed."""

    def __init__(self, transport: asyncio.Transport) -> None:  # as the base class, with another event
        self._transport = transport
        self.read_paused = self.write_paused = False
        self._is_writable_event = _Signal()
        self._is_writable_event.set()
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

    # With more than thirty attributes in all, the dictionary of each connection takes four times as much.
    __slots__ = (
        "_answering", "_feeding", "_has_progress", "_head_since", "_is_in_head", "_is_in_message",
        "_leaving", "_left_bytes", "_unfed", "_unproductive_bytes", "_unread_since", "address", "held_bytes",
        "idle_since", "is_trusted", "lost", "reading", "table", "unread", "written_bytes",
    )  # fmt: skip

    def __init__(self, config: Config, state: ServerState, table: ClientConnections) -> None:
        super().__init__(config, state, {"connection": self})
        self.pipeline = _Pipeline()  # type: ignore[assignment]
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
        self._leaving: asyncio.Future[None] | None = None
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

    def leaving(self) -> asyncio.Future[None]:
        """Return what is done when the client has left."""
        self._leaving = self.loop.create_future()
        if self.transport.is_closing():
            self._leaving.set_result(None)
        return self._leaving

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
        self.cycle.message_event = _Signal()

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
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)
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


# -- all connections --------------------------------------------------------------------------------------


class _Address:
    """The connections of one address. Strangers are in order, the oldest first."""

    def __init__(self) -> None:
        self.count = 0
        self.strangers: dict[ClientConnection, None] = {}
        self.known: set[ClientConnection] = set()

    def oldest(self, *, with_idle: bool) -> ClientConnection | None:
        if self.strangers:
            return next(iter(self.strangers))
        if not with_idle:
            return None
        idle = [(connection.idle_since, id(connection), connection) for connection in self.known]
        return min((each for each in idle if each[0]), default=(0.0, 0, None))[2]


class ClientConnections:
    """All connections of a server. `room` is the number for which the system has descriptors.

    Over a limit the connection of the stranger that came first is closed, then the one that has been idle
    for the longest time. A new connection is refused only if all others are in use.
    """

    def __init__(self, limits: Limits, room: int = sys.maxsize) -> None:
        self.limits = limits
        self._room = room
        self._open: set[ClientConnection] = set()
        self._addresses: dict[str, _Address] = {}
        self._readers: dict[
            ClientConnection, None
        ] = {}  # have a large response; the longest without progress first
        self._held_bytes = 0
        self._noted: dict[str, Counter[str]] = {}
        self._told_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        limits.watch("connections", lambda: len(self._open))
        limits.watch("connections_per_address", self._most_of_an_address)
        limits.watch("client_memory", lambda: self._held_bytes)

    @property
    def most(self) -> int:
        """How many connections there may be."""
        return min(self.limits.now.connections, self._room)

    def _most_of_an_address(self) -> int:
        return max((address.count for address in self._addresses.values()), default=0)

    # -- coming and going -----------------------------------------------------------------------------------

    def admit(self, connection: ClientConnection) -> str | None:
        """Let a connection in, closing another if need be. Return a hint if the connection is refused."""
        address = self._addresses.get(connection.address) or _Address()
        now, key = self.limits.now, ""
        if address.count >= now.connections_per_address:
            key = "connections_per_address"
            victim = address.oldest(with_idle=True)
        elif len(self._open) >= (self.most if address.count < _FEW else self.most - self.most // 20):
            key = "connections"
            victim = self._find_victim()
        if key:
            hint = self.limits.refuse(key)
            self.note(f"came over limits.{key}", connection.address)
            if victim is None:
                return hint
            victim.cut()
        self._open.add(connection)
        address.count += 1
        address.strangers[connection] = None
        self._addresses[connection.address] = address
        return None

    def _find_victim(self) -> ClientConnection | None:
        """Return a connection of the address that has the most of them."""
        for with_idle in (False, True):
            found: _Address | None = None
            for address in self._addresses.values():
                if (found is None or address.count > found.count) and address.oldest(with_idle=with_idle):
                    found = address
            if found is not None:
                return found.oldest(with_idle=with_idle)
        return None

    def remove(self, connection: ClientConnection) -> None:
        """The connection is closed or about to be. No effect on one that is not in the table."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self.release(connection, connection.held_bytes)
        address = self._addresses[connection.address]
        address.count -= 1
        address.strangers.pop(connection, None)
        address.known.discard(connection)
        if not address.count:
            del self._addresses[connection.address]

    def note_trusted(self, connection: ClientConnection) -> None:
        """The client is no stranger any more."""
        if connection in self._open:
            address = self._addresses[connection.address]
            address.strangers.pop(connection, None)
            address.known.add(connection)

    # -- memory ---------------------------------------------------------------------------------------------

    def hold_body(self, connection: ClientConnection, size: int) -> None:
        """Count bytes of a request's body until `release`. Raises `Overloaded` if there is no room for them,
        even without the clients that do not read."""
        self._hold(connection, size)
        if self._held_bytes > self.limits.now.client_memory:
            self._cut_readers(connection)
        if self._held_bytes > self.limits.now.client_memory:
            hint = self.limits.refuse("client_memory")
            raise Overloaded("Too many large requests are being handled.", hint, retry_after=5.0)

    def hold_response(self, connection: ClientConnection, size: int) -> None:
        """Count bytes of a response until `release`. The clients that read least may be cut to make room,
        at last this one."""
        self._hold(connection, size)
        self._readers[connection] = None
        if self._held_bytes > self.limits.now.client_memory:
            self._cut_readers(connection)

    def note_read(self, connection: ClientConnection) -> None:
        """The client has read a piece of a large response."""
        if connection in self._readers:
            self._readers[connection] = self._readers.pop(connection)

    def release(self, connection: ClientConnection, size: int) -> None:
        """Count no longer so many of the bytes that are held for a client, or all that are left."""
        size = min(size, connection.held_bytes)
        self._held_bytes -= size
        connection.held_bytes -= size
        if not connection.held_bytes:
            self._readers.pop(connection, None)

    def _hold(self, connection: ClientConnection, size: int) -> None:
        if connection in self._open:
            connection.held_bytes += size
            self._held_bytes += size

    def _cut_readers(self, last: ClientConnection) -> None:
        for reader in [*(reader for reader in self._readers if reader is not last), last]:
            if self._held_bytes <= self.limits.now.client_memory:
                return
            if reader in self._readers:
                self.limits.refuse("client_memory")
                self.note("did not read their response", reader.address)
                reader.cut()

    # -- time -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Look at all connections from now on, about once a second."""
        loop = asyncio.get_running_loop()
        now = self.limits.now
        shortest = min(now.request_head, now.slow_reader).total_seconds()
        self._timer = loop.call_later(min(_SWEEP_SECONDS, max(0.02, shortest / 4)), self._sweep)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self._open):
            connection.check(now)
        if now - self._told_at >= _TELL_SECONDS:
            self._tell()
        self.start()

    # -- the log --------------------------------------------------------------------------------------------

    def note(self, what: str, address: str) -> None:
        """Count a bad connection. The log gets one line a minute for all of them."""
        counts = self._noted.setdefault(what, Counter())
        counts[address if address in counts or len(counts) < _MAX_TOLD else "others"] += 1

    def _tell(self) -> None:
        if not self._noted:
            return
        self._told_at = asyncio.get_running_loop().time()
        for what, counts in self._noted.items():
            address, most = counts.most_common(1)[0]
            _log.warning("%d connections %s (%d of them from %s)", counts.total(), what, most, address)
        self._noted.clear()
