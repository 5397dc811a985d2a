"""The live self-test against the fake Discord, and against one that differs."""

from __future__ import annotations

import asyncio

import pytest

from talaria.channels.discord.account import open_check
from talaria.channels.discord.part import DiscordSettings
from talaria.channels.self_test import SelfTest
from talaria.testing.discord_server import DiscordFault, DiscordFaultKind, DiscordServer

STEPS = ["receive", "send", "edit", "repeat", "type", "file", "button", "reconnect"]


@pytest.mark.parametrize("fault", ["", "PATCH messages", "POST typing"])
async def test_each_step_is_tried_and_a_difference_is_named(discord: DiscordServer, fault: str) -> None:
    ada = discord.person(7)
    if fault:
        discord.fail(fault, DiscordFault(DiscordFaultKind.STATUS, status=403, code=50013))
    lines: list[str] = []
    async with open_check(DiscordSettings(api_url=discord.url), discord.token) as chat:
        await discord.until(lambda: discord.session is not None)
        test = asyncio.create_task(SelfTest(chat, lines.append, 20).run())
        ada.says("hello")
        room = discord.platform.private(ada)

        def shown() -> list[str]:
            return [label for each in room.messages.values() for label, _ in each.buttons]

        await discord.until(lambda: bool(shown()))
        [asked] = [each for each in room.messages.values() if each.buttons]
        ada.presses(asked, "Press me")
        await discord.until(lambda: discord.resumed == 1)
        ada.says("again")
        results = await test
    assert [each.name for each in results] == STEPS
    wrong = {"PATCH messages": ["edit"], "POST typing": ["type"]}.get(fault, [])
    assert [each.name for each in results if each.difference] == wrong
    assert len([line for line in lines if "as expected" in line]) == len(STEPS) - len(wrong)
