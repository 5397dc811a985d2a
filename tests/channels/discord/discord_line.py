"""The whole line from Discord to the scripted model and back, against the fake Discord."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.rig import Rig, start
from talaria.access.authorizer import PairingAdmin
from talaria.channels.channel_loop import ChannelPhase
from talaria.channels.discord.api import DiscordApi
from talaria.channels.discord.channel import DiscordChannel, open_discord
from talaria.channels.discord.outlet import DiscordOutlet
from talaria.channels.discord.part import DiscordSettings
from talaria.channels.live_message import CURSOR
from talaria.core.clock import Clock, SystemClock
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.discord_platform import DiscordPerson, DiscordRoom
from talaria.testing.discord_server import DiscordServer
from talaria.tools.toolset import ToolSet

ADA = 7  # the person who is allowed


@dataclass(slots=True)
class DiscordLine:
    server: DiscordServer
    rig: Rig
    channel: DiscordChannel
    admin: PairingAdmin
    clock: Clock

    @property
    def ada(self) -> DiscordPerson:
        return self.server.person(ADA)

    @property
    def chat(self) -> DiscordRoom:
        return self.server.platform.private(self.ada)

    async def pass_time(self, condition: Callable[[], bool]) -> None:
        """Advance the fake clock until the condition is true."""
        assert isinstance(self.clock, FakeClock)
        while not condition():
            self.clock.advance(0.5)
            await self.clock.settle()

    async def answers(self, count: int = 1, chat: DiscordRoom | None = None) -> list[str]:
        """Return the bot's messages in the chat, once there are so many and none is unfinished."""
        place = chat or self.chat

        def are_there() -> bool:
            return len(place.replies) >= count and not any(
                text.endswith(CURSOR.strip()) for text in place.replies
            )

        await self.server.until(are_there)
        return place.replies

    async def ready(self) -> None:
        while self.channel.phase is not ChannelPhase.READY:
            await asyncio.sleep(0)
            if isinstance(self.clock, FakeClock):
                self.clock.advance(0.1)
                await self.clock.settle()

    async def turns(self) -> int:
        return sum((await self.rig.store.stats()).turns.values())


@asynccontextmanager
async def discord_line(
    folder: Path,
    server: DiscordServer,
    *,
    store: Any = None,
    clock: Clock | None = None,
    is_ready: bool = True,
    tools: Callable[[ToolSet], ToolSet] = lambda tools: tools,
    **settings: Any,
) -> AsyncIterator[DiscordLine]:
    """A life of the channel; another one over the same store and server is a restart."""
    clock = clock or SystemClock()
    store = store or MemoryStore(clock)
    server.platform.private(server.person(ADA))
    configured = DiscordSettings(
        **{"token": server.token, "allowed": (ADA,), "api_url": server.url} | settings
    )
    async with AsyncExitStack() as scopes:
        rig = await scopes.enter_async_context(start(store, folder, clock=clock, tools=tools))
        sending = asyncio.create_task(rig.delivery.run(), name="delivery")
        try:
            async with open_discord(rig.gateway(folder), configured) as channel:
                line = DiscordLine(server, rig, channel, PairingAdmin(store.pairings, ["discord"]), clock)
                if is_ready:
                    await line.ready()
                yield line
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@asynccontextmanager
async def discord_outlet(
    server: DiscordServer, clock: Clock | None = None, own: frozenset[str] = frozenset()
) -> AsyncIterator[DiscordOutlet]:
    """The outlet alone, with Ada's private chat as its address."""
    server.platform.private(server.person(ADA))
    async with DiscordApi(server.url, server.token) as api:
        yield DiscordOutlet(api, clock or SystemClock(), "brief", own)
