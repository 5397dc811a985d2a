"""The HTTP channel: the API on its socket, from its start until every turn is drained."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from talaria.access.credentials import Logins, link
from talaria.channels.http.login_api import ENDED_LOGINS, share_logins
from talaria.channels.http.part import HttpSettings
from talaria.channels.http.response import DEFAULT_TIMING, StreamTiming
from talaria.channels.http.routes import create_app
from talaria.channels.http.server import HttpServer, allowed_hosts, bind
from talaria.channels.http.token import ensure_http_token
from talaria.config.home import GatewayInfo
from talaria.core.program import this_version
from talaria.core.redaction import Secret
from talaria.core.tasks import run_loops
from talaria.gateway import Gateway
from talaria.observe.health import GatewayPhase, Health
from talaria.operations.table import OPERATIONS, Operations

_log = logging.getLogger("talaria.config")
_GRACE_SECONDS: Final = 1.0  # for responses that are still being sent after the drain


@dataclass(frozen=True, slots=True)
class HttpChannel:
    server: HttpServer
    logins: Logins
    health: Health

    @property
    def status(self) -> str:
        return self.health.phase

    def new_link(self) -> str:
        """Return a link that logs a browser in, once."""
        return link(self.server.address, self.logins.new_code())


def _advertised(url: str) -> frozenset[str]:
    """Return the host, with its port, under which other members of the cluster reach this one."""
    if not url:
        return frozenset()
    parts = urlsplit(url)
    name = parts.netloc.rpartition("@")[2].lower()
    return frozenset({name if parts.port else f"{name}:{443 if parts.scheme == 'https' else 80}"})


@asynccontextmanager
async def open_http(
    gateway: Gateway,
    settings: HttpSettings,
    timing: StreamTiming = DEFAULT_TIMING,
    operations: Operations = OPERATIONS,
) -> AsyncIterator[HttpChannel]:
    """Serve the HTTP API, whose address `gateway.json` tells. Raises `ConfigError` if it has no usable token,
    or cannot listen.

    On the way out turns are drained before the server stops, so that a client that waits for a turn gets its
    answer; new messages are refused meanwhile.
    """
    token = ensure_http_token(gateway.home, gateway.environ, settings.token_env)
    for warning in token.warnings:
        _log.warning("%s", warning)
    gateway.secrets.add([Secret("http.token", token.value)])
    logins = Logins(token.value, gateway.clock)
    logins.restore(await gateway.store.cursor(ENDED_LOGINS) or "")
    bound = bind(settings)
    hosts = allowed_hosts(settings, bound)
    if gateway.cluster is not None:
        hosts |= _advertised(gateway.cluster.me.url)
    app = create_app(gateway, settings, logins, hosts, timing, operations=operations)
    server = HttpServer(app, bound, gateway.limits)
    try:
        await server.start()
        info = GatewayInfo(os.getpid(), server.address, this_version(), gateway.started_at)
        await asyncio.to_thread(gateway.home.write_gateway, info)
        if gateway.cluster is not None:
            await gateway.cluster.advertise(server.address)
        shared = share_logins(gateway, logins)
        async with run_loops(gateway.clock, {} if shared is None else {"logins": shared.run}):
            yield HttpChannel(server, logins, gateway.health)
    finally:
        gateway.health.enter(GatewayPhase.DRAINING)
        try:
            await asyncio.to_thread(gateway.home.remove_gateway)
            await gateway.drain()
        finally:  # also if the drain is cancelled: a loop whose server listens never closes
            await server.stop(_GRACE_SECONDS)
