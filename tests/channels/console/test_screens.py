"""The live part of a turn on the screen, and what is printed above it, after each event."""

from __future__ import annotations

import asyncio
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from talaria.console.plain import PlainRenderer, StatusLine, await_with_status
from talaria.console.terminal import TerminalRenderer
from talaria.core.errors import ErrorInfo
from talaria.core.events import (
    Cancelled,
    Delta,
    Done,
    Event,
    Failed,
    FellBack,
    ModelLoading,
    QuestionAsked,
    Queued,
    ReasoningDelta,
    Reset,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    UsageReported,
)
from talaria.core.ids import QuestionId
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.core.questions import QuestionKind

START = ToolStarted("1", "terminal", '{"command": "make"}')
OK = ToolFinished("1", "terminal", ToolOutcome.OK, "done")
QUESTION = QuestionAsked(QuestionId("q_1"), QuestionKind.APPROVAL, "May I?", ("yes",), "2", "terminal")


class Screen:
    """A renderer, the rows of its live part, and the rows that it printed since the last look."""

    def __init__(self, *, is_markdown: bool = True, height: int = 20) -> None:
        self.out = StringIO()
        self.now = 0.0
        self.console = Console(file=self.out, width=60, height=height)
        self.renderer = TerminalRenderer(self.console, is_markdown=is_markdown, clock=lambda: self.now)

    def after(self, *events: Event) -> tuple[list[str], list[str]]:
        for event in events:
            self.renderer.show(event)
        return self.live(), self.printed()

    def live(self) -> list[str]:
        rows = self.console.render_lines(self.renderer, pad=False)
        texts = ["".join(segment.text for segment in row).rstrip() for row in rows]
        return [text[2:] if text[:1] in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" else text for text in texts if text]

    def printed(self) -> list[str]:
        text = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_the_status_says_what_is_waited_for() -> None:
    screen = Screen()
    (thinking,), printed = screen.after()
    assert printed == []
    assert "hinking" in thinking
    assert screen.after(Queued(2)) == (["waiting, 2 ahead… (Ctrl-C cancels)"], [])
    assert screen.after(Queued(0)) == ([thinking], [])
    assert screen.after(Delta("Hel")) == (["Hel"], [])
    assert screen.after(ReasoningDelta("hm")) == (["Hel", thinking], [])
    loading = ModelLoading("m", "loading", 5.0)
    assert screen.after(loading)[0] == ["Hel", f"{loading.sentence()} (Ctrl-C cancels)"]
    assert screen.after(ModelLoading("m", "reading"))[0] == ["Hel", thinking]
    live, printed = screen.after(QUESTION)
    assert printed == ["Hel", "? May I?", "  1. yes"]
    assert len(live) == 1
    assert live != [thinking]
    live, printed = screen.after(FellBack("a/b", "c/d", "Down."))
    assert live == [thinking]
    assert len(printed) >= 1


def test_a_running_tool_is_drawn_with_its_last_lines_and_stays_as_one_row() -> None:
    screen = Screen()
    screen.after(Delta("Looking"))
    live, printed = screen.after(START)
    assert (live, printed) == (["⚙ terminal make …"], ["Looking"])
    live, _ = screen.after(ToolOutput("1", "one\ntwo\nth"), ToolOutput("9", "nobody's"))
    assert live == ["⚙ terminal make …", "  one", "  two", "  th"]
    live, _ = screen.after(ToolOutput("1", "ree\n" + "".join(f"{n}\n" for n in range(40))))
    assert live[0] == "⚙ terminal make …"
    assert live[1].startswith("  … ")
    assert live[-1] == "  39"
    hidden = int(live[1].split()[1])
    assert hidden + len(live) - 2 == 43
    live, printed = screen.after(ToolStarted("2", "now", "{}"), OK)
    assert live == ["⚙ now …"]
    assert printed == ["⚙ terminal make … ok · 43 lines (Ctrl-O shows them)"]
    live, printed = screen.after(ToolFinished("2", "now", ToolOutcome.ERROR, "no"))
    assert len(live) == 1
    assert "hinking" in live[0]
    assert printed[0].startswith("⚙ now … ")
    assert screen.after(ToolFinished("7", "un\x1bseen", ToolOutcome.OK, ""))[1][0].startswith("⚙ unseen … ")


def test_an_interrupted_attempt_stays_and_the_next_begins_below_it() -> None:
    screen = Screen()
    assert screen.after(Reset())[1] == [], "nothing was shown yet"
    mark = "(interrupted; the gateway takes it up again)"
    assert screen.after(Delta("half"), Reset())[1] == ["half", mark]
    live, printed = screen.after(START, Reset())
    assert printed == [mark]
    assert len(live) == 1
    assert "hinking" in live[0]
    assert screen.after(Delta("whole"), Done("whole"))[1] == ["whole"]


@pytest.mark.parametrize(
    ("streamed", "reply", "printed"),
    [
        ("", "all", ["all"]),
        ("al", "all", ["all"]),
        ("all", "all", ["all"]),
        ("said all", "all", ["said all"]),
        ("other", "all", ["other", "all"]),
    ],
)
def test_the_end_of_a_reply_that_was_not_streamed_is_added(
    streamed: str, reply: str, printed: list[str]
) -> None:
    live, found = Screen().after(Delta(streamed), Done(reply))
    assert (live, found) == ([], printed)


def test_usage_is_added_up_and_told_with_the_time() -> None:
    screen = Screen()
    screen.now = 2.5
    used = UsageReported(TokenUsage(input=10, cached=4, output=5), "m")
    assert screen.after(used, used, Done("ok"))[1] == ["ok", "m · 20 in (8 cached) · 10 out · 2.5 s"]
    screen = Screen()
    used = UsageReported(TokenUsage(output=5), "smollm2-135m")
    assert screen.after(used, Done("ok"))[1] == ["ok", "smollm2-135m (built in) · 0 in · 5 out · 0.0 s"]
    assert Screen().after(Done("ok"))[1] == ["ok"]


@pytest.mark.parametrize(
    ("end", "printed"),
    [
        (Cancelled("half"), ["half", "(cancelled)"]),
        (Failed(ErrorInfo("t", "It broke.", "Try again.")), ["half", "✗ It broke.", "  Try again."]),
        (Done("half"), ["half"]),
    ],
)
def test_how_a_turn_ended_is_told(end: Any, printed: list[str]) -> None:
    live, found = Screen().after(START, Delta("half"), end)
    assert live == []
    assert [line for line in found if not line.startswith("⚙")] == printed


def test_what_the_program_says_comes_behind_the_text_so_far() -> None:
    screen = Screen()
    screen.after(Delta("half"))
    screen.renderer.pause("gone")
    assert screen.printed() == ["half", "gone"]
    assert screen.live() == ["waiting for the gateway… (Ctrl-C stops waiting)"]
    screen.renderer.resume("back")
    assert screen.printed() == ["back"]
    assert "hinking" in screen.live()[0]
    screen.after(Delta("more"))
    screen.renderer.attach("a.txt  3 B")
    assert screen.printed() == ["more", "a.txt  3 B"]
    screen.after(Delta("end"))
    screen.renderer.close()
    screen.renderer.close()
    assert (screen.printed(), screen.live()) == (["end"], [])


def test_of_a_long_unfinished_block_the_end_is_drawn() -> None:
    screen = Screen(height=8)
    live, _ = screen.after(Delta("\n".join(f"row {n}" for n in range(50))))
    assert live[-1] == "row 49"
    assert 1 <= len(live) < 8
    screen = Screen(height=1)
    assert screen.after(Delta("a\nb"))[0] == ["b"]


def test_a_commands_answer_is_printed_as_it_is() -> None:
    screen = Screen(is_markdown=False)
    assert screen.live() == []
    assert screen.after(Delta("# no *head*\n"), Done("# no *head*\n"))[1] == ["# no *head*"]
    long = "x" * 100_000
    assert "".join(Screen().after(Done(long))[1]) == long


# -- plain text ---------------------------------------------------------------------------------------------


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_status_line_is_drawn_on_a_terminal_only_and_removed() -> None:
    out, pipe = Terminal(), StringIO()
    async with StatusLine(out, "waiting", 5) as line, StatusLine(pipe, "waiting"):
        await asyncio.sleep(0)
        assert out.getvalue() == "\r\033[Kwaiting … 0 s of 5"
        line.say("reading")
        assert out.getvalue().endswith("\r\033[Kreading … 0 s of 5")
        line.hide()
        line.hide()
        assert out.getvalue().count("\r\033[K") == 3
        line.say("again")
    assert out.getvalue().endswith("again … 0 s of 5\r\033[K")
    assert pipe.getvalue() == ""


async def test_work_is_awaited_under_a_status() -> None:
    async def work() -> int:
        return 5

    pipe, out = StringIO(), Terminal()
    assert await await_with_status(9, "trying", work(), pipe) == 5
    assert pipe.getvalue() == "trying …\n"
    assert await await_with_status(9, "trying", work(), out) == 5
    assert "…\n" not in out.getvalue()
    with pytest.raises(TimeoutError):
        await await_with_status(0, "trying", asyncio.Event().wait(), pipe)


@pytest.mark.parametrize("is_live", [True, False])
def test_a_plain_reply_and_its_notes_are_apart(is_live: bool) -> None:
    out, notes = StringIO(), StringIO()
    renderer = PlainRenderer(out, notes, is_live=is_live)
    renderer.open()
    for event in (Delta("look"), START, OK, QUESTION, Delta("al"), Done("all")):
        renderer.show(event)
    renderer.attach("a.txt")
    renderer.close()
    assert out.getvalue() == ("look\nall\na.txt\n" if is_live else "all\na.txt\n")
    first, *rest = notes.getvalue().splitlines()
    assert first.startswith("⚙ terminal make … ")
    assert rest == ["? May I?", "  1. yes"]


def test_a_plain_reply_that_begins_again_or_ends_early_is_told() -> None:
    out, notes = StringIO(), StringIO()
    renderer = PlainRenderer(out, notes, is_live=True)
    for event in (Delta("half"), Reset(), Delta("other"), Done("whole")):
        renderer.show(event)
    assert out.getvalue() == "half\nother\nwhole\n"
    renderer.show(Cancelled("part"))
    renderer.show(Failed(ErrorInfo("t", "No.", "Hint.")))
    renderer.notice("note")
    assert out.getvalue() == "half\nother\nwhole\npart\n"
    assert notes.getvalue() == "(cancelled)\n✗ No.\n  Hint.\nnote\n"
    silent = PlainRenderer(out, None)
    silent.notice("unseen")
    assert "unseen" not in out.getvalue()


def test_a_model_that_is_fetched_is_announced_once() -> None:
    out, notes = StringIO(), StringIO()
    renderer = PlainRenderer(out, notes)
    fetching = ModelLoading("m", "fetching", 60.0)
    for event in (ModelLoading("m", "loading"), fetching, fetching, Done("ok")):
        renderer.show(event)
    assert notes.getvalue() == f"{fetching.sentence()}\n"
