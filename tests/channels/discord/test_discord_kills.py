"""Gateways that are killed while messages are on their way, and one that loses the channel to another one."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from support.gateway import real_process
from support.postgres_server import PostgresServer, postgres  # noqa: F401 - fixtures
from talaria.testing.discord_server import DiscordServer
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.simulated_users import MessageKind, SimulatedUsers

PEOPLE = (21, 22)
KINDS = (MessageKind.TEXT, MessageKind.TEXT, MessageKind.TOOL, MessageKind.SLOW, MessageKind.COMMAND)


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_kills_lose_and_double_nothing(tmp_path: Path, discord: DiscordServer, kills: int) -> None:
    random = Random(5)
    home = tmp_path / "home"
    users = SimulatedUsers(discord, PEOPLE, home)
    async with ModelServer() as model:
        settings = users.settings_with(model)
        async with real_process(tmp_path, model, settings) as gateway:
            await settle_first(discord, users, gateway)
            for _ in range(kills):
                for person in PEOPLE:
                    for _ in range(random.randint(1, 3)):
                        users.send(person, random.choice(KINDS))
                users.intrude()
                users.redeliver(random)
                await asyncio.sleep(random.uniform(0.0, 1.5))
                await gateway.kill()
                if random.random() < 0.3:
                    discord.forget_sessions()
                await gateway.start()
            assert await users.until_settled(gateway) == 0
    check(users)


async def test_the_role_moves_between_two_gateways_without_a_lost_or_doubled_message(
    tmp_path: Path,
    discord: DiscordServer,
    postgres: PostgresServer,  # noqa: F811
) -> None:
    """`./dev trial discord --store postgres --gateways 2` does it 100 times."""
    random, url = Random(6), postgres.new_database()
    users = SimulatedUsers(discord, PEOPLE, tmp_path / "a", tmp_path / "b")
    async with ModelServer() as model, AsyncExitStack() as scopes:
        cluster = {"STORE__URL": url, "CLUSTER_TOKEN": "a-token-for-tests", "CLUSTER__LEASE": "2s"}
        settings = {**users.settings_with(model), **cluster}
        gateways = [
            await scopes.enter_async_context(real_process(tmp_path, model, settings, name=name))
            for name in ("a", "b")
        ]
        await settle_first(discord, users, gateways[0])
        for number in range(2):  # to the second gateway by a kill, and back by a drain
            for person in PEOPLE:
                users.send(person, MessageKind.TEXT)
            users.send(PEOPLE[0], MessageKind.SLOW)
            users.redeliver(random)
            await asyncio.sleep(random.uniform(0.0, 0.3))
            discord.forget_sessions()  # of a gateway that goes: the next one fetches what it has missed
            if number:
                gateways[number].send_signal(signal.SIGTERM)
            else:
                await gateways[number].kill()
            users.send(PEOPLE[0], MessageKind.TEXT)
            assert await users.until_settled(gateways[1 - number]) == 0
            if number:
                assert await gateways[number].wait() == 0
            await gateways[number].start()
    check(users)
    postgres.drop(url)


async def settle_first(discord: DiscordServer, users: SimulatedUsers, gateway: GatewayProcess) -> None:
    """Let each person have a first answer, so that the gateway knows their chats."""
    await discord.until(lambda: discord.session is not None and discord.session.socket is not None)
    for person in PEOPLE:
        users.send(person, MessageKind.TEXT)
    assert await users.until_settled(gateway) == 0


def check(users: SimulatedUsers) -> None:
    report = users.report()
    assert report.is_good, users.broken_chats()
    assert report.answered + report.given_up >= report.sent
    tools = [one.name for sent in users.sent.values() for one in sent if one.kind is MessageKind.TOOL]
    assert all(users.effects()[name] <= 1 for name in tools)
    print(report)
