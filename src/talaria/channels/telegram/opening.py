"""Opening the channel: puts its pieces together and keeps it running for as long as the scope is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from talaria.access.authorizer import Authorizer
from talaria.channels.telegram.channel import WEBHOOK_PATH, TelegramChannel, TelegramWebhook
from talaria.channels.telegram.client import BotApi
from talaria.channels.telegram.outlet import TelegramOutlet
from talaria.channels.telegram.parse import CHANNEL
from talaria.channels.telegram.part import TELEGRAM
from talaria.channels.telegram.settings import TelegramSettings, find_token, webhook_secret
from talaria.channels.telegram.updates import DeskParts, UpdateHandler
from talaria.gateway import Gateway


@asynccontextmanager
async def open_telegram(gateway: Gateway, settings: TelegramSettings) -> AsyncIterator[TelegramChannel]:
    """Raises `ConfigError` without a token. What happens to the channel later is not raised: its status says
    so. Leaving stops taking messages in, and lets sends under way finish."""
    token = find_token(settings, gateway.home.path, gateway.environ)
    gateway.reloader.add_secrets([token, webhook_secret(token)])
    authorizer = Authorizer(gateway.store.pairings, {CHANNEL: settings.allowed}, gateway.clock)

    def change_allowed(new: TelegramSettings) -> None:
        authorizer.change_allowed({CHANNEL: new.allowed})

    async with BotApi(settings.api_url, token) as api:
        handler = UpdateHandler(
            DeskParts(
                api,
                authorizer,
                gateway.turns.submit,
                gateway.store.move_chat,
                gateway.chat_folder,
                gateway.settings.agent.name,
                settings.groups,
            )
        )
        channel = TelegramChannel(api, settings, handler, gateway.store, gateway.clock)
        outlet = TelegramOutlet(api, gateway.clock, settings.progress, handler.move_chat)
        gateway.delivery.attach(CHANNEL, outlet)
        if settings.mode == "webhook":
            gateway.webhooks[WEBHOOK_PATH] = TelegramWebhook(channel, webhook_secret(token))
        running = asyncio.create_task(channel.run(), name=CHANNEL)
        try:
            with gateway.reloader.live.follow(TELEGRAM, change_allowed):
                yield channel
        finally:
            gateway.webhooks.pop(WEBHOOK_PATH, None)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await gateway.delivery.detach(CHANNEL)
