from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.tools import ToolContext, ToolSpec
from talaria.tools.execution import execute
from talaria.tools.function import FunctionTool, parameters
from talaria.tools.registry import builtin_registry
from talaria.tools.settings import FAMILIES, ToolSettings

SETTINGS = ToolSettings()


def context(folder: Path, session: str = "ses_1") -> ToolContext:
    return ToolContext(SessionId(session), TurnId("turn_1"), "call_1", folder)


def tool(
    name: str,
    description: str = "",
    schema: str | None = None,
    handler: Callable[[dict[str, Any], ToolContext], Awaitable[str]] | None = None,
) -> FunctionTool:
    async def answer(arguments: dict[str, Any], context: ToolContext) -> str:
        return f"{name} was called"

    return FunctionTool(ToolSpec(name, description, schema or parameters({})), handler or answer)


@dataclass(frozen=True)
class Desk:
    """The built-in tools over a folder, called as a model calls them."""

    folder: Path
    session: str = "ses_1"

    async def result(self, name: str, **arguments: object) -> ToolResult:
        tools = builtin_registry(SETTINGS).resolve(FAMILIES)
        call = ToolCall("call_1", name, msgspec.json.encode(arguments).decode())
        return await execute(tools, call, context(self.folder, self.session), SETTINGS)

    async def ok(self, name: str, **arguments: object) -> str:
        result = await self.result(name, **arguments)
        assert result.outcome == "ok", result.text
        return result.text

    async def error(self, name: str, **arguments: object) -> str:
        result = await self.result(name, **arguments)
        assert result.outcome == "error", result.text
        return result.text


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "chat")
