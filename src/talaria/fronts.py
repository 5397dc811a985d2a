"""The chat platforms that are configured."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from talaria.channels.telegram.part import TELEGRAM
from talaria.channels.telegram.settings import find_token, webhook_secret
from talaria.core.errors import ConfigError
from talaria.gateway import Gateway

_log = logging.getLogger("talaria.app")


@asynccontextmanager
async def serve_channels(gateway: Gateway) -> AsyncIterator[None]:
    """Open the configured chat platforms. One that cannot run says so in the status, and the rest runs."""
    settings = gateway.settings.of(TELEGRAM)
    if not settings.is_on:
        yield
        return
    try:
        token = find_token(settings, gateway.home.path, gateway.environ)
    except ConfigError as error:
        why = f"stopped: {error.user_text}"
        gateway.channels["telegram"] = lambda: why
        _log.error("Telegram is off: %s", error)
        yield
        return
    # Its HTTP client takes longer to import than the rest of a start; see `Providers.warm`.
    from talaria.channels.telegram.opening import TelegramParts, open_telegram  # noqa: PLC0415
    from talaria.channels.telegram.webhook import PATH, TelegramWebhook  # noqa: PLC0415

    parts = TelegramParts(
        settings=settings,
        token=token,
        store=gateway.store,
        pairings=gateway.store.pairings,
        delivery=gateway.delivery,
        submit=gateway.turns.submit,
        folder_of=gateway.chat_folder,
        agent=gateway.settings.agent.name,
        clock=gateway.clock,
        on_authorizer=lambda authorizer: gateway.reloader.live.follow(
            TELEGRAM, lambda new: authorizer.change_allowed({"telegram": new.allowed})
        ),
    )
    async with open_telegram(parts) as telegram:
        gateway.channels["telegram"] = lambda: telegram.status
        if settings.mode == "webhook":
            gateway.webhooks[PATH] = TelegramWebhook(telegram, webhook_secret(token))
        yield
