"""The proxy of commands: CONNECT and plain HTTP, on a Unix socket for each session.

A command names a host; the gate decides about the name and the dialer about the address. Nothing is resolved
or connected to on the command's side. Every connection has bounds, and is logged and counted at its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from talaria.core.errors import TalariaError
from talaria.core.ids import SessionId
from talaria.core.tasks import Tasks, running, stop
from talaria.net.addresses import AddressRefused
from talaria.net.dialer import Dialer
from talaria.net.host_rules import WEB_PORTS, HostRequest, NetworkGate
from talaria.net.proxy_requests import (
    BadProxyRequest,
    ChunkedBody,
    HelloReader,
    ProxyRequest,
    read_request,
    read_response_head,
)

_log = logging.getLogger("talaria.net.proxy")
_PIECE = 64 << 10
_MAX_REFUSALS = 20  # that are kept for the result of a command
_MAX_NAMED = 20  # hosts in the log line for many connections
FOREGROUND, BACKGROUND = "proxy.sock", "background.sock"
REFUSAL = "Talaria's proxy: "

_Reader: TypeAlias = asyncio.StreamReader
_Writer: TypeAlias = asyncio.StreamWriter


@dataclass(frozen=True, slots=True)
class ProxyBounds:
    """`bytes` count both directions of one connection, `seconds` its whole time, `idle_seconds` the time in
    which nothing moves. `head_seconds` is the time for a request's head. A session logs `log_lines`
    connections one by one in `log_seconds`, and the others in one line."""

    connections: int = 512
    session_connections: int = 64
    head_bytes: int = 32 << 10
    head_seconds: float = 10.0
    idle_seconds: float = 300.0
    seconds: float = 3600.0
    bytes: int = 8 << 30
    log_lines: int = 20
    log_seconds: float = 60.0


@dataclass(slots=True)
class ProxiedConnection:
    """A connection, as it is logged. `outcome` is `open` while it runs; then `done`, `refused` for its
    host, `address` for its address, `unreachable`, `bad` for its request, `busy` if there are too many, or
    `cut` by a bound or a peer."""

    session_id: SessionId
    is_background: bool
    target: str = ""
    outcome: str = "open"
    sent: int = 0
    received: int = 0


class CommandProxy:
    """The proxy of this process. Each session has a `ProxyListener`.

    `checks_names` says whether a tunnel must begin with TLS for its host, so that the admission of a host
    does not admit its neighbours on the same content delivery network. `on_reach` is awaited with the session
    before the first byte of a host can reach it; if it raises, the connection is refused. `on_end` is called
    with every connection that has ended.
    """

    def __init__(
        self,
        gate: NetworkGate,
        dialer: Dialer,
        bounds: ProxyBounds | None = None,
        *,
        checks_names: Callable[[], bool] = lambda: True,
        on_reach: Callable[[SessionId], Awaitable[None]] | None = None,
        on_end: Callable[[ProxiedConnection], None] = lambda connection: None,
    ) -> None:
        self.gate = gate
        self.dialer = dialer
        self.bounds = bounds or ProxyBounds()
        self.checks_names = checks_names
        self.on_reach = on_reach
        self.on_end = on_end
        self.open_connections: Counter[SessionId] = Counter()

    async def listen(self, session_id: SessionId, folder: Path) -> ProxyListener:
        """Listen in a folder, where two sockets are made: one for commands, one for background processes.
        Sockets that an earlier process left there are replaced."""
        listener = ProxyListener(self, session_id)
        try:
            await listener.open(folder)
        except BaseException:
            await listener.close()
            raise
        return listener

    def is_full(self, session_id: SessionId) -> bool:
        return (
            self.open_connections[session_id] >= self.bounds.session_connections
            or self.open_connections.total() >= self.bounds.connections
        )


class ProxyListener:
    """The proxy's sockets of one session, and the connections through them."""

    def __init__(self, proxy: CommandProxy, session_id: SessionId) -> None:
        self._proxy = proxy
        self.session_id = session_id
        self._folder = -1
        self._servers: list[asyncio.Server] = []
        self._tasks = Tasks()
        self._refusals: deque[str] = deque(maxlen=_MAX_REFUSALS)
        self._lines = _ConnectionLines(session_id, proxy.bounds)

    async def open(self, folder: Path) -> None:
        # Through a descriptor: a socket's path has at most 107 bytes. It stays open as long as the sockets.
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in (FOREGROUND, BACKGROUND):
            path = f"/proc/self/fd/{self._folder}/{name}"
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._folder)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.bind(path)
                os.chmod(path, 0o666)  # noqa: PTH101, S103 - the folder is closed to all others
                server = await asyncio.start_unix_server(
                    self._accept_background if name == BACKGROUND else self._accept_foreground,
                    sock=sock,
                    limit=self._proxy.bounds.head_bytes,
                )
            except BaseException:
                sock.close()
                raise
            self._servers.append(server)

    def take_refusals(self) -> tuple[str, ...]:
        """Return what was refused since the last call, each a sentence, without repetitions."""
        taken = tuple(dict.fromkeys(self._refusals))
        self._refusals.clear()
        return taken

    async def close(self) -> None:
        """Close the sockets and every connection through them."""
        for server in self._servers:
            server.close()
        await stop(*self._tasks)
        self._lines.end_window()
        if self._folder >= 0:
            for name in (FOREGROUND, BACKGROUND):
                with suppress(OSError):
                    os.unlink(name, dir_fd=self._folder)
            os.close(self._folder)
            self._folder = -1

    def _accept_foreground(self, reader: _Reader, writer: _Writer) -> None:
        self._accept(reader, writer, is_background=False)

    def _accept_background(self, reader: _Reader, writer: _Writer) -> None:
        self._accept(reader, writer, is_background=True)

    def _accept(self, reader: _Reader, writer: _Writer, *, is_background: bool) -> None:
        told = ProxiedConnection(self.session_id, is_background)
        if self._proxy.is_full(self.session_id):
            told.outcome = "busy"
            _write_refusal(writer, 503, "Too many connections at once. Close some, and try again.")
            writer.close()
            self._end(told)
            return
        self._proxy.open_connections[self.session_id] += 1
        served = _Served(self._proxy, told, reader, writer)
        self._tasks.start(self._serve(served), "proxy connection")

    async def _serve(self, served: _Served) -> None:
        told, failure = served.told, None
        try:
            await served.run()
        except Exception as error:  # the boundary of a connection: another one must not notice
            told.outcome = "cut"
            failure = error
        finally:
            served.close()
            counts = self._proxy.open_connections
            counts[self.session_id] -= 1
            if not counts[self.session_id]:
                del counts[self.session_id]
            if served.refusal:
                self._refusals.append(served.refusal)
            self._end(told, failure)

    def _end(self, told: ProxiedConnection, failure: Exception | None = None) -> None:
        self._lines.add(told, failure)
        self._proxy.on_end(told)


