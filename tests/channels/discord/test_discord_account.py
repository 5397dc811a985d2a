"""`talaria connect discord` and doctor: what they accept, and what they say of each mistake."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from talaria.access.authorizer import Authorizer, PairingAdmin
from talaria.channels.discord.account import examine_bot, open_bot
from talaria.channels.discord.part import DISCORD, DiscordSettings
from talaria.core.clock import SystemClock
from talaria.core.errors import ConfigError
from talaria.core.ids import ChatAddress
from talaria.core.problems import Severity
from talaria.core.settings import Examination
from talaria.store.in_memory import MemoryStore
from talaria.testing.discord_server import DiscordServer


async def test_two_mistakes_are_named_with_what_to_click(discord: DiscordServer) -> None:
    settings = DiscordSettings(api_url=discord.url)
    with pytest.raises(ConfigError, match="does not accept this token") as error:
        async with open_bot(settings, "wrong"):
            raise AssertionError("the bot was opened")
    assert "Reset Token" in error.value.hint
    discord.platform.has_message_content = False
    with pytest.raises(ConfigError, match="not allowed to read") as error:
        async with open_bot(settings, discord.token):
            raise AssertionError("the bot was opened")
    assert "Message Content Intent" in error.value.hint and "/bot" in error.value.hint
    discord.platform.has_message_content = True
    async with open_bot(settings, discord.token) as bot:
        assert bot.name == "talaria"
        assert any("/start CODE" in line for line in bot.invite("CODE"))


@pytest.mark.parametrize("is_registered", [False, True])
async def test_the_first_person_with_the_code_is_let_in(discord: DiscordServer, is_registered: bool) -> None:
    store = MemoryStore(SystemClock())
    code = (await PairingAdmin(store.pairings, ["discord"]).invite("discord")).code
    authorizer = Authorizer(store.pairings, {"discord": ()}, SystemClock())
    async with open_bot(DiscordSettings(api_url=discord.url), discord.token) as bot:
        waiting = asyncio.create_task(bot.admit_first(authorizer, 30))
        await discord.until(lambda: discord.session is not None)
        discord.person(9, "Eve").says("/start wrong")
        bob = discord.person(8, "Bob")
        bob.says("hello")
        ada = discord.person(7, "Ada")
        if is_registered:  # Discord then sends a slash command
            ada.runs("start", code)
        else:
            ada.says(f"/start {code}")
        assert await waiting == "Ada"
        assert discord.platform.private(bob).replies == [], "the gateway answers it later"
        assert await bot.admit_first(authorizer, 0) is None


@pytest.mark.parametrize(
    ("token", "has_intent", "level", "says"),
    [
        ("", True, Severity.OK, "answers"),
        ("wrong", True, Severity.PROBLEM, "token"),
        ("", False, Severity.PROBLEM, "Message Content Intent"),
    ],
)
async def test_doctor_finds_a_wrong_token_and_a_missing_intent(
    tmp_path: Path, discord: DiscordServer, token: str, has_intent: bool, level: Severity, says: str
) -> None:
    discord.platform.has_message_content = has_intent
    settings = DiscordSettings(token=token or discord.token, api_url=discord.url)
    examination = Examination(settings=settings, home=tmp_path, environ={}, status=None)
    found = [each async for each in examine_bot(examination)]
    assert found[-1].severity is level and says in found[-1].text


@pytest.mark.parametrize(
    ("kind", "chat", "thread", "address"),
    [
        ("dm", "7", None, ":7::"),
        ("group", "5", None, "5:::"),
        ("group", "5", "6", "6:::"),
        ("dm", "x", None, None),
    ],
)
def test_a_chat_has_its_address(kind: str, chat: str, thread: str | None, address: str | None) -> None:

    assert DISCORD.address_of is not None
    assert DISCORD.address_of(ChatAddress("main", "discord", kind, chat, thread)) == address
