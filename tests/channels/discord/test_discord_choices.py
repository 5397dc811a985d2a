"""Questions with choices: pressed, answered by number or in words, and on a platform without buttons."""

from __future__ import annotations

from pathlib import Path

import pytest

from channels.discord.discord_line import DiscordLine, discord_line
from support.asking_tools import Danger, calling
from talaria.channels.discord.api import DiscordApi
from talaria.channels.discord.outlet import DiscordOutlet
from talaria.commands.command import decision_buttons
from talaria.core.clock import SystemClock
from talaria.core.delivery import OutgoingMessage
from talaria.core.ids import QuestionId
from talaria.core.questions import chosen
from talaria.testing.discord_platform import BOT_ID, DiscordMessageShown, DiscordRoom
from talaria.testing.discord_server import DiscordServer
from talaria.tools.toolset import ToolSet

ASKS = '[[call ask_user {"question": "Which?", "choices": ["red", "blue"]}]][[reply done]]'


async def asked(line: DiscordLine, place: DiscordRoom) -> DiscordMessageShown:
    await line.server.until(lambda: any(each.buttons for each in place.messages.values()))
    return next(each for each in place.messages.values() if each.buttons)


@pytest.mark.parametrize(
    ("said", "outcome"), [("2", "blue"), (" 1. ", "red"), ("3", "3"), ("green", "green"), (None, "red")]
)
async def test_a_choice_is_pressed_or_named_by_its_number(
    tmp_path: Path,
    discord: DiscordServer,
    said: str | None,
    outcome: str,
) -> None:
    async with discord_line(tmp_path, discord) as line:
        line.ada.says(ASKS)
        shown = await asked(line, line.chat)
        assert shown.text.endswith("Which?\n\n1. red\n2. blue")
        if said is None:
            line.ada.presses(shown, "red")
        else:
            line.ada.says(said)
        await line.server.until(lambda: "done" in line.chat.replies)
        assert shown.text.endswith(f"\n\nAnswered: {outcome}") and shown.buttons == ()


async def test_a_number_is_a_choice_in_a_group_too(
    tmp_path: Path,
    discord: DiscordServer,
) -> None:
    channel = discord.platform.channel()
    async with discord_line(tmp_path, discord) as line:
        line.ada.says(f"<@{BOT_ID}> {ASKS}", channel)
        shown = await asked(line, channel)
        line.ada.says(f"<@{BOT_ID}> 2", channel)
        await line.server.until(lambda: "done" in channel.replies)
        assert shown.text.endswith("\n\nAnswered: blue")


@pytest.mark.parametrize(("emoji", "outcome"), [("👍🏽", "Approved, once."), ("❌", "Denied.")])
async def test_an_emoji_below_a_question_of_a_call_decides_it(
    tmp_path: Path, discord: DiscordServer, emoji: str, outcome: str
) -> None:
    danger, channel = Danger(), discord.platform.channel()
    async with discord_line(tmp_path, discord, tools=lambda known: ToolSet([*known, danger])) as line:
        line.ada.says(f"<@{BOT_ID}> {calling('make')}", channel)
        shown = await asked(line, channel)
        discord.person(99, "Eve").reacts(shown, "👍")  # is not allowed
        code = (await line.admin.invite("discord")).code
        discord.person(8, "Bob").says(f"/start {code}")
        await line.answers(1, discord.platform.private(discord.person(8)))
        discord.person(8, "Bob").reacts(shown, "👍")  # did not write the message
        line.ada.is_bot = True
        line.ada.reacts(shown, "👍")  # a bot with the id of a person is not that person
        line.ada.is_bot = False
        line.ada.reacts(shown, "🎉")  # decides nothing
        line.ada.reacts(shown, "1\ufe0f\u20e3")  # neither does a number here
        line.ada.reacts(shown, emoji)
        await discord.until(lambda: "done" in channel.replies)
        assert shown.text.endswith(outcome)
        assert danger.ran == (["make"] if outcome.startswith("Approved") else [])


async def test_an_emoji_with_a_number_is_a_choice(tmp_path: Path, discord: DiscordServer) -> None:
    async with discord_line(tmp_path, discord) as line:
        line.ada.says(ASKS)
        shown = await asked(line, line.chat)
        line.ada.reacts(shown, "3\ufe0f\u20e3")  # is not one of the choices
        line.ada.reacts(shown, "👍")  # is not an answer
        line.ada.reacts(shown, "2\ufe0f\u20e3")
        await discord.until(lambda: "done" in line.chat.replies)
        assert shown.text.endswith("\n\nAnswered: blue")
        line.ada.reacts(shown, "1\ufe0f\u20e3")  # too late
        line.ada.says("next")
        await line.answers(3)


def test_words_of_a_choice_win_over_numbers() -> None:
    assert chosen("2", ("3", "2", "1")) == "2"
    assert chosen("two lines\n2", ("red", "blue")) == "two lines\n2"
    assert chosen("0", ("red", "blue")) == "0"


class NoButtons(DiscordOutlet):
    has_buttons = False


async def test_without_buttons_a_message_says_what_to_write(discord: DiscordServer) -> None:
    chat = discord.platform.private(discord.person(7))
    buttons = decision_buttons(QuestionId("q_1"))
    async with DiscordApi(discord.url, discord.token) as api:
        outlet = NoButtons(api, SystemClock(), "off")
        await outlet.deliver(OutgoingMessage(f"{chat.id}:::", "May this run?", "n1", buttons=buttons))
    [shown] = chat.messages.values()
    assert shown.buttons == ()
    assert shown.text == (
        "May this run?\n\n- Approve once: `/approve q_1`\n"
        "- For the session: `/approve q_1 session`\n- Deny: `/deny q_1`"
    )