class _ConnectionLines:
    """Log lines for the connections of one session, which a command can open by the thousand.

    The first connections of a window have a line each. The others have one line together when the window
    ends: their number, outcomes and bytes, and the hosts that were reached.
    """

    def __init__(self, session_id: SessionId, bounds: ProxyBounds) -> None:
        self._session_id = session_id
        self._bounds = bounds
        self._window: asyncio.TimerHandle | None = None
        self._single = 0
        self._outcomes: Counter[str] = Counter()
        self._reached: dict[str, None] = {}
        self._sent = self._received = 0

    def add(self, told: ProxiedConnection, failure: Exception | None) -> None:
        if self._window is None:
            loop = asyncio.get_running_loop()
            self._window = loop.call_later(self._bounds.log_seconds, self.end_window)
        if self._single < self._bounds.log_lines:
            self._single += 1
            level = logging.INFO if failure is None else logging.ERROR
            text = "a command of %s: %s %s, %d bytes sent, %d received"
            said = told.session_id, told.target or "no host", told.outcome, told.sent, told.received
            _log.log(level, text, *said, exc_info=failure)
            return
        self._outcomes[told.outcome if failure is None else "failed"] += 1
        self._sent += told.sent
        self._received += told.received
        if told.received and len(self._reached) <= _MAX_NAMED:
            self._reached[told.target] = None

    def end_window(self) -> None:
        """Log the connections that have no line yet."""
        if self._window is not None:
            self._window.cancel()
        outcomes, reached, sent, received = self._outcomes, [*self._reached], self._sent, self._received
        self._window, self._single, self._sent, self._received = None, 0, 0, 0
        self._outcomes, self._reached = Counter(), {}
        if not outcomes:
            return
        counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
        more = ", and others" if len(reached) > _MAX_NAMED else ""
        _log.info(
            "commands of %s: %d more connections within %.0f s: %s; %d bytes sent, %d received. Reached: %s",
            self._session_id, outcomes.total(), self._bounds.log_seconds, counts, sent, received,
            ", ".join(reached[:_MAX_NAMED]) + more or "no host",
        )  # fmt: skip


