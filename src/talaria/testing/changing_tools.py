"""A source of tools that changes when a test says so, as MCP servers and plug-ins do."""

from __future__ import annotations

from collections.abc import Callable

from talaria.tools.tool import Tool, ToolSource


class ChangingSource(ToolSource):
    """A source that offers nothing at first."""

    def __init__(self, name: str = "changing") -> None:
        self.name = name
        self._tools: tuple[Tool, ...] = ()
        self._subscribers: list[Callable[[], None]] = []

    def tools(self) -> tuple[Tool, ...]:
        return self._tools

    def subscribe(self, changed: Callable[[], None]) -> None:
        self._subscribers.append(changed)

    def offer(self, *tools: Tool) -> None:
        """Offer these tools from now on, and announce the change."""
        self._tools = tools
        for changed in self._subscribers:
            changed()
