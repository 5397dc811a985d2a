"""Two real gateways on one PostgreSQL and one Telegram bot: one polls at a time, and every message is
answered once, whatever becomes of the gateway that polls."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from store.cutting_proxy import CuttingProxy, cutting_proxy
from support.gateway import real_process
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.telegram_server import TelegramServer

ADA = 7


@asynccontextmanager
async def gateway(
    folder: Path, name: str, url: str, model: ModelServer, telegram: TelegramServer
) -> AsyncIterator[GatewayProcess]:
    settings = {
        "CLUSTER_TOKEN": "a-token-of-the-cluster",
        "LOG__LEVEL": "info",
        "STORE__URL": url,
        "CLUSTER__LEASE": "3s",
        "CHANNELS__TELEGRAM__TOKEN": telegram.token,
        "CHANNELS__TELEGRAM__API_URL": telegram.url,
        "CHANNELS__TELEGRAM__ALLOWED": str(ADA),
    }
    async with real_process(folder, model, settings, name=name) as process:
        yield process


class Case:
    def __init__(self, telegram: TelegramServer) -> None:
        self.telegram = telegram
        self.ada = telegram.person(ADA)
        self.said: list[str] = []

    async def say(self, text: str) -> None:
        """Say something, and see that all that was said is answered once and in order."""
        self.said.append(text)
        self.ada.says(text)
        chat, answers = self.telegram.platform.private(self.ada), [f"You said: {each}" for each in self.said]
        await self.telegram.until(
            lambda: len(chat.replies) >= len(answers) and chat.replies[-1] == answers[-1]
        )
        assert chat.replies == answers

    async def until_sent(self, process: GatewayProcess) -> None:
        """Wait until no reply is owed: one that was sent and not recorded yet would be sent again."""
        while (await process.call("GET", "/api/status"))["owed"]["replies"]:
            await asyncio.sleep(0.05)

    async def until_status(self, process: GatewayProcess, beginning: str) -> str:
        while True:
            status = await process.call("GET", "/api/status")
            told = str(status["channels"].get("telegram", ""))
            assert "another process polls" not in told
            if told.startswith(beginning):
                return told
            await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
async def test_one_gateway_polls_and_another_goes_on_when_it_is_cut_off_or_killed_or_drains(
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    async with ModelServer() as model, TelegramServer() as telegram:
        case = Case(telegram)
        with cutting_proxy(postgres_database) as (proxy, through):
            async with (
                gateway(tmp_path, "one", through, model, telegram) as one,
                gateway(tmp_path, "two", postgres_database, model, telegram) as two,
            ):
                await case.until_status(one, "ready")
                told = await case.until_status(two, "elsewhere: ")
                assert one.url in told
                await case.say("first")
                await _see_the_cluster(one, two)
                await case.until_sent(two)
                await _cut_off(case, proxy, one, two)
                await two.kill()
                await case.say("after the kill")
                assert await case.until_status(one, "ready")
                await two.start()
                await case.until_status(two, "elsewhere: ")
                one.send_signal(signal.SIGTERM)
                await case.say("after the drain")
                assert await one.wait() == 0
                assert await case.until_status(two, "ready")
        assert telegram.conflicts == 0, "no two of them poll side by side"


async def _cut_off(case: Case, proxy: CuttingProxy, one: GatewayProcess, two: GatewayProcess) -> None:
    """The gateway that polls loses the database: it stops before the other begins."""
    proxy.lose()
    await case.say("without a database")
    assert (await case.until_status(one, "elsewhere")).startswith("elsewhere")
    assert await case.until_status(two, "ready")
    ready = await one.call("GET", "/readyz", raise_for_status=False)
    assert not ready["ready"]
    assert {"cluster", "store"} <= set(ready["troubles"])
    proxy.is_gone = False
    while not (await one.call("GET", "/readyz", raise_for_status=False))["ready"]:
        await asyncio.sleep(0.05)
    await case.say("with it again")
    await case.until_sent(one)
    assert await case.until_status(one, "elsewhere: ")


async def _see_the_cluster(one: GatewayProcess, two: GatewayProcess) -> None:
    status = await two.call("GET", "/api/status")
    cluster = status["cluster"]
    members = {member["url"]: member for member in cluster["members"]}
    assert set(members) == {one.url, two.url}
    assert members[two.url]["is_here"]
    assert not members[one.url]["is_here"]
    assert cluster["roles"]["channel:telegram"] == members[one.url]["id"]
    assert "channel:telegram" in members[one.url]["roles"]
    assert {member["state"] for member in members.values()} == {"alive"}
    assert cluster["troubles"] == []