class _Served:
    """A connection while it is served."""

    def __init__(
        self, proxy: CommandProxy, told: ProxiedConnection, reader: _Reader, writer: _Writer
    ) -> None:
        self._proxy = proxy
        self.told = told
        self._reader = reader
        self._writer = writer
        self._up: _Writer | None = None
        self._limit: asyncio.Timeout | None = None
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + proxy.bounds.seconds
        self.refusal = ""

    async def run(self) -> None:
        """Serve the request to its end. Raises nothing but on cancellation; `told` has the outcome."""
        told = self.told
        try:
            async with asyncio.timeout(self._proxy.bounds.head_seconds):
                head = await self._reader.readuntil(b"\r\n\r\n")
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            told.outcome = "bad"  # nobody waits for an answer
            return
        except asyncio.LimitOverrunError:
            self._refuse("bad", 431, "The head of the request is too long.")
            return
        try:
            request = read_request(head)
            told.target = f"{request.host}:{request.port}"
            await self._reach(request)
        except BadProxyRequest as error:
            self._refuse("bad", error.status, str(error))
        except AddressRefused as error:
            self._refuse("address", 403, f"{error.user_text} {error.hint}")
        except TalariaError as error:  # no address, or nobody there
            self._refuse("unreachable", 502, f"{error.user_text} {error.hint}")
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            told.outcome = "cut"

    def close(self) -> None:
        for writer in (self._writer, self._up):
            if writer is not None:
                writer.close()
        if self._up is not None and self.told.outcome == "cut":
            self._up.transport.abort()

    async def _reach(self, request: ProxyRequest) -> None:
        told = self.told
        wanted = HostRequest(told.session_id, request.host, request.port, told.is_background)
        answer = await self._proxy.gate.admit(wanted)
        if not answer.is_admitted:
            self._refuse("refused", 403, f"{told.target} was not reached. {answer.reason}")
            return
        if self._proxy.on_reach is not None:
            await self._proxy.on_reach(told.session_id)
        sock = await self._proxy.dialer.open(request.host, request.port, told.session_id)
        try:
            up_reader, self._up = await asyncio.open_connection(sock=sock, limit=_PIECE)
        except BaseException:
            sock.close()
            raise
        async with asyncio.timeout(self._proxy.bounds.idle_seconds) as self._limit:
            if request.is_tunnel:
                await self._tunnel(request, up_reader, self._up)
            else:
                await self._exchange(request, up_reader, self._up)
        told.outcome = "done"

    async def _tunnel(self, request: ProxyRequest, up_reader: _Reader, up: _Writer) -> None:
        self._writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self._writer.drain()
        await _both(self._send_tunnel(request, up), self._pump(up_reader, self._writer, is_sent=False))

    async def _send_tunnel(self, request: ProxyRequest, up: _Writer) -> None:
        """Pass on the client's bytes once their beginning is allowed.

        The entry of a host admits its web ports, so a tunnel to one must begin with TLS for this host.
        Another port was admitted exactly, and may carry any protocol; if that is TLS, it must name the host.
        """
        if self._proxy.checks_names():
            opening = HelloReader()
            is_web = request.port in WEB_PORTS
            async with asyncio.timeout(self._proxy.bounds.head_seconds if is_web else None):
                while not opening.is_complete and (data := await self._reader.read(_PIECE)):
                    opening.feed(data)
            may_be_other = not is_web and not opening.begins_as_tls
            if not may_be_other and not opening.names(request.host):
                named = opening.name or "no host"
                hint = "" if opening.begins_as_tls else " Send plain HTTP to the proxy without CONNECT."
                text = f"{self.told.target} was admitted, and the connection named {named} instead.{hint}"
                self.refusal = f"A connection was cut: {text}"
                raise ConnectionAbortedError(text)
            self._count(len(opening.data), is_sent=True)
            up.write(opening.data)
            await up.drain()
        await self._pump(self._reader, up, is_sent=True)

    async def _exchange(self, request: ProxyRequest, up_reader: _Reader, up: _Writer) -> None:
        """Pass on one request, and its response until the host closes the connection."""
        up.write(request.head)
        async with running(self._send_body(request.length, up), name="proxy body"):
            status = 100
            while status < 200:  # some responses come before the real one
                head = await up_reader.readuntil(b"\r\n\r\n")
                status, written = read_response_head(head)
                self._count(len(written), is_sent=False)
                self._writer.write(written)
            await self._pump(up_reader, self._writer, is_sent=False)

    async def _send_body(self, length: int | None, up: _Writer) -> None:
        chunks = ChunkedBody() if length is None else None
        left = length or 0
        while left or (chunks is not None and not chunks.is_complete):
            data = await self._reader.read(min(_PIECE, left) if chunks is None else _PIECE)
            if not data:
                up.transport.abort()  # half a body must not look like a whole one
                return
            left -= len(data) if chunks is None else 0
            try:
                data = data if chunks is None else chunks.feed(data)
            except BadProxyRequest:
                up.transport.abort()
                return
            self._count(len(data), is_sent=True)
            up.write(data)
            await up.drain()

    async def _pump(self, reader: _Reader, writer: _Writer, *, is_sent: bool) -> None:
        while data := await reader.read(_PIECE):
            self._count(len(data), is_sent=is_sent)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    def _count(self, size: int, *, is_sent: bool) -> None:
        """Count bytes that move, and begin the idle time anew. Raises `ConnectionAbortedError` if there are
        too many."""
        told, bounds = self.told, self._proxy.bounds
        if is_sent:
            told.sent += size
        else:
            told.received += size
        if told.sent + told.received > bounds.bytes:
            raise ConnectionAbortedError("too many bytes")
        if self._limit is not None:
            now = asyncio.get_running_loop().time()
            until = min(now + bounds.idle_seconds, self._deadline)
            if until - (self._limit.when() or 0.0) > min(1.0, bounds.idle_seconds / 4):
                self._limit.reschedule(until)

    def _refuse(self, outcome: str, status: int, text: str) -> None:
        self.told.outcome = outcome
        self.refusal = text
        if not self._writer.is_closing():
            _write_refusal(self._writer, status, text)


async def _both(*pumps: Coroutine[object, object, None]) -> None:
    """Run both directions until both have ended, or one has failed."""
    async with running(*pumps, name="proxy pump") as tasks:
        await asyncio.gather(*tasks)


def _write_refusal(writer: _Writer, status: int, text: str) -> None:
    """Answer with the text as the body, and in short in the first line, which is all that many clients
    show."""
    words = {400: "Bad request", 403: "Refused by Talaria", 431: "Head too long", 501: "Not supported"}
    words |= {502: "Not reached", 503: "Too many connections"}
    short = "".join(each if " " <= each <= "~" else "?" for each in text)[:200]
    body = f"{REFUSAL}{text}\n".encode()
    head = f"HTTP/1.1 {status} {words[status]}: {short}\r\nContent-Type: text/plain; charset=utf-8\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
