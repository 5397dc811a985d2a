"""Hostile pages in a session's browser: nothing internal is reached, and nothing grows without end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from scenarios.test_browsing import TOOLS, Browsing
from support.browsed_site import browsed_site
from support.gateway import in_process
from support.programs import needs
from talaria.testing.model_server import ModelServer

pytestmark = [needs("chromium"), needs("bwrap")]
WAYS = [
    *("fetch", "xhr", "image", "script", "style", "frame", "form", "beacon", "socket", "stream", "prefetch"),
    *("worker", "service", "popup", "location", "refresh", "webrtc", "transport", "audio", "download"),
]


REBOUND = "rebound.example.org"  # a public name; its owner has changed its address


@pytest.fixture
def rebound(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a public name lead to this machine. Returns the names that were looked up."""
    real, asked = socket.getaddrinfo, list[str]()

    def look_up(host: Any, *more: Any, **options: Any) -> Any:
        asked.append(str(host))
        return real("127.0.0.1" if host == REBOUND else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


class Internal:
    """A server that nobody may reach."""

    def __init__(self) -> None:
        self.reached: list[bytes] = []
        self.port = 0

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Internal]:
        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.reached.append(await reader.read(200))
            writer.close()

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        loop = asyncio.get_running_loop()
        datagrams, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            datagrams.close()
            server.close()


@asynccontextmanager
async def browsing(home: Path, **browser: int) -> AsyncIterator[Browsing]:
    async with ModelServer(record=False) as model, browsed_site() as site:
        network = {"allow_private": [f"127.0.0.1:{site.port}"]}
        tables = {"tools": TOOLS, "network": network, "browser": {"evaluate": True, **browser}}
        async with in_process(home, model, tables=tables) as api:
            yield Browsing(api, site)


def addresses(port: int) -> list[str]:
    """Return ways to write the address of the internal server."""
    hosts = ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", REBOUND)
    return [f"http://{host}:{port}/secret" for host in hosts]


@pytest.mark.parametrize("ways", [WAYS[:4], pytest.param(WAYS, marks=pytest.mark.long)], ids=["few", "all"])
async def test_no_attack_of_a_page_reaches_an_internal_address(
    tmp_path: Path, rebound: list[str], ways: list[str]
) -> None:
    async with Internal().run() as internal, browsing(tmp_path) as web:
        for way in ways:
            for url in addresses(internal.port):
                await web.open(f"/attack?{urlencode({'way': way, 'url': url})}")
                if way not in ("form", "location", "refresh"):
                    await web.call("wait", text="over", seconds=10)
                assert internal.reached == [], (way, url)
        for _ in range(9):
            await web.call("tabs", close=2)
    assert internal.reached == []
    assert REBOUND in rebound, "its address was checked when it was used"


async def test_a_page_that_redirects_inside_is_refused(tmp_path: Path) -> None:
    async with Internal().run() as internal, browsing(tmp_path) as web:
        target = urlencode({"to": f"http://127.0.0.1:{internal.port}/secret"})
        shown = await web.open(f"/redirect?{target}")
        assert "could not be opened" in shown and "only public addresses" in shown, shown
    assert internal.reached == []


async def test_alerts_without_end_and_a_page_of_millions_of_nodes_are_bounded(tmp_path: Path) -> None:
    async with browsing(tmp_path, max_memory=4 << 30) as web:
        await web.open("/")
        script = "setTimeout(() => { for (;;) alert('again'); }, 0)"
        await web.call("evaluate", script=script)
        for _ in range(3):
            assert "again" in await web.call("dialog", accept=True)
        await web.call("tabs", close=1)
        shown = await web.open("/nodes?count=100000")
        assert len(shown) < 13_000 and 'heading "Nodes"' in shown
        assert "find" in shown or "more lines" in shown
        other = await web.api.say("other", "hello")
        assert other["state"] == "done"


async def test_a_large_page_is_read_in_a_moment(tmp_path: Path) -> None:
    """60,000 paragraphs and links are some 5 MB."""
    async with browsing(tmp_path) as web:
        await web.open("/big")
        loop = asyncio.get_running_loop()
        began = loop.time()
        shown = await web.call("read")
        assert loop.time() - began < 10, "the outline is bounded in time"
        assert 'link "Link 1"' in shown and "browser_find" in shown
        assert len(shown) < 12_000
