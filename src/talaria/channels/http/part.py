"""The HTTP channel: the API on its socket, from its start until every turn is drained."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from talaria import __version__
from talaria.channels.http.settings import HttpSettings
from talaria.config.home import GatewayInfo
from talaria.gateway import Gateway, Part
from talaria.observe.health import GatewayPhase

if TYPE_CHECKING:
    from talaria.access.logins import Logins
    from talaria.channels.http.response import StreamTiming
    from talaria.channels.http.server import HttpServer

HTTP: Final = Part(name="http", table=("http",), settings=HttpSettings)
_GRACE_SECONDS: Final = 1.0  # for responses that are still being sent after the drain


@asynccontextmanager
async def open_http(
    gateway: Gateway, logins: Logins, timing: StreamTiming | None = None
) -> AsyncIterator[HttpServer]:
    """Serve the HTTP API, whose address `gateway.json` tells. Raises `ConfigError` if it cannot listen.

    On the way out turns are drained before the server stops, so that a client that waits for a turn gets its
    answer; new messages are refused meanwhile.
    """
    from talaria.channels.http.auth import ENDED_LOGINS  # noqa: PLC0415
    from talaria.channels.http.response import DEFAULT_TIMING  # noqa: PLC0415
    from talaria.channels.http.routing import create_app  # noqa: PLC0415
    from talaria.channels.http.server import HttpServer, allowed_hosts, bind  # noqa: PLC0415

    settings = gateway.settings.of(HTTP)
    logins.restore(await gateway.store.cursor(ENDED_LOGINS) or "")
    bound = bind(settings)
    app = create_app(gateway, settings, logins, allowed_hosts(settings, bound), timing or DEFAULT_TIMING)
    server = HttpServer(app, bound)
    await server.start()
    try:
        gateway.home.write_gateway(GatewayInfo(os.getpid(), server.address, __version__, gateway.started_at))
        yield server
    finally:
        gateway.home.remove_gateway()
        gateway.health.enter(GatewayPhase.DRAINING)
        await gateway.drain()
        await server.stop(_GRACE_SECONDS)
