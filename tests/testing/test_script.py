"""The answers of the script to each mark."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from talaria.core.messages import TokenUsage
from talaria.testing import script
from talaria.testing.script import (
    MARKS,
    AttemptCounter,
    ScriptContext,
    ScriptedAnswer,
    ScriptedFault,
    decide,
    read_context,
)


def answer(text: str, steps: int = 0, *results: str) -> ScriptedAnswer:
    return decide(ScriptContext(text, steps, results, "Be kind.", 9))


def calls(text: str, steps: int = 0) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in answer(text, steps).calls]


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("hello", "You said: hello"),
        ("[Mon 10:00] hello", "You said: hello"),
        ("", "You said: "),
        ("[[reply hi there]]", "hi there"),
        ("[Mon 10:00] [[reply hi]]", "hi"),
        ("[[reply]]", ""),
        ("[[empty]]", ""),
        ("[[delay 0]] hello [[chunks 2]] you", "You said: hello you"),
        ("[[words 3]]", "word1 word2 word3"),
        ("[[history]]", "9"),
        ("[[system]]", hashlib.sha256(b"Be kind.").hexdigest()),
        ("see [[1, 2]]", "You said: see [[1, 2]]"),
    ],
)
def test_a_text_is_answered_with(text: str, reply: str) -> None:
    assert answer(text).text == reply


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[call a {"x": [[1]]}]]', [("a", '{"x": [[1]]}')]),
        ("[[call a]]", [("a", "{}")]),
        ("[[call a {}+b]]", [("a", "{}"), ("b", "{}")]),
        ('[[call a {"s": "1+1"} + call b {}]]', [("a", '{"s": "1+1"}'), ("b", "{}")]),
        ("[[call a {}]]+[[call b {}]]", [("a", "{}"), ("b", "{}")]),
        ("[[call a {}]] + [[call b {}]] [[call c]]", [("a", "{}"), ("b", "{}")]),
        ("[[call a {broken]]", [("a", "{broken")]),
        ("[[call a plain words]]", [("a", "plain words")]),
    ],
)
def test_the_calls_of_the_first_step(text: str, expected: list[tuple[str, str]]) -> None:
    assert calls(text) == expected


def test_calls_are_steps_and_the_answer_comes_last() -> None:
    text = "[[call a]] [[call b]]+[[call c]] [[reply done]]"
    assert calls(text, 0) == [("a", "{}")]
    assert calls(text, 1) == [("b", "{}"), ("c", "{}")]
    assert answer(text, 2, "x").text == "done"
    assert answer("[[call a]]", 1, "one", "two").text == "Tool results: one; two"


def test_ids_are_the_same_every_time_and_differ_between_steps() -> None:
    text = "[[call a + b]] [[call a]]"
    ids = [call.id for step in (0, 1) for call in answer(text, step).calls]
    assert len(set(ids)) == 3
    assert ids == [call.id for step in (0, 1) for call in answer(text, step).calls]


def test_marks_belong_to_the_step_they_stand_in() -> None:
    text = "[[think first]] [[call a]] [[think last]] [[status 503]]"
    assert (answer(text, 0).thought, answer(text, 0).fault) == ("first", None)
    assert (answer(text, 1).thought, answer(text, 1).fault) == ("last", ScriptedFault.STATUS)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("[[delay 0.5]]", {"delay": 0.5}),
        ("[[chunk-delay 0.01]]", {"chunk_delay": 0.01}),
        ("[[chunks 7]]", {"chunks": 7}),
        ("[[usage 1 2 3 4]]", {"usage": TokenUsage(1, 2, 3, 4)}),
        (
            "[[status 503]] [[retry-after 2]]",
            {"fault": ScriptedFault.STATUS, "status": 503, "retry_after": "2"},
        ),
        ("[[hang]]", {"fault": ScriptedFault.HANG}),
        ("[[cut 4]]", {"fault": ScriptedFault.CUT, "cut_after": 4}),
        ("[[malformed]]", {"fault": ScriptedFault.MALFORMED}),
        ("[[error-in-stream]]", {"fault": ScriptedFault.ERROR_IN_STREAM}),
        ("[[half-call]]", {"fault": ScriptedFault.HALF_CALL}),
        ("[[hostile details 99]]", {"fault": ScriptedFault.HOSTILE, "hostile": ("details", 99)}),
    ],
)
def test_how_it_is_sent(text: str, fields: dict[str, Any]) -> None:
    assert answer(f"{text} [[reply x]]") == ScriptedAnswer("x", **fields)


@pytest.mark.parametrize(
    "mark", ["wat", "wat 12", "delay soon", "status", "first x", "first 2 reply", "usage a b"]
)
def test_an_unknown_mark_is_answered_with_the_known_ones(mark: str) -> None:
    text = answer(f"[[{mark}]] [[reply x]]").text
    assert text.startswith(f"I do not know the mark [[{mark}]].")
    assert all(known in text for known in MARKS)


def test_every_mark_is_documented() -> None:
    assert script.__doc__ is not None
    assert [mark for mark in MARKS if f"[[{mark}" not in script.__doc__] == []


def test_a_fault_for_the_first_tries_passes() -> None:
    context, attempts = ScriptContext("[[first 2 status 503]] [[reply x]]"), AttemptCounter()
    faults = [decide(context, attempts.count(context)).fault for _ in range(4)]
    assert faults == [ScriptedFault.STATUS, ScriptedFault.STATUS, None, None]


@pytest.mark.parametrize("length", [0, 1, 19, 20, 500])
@pytest.mark.parametrize("chunks", [0, 1, 3, 600])
def test_pieces_join_to_the_text(length: int, chunks: int) -> None:
    answered = ScriptedAnswer("x" * length, chunks=chunks)
    assert "".join(answered.pieces()) == answered.text
    assert len(answered.pieces()) <= (chunks or 8)


def test_a_scene_is_read_from_the_end() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c0"}]},
        {"role": "tool", "tool_call_id": "c0", "content": "zero"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "new"}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c2"}, {"id": "c3"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "tool", "tool_call_id": "c3", "content": "three"},
    ]
    assert read_context(messages) == ScriptContext("new", 2, ("two", "three"), "Be kind.", 10)
    assert read_context([]) == ScriptContext("")
