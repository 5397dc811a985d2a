"""A running turn as it is shown: typing, one message, edits at a pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from channels.telegram.line import way_back
from talaria.channels.live_message import LiveText
from talaria.channels.telegram.outlet import TelegramOutlet
from talaria.core.delivery import OutgoingMessage
from talaria.core.events import (
    DelegateChanged,
    Delta,
    Done,
    Event,
    QuestionAsked,
    Reset,
    ToolFinished,
    ToolOutput,
    ToolStarted,
)
from talaria.core.ids import ChatAddress, DelegateId, QuestionId, SessionId, TurnId
from talaria.core.messages import ToolOutcome
from talaria.core.questions import QuestionKind
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.testing.clock import FakeClock
from talaria.testing.telegram_server import FaultKind, TelegramFault, TelegramServer
from talaria.turns.delivery import ShownTurn


@dataclass
class View(ShownTurn):
    """A turn whose events the test hands out."""

    address: str = "7::"
    shown_id: str | None = None
    is_ours: bool = True
    state: TurnState = TurnState.RUNNING
    owed: int = 0  # earlier replies
    queue: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)

    @property
    def turn(self) -> Turn:
        key = ChatAddress("main", "telegram", "dm", "7").key()
        inbound = Inbound(key, Sender("7"), (), address=self.address)
        return Turn(TurnId("turn_1"), key, SessionId("ses_1"), self.state, inbound, 0.0)

    async def events(self) -> AsyncIterator[Event]:
        while True:
            event = await self.queue.get()
            yield event
            if isinstance(event, Done):
                return

    async def is_next(self) -> bool:
        return self.owed == 0

    async def shown(self, platform_id: str) -> None:
        self.shown_id = platform_id

    async def question_message(self, question_id: QuestionId) -> str | None:
        return None

    async def question_shown(self, question_id: QuestionId, platform_id: str) -> None:
        pass


@dataclass
class Stage:
    """A view that is being shown in the chat of user 7."""

    server: TelegramServer
    clock: FakeClock
    outlet: TelegramOutlet
    view: View
    showing: asyncio.Task[None]

    async def pass_time(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.clock.advance(0.1)
            await self.clock.settle()

    def hear(self, *events: Event) -> None:
        for event in events:
            self.view.queue.put_nowait(event)

    async def end(self) -> None:
        self.hear(Done(""))
        await self.showing

    @property
    def shown(self) -> list[str]:
        return self.server.platform.chats[7].replies


@asynccontextmanager
async def stage(
    server: TelegramServer, progress: str = "brief", view: View | None = None
) -> AsyncIterator[Stage]:
    clock, view = FakeClock(), view or View()
    async with way_back(server, clock, progress) as outlet:
        showing = asyncio.create_task(outlet.show(view))
        try:
            yield Stage(server, clock, outlet, view, showing)
        finally:
            showing.cancel()
            await asyncio.wait((showing,))


async def test_what_is_answered_at_once_is_not_shown_before(server: TelegramServer) -> None:
    async with stage(server) as on:
        await server.until(lambda: server.count("sendChatAction") == 1)
        on.hear(Delta("quick"))
        await on.end()
        assert on.shown == []
        assert on.view.shown_id is None


async def test_text_is_shown_as_it_comes_and_the_reply_takes_its_place(server: TelegramServer) -> None:
    async with stage(server) as on:
        on.hear(Delta("**one"))
        await on.pass_time(lambda: on.view.shown_id is not None)
        assert on.shown == ["**one ▌"]
        on.hear(Delta(" two**"))
        await on.pass_time(lambda: on.shown == ["one two ▌"])
        await on.end()
        post = OutgoingMessage("7::", "**one two** three", "n", edits=on.view.shown_id)
        assert await on.outlet.deliver(post) == on.view.shown_id
        assert on.shown == ["one two three"]


async def test_nothing_is_shown_above_an_earlier_reply_that_is_not_sent_yet(server: TelegramServer) -> None:
    async with stage(server, view=View(owed=1)) as on:
        on.hear(Delta("one"))
        for _ in range(50):
            on.clock.advance(0.1)
            await on.clock.settle()
        assert on.shown == []
        on.view.owed = 0
        await on.pass_time(lambda: on.view.shown_id is not None)
        assert on.shown == ["one ▌"]


async def test_a_gateway_that_lost_the_channel_draws_over_nothing(server: TelegramServer) -> None:
    async with stage(server) as on:
        on.hear(Delta("one"))
        await on.pass_time(lambda: on.view.shown_id is not None)
        on.view.is_ours = False
        on.hear(Delta(" two"))
        for _ in range(50):
            on.clock.advance(0.1)
            await on.clock.settle()
        await on.end()
        assert on.shown == ["one ▌"]


async def test_edits_keep_their_pace_and_wait_when_they_are_told_to(server: TelegramServer) -> None:
    async with stage(server) as on:
        on.hear(Delta("a"))
        await on.pass_time(lambda: on.view.shown_id is not None)
        body = {"ok": False, "error_code": 429, "description": "Too Many", "parameters": {"retry_after": 9}}
        server.fail("editMessageText", TelegramFault(FaultKind.STATUS, status=429, body=body))
        started = on.clock.elapsed()
        on.hear(Delta("b"))
        await on.pass_time(lambda: server.count("editMessageText") == 1)
        assert on.clock.elapsed() - started >= 1.4
        refused = on.clock.elapsed()
        on.hear(Delta("c"))
        await on.pass_time(lambda: on.shown == ["abc ▌"])
        assert on.clock.elapsed() - refused >= 9
        assert server.count("editMessageText") == 2


async def test_typing_goes_on_while_the_turn_runs(server: TelegramServer) -> None:
    async with stage(server, "off") as on:
        on.hear(Delta("text that nobody is to see"))
        await on.pass_time(lambda: server.count("sendChatAction") == 4)
        assert on.clock.elapsed() >= 3 * 4.4
        assert on.shown == []
        await on.end()


async def test_a_turn_that_waits_its_turn_does_not_type(server: TelegramServer) -> None:
    async with stage(server, view=View(state=TurnState.ACCEPTED)) as on:
        await on.clock.play(30)
        assert server.count("sendChatAction") == 0
        on.view.state = TurnState.RUNNING
        await on.pass_time(lambda: server.count("sendChatAction") == 1)
        await on.end()


async def test_a_tool_that_runs_for_long_is_shown_with_its_time(server: TelegramServer) -> None:
    async with stage(server) as on:
        on.hear(ToolStarted("1", "terminal", '{"command": "pytest -q"}'))
        await on.pass_time(lambda: on.shown == ["⚙ terminal pytest -q ▌"])
        await on.pass_time(lambda: on.shown == ["⚙ terminal pytest -q … 9 s ▌"])
        on.hear(ToolOutput("1", "10 %\r50 %"))
        await on.pass_time(lambda: "… 50 %" in on.shown[0])
        on.hear(ToolFinished("1", "terminal", ToolOutcome.OK, "", "Exit code 1."))
        await on.pass_time(lambda: on.shown == ["⚙ terminal pytest -q\n⚠ terminal: Exit code 1. ▌"])
        edits = server.count("editMessageText")
        await on.clock.play(30)
        assert server.count("editMessageText") == edits, "nothing runs, so nothing is drawn again"
        await on.end()


async def test_a_message_on_its_way_is_known_even_when_the_show_is_cancelled(server: TelegramServer) -> None:
    async with stage(server) as on:
        on.hear(Delta("text"))
        await on.clock.until_sleepers(2)  # typing, and the pause before the message
        server.fail("sendMessage", TelegramFault(FaultKind.HOLD))
        on.clock.advance(1)
        await server.until(lambda: bool(on.shown))
        on.showing.cancel()
        await on.clock.settle()
        assert not on.showing.done()
        server.released.set()
        await asyncio.wait((on.showing,))
        assert on.view.shown_id is not None
        assert len(on.shown) == 1


async def test_after_a_restart_the_same_message_goes_on(server: TelegramServer) -> None:
    async with way_back(server) as outlet:
        message_id = await outlet.deliver(OutgoingMessage("7::", "before ▌", "n"))
    async with stage(server, view=View(shown_id=message_id)) as on:
        on.hear(Reset(), Delta("after"))
        await on.pass_time(lambda: on.shown == ["after ▌"])
        await on.end()


async def test_a_live_message_that_may_have_arrived_is_not_sent_again(server: TelegramServer) -> None:
    server.fail("sendMessage", TelegramFault(FaultKind.CUT_AFTER))
    async with stage(server) as on:
        on.hear(Delta("text"))
        await on.pass_time(lambda: server.count("sendMessage") == 1)
        on.hear(Delta("more"))
        await on.clock.play(30)
        await on.end()
        assert on.shown == ["text ▌"]  # visibly unfinished


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("off", None),
        ("brief", "`⚙ read_file b.txt`\n\ndone ▌"),
        ("full", "`⚙ read_file a.txt`\n`⚠ read_file: error`\n`⚙ read_file b.txt`\n\nlookingdone ▌"),
    ],
)
def test_progress_tells_what_was_asked_for(mode: str, shown: str | None) -> None:
    progress = LiveText(mode)
    events: list[Event] = [
        Delta("looking"),
        ToolStarted("1", "read_file", '{"path": "a.txt"}'),
        ToolFinished("1", "read_file", ToolOutcome.ERROR, "no"),
        ToolStarted("2", "read_file", '{"path": "b.txt"}'),
        ToolFinished("2", "read_file", ToolOutcome.OK, "yes"),
        Delta("done"),
    ]
    news = [progress.take(event) for event in events]
    assert any(news) is (shown is not None)
    if shown is not None:
        assert progress.body() == shown


def test_a_tools_output_is_one_line_that_changes_and_a_question_is_mentioned() -> None:
    text = LiveText("brief")
    text.take(ToolStarted("1", "terminal", '{"command": "make"}'))
    assert text.take(ToolOutput("1", "first\nsecond\n"))
    assert not text.take(ToolOutput("1", "\n"))
    assert text.body() == "`⚙ terminal make`\n`… second` ▌"
    text.take(ToolOutput("1", "a `third`"))
    assert text.body() == "`⚙ terminal make`\n`… a 'third'` ▌"
    text.take(ToolFinished("1", "terminal", ToolOutcome.OK, ""))
    kind = QuestionKind.APPROVAL
    assert text.take(QuestionAsked(QuestionId("q_1"), kind, "May I?\nReally?", (), "2", "terminal"))
    assert text.body() == "⏸ Waits for a decision.\n\n`⚙ terminal make` ▌"


def test_each_delegate_is_one_line_below_its_call() -> None:
    text = LiveText("brief")
    text.take(ToolStarted("1", "delegate", '{"task": "Read"}'))
    for name, line in (("t.2-2", "b.txt"), ("t.2-1", "a.txt"), ("t.2-2", "c.txt")):
        key, turn = DelegateId(name), TurnId("turn_2")
        assert text.take(DelegateChanged("1", key, turn, name, TurnState.RUNNING, line, 2.0))
    assert text.body() == (
        "`⚙ delegate Read`\n`t.2-1 — running, 2 s: a.txt`\n`t.2-2 — running, 2 s: c.txt` ▌"
    )
