"""Questions in Slack: buttons that decide, and what the person who pressed is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.slack.line import Line, slack
from support.asking_tools import Danger, calling
from talaria.testing.slack_platform import SlackConversation, SlackMessage
from talaria.testing.slack_server import SlackServer
from talaria.tools.toolset import ToolSet


@pytest.fixture
def danger() -> Danger:
    return Danger()


@asynccontextmanager
async def line(folder: Path, server: SlackServer, danger: Danger, **more: Any) -> AsyncIterator[Line]:
    async with slack(folder, server, tools=lambda known: ToolSet([*known, danger]), **more) as line:
        yield line


async def asked(line: Line, place: SlackConversation) -> SlackMessage:
    """The message with buttons, once there is one."""
    await line.server.until(lambda: any(each.buttons for each in place.messages.values()))
    return next(each for each in place.messages.values() if each.buttons)


def whispered(place: SlackConversation, person: str) -> list[str]:
    """What only this person sees."""
    return [each.text for each in place.messages.values() if each.seen_by == person]


@pytest.mark.parametrize(
    ("label", "ran", "outcome"),
    [("Approve once", ["make <it>"], "Approved, once."), ("Deny", [], "Denied.")],
)
async def test_a_button_decides_and_the_message_tells_the_outcome(
    tmp_path: Path, server: SlackServer, danger: Danger, label: str, ran: list[str], outcome: str
) -> None:
    async with line(tmp_path, server, danger) as here:
        here.ada.says(calling("make <it>"))
        shown = await asked(here, here.ada.dm)
        assert shown.shown.startswith("May this run?") and '"what": "make <it>"' in shown.shown
        here.ada.presses(shown, label)
        await server.until(lambda: "done" in here.ada.dm.replies)
        assert danger.ran == ran
        assert shown.shown.endswith(outcome) and shown.buttons == ()
        await here.handled()
        assert whispered(here.ada.dm, here.ada.id) == [outcome]


async def test_only_the_press_of_the_requester_decides(
    tmp_path: Path, server: SlackServer, danger: Danger
) -> None:
    async with line(tmp_path, server, danger, allowed=("U7ADA", "U8BOB")) as here:
        bob, eve = server.person("U8BOB", "Bob"), server.person("U9EVE", "Eve")
        root = here.ada.says(f"@talaria {calling()}", here.general)
        shown = await asked(here, here.general)
        assert shown.thread_ts == root["ts"]
        for person in (eve, bob):
            here.general.members.add(person.id)
            person.presses(shown, "Approve once", here.general)
            await here.handled()
        assert danger.ran == [] and shown.buttons
        assert whispered(here.general, eve.id) == [], "a stranger learns nothing"
        assert "Only" in whispered(here.general, bob.id)[0]
        here.ada.presses(shown, "Approve once", here.general)
        await server.until(lambda: danger.ran == ["x"])


@pytest.mark.parametrize("has_replies", [False, True])
async def test_a_question_outside_of_threads_is_decided_by_its_button(
    tmp_path: Path, server: SlackServer, danger: Danger, has_replies: bool
) -> None:
    """`/talaria` in a channel belongs to no thread, so neither does its question; Slack calls a message that
    has replies the first of a thread."""
    async with line(tmp_path, server, danger) as here:
        here.ada.commands(calling(), here.general)
        shown = await asked(here, here.general)
        assert shown.thread_ts is None
        if has_replies:
            shown.raw["thread_ts"] = shown.ts
        here.ada.presses(shown, "Approve once", here.general)
        await server.until(lambda: danger.ran == ["x"])
        await here.handled()
        assert whispered(here.general, here.ada.id) == ["Approved, once."]


async def test_a_long_call_is_sent_whole_before_its_buttons(
    tmp_path: Path, server: SlackServer, danger: Danger
) -> None:
    async with line(tmp_path, server, danger) as here:
        here.ada.says(calling("a" * 3500 + "; rm -rf /"))
        shown = await asked(here, here.ada.dm)
        [file] = [each for each in here.ada.dm.messages.values() if each.file is not None]
        assert b"; rm -rf /" in (file.file or b"") and file.ts < shown.ts


async def test_a_call_that_escapes_make_long_is_shown_whole(
    tmp_path: Path, server: SlackServer, danger: Danger
) -> None:
    """Each `<` takes four characters of the 3,000 that a section has."""
    async with line(tmp_path, server, danger) as here:
        here.ada.says(calling("<" * 1500 + "; rm -rf /"))
        shown = await asked(here, here.ada.dm)
        assert "; rm -rf /" in shown.shown and shown.shown.count("<") == 1500


async def test_a_press_that_comes_twice_decides_once(
    tmp_path: Path, server: SlackServer, danger: Danger
) -> None:
    async with line(tmp_path, server, danger) as here:
        here.ada.says(calling())
        shown = await asked(here, here.ada.dm)
        press = here.ada.presses(shown, "Approve once")
        server.repeat("interactive", press)
        await server.until(lambda: "done" in here.ada.dm.replies)
        await here.handled()
        assert danger.ran == ["x"]
