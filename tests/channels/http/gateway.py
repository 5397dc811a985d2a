"""A whole gateway behind a real socket, with the scripted model behind another."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from talaria.access.logins import Logins
from talaria.app import open_gateway
from talaria.channels.http.description import DescribedCall
from talaria.channels.http.http_channel import open_http
from talaria.channels.http.part import HTTP
from talaria.channels.http.response import DEFAULT_TIMING, StreamTiming
from talaria.channels.http.routes import create_app
from talaria.channels.http.server import HttpServer
from talaria.cluster.following import PeerClient
from talaria.config.home import Home
from talaria.config.load import Loaded
from talaria.config.settings import settings_type
from talaria.core.gateway_part import Parts
from talaria.gateway import Gateway
from talaria.parts import PARTS
from talaria.testing.model_server import ModelServer
from talaria.turns.settings import ShutdownSettings

_ANSWERED = re.compile(r'talaria_http_requests_total\{route="([^"]+)",status="(\d+)"\}')
_NO_ROUTES = ("unknown", "refused", "other")
_STATUSES: set[tuple[str, int]] = set()  # of all routes; they are the same for every gateway
TOKEN, TOKEN_ENV = "a-token-for-tests", "TALARIA_HTTP_TOKEN"


@dataclass(frozen=True, slots=True)
class Api:
    """A client of one running gateway."""

    gateway: Gateway
    server: HttpServer
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.server.address

    async def get(self, path: str, status: int = 200, **more: Any) -> Any:
        async with self.client.get(self.url + path, **more) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def post(self, path: str, body: Any = None, status: int = 200, **more: Any) -> Any:
        async with self.client.post(self.url + path, json=body, **more) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def say(self, name: str, text: str, **more: Any) -> Any:
        """The finished turn."""
        return await self.post(f"/api/sessions/{name}/messages?wait=30", {"text": text}, **more)

    async def begin(self, name: str, text: str) -> str:
        """The id of a turn that may still run."""
        ticket = await self.post(f"/api/sessions/{name}/messages", {"text": text}, 202)
        return str(ticket["turn_id"])


@asynccontextmanager
async def run_gateway(
    home: Path,
    model: ModelServer,
    *,
    timing: StreamTiming = DEFAULT_TIMING,
    tables: Mapping[str, Any] | None = None,
    parts: Parts = PARTS,
    environ: Mapping[str, str] | None = None,
    **http: Any,
) -> AsyncIterator[Api]:
    """Another life over the same home, each time it is entered."""
    settings = msgspec.convert(
        {
            "model": {"provider": "scripted"},
            "providers": {"scripted": {"base_url": model.base_url, "max_retries": 0}},
            "aliases": {"fast": "scripted/fast"},
            "http": {"port": 0, **http},
            **(tables or {}),
        },
        settings_type(parts),
    )
    settings = msgspec.structs.replace(settings, shutdown=ShutdownSettings(timedelta()))
    environ = {TOKEN_ENV: TOKEN, **(environ or {})}
    async with (
        open_gateway(Home(home), Loaded(settings, (), None), environ, parts=parts) as gateway,
        open_http(gateway, settings.of(HTTP), timing) as channel,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as client,
    ):
        yield Api(gateway, channel.server, client)
        undocumented = find_undocumented(gateway)
    assert not undocumented, f"/openapi.json does not have {undocumented}"


def find_undocumented(gateway: Gateway) -> set[tuple[str, int]]:
    """Return the statuses that routes have answered with and that their descriptions do not have."""
    answered = {
        (match[1], int(match[2]))
        for match in _ANSWERED.finditer(gateway.metrics.render().decode())
        if match[1] not in _NO_ROUTES and match[1] not in gateway.webhooks
    }
    return answered - _documented(gateway)


def _documented(gateway: Gateway) -> set[tuple[str, int]]:
    """Return the statuses of all routes. A path also answers to methods that it does not know, and to clients
    that have left."""
    if not _STATUSES:
        logins = Logins("any token", gateway.clock)
        member = replace(gateway, peers=PeerClient("any token", now=gateway.clock.now))
        app = create_app(member, gateway.settings.of(HTTP), logins, frozenset(), DEFAULT_TIMING)
        for path, methods in app.routes.items():
            for method, route in methods.items():
                described = DescribedCall(path, method, route.access, route.call)
                _STATUSES.update((path, status) for status in described.statuses() | {405, 499})
    return _STATUSES
