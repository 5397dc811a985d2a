"""Questions in Telegram's chats: shown whole, decided by the person who may, and edited afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.line import Line, telegram
from support.asking_tools import Danger, calling
from support.waiting import until
from talaria.channels.questions import PressedDecision
from talaria.core.clock import SystemClock
from talaria.core.ids import QuestionId
from talaria.core.ledger import Page
from talaria.core.questions import Span
from talaria.net.host_rules import HostRequest
from talaria.store.in_memory import MemoryStore
from talaria.testing.telegram_platform import PlatformChat, ShownMessage
from talaria.testing.telegram_server import TelegramServer
from talaria.tools.toolset import ToolSet
from turns.test_stopping import Gate


@pytest.fixture
def danger() -> Danger:
    return Danger()


@asynccontextmanager
async def line(folder: Path, server: TelegramServer, danger: Danger, **more: Any) -> AsyncIterator[Line]:
    async with telegram(folder, server, tools=lambda known: ToolSet([*known, danger]), **more) as line:
        yield line


async def asked(line: Line, chat: PlatformChat | None = None, count: int = 1) -> list[ShownMessage]:
    """The messages with buttons, once there are so many."""
    place = chat or line.chat

    def found() -> list[ShownMessage]:
        return [shown for shown in place.messages.values() if shown.buttons]

    await line.server.until(lambda: len(found()) >= count)
    return found()


async def until_done(line: Line, chat: PlatformChat | None = None) -> None:
    place = chat or line.chat
    await line.server.until(lambda: "done" in place.replies)


@pytest.mark.parametrize(
    ("label", "ran", "outcome"),
    [
        ("Approve once", ["make"], "Approved, once."),
        ("For the session", ["make"], "Approved for this session."),
        ("Deny", [], "Denied."),
    ],
)
async def test_a_button_decides_and_the_message_tells_the_outcome(
    tmp_path: Path, server: TelegramServer, danger: Danger, label: str, ran: list[str], outcome: str
) -> None:
    async with line(tmp_path, server, danger) as here:
        here.ada.says(calling("make"))
        [shown] = await asked(here)
        assert shown.text.startswith("May this run?") and '"what": "make"' in shown.text
        assert [name for name, _ in shown.buttons] == ["Approve once", "For the session", "Deny"]
        query = here.ada.presses(shown, label)
        await until_done(here)
        assert danger.ran == ran
        await server.until(lambda: server.platform.queries[query] is not None)
        assert server.platform.queries[query] == outcome
        message = here.chat.messages[shown.id]
        assert message.text.endswith(outcome) and message.buttons == ()


async def test_a_picture_of_what_is_asked_about_comes_before_the_question(
    tmp_path: Path, server: TelegramServer, danger: Danger
) -> None:
    async def find_picture(session_id: str, tool: str) -> bytes | None:
        return b"\x89PNG of the page" if tool == "danger" else None

    async with line(tmp_path, server, danger, find_picture=find_picture) as here:
        here.ada.says(calling("make"))
        [question] = await asked(here)
        [picture] = [shown for shown in here.chat.messages.values() if shown.file_name]
        assert picture.file == b"\x89PNG of the page" and picture.id < question.id
        here.ada.presses(question, "Deny")
        await until_done(here)


async def test_only_the_press_of_the_requester_counts(
    tmp_path: Path, server: TelegramServer, danger: Danger
) -> None:
    async with line(tmp_path, server, danger, groups="all") as here:
        bob = server.person(8, "Bob")
        group = server.platform.group(-100)
        here.ada.says(calling(), group)
        [shown] = await asked(here, group)
        stranger = bob.presses(shown, "Approve once", group)
        await server.until(lambda: server.platform.queries[stranger] is not None)
        assert danger.ran == [] and shown.buttons
        code = (await here.admin.invite("telegram")).code
        bob.says(f"/start {code}")
        await server.until(lambda: bool(server.platform.private(bob).replies))
        member = bob.presses(shown, "Approve once", group)
        await server.until(lambda: server.platform.queries[member] is not None)
        assert "Only" in str(server.platform.queries[member])
        assert danger.ran == []
        here.ada.presses(shown, "Approve once", group)
        await server.until(lambda: danger.ran == ["x"])


async def test_a_long_call_is_sent_whole_before_the_buttons(
    tmp_path: Path, server: TelegramServer, danger: Danger
) -> None:
    long = "a" * 3500 + "; rm -rf /"
    async with line(tmp_path, server, danger) as here:
        here.ada.says(calling(long))
        [shown] = await asked(here)
        [file] = [message for message in here.chat.messages.values() if message.file is not None]
        assert file.file is not None and long.encode() in file.file
        assert file.id < shown.id and "in the file above" in shown.text
        here.ada.presses(shown, "Deny")
        await until_done(here)


async def test_a_question_is_sent_once_over_a_restart(
    tmp_path: Path, server: TelegramServer, danger: Danger
) -> None:
    store = MemoryStore(SystemClock())
    async with line(tmp_path, server, danger, store=store) as here:
        here.ada.says(calling())
        [shown] = await asked(here)
        question_id = dict(shown.buttons)["Deny"].split()[1]

        async def noted() -> bool:
            found = await store.find_question(QuestionId(question_id))
            return found is not None and found.question.shown_id is not None

        await until(noted, pause=0)
    async with line(tmp_path, server, danger, store=store) as here:
        here.ada.presses(shown, "Approve once")
        await until_done(here)
        assert danger.ran == ["x"]
        assert len([text for text in here.chat.replies if text.startswith("May this run?")]) == 1
        assert here.chat.messages[shown.id].text.endswith("Approved, once.")


async def test_an_old_button_decides_nothing(tmp_path: Path, server: TelegramServer, danger: Danger) -> None:
    async with line(tmp_path, server, danger) as here:
        here.ada.says(calling())
        [shown] = await asked(here)
        buttons = shown.buttons
        here.ada.presses(shown, "Deny")
        await until_done(here)
        shown.buttons = buttons  # as another device still shows it
        query = here.ada.presses(shown, "Approve once")
        await server.until(lambda: server.platform.queries[query] is not None)
        assert "already" in str(server.platform.queries[query])
        assert danger.ran == []


async def test_the_next_message_answers_a_question_and_so_does_a_button(
    tmp_path: Path, server: TelegramServer, danger: Danger
) -> None:
    ask = '[[call ask_user {"question": "Which?", "choices": ["red", "blue"]}]]'
    async with line(tmp_path, server, danger) as here:
        here.ada.says(ask)
        await asked(here)
        here.ada.says("green, I think")
        await server.until(lambda: "Tool results: green, I think" in here.chat.replies)
        here.ada.says(ask)
        [shown] = await asked(here)
        here.ada.presses(shown, "blue")
        await server.until(lambda: "Tool results: blue" in here.chat.replies)
        assert here.chat.messages[shown.id].text.endswith("Answered: blue")


async def test_a_message_that_waits_behind_a_question_is_told_so(
    tmp_path: Path, server: TelegramServer, danger: Danger
) -> None:
    async with line(tmp_path, server, danger) as here:
        here.ada.says(calling())
        [shown] = await asked(here)
        here.ada.says("and this?")
        await server.until(
            lambda: any(text.startswith("This waits for a decision: danger") for text in here.chat.replies)
        )
        here.ada.presses(shown, "Deny")
        await server.until(lambda: "You said: and this?" in here.chat.replies)


async def test_a_paired_person_allows_a_host_for_the_session_at_most(
    tmp_path: Path, server: TelegramServer
) -> None:
    gate = Gate("gate")
    async with telegram(tmp_path, server, tools=lambda known: ToolSet([*known, gate])) as here:
        here.ada.says("[[call gate {}]][[reply done]]")
        await gate.entered.wait()
        [live] = here.rig.live
        request = HostRequest(live.turn.session_id, "a.example", 443)
        asking = asyncio.create_task(here.rig.turns.hosts.ask(request))
        [shown] = await asked(here)
        assert [name for name, _ in shown.buttons] == ["Approve once", "For the session", "Deny"]
        shown.buttons = (*shown.buttons, ("Always", f"{shown.buttons[0][1]} always"))  # of an older release
        query = here.ada.presses(shown, "Always")
        await server.until(lambda: server.platform.queries[query] is not None)
        assert "operator" in str(server.platform.queries[query])
        here.ada.says("/approve always")
        await server.until(lambda: any("operator" in text for text in here.chat.replies))
        assert not asking.done()
        here.ada.presses(shown, "For the session")
        assert (await asking).is_admitted
        gate.opened.set()
        await until_done(here)


async def test_the_question_of_a_background_process_is_sent_to_the_chat(
    tmp_path: Path, server: TelegramServer
) -> None:
    async with telegram(tmp_path, server) as here:
        here.ada.says("[[reply done]]")
        await until_done(here)
        session = await here.rig.store.current_session(here.inbounds[0].chat_key)
        assert session is not None
        request = HostRequest(session.id, "a.example", 443, is_background=True)
        assert not (await here.rig.turns.hosts.ask(request)).is_admitted
        assert not (await here.rig.turns.hosts.ask(request)).is_admitted
        [shown] = await asked(here)
        assert shown.text.startswith("May commands reach this host?") and "a.example" in shown.text
        assert [name for name, _ in shown.buttons] == ["Approve once", "For the session", "Deny"]

        async def is_noted() -> bool:
            [item] = (await here.rig.store.open_questions(Page())).items
            return item.question.shown_id is not None

        await until(is_noted, pause=0)
        assert not (await here.rig.turns.hosts.ask(request)).is_admitted
        here.ada.presses(shown, "For the session")
        await server.until(lambda: not here.chat.messages[shown.id].buttons)
        assert here.chat.messages[shown.id].text.endswith("Approved for this session.")
        assert (await here.rig.turns.hosts.ask(request)).is_admitted
        assert len([text for text in here.chat.replies if text.startswith("May commands")]) == 1


@pytest.mark.parametrize(
    ("pressed", "decision"),
    [
        ("/approve q_1", PressedDecision(QuestionId("q_1"), "approve")),
        ("/approve q_1 session", PressedDecision(QuestionId("q_1"), "approve", Span.SESSION)),
        ("/deny q_1", PressedDecision(QuestionId("q_1"), "deny")),
        ("/answer q_1 2", PressedDecision(QuestionId("q_1"), choice=2)),
        ("/answer q_1 9999", None),
        ("/answer q_1", None),
        ("/approve q_1 ever", None),
        ("/approve", None),
        ("/resume ses_1", None),
        ("hello", None),
        (" ", None),
    ],
)
def test_what_a_button_means(pressed: str, decision: PressedDecision | None) -> None:
    assert PressedDecision.read(pressed) == decision
