"""The one JSON object of a tiny model as tool calls and text, however its pieces fall."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from talaria.core.models import Completion, TextDelta
from talaria.models.failures import ProviderErrors
from talaria.models.local.answer import ReplyStream
from talaria.models.local.wire import LocalChat


def streamed(text: str, cuts: list[int]) -> str:
    stream, said, last = ReplyStream(), "", 0
    for cut in [*sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]:
        said += stream.feed(text[last:cut])
        last = cut
    return said + stream.flush()


@given(st.text(), st.lists(st.integers(min_value=0)), st.booleans())
@example('a\ud83d\ude00b\\"\n', [1, 2, 3, 5, 8, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], True)
def test_a_reply_streams_as_its_text_wherever_it_is_cut(text: str, cuts: list[int], is_ascii: bool) -> None:
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for wrapped in (
        json.dumps({"reply": text}, ensure_ascii=is_ascii),
        f'\n {{ "reply"\n : {json.dumps(text, ensure_ascii=is_ascii)}\n}} ',
    ):
        assert streamed(wrapped, cuts) == text


@given(st.lists(st.integers(min_value=0)))
def test_nothing_of_a_tool_call_is_shown(cuts: list[int]) -> None:
    assert streamed('{"tool": "read_file", "arguments": {"path": "x"}}', cuts) == ""


@given(
    st.sampled_from(
        ["Hello.", '{"other": 1}', "{", '{"re', '{"rest": 1}', '"reply"', "", '{"tools": []}', " "]
    ),
    st.lists(st.integers(min_value=0)),
)
def test_what_is_no_object_of_ours_is_shown_as_it_is(text: str, cuts: list[int]) -> None:
    assert streamed(text, cuts) == text


def read(text: str, *, finish: str = "stop") -> tuple[Completion, str]:
    answer = LocalChat().decoder("tiny", ProviderErrors("local", "tiny"))
    shown = ""
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in text]
    for chunk in (*chunks, {"choices": [{"delta": {}, "finish_reason": finish}]}):
        for delta in answer.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\n"):
            assert isinstance(delta, TextDelta)
            shown += delta.text
    assert answer.has_started
    assert answer.is_complete
    for delta in answer.end():
        assert isinstance(delta, TextDelta)
        shown += delta.text
    return answer.completion(), shown


def test_a_call_becomes_an_ordinary_one() -> None:
    completion, shown = read('{"tool": "read_file", "arguments": {"path": "a b.txt"}}')
    [call] = completion.message.tool_calls
    assert (call.name, msgspec.json.decode(call.arguments)) == ("read_file", {"path": "a b.txt"})
    assert (completion.message.text, completion.stop, shown) == ("", "tool_calls", "")
    again, _ = read('{"tool": "read_file", "arguments": {"path": "a b.txt"}}')
    assert again.message.tool_calls[0].id != call.id


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"reply": "Hi \\u00e9\\n"}', "Hi é\n"),
        ("Just text.", "Just text."),
        ('{"answer": 42}', '{"answer": 42}'),
        ('{"reply": 42}', '{"reply": 42}'),
    ],
)
def test_a_reply_becomes_its_text(text: str, said: str) -> None:
    completion, shown = read(text)
    assert completion.message.text == shown == said
    assert completion.message.tool_calls == ()


def test_of_an_answer_that_was_cut_off_the_reply_stands_and_a_call_does_not() -> None:
    completion, shown = read('{"reply": "Once upon a', finish="length")
    assert completion.message.text == shown == "Once upon a"
    assert completion.stop == "length"
    completion, shown = read('{"tool": "read_file", "argu', finish="length")
    assert (completion.message.text, completion.message.tool_calls, shown) == ("", (), "")
