"""A peer that takes a connection and never answers: every client gives up after its own time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from models.local.index import weights
from talaria.console.gateway_client import GatewayAddress, GatewayClient, GatewayGone
from talaria.models.discovery import DetectedProvider, detect_servers
from talaria.models.local.fetch import WeightsError, fetch
from talaria.models.local.weights import WeightsCache

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
SILENCE = 200.0  # seconds: longer than the limits of all clients, shorter than the default of aiohttp
GIVEN_UP = 20.0  # seconds that a client may take to notice that its limit has passed

Work = Coroutine[Any, Any, object]


class SilentPeer:
    """Answers with `head` and nothing else. `asked` is told about each request."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.asked: asyncio.Queue[None] = asyncio.Queue()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._head)
        await writer.drain()
        self.asked.put_nowait(None)
        await reader.read()
        writer.close()


@asynccontextmanager
async def silent_peer(head: bytes = b"") -> AsyncIterator[SilentPeer]:
    peer = SilentPeer(head)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield peer


async def pass_time(seconds: float) -> None:
    """Let the client read what was sent, and move the loop's clock: all that is due within `seconds` happens
    now."""
    for _ in range(100):
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


async def call_gateway(url: str, folder: Path) -> None:
    async with GatewayClient(GatewayAddress(url, "token")) as client:
        with pytest.raises(GatewayGone, match="does not answer in time"):
            await client.cancel("turn_1")


async def fetch_weights(url: str, folder: Path) -> None:
    known = weights(urls=(f"{url}/tiny.gguf",), parts=0)
    with pytest.raises(WeightsError, match="no answer in time"):
        await fetch(known, WeightsCache(folder), {}, lambda progress: None)


async def detect(url: str, folder: Path) -> None:
    assert await detect_servers([DetectedProvider("Silent", "silent", f"{url}/v1")]) == []


@pytest.mark.parametrize(
    ("work", "head"),
    [
        (call_gateway, b""),
        (call_gateway, HEAD),
        (fetch_weights, b""),
        (fetch_weights, HEAD),
        (detect, b""),
        (detect, HEAD),
    ],
)
async def test_client_gives_up_on_a_peer_that_is_silent(
    work: Callable[[str, Path], Work], head: bytes, tmp_path: Path
) -> None:
    async with silent_peer(head) as peer:
        running = asyncio.create_task(work(peer.url, tmp_path))
        await peer.asked.get()
        await pass_time(SILENCE)
        async with asyncio.timeout(GIVEN_UP):
            await running


async def test_events_that_stop_are_asked_for_again() -> None:
    async with silent_peer(HEAD) as peer, GatewayClient(GatewayAddress(peer.url, "token")) as client:
        following = asyncio.create_task(anext(client.follow("turn_1")))
        await peer.asked.get()
        await pass_time(SILENCE)
        async with asyncio.timeout(GIVEN_UP):
            await peer.asked.get()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
