"""A proxy on real sockets, a host behind it, and a client in front of it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from talaria.core.ids import SessionId
from talaria.net.dialer import Dialer
from talaria.net.host_rules import NetworkGate, NetworkSettings
from talaria.net.proxy import (
    BACKGROUND,
    FOREGROUND,
    CommandProxy,
    ProxiedConnection,
    ProxyBounds,
    ProxyListener,
)

SESSION = SessionId("ses_1")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Host:
    """A host on loopback. It keeps what it hears, and answers a request with `answer` and closes."""

    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello"
    port: int = 0
    heard: bytearray = field(default_factory=bytearray)
    connections: int = 0
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object] | None = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError):
            if self.talk is not None:
                await self.talk(reader, writer)  # type: ignore[misc]
            else:
                await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"\r\n\r\n" not in self.heard and (data := await reader.read(65536)):
            self.heard += data
        writer.write(self.answer)
        await writer.drain()
        writer.write_eof()
        while data := await reader.read(65536):
            self.heard += data


@dataclass
class ProxyWorld:
    folder: Path
    host: Host
    proxy: CommandProxy
    listener: ProxyListener
    ended: list[ProxiedConnection]

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.host.port}"

    async def connect(self, name: str = FOREGROUND) -> Streams:
        fd = os.open(self.folder, os.O_PATH)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"/proc/self/fd/{fd}/{name}")
        os.close(fd)
        sock.setblocking(False)
        return await asyncio.open_connection(sock=sock)

    async def ask(self, request: bytes, *, is_background: bool = False, ends: bool = False) -> bytes:
        """Send bytes and return all that comes back until the proxy closes."""
        reader, writer = await self.connect(BACKGROUND if is_background else FOREGROUND)
        try:
            with suppress(ConnectionError):
                writer.write(request)
                if ends:
                    writer.write_eof()
                await writer.drain()
            async with asyncio.timeout(60):
                answer = bytearray()
                with suppress(ConnectionError):
                    while data := await reader.read(65536):
                        answer += data
                return bytes(answer)
        finally:
            writer.close()

    async def settle(self, count: int) -> list[str]:
        """Return the outcomes of the first connections, once so many have ended."""
        async with asyncio.timeout(60):
            while len(self.ended) < count:
                await asyncio.sleep(0.001)
        return [each.outcome for each in self.ended]


@asynccontextmanager
async def open_world(
    folder: Path,
    bounds: ProxyBounds | None = None,
    *,
    settings: Callable[[], NetworkSettings] | None = None,
    gate: NetworkGate | None = None,
    dialer: Dialer | None = None,
) -> AsyncIterator[ProxyWorld]:
    """Open a proxy whose only private address is that of the host. Every connection is over on leaving."""
    host = Host()
    server = await asyncio.start_server(host._serve, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    own = NetworkSettings(allow_private=(f"127.0.0.1:{host.port}",))
    now = settings or (lambda: own)
    ended: list[ProxiedConnection] = []
    proxy = CommandProxy(
        gate or NetworkGate(now),
        dialer or Dialer(own.private_endpoints),
        bounds,
        checks_names=lambda: now().commands != "open",
        on_end=ended.append,
    )
    listener = await proxy.listen(SESSION, folder)
    try:
        yield ProxyWorld(folder, host, proxy, listener, ended)
    finally:
        await listener.close()
        server.close()
        await server.wait_closed()
    assert not proxy.open_connections
    assert not [*folder.iterdir()]
