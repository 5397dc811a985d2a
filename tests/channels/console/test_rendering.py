"""What stays on the screen of a turn, told by its events."""

import asyncio
from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Console

from talaria.console.plain import PlainRenderer
from talaria.console.terminal import FoldedCalls, TerminalRenderer
from talaria.core.errors import ErrorInfo
from talaria.core.events import (
    Cancelled,
    DelegateChanged,
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
    Retrying,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    UsageReported,
)
from talaria.core.ids import DelegateId, QuestionId, TurnId
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.core.questions import QuestionKind
from talaria.core.turns import TurnState


def scrollback(events: Sequence[Event], *, is_markdown: bool = True) -> list[str]:
    """What is printed for good, without the live part."""
    written = drawn(events, Console(file=StringIO(), width=60), is_markdown=is_markdown)
    return [line.rstrip() for line in written.splitlines() if line.strip()]


def on_terminal(events: Sequence[Event], height: int = 20) -> str:
    """Every byte that a terminal gets, with the live part after each event."""
    return drawn(events, Console(file=StringIO(), force_terminal=True, width=60, height=height))


def drawn(events: Sequence[Event], console: Console, *, is_markdown: bool = True) -> str:
    async def draw() -> None:
        renderer = TerminalRenderer(console, is_markdown=is_markdown, clock=lambda: 0.0)
        renderer.open()
        for event in events:
            renderer.show(event)
            if console.is_terminal:
                console.print(renderer)
        renderer.close()

    asyncio.run(draw())
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def plain(events: Sequence[Event]) -> str:
    out = StringIO()
    renderer = PlainRenderer(out, out)
    for event in events:
        renderer.show(event)
    return out.getvalue()


def test_markdown_is_rendered_and_printed_once() -> None:
    text = "# Head\n\nSome **bold** text.\n\n- one\n- two\n"
    events = [Delta(text[at : at + 3]) for at in range(0, len(text), 3)]
    lines = scrollback([*events, Done(text)])
    assert [line.strip() for line in lines] == ["Head", "Some bold text.", "• one", "• two"]


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ([Done("the answer")], ["the answer"]),
        ([Delta("the ans"), Done("the answer")], ["the answer"]),
        ([Delta("draft"), Done("final")], ["draft", "final"]),
        ([Queued(2), ReasoningDelta("secret thought"), Delta("hi"), Done("hi")], ["hi"]),
        ([Delta("half an ans"), Cancelled("half an ans")], ["half an ans", "(cancelled)"]),
        (
            [Delta("one try"), Reset(), Delta("ano"), Done("another")],
            ["one try", "(interrupted; the gateway takes it up again)", "another"],
        ),
    ],
)
def test_a_reply_is_shown_once_however_much_of_it_was_streamed(
    events: Sequence[Event], lines: list[str]
) -> None:
    assert scrollback(events) == lines


def test_tools_are_lines_with_the_telling_argument_and_the_outcome() -> None:
    events: list[Event] = [
        Delta("Let me look."),
        ToolStarted("1", "read_file", '{"limit": 3, "path": "notes.txt"}'),
        ToolStarted("2", "search", "not json"),
        ToolOutput("2", "a piece of output"),
        ToolFinished("2", "search", ToolOutcome.ERROR, "Error: no such thing\nmore"),
        ToolFinished("1", "read_file", ToolOutcome.OK, "text"),
        Delta("Found it."),
        Done("Found it."),
    ]
    told = ["⚙ search not json … error: no such thing", "⚙ read_file notes.txt … ok"]
    shown = scrollback(events)
    assert " ".join(shown[1:3]) == f"{told[0]} · 1 line (Ctrl-O shows them)"
    assert [shown[0], *shown[3:]] == ["Let me look.", told[1], "Found it."]
    assert plain(events).splitlines() == [*told, "Found it."]


def test_a_finished_call_folds_to_one_line_and_can_be_unfolded() -> None:
    out, folded, now = StringIO(), FoldedCalls(), [0.0]
    renderer = TerminalRenderer(Console(file=out, width=90), clock=lambda: now[0], folded=folded)
    assert folded.unfold() == "No tool has printed anything yet."
    for number, code in enumerate((0, 1)):
        renderer.show(ToolStarted(str(number), "terminal", '{"command": "make"}'))
        renderer.show(ToolOutput(str(number), f"10 %\r100 %\nrun {number}\n"))
        now[0] += 12
        renderer.show(
            ToolFinished(str(number), "terminal", ToolOutcome.OK, "10 %", note=f"Exit code {code}.")
        )
    assert out.getvalue().splitlines() == [
        "⚙ terminal make … exit code 0 · 12 s · 2 lines (Ctrl-O shows them)",
        "⚙ terminal make … exit code 1 · 12 s · 2 lines",
    ]
    assert folded.unfold() == "⚙ terminal make\n  100 %\n  run 1"
    assert folded.unfold() == "⚙ terminal make\n  100 %\n  run 0"


