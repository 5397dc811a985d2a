"""MCP servers as a part of the gateway. Without a server it imports nothing more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from talaria.core.problems import Problem
from talaria.core.settings import Examination
from talaria.tools.mcp.settings import McpSettings
from talaria.tools.part import ToolPart, ToolScope
from talaria.tools.tool import ToolSource

if TYPE_CHECKING:
    from talaria.observe.metrics import ServerReading
    from talaria.tools.mcp.source import McpServers
    from talaria.tools.tool import Tool


class McpSource(ToolSource):
    """The source of tools. The servers themselves are imported with the first one that is configured."""

    name = "mcp"

    def __init__(self, scope: ToolScope, settings: McpSettings) -> None:
        self._scope = scope
        self._servers: McpServers | None = None
        self._changed: list[Callable[[], None]] = []
        self._is_started = False
        self.change(settings)

    def tools(self) -> tuple[Tool, ...]:
        return () if self._servers is None else self._servers.tools()

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)

    def servers(self) -> Mapping[str, ServerReading]:
        return {} if self._servers is None else self._servers.servers()

    def start(self) -> None:
        self._is_started = True
        if self._servers is not None:
            self._servers.start()

    def change(self, settings: McpSettings) -> None:
        """Take new settings up."""
        if self._servers is not None:
            self._servers.change(settings)
        elif settings.servers:
            from talaria.tools.mcp.source import McpServers  # noqa: PLC0415 - with the first server

            self._servers = McpServers(self._scope, settings)
            self._servers.subscribe(self._tell)
            if self._is_started:
                self._servers.start()
                self._tell()

    def _tell(self) -> None:
        for changed in self._changed:
            changed()

    async def close(self) -> None:
        if self._servers is not None:
            await self._servers.close()


@asynccontextmanager
async def _open(scope: ToolScope, settings: McpSettings) -> AsyncIterator[ToolSource]:
    """Open the source, which follows changes of its settings. Leaving ends the servers."""
    source = McpSource(scope, settings)
    with scope.follow(MCP, source.change):
        try:
            yield source
        finally:
            await source.close()


async def _examine(examination: Examination[McpSettings]) -> AsyncIterator[Problem]:
    if not examination.settings.servers:
        return
    from talaria.tools.mcp.checks import examine_servers  # noqa: PLC0415

    async for finding in examine_servers(examination):
        yield finding


MCP: Final = ToolPart(
    name="mcp",
    table=("mcp",),
    settings=McpSettings,
    is_builtin=False,
    open=_open,
    findings=_examine,
)
