"""The tools of this process, and how a turn gets those of its session."""

from __future__ import annotations

from collections.abc import Callable

from talaria.agent.warm import WarmAgent
from talaria.core.events import Event
from talaria.core.turns import Turn
from talaria.observe.metrics import Metrics
from talaria.tools.execution import BoundTools
from talaria.tools.settings import ToolSettings
from talaria.tools.toolset import ToolSet

_SUBSETS_KEPT = 8


class ToolRunner:
    """The tools that this process has, and the limits of their calls. Shared by all turns."""

    def __init__(self, tools: ToolSet, settings: ToolSettings, metrics: Metrics) -> None:
        self.tools = tools
        self._settings = settings
        self._metrics = metrics
        self._subsets: dict[tuple[str, ...], ToolSet] = {}

    def change(self, tools: ToolSet) -> None:
        """Use `tools` for turns that begin from now on. A session that calls a tool which is gone gets an
        error result."""
        self.tools = tools
        self._subsets.clear()

    def bind(self, turn: Turn, agent: WarmAgent, emit: Callable[[Event], None]) -> BoundTools | None:
        """Return the tools that the agent's spec names, acting on the agent's workspace; None for an agent
        without a workspace, which has no tools of ours."""
        if agent.workspace is None:
            return None
        return BoundTools(
            tools=self._offered(agent.pinned.spec.tools),
            session_id=turn.session_id,
            turn_id=turn.id,
            workspace=agent.workspace,
            settings=self._settings,
            emit=emit,
            count=self._metrics.tool_called,
        )

    def _offered(self, names: tuple[str, ...]) -> ToolSet:
        if names == self.tools.names:
            return self.tools
        offered = self._subsets.get(names)
        if offered is None:
            if len(self._subsets) >= _SUBSETS_KEPT:
                del self._subsets[next(iter(self._subsets))]
            offered = self._subsets[names] = self.tools.only(names)
        return offered
