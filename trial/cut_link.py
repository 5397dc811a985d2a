"""A TCP relay between clients and a gateway, which cuts connections and counts those that clients give up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

_LAST_CHUNK = b"0\r\n\r\n"  # the end of a stream


class CutLink:
    """`find_port` returns the gateway's port, or None while there is no gateway.

    A request is *cut* at a random moment with the probability `share`: both sides are closed at once, and
    what a side has not read is lost. A request is *given up* when its client closes the connection before
    the answer is there.
    """

    def __init__(self, find_port: Callable[[], int | None], random: Random, seconds: float) -> None:
        self.find_port = find_port
        self.random = random
        self.share = 0.0
        self.requests = 0
        self.cut = 0
        self.given_up = 0
        self.port = 0
        self._seconds = seconds  # the latest moment of a cut
        self._links: set[_Client] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.get_running_loop().create_server(lambda: _Client(self), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for link in list(self._links):
                link.close()
            await server.wait_closed()

    def add(self, link: _Client) -> None:
        self._links.add(link)

    def remove(self, link: _Client) -> None:
        self._links.discard(link)

    def seconds_to_cut(self) -> float | None:
        """Return after how many seconds the request that begins now is cut; None if it is not."""
        return self.random.uniform(0.0, self._seconds) if self.random.random() < self.share else None


class _Client(asyncio.Protocol):
    """The client's side of a link. Data is passed on as soon as it comes, so no answer is held here."""

    def __init__(self, table: CutLink) -> None:
        self._table = table
        self._transport: asyncio.Transport
        self._gateway: _Gateway | None = None
        self._unsent = bytearray()  # until the gateway is connected
        self._opening: asyncio.Task[None] | None = None
        self._cutting: asyncio.TimerHandle | None = None
        self._is_waiting = False  # for an answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._table.add(self)
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        port = self._table.find_port()
        try:
            if port is None:
                raise ConnectionRefusedError
            loop = asyncio.get_running_loop()
            _, self._gateway = await loop.create_connection(lambda: _Gateway(self), "127.0.0.1", port)
        except OSError:
            self._is_waiting = False
            self._transport.abort()
            return
        if self._transport.is_closing():
            self._gateway.transport.abort()
        elif self._unsent:
            self._gateway.transport.write(bytes(self._unsent))

    def data_received(self, data: bytes) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._table.requests += 1
            seconds = self._table.seconds_to_cut()
            if seconds is not None:
                self._cutting = asyncio.get_running_loop().call_later(seconds, self._cut)
        if self._gateway is None:
            self._unsent += data
        else:
            self._gateway.transport.write(data)

    def answer(self, data: bytes) -> None:
        """Pass on a piece of an answer. A whole answer comes in at most two pieces, a stream in many."""
        self._transport.write(data)
        if data.endswith((_LAST_CHUNK, b"}\n")):
            self._is_waiting = False
            if self._cutting is not None:
                self._cutting.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        self._table.given_up += self._is_waiting
        self.close()

    def gateway_lost(self) -> None:
        self._is_waiting = False
        self.close()

    def _cut(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._table.cut += 1
            self.close()

    def close(self) -> None:
        """Close both sides at once."""
        self._table.remove(self)
        if self._cutting is not None:
            self._cutting.cancel()
        if self._opening is not None and self._gateway is None:
            self._opening.cancel()
        if self._gateway is not None:
            self._gateway.transport.abort()
        self._transport.close()


class _Gateway(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, client: _Client) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._client.answer(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.gateway_lost()
