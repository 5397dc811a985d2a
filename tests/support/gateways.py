"""Several gateways on one PostgreSQL, with short leases and one scripted model."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Self

import psycopg

from support.gateway import real_process
from support.ledger_rules import broken_rules
from support.waiting import until
from talaria.core.tasks import wait_first
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer


class Balancer:
    """A proxy before several gateways, as people put one there: each connection goes to the next one that
    answers."""

    def __init__(self, listener: socket.socket) -> None:
        self.port = int(listener.getsockname()[1])
        self.targets: list[GatewayProcess] = []
        self._listener = listener
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            for _ in self.targets:
                self._turn += 1
                target = self.targets[self._turn % len(self.targets)]
                with suppress(OSError, ValueError):
                    there = await asyncio.open_connection("127.0.0.1", int(target.url.rpartition(":")[2]))
                    break
            else:
                return
            with closing(there[1]):  # also if this task is cancelled while it ends
                await wait_first(_pump(reader, there[1]), _pump(there[0], writer))
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


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
        return await until(lambda: self.ask(sql, *parameters))

    async def until_ready(self, gateway: GatewayProcess) -> None:
        """Wait until the gateway begins turns. One that lost its lease joins again first, and until then
        others get the turns that it accepts."""
        while not (await gateway.call("GET", "/readyz", raise_for_status=False))["ready"]:
            await asyncio.sleep(0.02)

    def logs(self) -> str:
        return "\n".join(each.log.read_text() for each in self.each if each.log.exists())


@asynccontextmanager
async def cluster(
    url: str, *settings: Mapping[str, str], lease: str = "3s", token: str = ""
) -> AsyncIterator[Gateways]:
    """Run a gateway for each of the `settings`. Each has a home of its own. All have the `token` of the API,
    or each its own one."""
    with tempfile.TemporaryDirectory(prefix="talaria-gateways-") as folder:
        async with ModelServer(record=False) as model, AsyncExitStack() as scopes:
            each = []
            for number, more in enumerate(settings):
                given = {
                    "STORE__URL": url,
                    "CLUSTER__LEASE": lease,
                    "CLUSTER_TOKEN": "a-token-for-all-gateways-of-the-test",
                    "SHUTDOWN__RESTART_PAUSE": "1ms",
                    "SHUTDOWN__DEADLINE": "1s",
                    "LOG__LEVEL": "warning",
                    **more,
                }
                process = real_process(Path(folder), model, given, name=f"home{number}", starts=False)
                each.append(gateway := await scopes.enter_async_context(process))
                if token:
                    (gateway.home / "http.token").write_text(token)
                    (gateway.home / "http.token").chmod(0o600)
            await asyncio.gather(*(gateway.start() for gateway in each))
            yield Gateways(url, model, each)
    with psycopg.connect(url, autocommit=True) as connection:
        broken = broken_rules(connection)
    assert not broken, broken
