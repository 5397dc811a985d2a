"""The whole line from Slack to the scripted model and back, over sockets and HTTP against the fake Slack."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.rig import Rig, start
from talaria.access.authorizer import PairingAdmin
from talaria.channels.slack.channel import SlackChannel, open_slack
from talaria.channels.slack.outlet import SlackOutlet
from talaria.channels.slack.part import SlackSettings
from talaria.channels.slack.slack_api import SlackApi
from talaria.core.clock import Clock, SystemClock
from talaria.core.ids import ChatKey
from talaria.core.turns import Inbound
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.slack_platform import SlackConversation, SlackPerson
from talaria.testing.slack_server import APP_TOKEN, BOT_TOKEN, SlackServer
from talaria.tools.toolset import ToolSet

ADA = "U7ADA"  # who is allowed


@dataclass(slots=True)
class Line:
    server: SlackServer
    rig: Rig
    channel: SlackChannel
    admin: PairingAdmin
    inbounds: list[Inbound]
    folder: Path
    clock: Clock
    gateway: Any

    async def pass_time(self, condition: Callable[[], bool]) -> None:
        """Turn the fake clock's hands until it is so."""
        assert isinstance(self.clock, FakeClock)
        while not condition():
            self.clock.advance(0.5)
            await self.clock.settle()

    @property
    def ada(self) -> SlackPerson:
        return self.server.person(ADA)

    @property
    def general(self) -> SlackConversation:
        return self.server.platform.conversation("C1GENERAL", ADA, "U8BOB")

    async def answers(self, count: int = 1, place: SlackConversation | None = None) -> list[str]:
        """The bot's messages in the conversation, once there are so many and none is unfinished."""
        shown = place or self.ada.dm
        await self.server.until(
            lambda: len(shown.replies) >= count and not any(text.endswith("▌") for text in shown.replies)
        )
        return shown.replies

    async def handled(self) -> None:
        """Everything that was pushed has been acknowledged."""
        await self.server.until(lambda: not self.server.unacknowledged)


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

    def withdraw(self, chat_key: ChatKey, key: str) -> bool:
        return self._turns.withdraw(chat_key, key)


@asynccontextmanager
async def slack(
    folder: Path,
    server: SlackServer,
    *,
    store: Any = None,
    clock: Clock | None = None,
    tools: Callable[[ToolSet], ToolSet] = lambda tools: tools,
    **settings: Any,
) -> AsyncIterator[Line]:
    """A life of the channel; another one over the same store and server is a restart."""
    clock = clock or SystemClock()
    store = store or MemoryStore(clock)
    given = {"bot_token": BOT_TOKEN, "app_token": APP_TOKEN, "allowed": (ADA,), "api_url": server.api_url}
    configured = SlackSettings(**(given | settings))
    server.person(ADA)
    server.person("U8BOB", "Bob")
    async with AsyncExitStack() as scopes:
        rig = await scopes.enter_async_context(start(store, folder, clock=clock, tools=tools))
        recorder = Recorder(rig)
        sending = asyncio.create_task(rig.delivery.run(), name="delivery")
        try:
            gateway = rig.gateway(folder, turns=recorder)
            async with open_slack(gateway, configured) as channel:
                admin = PairingAdmin(store.pairings, ["slack"])
                yield Line(server, rig, channel, admin, recorder.inbounds, folder, clock, gateway)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


@asynccontextmanager
async def way_back(
    server: SlackServer,
    clock: Clock | None = None,
    progress: str = "brief",
    own: frozenset[str] = frozenset(),
) -> AsyncIterator[SlackOutlet]:
    """The outlet alone, with Ada's direct messages behind it."""
    _ = server.person(ADA).dm
    async with SlackApi(server.api_url, BOT_TOKEN) as api:
        yield SlackOutlet(api, clock or SystemClock(), progress, own)
