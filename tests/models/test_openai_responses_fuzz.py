"""Answers of the responses API in every split of their bytes, with broken and lost ones among them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from models.responses_events import (
    CREATED,
    END,
    added,
    arguments,
    completed,
    done,
    event,
    function,
    message,
    read,
    reasoning,
    text,
)
from talaria.core.errors import ModelError
from talaria.core.models import Completion, TextDelta, ThoughtDelta
from talaria.models.openai_responses import OpenAIResponses

SAID = "one\ntwo Grüße 🎉"
RECORDED = b"".join(
    [
        CREATED,
        added(0, reasoning()),
        event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="hm 🎉"),
        done(0, reasoning("hm 🎉", encrypted_content="gAAA==")),
        b": ping\r\n\r\n",
        added(1, message("")),
        text(1, SAID[:5]).replace(b"\n", b"\r\n"),
        text(1, SAID[5:]),
        done(1, message(SAID)),
        added(2, function("a")),
        arguments(2, '{"x":'),
        arguments(2, ' "ü"}'),
        done(2, function("a", '{"x": "ü"}')),
        completed(reasoning("hm 🎉"), message(SAID), function("a", '{"x": "ü"}'), usage={"input_tokens": 7}),
    ]
)


def outcome(pieces: list[bytes]) -> tuple[Completion, list[TextDelta | ThoughtDelta]] | type[Exception]:
    try:
        completion, deltas = read(*pieces)
    except ModelError as error:
        return type(error)
    assert completion.message.text == "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    json.loads(b"[%b]" % OpenAIResponses().encode(completion.message))  # what was kept can be sent back
    return completion, deltas


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


@settings(max_examples=200)
@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_any_split_gives_the_same_completion(cuts: list[int]) -> None:
    whole = read(RECORDED)
    assert whole[0].message.text == SAID
    assert outcome(split(RECORDED, cuts)) == whole


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, len(RECORDED) - 1), st.binary(max_size=4)), max_size=6), st.integers(0)
)
def test_broken_bytes_raise_model_errors_only(changes: list[tuple[int, bytes]], cut: int) -> None:
    broken = RECORDED
    for at, new in changes:
        broken = broken[:at] + new + broken[at + 1 :]
    assert outcome(split(broken, [cut])) == outcome([broken])


@settings(max_examples=200)
@given(st.sets(st.integers(0, 30)))
def test_lost_events_never_change_what_was_said(lost: set[int]) -> None:
    """All that the answer says at its end is said, once, whichever of the events before it came."""
    events = RECORDED.replace(b"\r\n", b"\n").split(b"\n\n")
    kept = [part + b"\n\n" for n, part in enumerate(events[:-2]) if n not in lost]
    result = outcome([*kept, events[-2] + b"\n\n"])
    if isinstance(result, tuple):
        said = result[0].message
        assert [call.name for call in said.tool_calls] == ["a"]
        # Only what was shown already is not taken back.
        assert said.text == SAID or (said.text == SAID[5:] and 6 in lost)


KEYS = ["type", "delta", "item", "response", "output", "output_index", "content", "text", "error", "summary"]
KEYS += ["encrypted_content", "id", "name", "arguments", "phase"]
KINDS = st.sampled_from(
    [
        "response.output_text.delta",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
        "error",
        "message",
        "reasoning",
        "function_call",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=5) | KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.lists(JSON, max_size=4))
def test_any_json_raises_model_errors_only(values: list[Any]) -> None:
    outcome([b"data: %b\n\n" % json.dumps(value).encode() for value in values] + [END])
