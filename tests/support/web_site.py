"""A web server for tests that answers by path, and a dialer that takes it for a public one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from talaria.net.dialer import Dialer
from talaria.net.fetcher import FetchedPage, FetchLimits, PageFetcher

LIMITS = FetchLimits(seconds=20.0, received=1 << 20, unpacked=1 << 20)


def web_answer(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """The bytes of an answer; underscores in the names of headers stand for dashes."""
    given = {"content_length": str(len(body)), "connection": "close"} | headers
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


@dataclass
class WebSite:
    """The host `site.example` leads to it, `rebound.example` to a private address."""

    port: int = 0
    answers: dict[str, bytes] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)  # paths whose connection stays open

    def url(self, path: str, host: str = "site.example") -> str:
        return f"http://{host}:{self.port}{path}"

    async def resolve(self, owner: object, name: str) -> Sequence[str]:
        return {"site.example": ["127.0.0.1"], "rebound.example": ["169.254.169.254"]}[name]

    def fetcher(self, limits: FetchLimits = LIMITS) -> PageFetcher:
        return PageFetcher(Dialer(lambda: {f"127.0.0.1:{self.port}"}, resolve=self.resolve), limits)

    async def fetch(self, path: str) -> FetchedPage:
        return await self.fetcher().fetch(self.url(path))


@asynccontextmanager
async def serving_site() -> AsyncIterator[WebSite]:
    site = WebSite()
    handlers: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        site.heads.append(head)
        path = head.split(" ")[1]
        writer.write(site.answers.get(path, web_answer(b"nothing here", "404 Not Found")))
        with suppress(ConnectionError):
            await writer.drain()
        if path in site.silent:
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    async with server:
        yield site
    await asyncio.gather(*filter(None, handlers))
