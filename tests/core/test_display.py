"""Nothing that a model writes can steer the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    Retrying,
    ToolFinished,
    ToolStarted,
    describe,
    describe_call,
)
from talaria.core.ids import QuestionId
from talaria.core.messages import ToolOutcome
from talaria.core.questions import QuestionKind
from talaria.core.text import clean, clean_line

ALLOWED = {"\n", "\t"}


@given(st.text(st.characters(codec=None)))
def test_no_control_character_gets_through(text: str) -> None:
    assert all(ord(c) >= 0x20 and not 0x7F <= ord(c) <= 0x9F for c in clean(text) if c not in ALLOWED)
    clean(text).encode("utf-8")


@given(st.text(), st.integers(0, 50))
def test_it_does_not_matter_where_a_stream_was_split(text: str, at: int) -> None:
    assert clean(text[:at]) + clean(text[at:]) == clean(text)


def test_escape_sequences_lose_their_power_and_plain_text_stays() -> None:
    assert clean("\x1b]0;title\x07a\x1b[31mb\x9b2Jc\u202e\r\n\tü🙂") == "]0;titlea[31mb2Jc\n\tü🙂"


def test_a_line_is_one_line_of_limited_length() -> None:
    assert clean_line(" a\n\n b\t\x1bc ") == "a b c"
    assert clean_line("x" * 30, 10) == "x" * 9 + "…"


def test_exactly_these_characters_are_dropped() -> None:
    text = "".join(map(chr, (*range(0x3000), *range(0xD800, 0x10000))))
    kept = clean(text)
    dropped = set(text) - set(kept)
    controls = {*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)}
    marks = {0x061C, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF}
    surrogates = set(range(0xD800, 0xE000))
    assert {ord(c) for c in dropped} == controls | marks | surrogates
    assert kept.count("\ufffd") == len(surrogates) + 1, "a surrogate leaves a mark"


def test_a_line_may_be_as_long_as_its_limit() -> None:
    assert clean_line("x" * 10, 10) == "x" * 10
    assert clean_line("x" * 200) == "x" * 200
    assert clean_line("x" * 201) == "x" * 199 + "…"
    assert clean_line("x" + " " * 160, 10) == "x…", "the rest was not looked at"
    assert clean_line("x" + " " * 159, 10) == "x"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"note": "n", "query": "q", "path": "a.txt"}', "read a.txt"),
        ('{"path": "", "command": "ls"}', "read ls"),
        ('{"n": 1, "note": "first", "other": "x"}', "read first"),
        ('{"n": 1}', "read"),
        ("{}", "read"),
        ("no JSON", "read no JSON"),
        ('["a"]', 'read ["a"]'),
        ('{"path": "\ud800"}', 'read {"path": "\ufffd"}'),
        ("[" * 100_000, f"read {'[' * 71}…"),
        (f'{{"path": "{"x" * 73}"}}', f"read {'x' * 71}…"),
        (f'{{"path": "{"x" * 72}"}}', f"read {'x' * 72}"),
        (f'{{"path": "a"}}{" " * ((1 << 20) - 13)}', "read a"),
        (f'{{"path": "a"}}{" " * ((1 << 20) - 12)}', 'read {"path": "a"}…'),
    ],
    ids=range(13),
)
def test_a_call_is_told_with_its_most_telling_argument(arguments: str, shown: str) -> None:
    assert describe_call("read", arguments) == shown


@pytest.mark.parametrize("key", ["path", "command", "url", "query", "pattern", "task", "action", "question"])
def test_these_arguments_tell_more_than_others(key: str) -> None:
    assert describe_call("t", f'{{"a": "other", "{key}": "this"}}') == "t this"


EVENTS: list[tuple[Event, str]] = [
    (Queued(2), "2 messages of this chat come first."),
    (Queued(1, "This waits for a decision."), "This waits for a decision."),
    (Queued(0), ""),
    (ToolStarted("c", "terminal", '{"command": "ls"}'), "⚙ terminal ls"),
    (ToolFinished("c", "terminal", ToolOutcome.OK, ""), "ok"),
    (ToolFinished("c", "terminal", ToolOutcome.OK, "", "Exit code 1. It took 2 s."), "exit code 1"),
    (ToolFinished("c", "terminal", ToolOutcome.ERROR, "Error: no such file\nmore"), "error: no such file"),
    (
        QuestionAsked(QuestionId("q"), QuestionKind.ANSWER, "Which?", ("a", "b"), "c", "ask"),
        "? Which?\n  1. a\n  2. b",
    ),
    (Retrying("p/m", 2, 4.6, "It is busy."), "↻ It is busy. Trying again in 5 s …"),
    (FellBack("p/n", "p/m", "It is busy."), "↪ It is busy. Asking p/n instead."),
    (ModelLoading("p/m", "loading"), "The model is being loaded."),
    (Failed(ErrorInfo("model", "It\x1b broke.", "Fix it.")), "✗ It broke.\n  Fix it."),
    (Cancelled("so far"), "(cancelled)"),
    (Delta("text"), ""),
    (Done("reply"), ""),
]


@pytest.mark.parametrize(("event", "text"), EVENTS)
def test_what_an_event_says_to_people(event: Event, text: str) -> None:
    assert describe(event) == text
