"""The tools of a session, bound to one turn of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from talaria.core.ids import ChatKey
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.tools import ToolContext, ToolSpec
from talaria.core.turns import Turn
from talaria.observe.metrics import Metrics
from talaria.tools.execution import execute
from talaria.tools.settings import ToolSettings
from talaria.tools.toolset import ToolSet


class ToolBench:
    """What this process has of tools, and how calls are limited; shared by all turns.

    `folder_of` tells where a chat's files live; it is asked when a tool runs, which most turns never do.
    """

    def __init__(
        self,
        tools: ToolSet,
        settings: ToolSettings,
        metrics: Metrics,
        folder_of: Callable[[ChatKey], Path],
    ) -> None:
        self.tools = tools
        self.settings = settings
        self.metrics = metrics
        self.folder_of = folder_of

    def bind(self, turn: Turn) -> BoundTools:
        return BoundTools(self, turn)


class BoundTools:
    """Implements `loop.TurnTools`. A tool that the spec names and this process lacks is an error result."""

    __slots__ = ("_bench", "_turn")

    def __init__(self, bench: ToolBench, turn: Turn) -> None:
        self._bench = bench
        self._turn = turn

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._bench.tools.get(name)
        return tool.spec if tool else None

    async def run(self, call: ToolCall) -> ToolResult:
        bench, turn = self._bench, self._turn
        context = ToolContext(turn.session_id, turn.id, call.id, bench.folder_of(turn.chat_key))
        result = await execute(bench.tools, call, context, bench.settings)
        bench.metrics.tool_called(call.name if self.spec(call.name) else "unknown", result.outcome)
        return result
