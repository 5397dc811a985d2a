"""Two real gateways on one PostgreSQL and one Slack app: one has the socket at a time, and every message is
answered once and in order, whatever becomes of that gateway."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.gateway import real_process
from support.postgres_server import PostgresServer, postgres, postgres_database  # noqa: F401 - fixtures
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.slack_server import APP_TOKEN, BOT_TOKEN, SlackServer

ADA = "U7ADA"


@asynccontextmanager
async def gateway(
    folder: Path, name: str, url: str, model: ModelServer, slack: SlackServer
) -> AsyncIterator[GatewayProcess]:
    settings = {
        "CLUSTER_TOKEN": "a-token-of-the-cluster",
        "STORE__URL": url,
        "CLUSTER__LEASE": "3s",
        "CHANNELS__SLACK__BOT_TOKEN": BOT_TOKEN,
        "CHANNELS__SLACK__APP_TOKEN": APP_TOKEN,
        "CHANNELS__SLACK__API_URL": slack.api_url,
        "CHANNELS__SLACK__ALLOWED": ADA,
    }
    async with real_process(folder, model, settings, name=name) as process:
        yield process


async def until_status(process: GatewayProcess, beginning: str) -> None:
    told = ""
    while not told.startswith(beginning):
        await asyncio.sleep(0.05)
        told = str((await process.call("GET", "/api/status"))["channels"].get("slack", ""))


async def until_sent(process: GatewayProcess) -> None:
    """Wait until no reply is owed: one that was sent and not recorded yet would be sent again, marked."""
    while (await process.call("GET", "/api/status"))["owed"]["replies"]:
        await asyncio.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_socket_moves_to_another_gateway_and_no_message_is_lost_or_repeated(
    postgres_database: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    said: list[str] = []
    async with ModelServer() as model, SlackServer() as slack:
        ada = slack.person(ADA)

        def say(*texts: str) -> None:
            for text in texts:
                said.append(f"You said: {text}")
                ada.says(text)

        async def answered() -> None:
            await slack.until(lambda: len(ada.dm.replies) >= len(said) and ada.dm.replies[-1] == said[-1])
            assert ada.dm.replies == said

        async with (
            gateway(tmp_path, "one", postgres_database, model, slack) as one,
            gateway(tmp_path, "two", postgres_database, model, slack) as two,
        ):
            await until_status(one, "starting: connected")
            await until_status(two, "elsewhere: ")
            say("one", "two")
            await answered()
            await until_sent(two)
            await one.kill()
            say("in flight", "to nobody")
            await answered()
            await until_status(two, "ready")
            await one.start()
            await until_status(one, "elsewhere: ")
            await until_sent(one)
            two.send_signal(signal.SIGTERM)
            say("while it drains", "and after")
            await answered()
            assert await two.wait() == 0
            await until_status(one, "ready")
            assert slack.wrong_acks == []
