"""The sources of tools that ship with Talaria."""

from __future__ import annotations

from talaria.core.tools import ToolSource
from talaria.tools.files import file_tools
from talaria.tools.settings import ToolSettings
from talaria.tools.todo import todo_tools
from talaria.tools.toolset import Family, ToolSet, resolve


def builtin_sources(settings: ToolSettings) -> tuple[ToolSource, ...]:
    return (Family("files", file_tools(settings.max_result)), Family("todo", todo_tools()))


def builtin_tools(settings: ToolSettings) -> ToolSet:
    """Return the enabled built-in tools. Raises `ConfigError` for an unknown name in `settings.enabled`."""
    return resolve(builtin_sources(settings), settings.enabled)
