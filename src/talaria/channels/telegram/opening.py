"""Opening the channel: puts its pieces together and keeps it running for as long as the scope is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from talaria.access.authorizer import Authorizer
from talaria.channels.telegram.channel import TelegramChannel
from talaria.channels.telegram.client import BotApi
from talaria.channels.telegram.desk import Desk, DeskParts
from talaria.channels.telegram.outlet import TelegramOutlet
from talaria.channels.telegram.parse import CHANNEL
from talaria.channels.telegram.settings import TelegramSettings
from talaria.core.clock import Clock
from talaria.core.ids import ChatKey
from talaria.core.ports import Pairings, Store
from talaria.core.turns import Inbound
from talaria.turns.delivery import Delivery


@dataclass(frozen=True, slots=True)
class TelegramParts:
    """`submit` returns when a message is durable; `folder_of` is where a chat's files are; `on_authorizer`
    is given the authorizer of the channel."""

    settings: TelegramSettings
    token: str
    store: Store
    pairings: Pairings
    delivery: Delivery
    submit: Callable[[Inbound], Awaitable[object]]
    folder_of: Callable[[ChatKey], Path]
    agent: str
    clock: Clock
    on_authorizer: Callable[[Authorizer], None] = lambda authorizer: None


@asynccontextmanager
async def open_telegram(parts: TelegramParts) -> AsyncIterator[TelegramChannel]:
    """Nothing that happens to the channel is raised here: it says how it is. Leaving stops taking in, and
    lets sends under way finish."""
    settings, clock = parts.settings, parts.clock
    async with BotApi(settings.api_url, parts.token) as api:
        authorizer = Authorizer(parts.pairings, {CHANNEL: settings.allowed}, clock)
        parts.on_authorizer(authorizer)
        desk = Desk(
            DeskParts(
                api,
                authorizer,
                parts.submit,
                parts.store.move_chat,
                parts.folder_of,
                parts.agent,
                settings.groups,
            )
        )
        channel = TelegramChannel(api, settings, desk, parts.store, clock)
        parts.delivery.attach(CHANNEL, TelegramOutlet(api, clock, settings.progress, desk.moved))
        running = asyncio.create_task(channel.run(), name=CHANNEL)
        try:
            yield channel
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await parts.delivery.detach(CHANNEL)
