"""Gateways that are killed while messages are on their way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from support.gateway import real_process
from talaria.testing.model_server import ModelServer
from talaria.testing.simulated_slack import SlackSide
from talaria.testing.simulated_users import MessageKind, SimulatedUsers
from talaria.testing.slack_server import SlackServer

PEOPLE = (21, 22)
KINDS = (
    *(MessageKind.TEXT, MessageKind.TEXT, MessageKind.TOOL),
    *(MessageKind.SLOW, MessageKind.COMMAND, MessageKind.EDIT),
)


@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
async def test_kills_lose_and_repeat_nothing(tmp_path: Path, server: SlackServer, kills: int) -> None:
    random = Random(5)
    users = SimulatedUsers(SlackSide(server), PEOPLE, tmp_path / "home")
    async with ModelServer() as model, real_process(tmp_path, model, users.settings_with(model)) as gateway:
        for _ in range(kills):
            for person in PEOPLE:
                for _ in range(random.randint(1, 3)):
                    users.send(person, random.choice(KINDS))
            users.intrude()
            users.redeliver(random)
            await asyncio.sleep(random.uniform(0.0, 1.5))
            await gateway.kill()
            await gateway.start()
        assert await users.until_settled(gateway) == 0
    report = users.report()
    assert report.is_good, users.broken_chats()
    assert report.answered + report.given_up >= report.sent
    assert all(times == 1 for times in users.effects().values())
    assert server.wrong_acks == []
