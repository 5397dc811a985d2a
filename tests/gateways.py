"""Several gateways on one PostgreSQL, with short leases and one scripted model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg

from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer


class Gateways:
    """`ask` reads the database."""

    def __init__(self, url: str, model: ModelServer, each: list[GatewayProcess]) -> None:
        self._url = url
        self.model = model
        self.each = each

    def ask(self, sql: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            return connection.execute(sql.encode(), parameters).fetchall()

    async def until(self, sql: str, *parameters: object) -> list[Any]:
        """Wait until the query has rows, and return them."""
        while not (rows := self.ask(sql, *parameters)):
            await asyncio.sleep(0.02)
        return rows

    def logs(self) -> str:
        return "\n".join(each.log.read_text() for each in self.each if each.log.exists())


@asynccontextmanager
async def running_gateways(
    url: str, *settings: Mapping[str, str], lease: str = "2s"
) -> AsyncIterator[Gateways]:
    """Run a gateway for each of the `settings`. Each has a home of its own."""
    with tempfile.TemporaryDirectory(prefix="talaria-gateways-") as folder:
        async with ModelServer(record=False) as model, AsyncExitStack() as scopes:
            each = []
            for number, more in enumerate(settings):
                home = Path(folder) / f"home{number}"
                home.mkdir(mode=0o700)
                given = {
                    "STORE__URL": url,
                    "CLUSTER__LEASE": lease,
                    "CLUSTER_TOKEN": "a-token-for-all-gateways-of-the-test",
                    "MODEL__PROVIDER": "scripted",
                    "PROVIDERS__SCRIPTED__BASE_URL": model.base_url,
                    "SHUTDOWN__RESTART_PAUSE": "1ms",
                    "SHUTDOWN__DEADLINE": "1s",
                    "LOG__LEVEL": "warning",
                    **more,
                }
                gateway = GatewayProcess(home, home.with_suffix(".log"), given)
                each.append(await scopes.enter_async_context(gateway))
            await asyncio.gather(*(gateway.start() for gateway in each))
            yield Gateways(url, model, each)
