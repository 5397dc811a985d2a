"""The families of tools that this process knows, and the sets resolved from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from talaria.core.errors import ConfigError
from talaria.core.tools import Tool
from talaria.tools.files import file_tools
from talaria.tools.settings import ToolSettings
from talaria.tools.todo import todo_tools
from talaria.tools.toolset import ToolSet

_KEPT_SETS = 8


class Registry:
    """Families by name. Raises `ConfigError` at once when two tools of any families share a name."""

    def __init__(self, families: Mapping[str, tuple[Tool, ...]]) -> None:
        self._families = dict(families)
        self._sets = lru_cache(maxsize=_KEPT_SETS)(self._build)
        ToolSet(tool for tools in self._families.values() for tool in tools)

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(sorted(self._families))

    def resolve(self, enabled: Sequence[str]) -> ToolSet:
        """The set of these families; neither order nor repetition matters, and equal wishes share one set.

        Raises `ConfigError` for an unknown family.
        """
        return self._sets(frozenset(enabled))

    def _build(self, wish: frozenset[str]) -> ToolSet:
        unknown = sorted(wish - self._families.keys())
        if unknown:
            raise ConfigError(
                f"No tools are called {', '.join(map(repr, unknown))}.",
                f"tools.enabled may name: {', '.join(self.families) or 'nothing yet'}.",
            )
        return ToolSet(tool for family in wish for tool in self._families[family])


def builtin_registry(settings: ToolSettings) -> Registry:
    """The families that ship with Talaria."""
    return Registry({"files": file_tools(settings.max_result), "todo": todo_tools()})
