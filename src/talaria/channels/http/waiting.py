"""The HTTP server of a gateway that waits for room on its disk: it is alive, not ready, and says why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from talaria.channels.http.operator_api import HealthView, ReadyView
from talaria.channels.http.request import Receive, Request, Scope, Send
from talaria.channels.http.response import error_response, json_response
from talaria.channels.http.server import HttpServer, bind
from talaria.channels.http.settings import HttpSettings
from talaria.core.errors import StoreError
from talaria.observe.health import GatewayPhase

_STOP_SECONDS = 1.0
DISK_FULL = StoreError(
    "The disk of the gateway is full, so the gateway has not started yet.",
    "Make room on the disk; the gateway continues by itself.",
)


@asynccontextmanager
async def answer_while_waiting(settings: HttpSettings) -> AsyncIterator[None]:
    """Answer health checks while the context is open, and refuse everything else. Raises `ConfigError` if the
    address cannot be used."""
    server = HttpServer(_answer, bind(settings))
    await server.start()
    try:
        yield
    finally:
        await server.stop(_STOP_SECONDS)


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive, send)
    match request.path:
        case "/healthz":
            response = json_response(HealthView(True, GatewayPhase.STARTING))
        case "/readyz":
            response = json_response(ReadyView(False, GatewayPhase.STARTING, 0.0, ("store",)), 503)
        case _:
            response = error_response(DISK_FULL)
    await response.send(request)
    request.end()
