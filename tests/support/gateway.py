"""Ways to run a gateway in a test.

`in_process` and `without_http` run it in the test's own process, `real_process` in another one, and `cluster`
of `gateways` runs several on one database. `running_gateway` brings its own model and folder. Processes are
forks, which cost less than starting Python (`forks.py`). A `program` or a `source` starts Python.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from support.forks import fork_gateway
from support.ledger_rules import check_databases
from talaria.access.credentials import Logins
from talaria.app import open_gateway
from talaria.channels.http.description import DescribedCall
from talaria.channels.http.http_channel import open_http
from talaria.channels.http.part import HTTP
from talaria.channels.http.response import DEFAULT_TIMING, StreamTiming
from talaria.channels.http.routes import create_app
from talaria.channels.http.server import HttpServer
from talaria.channels.supervisor import open_channels
from talaria.cluster.following import PeerClient
from talaria.config.decoder import find_hint
from talaria.config.home import Home
from talaria.config.load import Loaded, load
from talaria.config.settings import Settings, settings_type
from talaria.core.redaction import SecretRegistry
from talaria.core.settings import Parts
from talaria.gateway import Gateway
from talaria.parts import PARTS
from talaria.testing import gateway_process
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer

_ANSWERED = re.compile(r'talaria_http_requests_total\{route="([^"]+)",status="(\d+)"\}')
_NO_ROUTES = ("unknown", "refused", "other")
_STATUSES: set[tuple[str, int]] = set()  # of all routes; they are the same for every gateway
running_gateway = partial(gateway_process.running_gateway, launch=fork_gateway)
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
async def without_http(
    home: Path,
    model: ModelServer | None = None,
    *,
    tables: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    parts: Parts = PARTS,
    channels: Parts = (),
    serves: bool = True,
    secrets: SecretRegistry | None = None,
) -> AsyncIterator[Gateway]:
    """Run a gateway in this process, with the given channels only.

    With a `model`, its settings are the `tables`, and the home's config.toml is not read. Without one, they
    come from config.toml and the `environ`.
    """
    environ = environ or {}
    loaded = (
        load(home, environ, parts) if model is None else Loaded(_scripted(model, tables, parts), (), None)
    )
    async with (
        open_gateway(Home(home), loaded, environ, parts=parts, serves=serves, secrets=secrets) as gateway,
        open_channels(gateway, channels),
    ):
        yield gateway
    check_databases(home, is_at_rest=True)


def _scripted(model: ModelServer, tables: Mapping[str, Any] | None, parts: Parts) -> Settings:
    given = {
        "model": {"provider": "scripted"},
        "providers": {"scripted": {"base_url": model.base_url, "max_retries": 0}},
        "aliases": {"fast": "scripted/fast"},
        "shutdown": {"deadline": timedelta()},
        **(tables or {}),
    }
    kind = settings_type(parts)
    unknown = [path for path in _paths(given) if find_hint(kind, path) is None]
    assert not unknown, f"settings that do not exist: {unknown}"
    return msgspec.convert(given, kind)


def _paths(table: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in table.items():
        yield (key,)
        if isinstance(value, Mapping):
            yield from ((key, *path) for path in _paths(value))


@asynccontextmanager
async def in_process(
    home: Path,
    model: ModelServer,
    *,
    timing: StreamTiming = DEFAULT_TIMING,
    tables: Mapping[str, Any] | None = None,
    parts: Parts = PARTS,
    environ: Mapping[str, str] | None = None,
    **http: Any,
) -> AsyncIterator[Api]:
    """Run a gateway in this process with its HTTP channel, whose settings are `http`. Its statuses must be in
    /openapi.json."""
    tables = {**(tables or {}), "http": {"port": 0, **http}}
    environ = {TOKEN_ENV: TOKEN, **(environ or {})}
    async with (
        without_http(home, model, tables=tables, environ=environ, parts=parts) as gateway,
        open_http(gateway, gateway.settings.of(HTTP), timing) as channel,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as client,
    ):
        yield Api(gateway, channel.server, client)
        undocumented = find_undocumented(gateway)
    assert not undocumented, f"/openapi.json does not have {undocumented}"


@asynccontextmanager
async def real_process(
    folder: Path,
    model: ModelServer,
    settings: Mapping[str, str] | None = None,
    *,
    name: str = "home",
    failpoints: str = "",
    starts: bool = True,
    **more: Any,
) -> AsyncIterator[GatewayProcess]:
    """Run `talaria serve` in its own process, on the home `name` in the folder. Its log is beside the home.

    The process dies at one of the `failpoints`. Without `starts` the caller starts it. `more` is for
    `GatewayProcess`.
    """
    home = folder / name
    home.mkdir(mode=0o700, exist_ok=True)
    given = {
        "MODEL__PROVIDER": "scripted",
        "PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
        **(settings or {}),
    }
    launch = None if more else fork_gateway
    async with GatewayProcess(home, folder / f"{name}.log", given, launch=launch, **more) as gateway:
        if failpoints:
            await gateway.spawn(failpoints)
            assert await gateway.ready()
        elif starts:
            await gateway.start()
        yield gateway
    check_databases(home)


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