def test_each_delegate_of_a_call_is_a_line_and_all_lines_can_be_unfolded() -> None:
    started = ToolStarted("c", "delegate", '{"tasks": ["Read a", "Read b"]}')

    def told(name: str, title: str, state: TurnState, line: str = "", cost: str = "") -> Event:
        return DelegateChanged("c", DelegateId(name), TurnId("turn_2"), title, state, line, 3.0, cost)

    events = [
        started,
        told("t.2-2", "Read b", TurnState.RUNNING, "read_file b.txt"),
        told("t.2-1.3-1", "Deeper", TurnState.DONE),
        told("t.2-1", "Read a", TurnState.DONE, cost="0.02"),
    ]
    lines = [line[4:-4].strip() for line in on_terminal(events).splitlines() if "—" in line]
    assert lines[-3:] == [
        "Read a — done, 3 s, $0.02",
        "Deeper — done, 3 s",
        "Read b — running, 3 s: read_file b.txt",
    ]
    assert "  Read a — done, 3 s, $0.02" in plain(events)


def test_without_a_screen_a_call_is_a_line_with_its_exit_code() -> None:
    events: list[Event] = [
        ToolStarted("1", "terminal", '{"command": "make"}'),
        ToolOutput("1", "much\noutput\n"),
        ToolFinished("1", "terminal", ToolOutcome.OK, "much", note="Ended by SIGKILL (exit code 137)."),
        Done("Done."),
    ]
    assert plain(events) == "⚙ terminal make … ended by SIGKILL (exit code 137)\nDone.\n"


def test_of_a_tools_output_the_last_lines_are_shown() -> None:
    pieces = [ToolOutput("1", f"{n}\nli") if n % 2 else ToolOutput("1", f"ne {n}\nline ") for n in range(50)]
    start: Event = ToolStarted("1", "terminal", "{}")
    end: Event = ToolFinished("1", "terminal", ToolOutcome.OK, "")
    console = Console(file=StringIO(), width=60, height=20)
    renderer = TerminalRenderer(console)
    for event in (start, *pieces):
        renderer.show(event)
    console.print(renderer)
    renderer.show(end)
    assert isinstance(console.file, StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    rows = ["  … 43 lines before", *(f"  line {n}" for n in range(43, 50)), "  li"]
    assert lines == ["⚙ terminal …", *rows, "⚙ terminal … ok · 51 lines (Ctrl-O shows them)"]


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ("Exit code 0. Network: Example.org has no address.", "exit code 0"),
        ("Ended by SIGTERM (exit code 143).", "ended by SIGTERM (exit code 143)"),
        (
            "Ended after 2.5 seconds.",
            "ended after 2.5 seconds",
        ),
        ("Rscript waited for input. Give it.", "Rscript waited for input"),
    ],
)
def test_the_line_of_a_call_tells_the_first_sentence_of_its_end(note: str, told: str) -> None:
    end = ToolFinished("1", "terminal", ToolOutcome.OK, "out", note=note)
    assert scrollback([ToolStarted("1", "terminal", '{"command": "make"}'), end]) == [
        f"⚙ terminal make … {told}"
    ]


def test_a_question_is_shown_whole_with_its_choices() -> None:
    text = "Which colour?\nIt is for the " + "very " * 40 + "end."
    asked = QuestionAsked(QuestionId("q_1"), QuestionKind.ANSWER, text, ("red", "blue"), "1", "ask_user")
    shown = plain([asked])
    assert shown == f"? {text}\n  1. red\n  2. blue\n"
    assert " ".join(" ".join(scrollback([asked])).split()) == " ".join(shown.split())


def test_trouble_is_told_while_it_lasts_and_a_fallback_stays_on_the_screen() -> None:
    events: list[Event] = [
        Retrying("acme/m", 2, 1.5, "acme is failing."),
        FellBack("spare/n", "acme/m", "acme is failing."),
        Delta("hi"),
        Done("hi\n\n[Answered by spare/n, because acme is failing.]"),
    ]
    told = "↪ acme is failing. Asking spare/n instead."
    note = "[Answered by spare/n, because acme is failing.]"
    assert scrollback(events) == [told, "hi", note]
    assert plain(events).splitlines() == ["↻ acme is failing. Trying again in 2 s …", told, "hi", "", note]


