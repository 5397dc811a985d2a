"""The tools of a session, bound to one turn of it."""

from __future__ import annotations

from pathlib import Path

from talaria.core.ids import SessionId, TurnId
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.tools import ToolContext, ToolSpec
from talaria.observe.metrics import Metrics
from talaria.tools.execution import execute
from talaria.tools.settings import ToolSettings
from talaria.tools.toolset import ToolSet


class ToolBench:
    """What this process has of tools, and how calls are limited; shared by all turns."""

    def __init__(self, tools: ToolSet, settings: ToolSettings, metrics: Metrics) -> None:
        self.tools = tools
        self.settings = settings
        self.metrics = metrics

    def bind(self, session_id: SessionId, turn_id: TurnId, folder: Path) -> BoundTools:
        return BoundTools(self, session_id, turn_id, folder)


class BoundTools:
    """Implements `loop.TurnTools`. A tool that the spec names and this process lacks is an error result."""

    def __init__(self, bench: ToolBench, session_id: SessionId, turn_id: TurnId, folder: Path) -> None:
        self._bench = bench
        self._session_id = session_id
        self._turn_id = turn_id
        self._folder = folder

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._bench.tools.get(name)
        return tool.spec if tool else None

    async def run(self, call: ToolCall) -> ToolResult:
        context = ToolContext(self._session_id, self._turn_id, call.id, self._folder)
        result = await execute(self._bench.tools, call, context, self._bench.settings)
        self._bench.metrics.tool_called(call.name if self.spec(call.name) else "unknown", result.outcome)
        return result
