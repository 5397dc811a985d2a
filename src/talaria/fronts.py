"""The ways in of a gateway: the chat platforms that are configured, and the HTTP API with the page."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from talaria import __version__
from talaria.access.logins import Logins
from talaria.channels.http.api import HttpParts, create_app
from talaria.channels.http.login import ENDED
from talaria.channels.http.server import HttpServer, allowed_hosts, bind
from talaria.channels.telegram.settings import find_token, webhook_secret
from talaria.config.home import GatewayInfo
from talaria.core.errors import ConfigError
from talaria.gateway import Gateway
from talaria.observe.health import GatewayPhase

_log = logging.getLogger("talaria.app")
_FAREWELL_SECONDS = 1.0


@asynccontextmanager
async def serve_channels(gateway: Gateway) -> AsyncIterator[None]:
    """Open the configured chat platforms. One that cannot run says so in the status, and the rest runs."""
    settings = gateway.settings.channels.telegram
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
        on_authorizer=lambda authorizer: gateway.reloader.live.on(
            ("channels", "telegram", "allowed"),
            tell=lambda new: authorizer.change_allowed({"telegram": new.channels.telegram.allowed}),
        ),
    )
    async with open_telegram(parts) as telegram:
        gateway.channels["telegram"] = lambda: telegram.status
        if settings.mode == "webhook":
            gateway.webhooks[PATH] = TelegramWebhook(telegram, webhook_secret(token))
        yield


@asynccontextmanager
async def serve_http(gateway: Gateway, logins: Logins) -> AsyncIterator[HttpServer]:
    """The HTTP API on its socket, with `gateway.json` telling other commands where."""
    settings = gateway.settings.http
    logins.restore(await gateway.store.cursor(ENDED) or "")
    bound = bind(settings)
    app = create_app(
        HttpParts(
            turns=gateway.turns,
            store=gateway.store,
            histories=gateway.store.histories,
            snapshot=gateway.snapshot,
            pairings=gateway.store.pairings,
            uploads=gateway.uploads,
            pool=gateway.pool,
            catalog=gateway.catalog,
            metrics=gateway.metrics,
            health=gateway.health,
            settings=settings,
            logins=logins,
            hosts=allowed_hosts(settings, bound),
            agent_name=gateway.settings.agent.name,
            status=gateway.status,
            hooks=gateway.webhooks,
        )
    )
    server = HttpServer(app, bound)
    await server.start()
    try:
        info = GatewayInfo(os.getpid(), server.address, __version__, gateway.started_at)
        gateway.home.write_gateway(info)
        yield server
    finally:
        gateway.home.remove_gateway()
        gateway.health.enter(GatewayPhase.DRAINING)
        # First the turns, so that who waits for one gets its answer; new messages are refused meanwhile.
        await gateway.drain()
        await server.stop(_FAREWELL_SECONDS)
