"""The contracts of parts, as test classes. A part that passes its suite works with the gateway.

Our own tests use the same classes. They need pytest and pytest-asyncio, which the gateway itself does not:
nothing else in the program imports this package.
"""

from talaria.testing.contracts.channel_suite import ChannelSuite, ChatPlatformSuite, Talk, open_channel
from talaria.testing.contracts.engine_suite import ContextEngineSuite
from talaria.testing.contracts.memory_suite import MemorySuite
from talaria.testing.contracts.outlet_suite import ChatOutletSuite, OutletSuite, SendTrouble, Wall
from talaria.testing.contracts.tool_suite import ToolSourceSuite, ToolSuite, call_tool

__all__ = [
    "ChannelSuite",
    "ChatOutletSuite",
    "ChatPlatformSuite",
    "ContextEngineSuite",
    "MemorySuite",
    "OutletSuite",
    "SendTrouble",
    "Talk",
    "ToolSourceSuite",
    "ToolSuite",
    "Wall",
    "call_tool",
    "open_channel",
]
