"""The whole line from Telegram to the scripted model and back, over HTTP against the fake Bot API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.rig import Rig, start
from talaria.access.authorizer import PairingAdmin
from talaria.channels.telegram.bot_api import BotApi
from talaria.channels.telegram.channel import TelegramChannel, open_telegram
from talaria.channels.telegram.outlet import TelegramOutlet
from talaria.channels.telegram.part import TelegramSettings
from talaria.core.clock import Clock, SystemClock
from talaria.core.turns import Inbound
from talaria.observe.loop_watch import Load
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.telegram_platform import PlatformChat, TelegramUser
from talaria.testing.telegram_server import TelegramServer
from talaria.tools.toolset import ToolSet
from talaria.turns.delivery import FindPicture, find_no_picture

ADA = 7  # who is allowed


@dataclass(slots=True)
class Line:
    server: TelegramServer
    rig: Rig
    channel: TelegramChannel
    admin: PairingAdmin
    inbounds: list[Inbound]
    folder: Path
    clock: Clock

    async def pass_time(self, condition: Callable[[], bool]) -> None:
        """Turn the fake clock's hands until it is so."""
        assert isinstance(self.clock, FakeClock)
        while not condition():
            self.clock.advance(0.5)
            await self.clock.settle()

    @property
    def ada(self) -> TelegramUser:
        return self.server.person(ADA)

    @property
    def chat(self) -> PlatformChat:
        return self.server.platform.private(self.ada)

    async def answers(self, count: int = 1, chat: PlatformChat | None = None) -> list[str]:
        """The bot's messages in the chat, once there are so many and none is unfinished."""
        place = chat or self.chat
        await self.server.until(
            lambda: len(place.replies) >= count and not any(text.endswith("▌") for text in place.replies)
        )
        return place.replies

    async def confirmed(self) -> None:
        """Everything that was pushed has been taken in, or left out, for good."""
        await self.server.until(lambda: not self.server.platform.queue and not self.server.platform.repeated)


class Recorder:
    """Turns that note what is handed in."""

    def __init__(self, rig: Rig) -> None:
        self.inbounds: list[Inbound] = []
        self._turns = rig.turns
        self.decisions = rig.turns.decisions

    async def submit(self, inbound: Inbound) -> object:
        self.inbounds.append(inbound)
        return await self._turns.submit(inbound)

    async def amend(self, inbound: Inbound, edit_key: str) -> bool:
        return await self._turns.amend(inbound, edit_key)


@asynccontextmanager
async def telegram(
    folder: Path,
    server: TelegramServer,
    *,
    store: Any = None,
    clock: Clock | None = None,
    api_url: str = "",
    token: str = "",
    load: Load | None = None,
    tools: Callable[[ToolSet], ToolSet] = lambda tools: tools,
    find_picture: FindPicture = find_no_picture,
    **settings: Any,
) -> AsyncIterator[Line]:
    """A life of the channel; another one over the same store and server is a restart."""
    clock = clock or SystemClock()
    store = store or MemoryStore(clock)
    configured = TelegramSettings(
        token=token or server.token, allowed=(ADA,), api_url=api_url or server.url, **settings
    )
    async with AsyncExitStack() as scopes:
        rig = await scopes.enter_async_context(
            start(store, folder, clock=clock, load=load, tools=tools, find_picture=find_picture)
        )
        recorder = Recorder(rig)
        sending = asyncio.create_task(rig.delivery.run(), name="delivery")
        try:
            gateway = rig.gateway(folder, turns=recorder)
            async with open_telegram(gateway, configured) as channel:
                admin = PairingAdmin(store.pairings, ["telegram"])
                yield Line(server, rig, channel, admin, recorder.inbounds, folder, clock)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@asynccontextmanager
async def way_back(
    server: TelegramServer,
    clock: Clock | None = None,
    progress: str = "brief",
    own: frozenset[str] = frozenset(),
) -> AsyncIterator[TelegramOutlet]:
    """The outlet alone, with Ada's chat behind it."""

    async def on_moved(old: int, new: int) -> None:
        raise AssertionError

    server.platform.private(server.person(ADA))
    async with BotApi(server.url, server.token) as api:
        yield TelegramOutlet(api, clock or SystemClock(), progress, on_moved, own)
