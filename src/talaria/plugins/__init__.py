"""The API of plug-ins. A plug-in has a function `register(plugin: Plugin)`, which says what it brings.

docs/how-to/write-a-plugin.md shows how one is written. Everything that is named here stays as it is within a
minor version; other modules of the program may change at any time.
"""

from talaria.agent.compaction.engine import Ask, ContextEngine
from talaria.agent.compaction.plan import CompactionRequest
from talaria.channels.descriptor import Channel
from talaria.commands.command import CommandCall
from talaria.core.entries import Summary
from talaria.core.errors import TalariaError, ToolError
from talaria.core.hooks import (
    AnswerFacts,
    EndFacts,
    HookRefusal,
    ModelFacts,
    ResultFacts,
    SessionFacts,
    ToolFacts,
    TurnFacts,
)
from talaria.core.settings import Check, Mark
from talaria.core.tools import Risk, ToolSpec
from talaria.gateway import Gateway
from talaria.plugins.api import Plugin
from talaria.tools.part import ToolScope
from talaria.tools.tool import MemoryProvider, Tool, ToolContext, ToolSource

__all__ = [
    "AnswerFacts",
    "Ask",
    "Channel",
    "Check",
    "CommandCall",
    "CompactionRequest",
    "ContextEngine",
    "EndFacts",
    "Gateway",
    "HookRefusal",
    "Mark",
    "MemoryProvider",
    "ModelFacts",
    "Plugin",
    "ResultFacts",
    "Risk",
    "SessionFacts",
    "Summary",
    "TalariaError",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolFacts",
    "ToolScope",
    "ToolSource",
    "ToolSpec",
    "TurnFacts",
]
