"""Clients of MCP in Python, each over HTTP and over stdio. The arguments are the client, the address and the
token of `talaria mcp serve --http`, and the command of the one over stdio."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

NAME, URL, TOKEN, *COMMAND = sys.argv[1:]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
QUESTION = {"session": NAME, "text": "hi"}


async def fastmcp() -> None:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

    stdio = StdioTransport(COMMAND[0], COMMAND[1:])
    for way in (StreamableHttpTransport(URL, headers=HEADERS), stdio):
        async with Client(way) as client:
            assert "ask" in {tool.name for tool in await client.list_tools()}
            _check(await client.call_tool("ask", QUESTION))


async def langchain() -> None:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    servers: dict[str, Any] = {
        "http": {"transport": "streamable_http", "url": URL, "headers": HEADERS},
        "stdio": {"transport": "stdio", "command": COMMAND[0], "args": COMMAND[1:]},
    }
    for name, server in servers.items():
        tools = {tool.name: tool for tool in await MultiServerMCPClient({name: server}).get_tools()}
        _check(await tools["ask"].ainvoke(QUESTION))


async def openai_agents() -> None:
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    http = MCPServerStreamableHttp({"url": URL, "headers": HEADERS}, client_session_timeout_seconds=60)
    stdio = MCPServerStdio({"command": COMMAND[0], "args": COMMAND[1:]}, client_session_timeout_seconds=60)
    for server in (http, stdio):
        async with server:
            assert "ask" in {tool.name for tool in await server.list_tools()}
            _check(await server.call_tool("ask", QUESTION))


def _check(result: object) -> None:
    assert "You said: hi" in str(result), result


asyncio.run({"fastmcp": fastmcp, "langchain": langchain, "openai-agents": openai_agents}[NAME]())
print("good")
