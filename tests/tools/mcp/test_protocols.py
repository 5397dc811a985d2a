"""Versions of the protocol, changes that servers announce, and the transport with server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.mcp_world import open_world, scripted
from support.waiting import until
from talaria.mcp.part import McpServer


@pytest.mark.parametrize("protocol", [(), ("--modern",)])
async def test_a_change_that_a_server_announces_is_seen_at_once(
    tmp_path: Path, protocol: tuple[str, ...]
) -> None:
    """On 2026-07-28 a client has to subscribe to changes."""
    async with open_world(tmp_path, {"one": scripted(*protocol)}) as world:
        await world.ready()
        await world.ok("mcp_one_change")
        await until(lambda: world.source.servers()["one"].proposed == ("echo", "new"))


async def test_a_pinned_version_is_the_only_one_that_is_spoken(tmp_path: Path) -> None:
    servers = {
        "old": scripted(protocol="2024-11-05"),
        "new": scripted("--modern", protocol="2026-07-28"),
        "other": scripted("--protocol", "2025-06-18", protocol="2025-11-25"),
        "legacy": scripted(protocol="2026-07-28"),
    }
    async with open_world(tmp_path, servers) as world:
        await world.ready("old", "new")
        versions = {}
        for name in ("old", "new"):
            keeper = world.source._keepers[name]
            assert keeper._connection is not None
            versions[name] = keeper._connection.session.protocol_version
        assert versions == {"old": "2024-11-05", "new": "2026-07-28"}
        wrong = "speaks the protocol 2025-06-18, and not 2025-11-25"
        await until(lambda: wrong in world.source.servers()["other"].trouble)
        await until(lambda: "Method not found" in world.source.servers()["legacy"].trouble)


class SseServer:
    """A server of the transport of 2024: GET opens the stream, each message is a POST, and its answer comes
    on the stream."""

    def __init__(self) -> None:
        self.streams: list[asyncio.StreamWriter] = []
        self.keys: set[str] = set()
        self.refuses = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                size = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
                body = await reader.readexactly(size)
                self.keys.add(head.lower().partition("x-key: ")[2].partition("\r\n")[0])
                await self._answer(head, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith("GET /sse"):
            self.streams.append(writer)
            writer.write(b"HTTP/1.1 200 Ok\r\nContent-Type: text/event-stream\r\n\r\n")
            writer.write(b"event: endpoint\ndata: /messages?session_id=1\n\n")
        elif head.startswith("POST /messages?session_id=1 ") and not self.refuses:
            writer.write(b"HTTP/1.1 202 Ok\r\nContent-Length: 0\r\n\r\n")
            self._reply(json.loads(body))
        else:
            writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    def _reply(self, message: dict[str, object]) -> None:
        if "id" not in message:
            return
        results: dict[object, object] = {
            "initialize": {
                "protocolVersion": "2024-11-05",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "plain", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "reached"}]},
        }
        told: dict[str, object] = {"jsonrpc": "2.0", "id": message["id"]}
        found = results.get(message["method"])
        told |= {"error": {"code": -32601, "message": "no"}} if found is None else {"result": found}
        self.streams[-1].write(b"event: message\ndata: " + json.dumps(told).encode() + b"\n\n")


@asynccontextmanager
async def sse_server() -> AsyncIterator[tuple[SseServer, str]]:
    server = SseServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listener:
        yield server, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/sse"


async def test_a_server_of_the_older_transport_is_used_and_opened_again(tmp_path: Path) -> None:
    async with sse_server() as (server, url):
        one = McpServer(url=url, transport="sse", headers={"X-Key": "${KEY}"})
        absent = McpServer(url=url.replace("/sse", "/nothing"), transport="sse")
        async with open_world(tmp_path, {"one": one, "absent": absent}, environ={"KEY": "k1"}) as world:
            await world.ready()
            assert await world.ok("mcp_one_plain") == "reached"
            assert "k1" in server.keys
            await until(lambda: "status 404" in world.source.servers()["absent"].trouble)
            server.streams[-1].close()
            await until(lambda: world.source.servers()["one"].starts == 2)
            await world.ready()
            assert await world.ok("mcp_one_plain") == "reached"
            server.refuses = True
            await world.error("mcp_one_plain")
            server.refuses = False
            await until(lambda: world.source.servers()["one"].starts == 3)
            await world.ready()
            assert await world.ok("mcp_one_plain") == "reached"
