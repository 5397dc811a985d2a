"""Anthropic's answers, whole and streamed, in every split of their bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from contracts.wire_suite import read_with
from talaria.core.errors import AnswerTooLarge, ModelUnavailable
from talaria.core.messages import Reasoning, TokenUsage, ToolCall
from talaria.core.specs import Completion, ModelDelta, TextDelta, ThoughtDelta
from talaria.models.anthropic_answers import _Block, _BlockStart
from talaria.models.anthropic_messages import AnthropicMessages


def event(value: dict[str, Any]) -> bytes:
    return f"event: {value.get('type')}\ndata: {json.dumps(value)}\n\n".encode()


def begin(index: int, block: dict[str, Any]) -> bytes:
    return event({"type": "content_block_start", "index": index, "content_block": block})


def piece(index: int, kind: str, **delta: Any) -> bytes:
    return event({"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}})


def stop(index: int) -> bytes:
    return event({"type": "content_block_stop", "index": index})


def text(index: int, *pieces: str) -> bytes:
    deltas = b"".join(piece(index, "text_delta", text=t) for t in pieces)
    return begin(index, {"type": "text", "text": ""}) + deltas + stop(index)


def thinking(index: int, thought: str, signature: str) -> bytes:
    start = begin(index, {"type": "thinking", "thinking": "", "signature": ""})
    said = piece(index, "thinking_delta", thinking=thought) if thought else b""
    signed = piece(index, "signature_delta", signature=signature) if signature else b""
    return start + said + signed + stop(index)


def call(index: int, call_id: str, name: str, *pieces: str, given: Any = None) -> bytes:
    start = begin(index, {"type": "tool_use", "id": call_id, "name": name, "input": given or {}})
    return start + b"".join(piece(index, "input_json_delta", partial_json=p) for p in pieces) + stop(index)


def end(reason: str = "end_turn", **usage: Any) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return event({"type": "message_delta", "delta": delta, "usage": usage}) + STOP


STOP = event({"type": "message_stop"})
START = event(
    {
        "type": "message_start",
        "message": {"id": "msg_1", "content": [], "usage": {"input_tokens": 3, "output_tokens": 1}},
    }
)
PING = event({"type": "ping"})


def read(*pieces: bytes) -> tuple[Completion, list[ModelDelta]]:
    return read_with(AnthropicMessages(), *pieces)


class TestText:
    def test_pieces_become_the_text(self) -> None:
        completion, deltas = read(START, PING, text(0, "Hel", "lo"), end())
        assert completion.message.text == "Hello"
        assert deltas == [TextDelta("Hel"), TextDelta("lo")]

    def test_blocks_of_text_join(self) -> None:
        assert read(START, text(0, "a"), text(1, "b"), end())[0].message.text == "ab"

    def test_text_at_the_start_of_a_block_counts(self) -> None:
        completion, deltas = read(START, begin(0, {"type": "text", "text": "Hi"}), end())
        assert completion.message.text == "Hi"
        assert deltas == [TextDelta("Hi")]

    def test_unknown_events_blocks_and_deltas_are_skipped(self) -> None:
        completion, _ = read(
            START,
            event({"type": "new_thing", "delta": 3, "index": "x", "usage": [1]}),
            b": comment\n\n",
            begin(0, {"type": "server_tool_use", "id": 3, "name": ["web_search"], "text": {}}),
            piece(0, "input_json_delta", partial_json="{}"),
            stop(0),
            begin(1, {"type": "text", "text": "", "citations": None}),
            piece(1, "citations_delta", citation={"a": 1}),
            piece(1, "text_delta", text="yes"),
            stop(1),
            end(),
        )
        assert completion.message.text == "yes"
        assert completion.message.tool_calls == ()

    @pytest.mark.parametrize(
        ("reason", "word"),
        [
            ("end_turn", "stop"),
            ("stop_sequence", "stop"),
            ("pause_turn", "stop"),
            ("tool_use", "tool_calls"),
            ("max_tokens", "length"),
            ("model_context_window_exceeded", "length"),
            ("refusal", "content_filter"),
            ("something_new", "stop"),
        ],
    )
    def test_reasons_to_stop_get_our_words(self, reason: str, word: str) -> None:
        assert read(START, text(0, "x"), end(reason))[0].stop == word

    def test_an_answer_that_said_why_it_stopped_is_whole(self) -> None:
        assert read(START, text(0, "x"), end().removesuffix(STOP))[0].message.text == "x"


class TestBlocks:
    def test_calls_keep_their_text_and_order(self) -> None:
        completion, deltas = read(
            START, call(0, "t1", "a", "", '{"x"', " :1}"), call(1, "t2", "b"), end("tool_use")
        )
        assert completion.message.tool_calls == (ToolCall("t1", "a", '{"x" :1}'), ToolCall("t2", "b", "{}"))
        assert completion.stop == "tool_calls"
        assert deltas == []

    def test_a_call_may_come_whole(self) -> None:
        completion, _ = read(START, call(0, "t1", "a", given={"x": 1}), end())
        assert json.loads(completion.message.tool_calls[0].arguments) == {"x": 1}

    def test_thinking_is_kept_with_its_signature(self) -> None:
        completion, deltas = read(START, thinking(0, "Grüße", "s=="), text(1, "x"), end())
        assert deltas == [ThoughtDelta("Grüße"), TextDelta("x")]
        [thought] = completion.message.reasoning
        assert (thought.field, thought.text) == ("thinking", "Grüße")
        assert json.loads(thought.raw) == {"type": "thinking", "thinking": "Grüße", "signature": "s=="}

    def test_thinking_that_is_not_shown_is_kept_too(self) -> None:
        [thought] = read(START, thinking(0, "", "s=="), text(1, "x"), end())[0].message.reasoning
        assert json.loads(thought.raw) == {"type": "thinking", "thinking": "", "signature": "s=="}

    def test_thinking_without_a_signature_gets_another_name(self) -> None:
        [thought] = read(START, thinking(0, "hm", ""), text(1, "x"), end())[0].message.reasoning
        assert (thought.field, thought.text) == ("unsigned_thinking", "hm")

    def test_redacted_thinking_is_kept_byte_for_byte(self) -> None:
        raw = '{"type": "redacted_thinking",  "data": "AA/B=="}'
        start = f'data: {{"type":"content_block_start","index":0,"content_block":{raw}}}\n\n'.encode()
        completion, deltas = read(START, start, stop(0), text(1, "x"), end())
        assert completion.message.reasoning == (Reasoning("thinking", "", raw),)
        assert deltas == [TextDelta("x")]

    def test_thoughts_between_other_blocks_remember_their_place(self) -> None:
        completion, _ = read(
            START,
            thinking(0, "a", "s"),
            text(1, "one"),
            thinking(2, "b", "s"),
            call(3, "t1", "f"),
            thinking(4, "c", "s"),
            call(5, "t2", "f"),
            end("tool_use"),
        )
        assert [t.field for t in completion.message.reasoning] == ["thinking", "thinking@3+0", "thinking@3+1"]

    @pytest.mark.parametrize(
        "broken",
        [
            piece(7, "text_delta", text="x"),
            text(0, "a") + text(0, "b"),
            begin(0, {"type": "text"}) + piece(0, "input_json_delta", partial_json="{}"),
            begin(0, {"type": "tool_use", "id": "t"}) + stop(0),
            call(0, "t1", "a") + call(1, "t1", "a"),
            event({"type": "content_block_start", "index": 0}),
            call(0, "t1", "a", given={"x": "?"}).replace(b"?", b"\xff"),
            event({"type": "content_block_delta", "index": 0}),
        ],
    )
    def test_blocks_that_make_no_sense_cannot_be_read(self, broken: bytes) -> None:
        with pytest.raises(ModelUnavailable, match="cannot be read"):
            read(START, broken, end())

    def test_blocks_are_bounded(self) -> None:
        blocks = [begin(n, {"type": "text", "text": "x"}) + stop(n) for n in range(4097)]
        assert read(START, *blocks[:4096], end())[0].message.text == "x" * 4096
        with pytest.raises(AnswerTooLarge, match="has more than 4096 blocks"):
            read(START, *blocks, end())


class TestWholeAnswers:
    BODY = json.dumps(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Look:"},
                {"type": "tool_use", "id": "t1", "name": "a", "input": {"x": 1}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        },
        indent=1,
    ).encode()

    def test_a_server_may_ignore_the_wish_to_stream(self) -> None:
        completion, deltas = read(b"\n", self.BODY[:10], self.BODY[10:])
        assert deltas == [ThoughtDelta("hm"), TextDelta("Look:")]
        assert [json.loads(c.arguments) for c in completion.message.tool_calls] == [{"x": 1}]
        assert (completion.usage, completion.stop) == (TokenUsage(3, 0, 4), "tool_calls")

    def test_an_error_instead_of_an_answer(self) -> None:
        with pytest.raises(ModelUnavailable, match="Overloaded"):
            read(b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}')


def test_usage_counts_the_cache_and_the_last_word_holds() -> None:
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 800,
        "cache_creation_input_tokens": 90,
        "output_tokens": 1,
    }
    start = event({"type": "message_start", "message": {"usage": usage}})
    last = end(output_tokens=20, input_tokens=None, output_tokens_details={"thinking_tokens": 5})
    assert read(start, text(0, "x"), last)[0].usage == TokenUsage(900, 800, 20, 5, 90)
    assert read(text(0, "x"), end())[0].usage == TokenUsage()


def test_an_error_in_the_stream_ends_the_answer() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(ModelUnavailable, match="Overloaded"):
        read(START, text(0, "x"), event(body))


@pytest.mark.parametrize(
    ("given", "pieces", "arguments"),
    [
        (b"", [], "{}"),
        (b"null", [], "{}"),
        (b"{}", [], "{}"),
        (b'{"a":1}', [], '{"a":1}'),
        (b"{}", ['{"a"', ":1}"], '{"a":1}'),
        (b'{"b":2}', ['{"a":1}'], '{"a":1}'),
    ],
)
def test_the_arguments_of_a_call_come_in_pieces_or_with_its_start(
    given: bytes, pieces: list[str], arguments: str
) -> None:
    block = _Block(_BlockStart(type="tool_use", input=msgspec.Raw(given)), "call", pieces=pieces)
    assert block.arguments() == arguments
