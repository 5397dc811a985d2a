"""A gateway's MCP servers without the gateway: real processes in the real sandbox, called as a model does."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from support import mcp_server
from support.proved_sandbox import proved
from support.trusts import FakeTrust
from support.waiting import until
from talaria.access.people import People
from talaria.core.clock import Clock, SystemClock
from talaria.core.events import Event
from talaria.core.messages import ToolCall, ToolResult
from talaria.mcp.part import McpServer, McpSettings
from talaria.mcp.source import McpServers
from talaria.store.store import Store
from talaria.tools.execution import BoundTools
from talaria.tools.part import ToolScope
from talaria.tools.toolset import ToolSet
from talaria.workspace.sandbox.choice import Sandboxes
from tools.conftest import bound

PROGRAM = Path(mcp_server.__file__)


def scripted(*options: str, **settings: Any) -> McpServer:
    """The settings of a scripted server."""
    more = settings.pop("readable", ())
    return McpServer(
        command=(sys.executable, str(PROGRAM), *options), readable=(str(PROGRAM.parent), *more), **settings
    )


@dataclass
class McpWorld:
    """The open servers, and what a chat does with them."""

    source: McpServers
    home: Path
    folder: Path
    events: list[Event] = field(default_factory=list)

    def state(self, server: str = "one") -> str:
        return self.source.servers()[server].state

    def names(self) -> list[str]:
        return [tool.spec.name for tool in self.source.tools()]

    async def ready(self, *servers: str) -> None:
        for server in servers or ("one",):
            await until(lambda: self.state(server) == "ready")  # noqa: B023 - not called later

    @cached_property
    def _bound(self) -> BoundTools:
        return bound(ToolSet(), self.folder, events=self.events, trust=FakeTrust())

    def tools(self) -> BoundTools:
        return msgspec.structs.replace(self._bound, tools=ToolSet(self.source.tools()))

    def close(self) -> None:
        self._bound.resources.workers.threads.close()

    async def result(self, name: str, **arguments: object) -> ToolResult:
        call = ToolCall("call_1", name, msgspec.json.encode(arguments).decode())
        return await self.tools().run(call)

    async def ok(self, name: str, **arguments: object) -> str:
        result = await self.result(name, **arguments)
        assert result.outcome == "ok", result.text
        return result.text

    async def error(self, name: str, **arguments: object) -> str:
        result = await self.result(name, **arguments)
        assert result.outcome == "error", result.text
        return result.text


@asynccontextmanager
async def open_world(
    tmp_path: Path,
    servers: Mapping[str, McpServer],
    *,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    own: tuple[str, ...] = (),
    sandboxes: Sandboxes | None = None,
    store: Store | None = None,
) -> AsyncIterator[McpWorld]:
    """Open the servers of a home below `tmp_path`, which a second world may open again."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    scope = ToolScope(
        home,
        environ or {},
        clock or SystemClock(),
        People(),
        opened=store,
        is_own_secret=lambda name: name in own,
    )
    source = McpServers(
        scope, McpSettings(dict(servers)), sandboxes=sandboxes or await proved(), draw=lambda: 1.0
    )
    world = McpWorld(source, home, tmp_path / "chat")
    source.start()
    try:
        yield world
    finally:
        world.close()
        await source.close()
