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

_SUBSETS_KEPT = 8


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
        self._subsets: dict[tuple[str, ...], ToolSet] = {}

    def bind(self, turn: Turn, names: tuple[str, ...]) -> BoundTools:
        """The tools that the session's spec names, and no others."""
        return BoundTools(self, turn, self._offered(names))

    def _offered(self, names: tuple[str, ...]) -> ToolSet:
        if names == self.tools.names:
            return self.tools
        offered = self._subsets.get(names)
        if offered is None:
            if len(self._subsets) >= _SUBSETS_KEPT:
                del self._subsets[next(iter(self._subsets))]
            offered = self._subsets[names] = self.tools.only(names)
        return offered


class BoundTools:
    """Implements `loop.TurnTools`. A call of a tool that was not offered, or that this process lacks by now,
    is an error result."""

    __slots__ = ("_bench", "_tools", "_turn")

    def __init__(self, bench: ToolBench, turn: Turn, tools: ToolSet) -> None:
        self._bench = bench
        self._turn = turn
        self._tools = tools

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._tools.get(name)
        return tool.spec if tool else None

    async def run(self, call: ToolCall) -> ToolResult:
        bench, turn = self._bench, self._turn
        context = ToolContext(turn.session_id, turn.id, call.id, bench.folder_of(turn.chat_key))
        result = await execute(self._tools, call, context, bench.settings)
        bench.metrics.tool_called(call.name if self.spec(call.name) else "unknown", result.outcome)
        return result