def test_a_model_that_is_loaded_thinks_until_its_first_word() -> None:
    fetching = ModelLoading("local/tiny", "fetching", 0.2, 491_000_000, 491_000_000)
    loading, reading = ModelLoading("local/tiny", "loading"), ModelLoading("local/tiny", "reading")
    shown = StringIO()
    console = Console(file=shown, width=90)
    renderer = TerminalRenderer(console)
    for event in (loading, reading):
        renderer.show(event)
        console.print(renderer)
    first, second = shown.getvalue().splitlines()
    assert first.endswith("The model is being loaded. (Ctrl-C cancels)")
    assert second.endswith("thinking… (Ctrl-C cancels)")
    assert plain([fetching, loading, reading, Done("hi")]).splitlines() == [
        "Saved. I answer when the model is ready, in a moment (491 of 491 MB).",
        "hi",
    ]


def test_usage_is_added_up_in_one_line_at_the_end() -> None:
    events: list[Event] = [
        UsageReported(TokenUsage(10, 0, 2), "m"),
        UsageReported(TokenUsage(20, 10, 3), "m"),
        Done("x"),
    ]
    assert scrollback(events) == ["x", "m · 30 in (10 cached) · 5 out · 0.0 s"]


def test_an_error_is_a_sentence_and_a_hint() -> None:
    events: list[Event] = [Delta("partial"), Failed(ErrorInfo("model", "It broke.", "Mend it."))]
    assert scrollback(events) == ["partial", "✗ It broke.", "  Mend it."]
    assert plain(events) == "✗ It broke.\n  Mend it.\n"


def test_a_command_answer_keeps_its_lines_and_is_no_markdown() -> None:
    assert scrollback([Done("/a: *x*\n/b: [y]")], is_markdown=False) == ["/a: *x*", "/b: [y]"]


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08[link](http://evil.example)\u202e"


@pytest.mark.parametrize(
    "event",
    [
        Delta(HOSTILE),
        Done(HOSTILE),
        Cancelled(HOSTILE),
        Failed(ErrorInfo("x", HOSTILE, HOSTILE)),
        ToolStarted("1", HOSTILE, HOSTILE),
        ToolFinished("1", HOSTILE, ToolOutcome.ERROR, HOSTILE),
        ToolOutput("0", HOSTILE),
        UsageReported(TokenUsage(1, 0, 1), HOSTILE),
        Retrying(HOSTILE, 2, 1.0, HOSTILE),
        QuestionAsked(QuestionId("q"), QuestionKind.ANSWER, HOSTILE, (HOSTILE,), "0", HOSTILE),
        FellBack(HOSTILE, HOSTILE, HOSTILE),
    ],
)
def test_no_event_can_write_its_own_escapes(event: Event) -> None:
    written = on_terminal([ToolStarted("0", "t", "{}"), event, Done("")]) + plain([event])
    assert not any(evil in written for evil in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\x08", "\u202e"))


@pytest.mark.parametrize("url", ["http://127.0.0.1/x", "https://example.org/x", "javascript:alert(1)"])
def test_links_are_written_out_and_nothing_is_clickable(url: str) -> None:
    text = f"[words]({url}) ![picture]({url}) <{url}> \x1b]8;;{url}\x1b\\hidden\x1b]8;;\x1b\\"
    written = on_terminal([Delta(text), Done(text)])
    assert "\x1b]8" not in written
    assert url in written


def test_a_long_block_is_drawn_by_its_end_and_printed_whole() -> None:
    code = "```\n" + "\n".join(f"line {n}" for n in range(60)) + "\n```\n"
    written = on_terminal([Delta(code), Done(code)], height=10)
    assert all(f"line {n}" in written for n in range(60))


async def test_live_part_is_drawn_again_and_again_until_the_end() -> None:
    drawn = asyncio.Queue[str]()
    console = Console(file=StringIO(), width=60)

    def draw() -> None:
        with console.capture() as rows:
            console.print(renderer, end="")
        drawn.put_nowait(rows.get())

    renderer = TerminalRenderer(console, redraw=draw)
    renderer.open()
    assert ["thinking" in await drawn.get() for _ in range(2)] == [True, True]
    renderer.close()
    assert await drawn.get() == ""
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
