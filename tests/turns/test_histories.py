"""Where a front end's chat leaves the log of its session; the chats themselves are in test_front_ends.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.complexity import assert_linear
from talaria.core.entries import Entry, EntryBody, Hidden
from talaria.core.ids import SessionId
from talaria.core.messages import AssistantMessage, Text, ToolCall, UserMessage
from talaria.turns.histories import (
    HistoryPlace,
    KnownExchange,
    SentExchange,
    find_place,
    known_exchanges,
    locate,
    sent_exchanges,
)

A, B, C = ("a", "A"), ("b", "B"), ("c", "C")


def known(*pairs: tuple[str, str], is_whole: bool = True) -> list[KnownExchange]:
    return [KnownExchange(said, answer, n, is_whole) for n, (said, answer) in enumerate(pairs, 1)]


def sent(*pairs: tuple[str, str | None]) -> list[SentExchange]:
    return [SentExchange(UserMessage((Text(said),)), answer) for said, answer in pairs]


def place(
    chat: list[SentExchange], log: list[KnownExchange], *, is_from_start: bool = True
) -> tuple[int, int]:
    found = find_place(chat, log, is_from_start=is_from_start)
    return found.kept, found.taken


@pytest.mark.parametrize(
    ("chat", "log", "expected"),
    [
        ([], [], (0, 0)),
        ([A, B], [A, B], (2, 2)),  # continues
        ([A], [A, B, C], (1, 1)),  # edited or repeated later
        ([], [A, B], (0, 0)),  # the first message edited or repeated
        ([A, ("x", "B"), C], [A, B, C], (1, 1)),  # edited in between
        ([A, ("b", "X")], [A, B, C], (1, 1)),  # an edited answer
        ([B, C], [A, B, C], (3, 2)),  # cut off at the beginning
        ([A, B], [A, A, B, C], (3, 2)),  # the same, and the last message again
        ([B], [A, B, C], (2, 1)),
        ([("x", "X")], [A], (0, 0)),
        ([A, B], [A], (1, 1)),  # the front end has more
        ([("b", "")], [B], (1, 1)),
        ([("b", None)], [B], (1, 1)),
        ([("b", "Be")], [("b", "Before")], (1, 1)),  # stopped while it was shown
        ([("b", "Before!")], [("b", "Before")], (0, 0)),
        ([(" b\n", "<think>Hm</think> A\nB")], [("b", "A\n\nB")], (1, 1)),
        ([("b", "<details>A")], [("b", "A")], (0, 0)),  # a block without an end is text
        ([("q?", "A")], [("<context>x</context>\nq?", "A")], (1, 1)),
        ([("<files/> q?", "A")], [("q?", "A")], (1, 1)),
        ([("why q?", "A")], [("q?", "A")], (0, 0)),  # edited
    ],
)
def test_the_place_where_a_chat_leaves_the_log(
    chat: list[tuple[str, str | None]], log: list[tuple[str, str]], expected: tuple[int, int]
) -> None:
    assert place(sent(*chat), known(*log)) == expected


def test_an_answer_that_is_not_whole_is_the_same_as_any() -> None:
    assert place(sent(("a", "Error!")), known(A, is_whole=False)) == (1, 1)


def test_of_a_log_whose_beginning_was_not_read_only_the_end_is_compared() -> None:
    assert place(sent(A, B), known(A, B), is_from_start=False) == (2, 2)
    assert place(sent(A), known(A, B, C), is_from_start=False) == (0, 0)
    assert place(sent(), known(A, B), is_from_start=False) == (2, 0)


async def test_a_long_history_is_compared_in_a_thread_with_the_same_result() -> None:
    long = ("a" * (1 << 18), "B")
    assert await locate(sent(long, B), known(long, B, C), is_from_start=True) == HistoryPlace(2, 2)


WORDS = st.text("ab <>\n", max_size=6)


@settings(max_examples=40)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=6), st.lists(st.tuples(WORDS, WORDS), max_size=6))
def test_what_is_kept_and_taken_is_there(chat: list[tuple[str, str]], log: list[tuple[str, str]]) -> None:
    kept, taken = place(sent(*chat), known(*log))
    assert 0 <= taken <= len(chat)
    assert taken <= kept <= len(log)
    assert place(sent(*log), known(*log)) == (len(log), len(log)), "a chat that was not changed continues"


def log_of(*bodies: EntryBody) -> list[Entry]:
    return [Entry(SessionId("ses_x"), n, 0, 0.0, None, body) for n, body in enumerate(bodies, 1)]


def test_an_exchange_of_the_log_has_the_texts_of_all_its_calls() -> None:
    call = (ToolCall("1", "f", "{}"),)
    entries = log_of(
        UserMessage((Text("gone"),)),
        AssistantMessage("gone"),
        Hidden(1, 2),
        UserMessage((Text("a"),)),
        AssistantMessage("I look.", call),
        AssistantMessage("", call),
        AssistantMessage("Found."),
        UserMessage((Text("b"),)),
        AssistantMessage("Hal", interrupted=True),
        UserMessage((Text("c"),)),
    )
    assert known_exchanges(entries) == [
        KnownExchange("a", "I look.\n\nFound.", 7, is_whole=True),
        KnownExchange("b", "Hal", 9, is_whole=False),
        KnownExchange("c", "", 10, is_whole=False),
    ]


def test_a_chat_may_begin_with_an_answer_and_have_several_messages_in_a_row() -> None:
    one, two = (UserMessage((Text(text),)) for text in "12")
    assert sent_exchanges(["x", "y", one, two, "z"]) == [
        SentExchange(None, "x\n\ny"),
        SentExchange(one),
        SentExchange(two, "z"),
    ]
    assert sent_exchanges([]) == []


SHAPES: dict[str, Callable[[int], tuple[str, str]]] = {
    "blocks": lambda size: ("q", "<details>" * (size // 9)),
    "closed blocks": lambda size: ("q", "<details></details>" * (size // 19)),
    "closings": lambda size: ("q", "</details>" * (size // 10) + "<details>"),
    "thoughts": lambda size: ("q", "<think>" * (size // 7) + "</think>"),
    "spaces": lambda size: (" a" * (size // 2), " b" * (size // 2)),
    "marks": lambda size: (">" * size, ">" * size),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_time_grows_no_faster_than_the_chat(shape: str) -> None:
    def make(size: int) -> tuple[list[SentExchange], list[KnownExchange]]:
        said, answer = SHAPES[shape](size // 2)
        return sent((said, answer)), known((said + "x", answer + "x"))

    assert_linear(make, lambda both: place(*both))


def test_the_time_grows_no_faster_than_the_number_of_messages() -> None:
    def make(size: int) -> tuple[list[SentExchange], list[KnownExchange]]:
        count = size // 64
        return sent(*[("a", "b")] * count), known(*[("a ", "b")] * count, ("c", "d"))

    assert_linear(make, lambda both: place(*both))
