"""The tools of a session, bound to one turn of it."""

from __future__ import annotations

from talaria.agent.warm import WarmAgent
from talaria.core.messages import ToolCall, ToolResult
from talaria.core.ports import WorkspaceHandle
from talaria.core.tools import ToolContext, ToolSpec
from talaria.core.turns import Turn
from talaria.observe.metrics import Metrics
from talaria.tools.execution import execute
from talaria.tools.settings import ToolSettings
from talaria.tools.toolset import ToolSet

_SUBSETS_KEPT = 8


class ToolBench:
    """What this process has of tools, and how calls are limited; shared by all turns."""

    def __init__(self, tools: ToolSet, settings: ToolSettings, metrics: Metrics) -> None:
        self.tools = tools
        self.settings = settings
        self.metrics = metrics
        self._subsets: dict[tuple[str, ...], ToolSet] = {}

    def change(self, tools: ToolSet) -> None:
        """Other tools for the turns that begin from now on. A session whose tool is gone is told so when it
        calls it."""
        self.tools = tools
        self._subsets.clear()

    def bind(self, turn: Turn, agent: WarmAgent) -> BoundTools | None:
        """The tools that the agent's spec names, and no others, acting on its workspace. An agent without one
        has no tools of ours."""
        if agent.workspace is None:
            return None
        return BoundTools(self, turn, self._offered(agent.pinned.spec.tools), agent.workspace)

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
    """Implements `TurnTools`. A call of a tool that was not offered, or that this process lacks by now, is an
    error result."""

    __slots__ = ("_bench", "_tools", "_turn", "_workspace")

    def __init__(self, bench: ToolBench, turn: Turn, tools: ToolSet, workspace: WorkspaceHandle) -> None:
        self._bench = bench
        self._turn = turn
        self._tools = tools
        self._workspace = workspace

    def spec(self, name: str) -> ToolSpec | None:
        tool = self._tools.get(name)
        return tool.spec if tool else None

    async def run(self, call: ToolCall) -> ToolResult:
        bench, turn = self._bench, self._turn
        context = ToolContext(turn.session_id, turn.id, call.id, self._workspace.folder)
        result = await execute(self._tools, call, context, bench.settings)
        bench.metrics.tool_called(call.name if self.spec(call.name) else "unknown", result.outcome)
        return result
