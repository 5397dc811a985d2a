"""MCP servers as a part of the gateway. Without a server it imports nothing more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

from talaria.core.findings import Finding
from talaria.core.gateway_part import Examination, ToolPart, ToolScope
from talaria.tools.mcp.settings import McpSettings

if TYPE_CHECKING:
    from talaria.core.tools import ToolSource


def _open(scope: ToolScope, settings: McpSettings) -> AbstractAsyncContextManager[ToolSource]:
    from talaria.tools.mcp.source import open_servers  # noqa: PLC0415

    return open_servers(scope, settings)


async def _examine(examination: Examination[McpSettings]) -> AsyncIterator[Finding]:
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
