"""The list of parts: one line for each. Nothing else in the program names a part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from talaria.channels.discord.part import DISCORD
from talaria.channels.http.part import HTTP
from talaria.channels.slack.part import SLACK
from talaria.channels.telegram.part import TELEGRAM
from talaria.channels.webhooks.part import WEBHOOKS
from talaria.core.settings import GatewayPart
from talaria.jobs.part import SCHEDULER
from talaria.mcp.part import MCP
from talaria.memory.part import MEMORY
from talaria.services import RETENTION, SEARCH_INDEX
from talaria.skills.part import SKILLS
from talaria.store.part import POSTGRES, SQLITE
from talaria.tools.builtin import (
    ASK,
    BROWSER,
    COMMAND_VARIABLES,
    DELEGATE,
    FILES,
    JOBS,
    NETWORK,
    RECALL,
    SANDBOX,
    TERMINAL,
    TODO,
    WEB,
)
from talaria.tools.part import describe_families

if TYPE_CHECKING:
    from talaria.tools.settings import ToolSettings
    from talaria.tools.toolset import ToolSet

# They are opened in this order and closed in the reverse one. HTTP is last: while it closes, turns are
# drained, and the other channels still deliver their replies.
PARTS: tuple[GatewayPart[Any], ...] = (
    SQLITE,
    POSTGRES,
    FILES,
    TERMINAL,
    WEB,
    BROWSER,
    RECALL,
    TODO,
    ASK,
    DELEGATE,
    MEMORY,
    JOBS,
    MCP,
    SKILLS,
    SANDBOX,
    NETWORK,
    COMMAND_VARIABLES,
    RETENTION,
    SCHEDULER,
    SEARCH_INDEX,
    WEBHOOKS,
    TELEGRAM,
    DISCORD,
    SLACK,
    HTTP,
)


def builtin_tools(settings: ToolSettings) -> ToolSet:
    """Return the enabled built-in tools, described but not to be run. Raises `ConfigError` for an unknown
    name in `settings.enabled`."""
    from talaria.tools.toolset import resolve  # noqa: PLC0415

    return resolve(describe_families(PARTS, settings), settings.enabled)
