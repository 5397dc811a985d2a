"""The streams of all three formats as networks and proxies may bring them: cut anywhere, with any line ends,
with comments and events that nobody knows, with broken ones. Never an error that is not ours, never a wrong
text."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.errors import ModelError
from talaria.core.messages import TokenUsage, ToolCall
from talaria.core.models import Completion, TextDelta
from talaria.models.faults import Faults
from talaria.models.providers import WIRES
from talaria.testing.model_apis import APIS
from talaria.testing.script import Act

TEXT = "Grüße,\nzwei Zeilen 🎉 und\tmehr"
CALLS = (ToolCall("call_1", "read_file", '{"path": "a ü"}'), ToolCall("call_2", "todo", "{}"))
ACT = Act(text=TEXT, thought="hm …", calls=CALLS)
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic-messages": "/v1/messages",
}
NOISE = (
    b": keep-alive\n\n",
    b'event: someday\ndata: {"type": "someday"}\n\n',
    b"retry: 10\n\n",
    b"\n",
    b"id: 7\n\n",
)
BROKEN = (b"{", b"nonsense", b"[1, 2", b'{"choices": [', b'"\xff"', b"[" * 5000, b"null", b"7")
ENDS = (b"\n", b"\r\n", b"\r")


def events(wire: str) -> list[bytes]:
    """One answer with a thought, a text and two calls, event by event."""
    found, _ = APIS[PATHS[wire]].stream(ACT, "x_1", "m", TokenUsage(10, 5, 7, 2))
    return [event + b"\n\n" for event in b"".join(found).split(b"\n\n") if event]


def read(wire: str, pieces: list[bytes]) -> Completion:
    answer = WIRES[wire].answer("m", Faults("acme", "m"))
    deltas = [delta for piece in pieces for delta in answer.feed(piece)]
    deltas += answer.end()
    completion = answer.completion()
    assert completion.message.text == "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    return completion


def outcome(wire: str, pieces: list[bytes]) -> Completion | None:
    try:
        return read(wire, pieces)
    except ModelError:
        return None


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


wires = pytest.mark.parametrize("wire", WIRES)
CUTS = st.lists(st.integers(0, 20_000), max_size=20)


@wires
def test_the_answer_is_whole_as_it_was_written(wire: str) -> None:
    completion = read(wire, events(wire))
    assert completion.message.text == TEXT
    assert [(call.name, json.loads(call.arguments)) for call in completion.message.tool_calls] == [
        ("read_file", {"path": "a ü"}),
        ("todo", {}),
    ]


@wires
@settings(max_examples=150)
@given(
    end=st.sampled_from(ENDS),
    cuts=CUTS,
    noise=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(NOISE))),
)
def test_splits_line_ends_and_noise_change_nothing(
    wire: str, end: bytes, cuts: list[int], noise: list[tuple[int, bytes]]
) -> None:
    told = events(wire)
    for at, what in noise:
        told.insert(at % len(told), what)
    data = b"".join(told).replace(b"\n", end)
    assert outcome(wire, split(data, cuts)) == read(wire, events(wire))


@wires
@settings(max_examples=150)
@given(at=st.integers(0, 20_000), cuts=CUTS)
def test_a_stream_that_ends_early_is_the_whole_answer_or_none(wire: str, at: int, cuts: list[int]) -> None:
    data = b"".join(events(wire))
    found = outcome(wire, split(data[: at % (len(data) + 1)], cuts))
    assert found is None or found.message == read(wire, events(wire)).message


@wires
@settings(max_examples=150)
@given(
    at=st.integers(0, 60),
    broken=st.sampled_from(
        [b"{", b"nonsense", b"[1, 2", b'{"choices": [', b'"\xff"', b"[" * 5000, b"null", b"7"]
    ),
    cuts=CUTS,
)
def test_an_event_that_is_no_json_ends_the_answer_and_never_changes_it(
    wire: str, at: int, broken: bytes, cuts: list[int]
) -> None:
    told = events(wire)
    told.insert(at % (len(told) + 1), b"data: " + broken + b"\n\n")
    found = outcome(wire, split(b"".join(told), cuts))
    assert found is None or found.message == read(wire, events(wire)).message


KEYS = ["type", "choices", "delta", "content", "item", "output", "index", "error", "usage", "text"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=10,
)


@wires
@settings(max_examples=200)
@given(data=st.binary(max_size=200), values=st.lists(JSON, max_size=3), cuts=CUTS)
def test_any_bytes_and_any_json_raise_model_errors_only(
    wire: str, data: bytes, values: list[Any], cuts: list[int]
) -> None:
    told = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    outcome(wire, split(data + told + b"".join(events(wire)), cuts))
    outcome(wire, split(told + data, cuts))
