"""Answers in every shape that compatible servers send, and in every split of their bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.wire_suite import as_event as event
from contracts.wire_suite import read_with
from talaria.core.errors import AnswerTooLarge, ModelUnavailable
from talaria.core.messages import TokenUsage, ToolCall
from talaria.core.specs import Completion, ModelDelta, TextDelta, ThoughtDelta
from talaria.models.openai_chat import OpenAIChat


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    return event(
        {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}
    )


def call_chunk(*calls: dict[str, Any], finish: str | None = None) -> bytes:
    return chunk({"tool_calls": list(calls)}, finish)


DONE = b"data: [DONE]\n\n"
END = chunk({}, "stop") + DONE


def read(*pieces: bytes) -> tuple[Completion, list[ModelDelta]]:
    return read_with(OpenAIChat(), *pieces)


def calls_of(*pieces: bytes) -> list[tuple[str, str, str]]:
    completion, _ = read(*pieces)
    return [(call.id, call.name, call.arguments) for call in completion.message.tool_calls]


class TestText:
    def test_pieces_become_the_text(self) -> None:
        completion, deltas = read(
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo"}),
            END,
        )
        assert completion.message.text == "Hello"
        assert deltas == [TextDelta("Hel"), TextDelta("lo")]
        assert completion.stop == "stop"

    def test_nulls_unknown_fields_and_other_choices_do_not_matter(self) -> None:
        other = {"index": 1, "delta": {"content": "no"}, "finish_reason": None}
        completion, _ = read(
            b": keep-alive\n\n",
            event({"id": None, "choices": None, "usage": None, "provider": {"x": [1]}}),
            chunk(None),
            event({"choices": [other]}),
            chunk({"content": "yes", "tool_calls": None, "annotations": []}, logprobs=None),
            END,
        )
        assert completion.message.text == "yes"

    def test_an_answer_without_done_is_whole_when_it_has_a_finish_reason(self) -> None:
        assert read(chunk({"content": "x"}), chunk({}, "length"))[0].stop == "length"

    def test_an_answer_without_a_finish_reason_is_whole_when_it_is_done(self) -> None:
        assert read(chunk({"content": "x"}), DONE)[0].stop == "stop"

    def test_a_refusal_is_text(self) -> None:
        assert read(chunk({"refusal": "I will not."}), END)[0].message.text == "I will not."


class TestWholeAnswers:
    def test_a_server_may_ignore_the_wish_to_stream(self) -> None:
        body = {
            "id": "chatcmpl-1",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "tool_calls",
                    "message": {
                        "role": "assistant",
                        "content": "Look:",
                        "reasoning_content": "hm",
                        "tool_calls": [
                            {"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
                            {"id": "c2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
                        ],
                    },
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        }
        data = json.dumps(body, indent=1).encode()
        completion, deltas = read(b"\n", data[:10], data[10:])
        assert deltas == [ThoughtDelta("hm"), TextDelta("Look:")]
        assert completion.message.tool_calls == (ToolCall("c1", "a", "{}"), ToolCall("c2", "b", "{}"))
        assert completion.usage == TokenUsage(3, 0, 4, 0)


class TestToolCalls:
    def test_by_index(self) -> None:
        assert calls_of(
            call_chunk({"index": 0, "id": "c1", "function": {"name": "a", "arguments": ""}}),
            call_chunk({"index": 0, "function": {"arguments": '{"x"'}}),
            call_chunk({"index": 1, "id": "c2", "function": {"name": "b", "arguments": None}}),
            call_chunk({"index": 0, "function": {"arguments": ":1}"}}),
            call_chunk({"index": 1, "function": {"arguments": "{}"}}, finish="tool_calls"),
        ) == [("c1", "a", '{"x":1}'), ("c2", "b", "{}")]

    def test_whole_calls_at_once_without_an_index(self) -> None:
        assert calls_of(
            call_chunk(
                {"id": "c1", "function": {"name": "a", "arguments": "{}"}},
                {"id": "c2", "function": {"name": "a", "arguments": '{"x":1}'}},
            ),
            END,
        ) == [("c1", "a", "{}"), ("c2", "a", '{"x":1}')]

    def test_pieces_without_an_index_go_on_with_the_last_call(self) -> None:
        assert calls_of(
            call_chunk({"id": "c1", "function": {"name": "a", "arguments": '{"x"'}}),
            call_chunk({"function": {"arguments": ":1}"}}),
            END,
        ) == [("c1", "a", '{"x":1}')]

    def test_a_repeated_id_and_name_are_no_new_call(self) -> None:
        piece = {"index": 0, "id": "c1"}
        assert calls_of(
            call_chunk({**piece, "function": {"name": "a", "arguments": '{"x"'}}),
            call_chunk({**piece, "function": {"name": "a", "arguments": ":1}"}}),
            END,
        ) == [("c1", "a", '{"x":1}')]

    def test_several_calls_under_one_index_are_told_apart_by_id_and_name(self) -> None:
        assert calls_of(
            call_chunk({"index": 0, "id": "c1", "function": {"name": "a", "arguments": "{}"}}),
            call_chunk({"index": 0, "id": "c2", "function": {"name": "b", "arguments": '{"x"'}}),
            call_chunk({"index": 0, "function": {"arguments": ":1}"}}),
            END,
        ) == [("c1", "a", "{}"), ("c2", "b", '{"x":1}')]

    def test_a_missing_id_is_made_up_the_same_way_every_time(self) -> None:
        pieces = (
            call_chunk(
                {"index": 0, "function": {"name": "a", "arguments": "{}"}},
                {"index": 1, "function": {"name": "a", "arguments": "{}"}},
            ),
            END,
        )
        [(first, *_), (second, *_)] = calls_of(*pieces)
        assert first != second
        assert first.startswith("call_")
        assert calls_of(*pieces) == [(first, "a", "{}"), (second, "a", "{}")]

    def test_one_id_for_two_calls_is_made_two(self) -> None:
        pieces = (
            call_chunk({"index": 0, "id": "same", "function": {"name": "a", "arguments": "{}"}}),
            call_chunk({"index": 1, "id": "same", "function": {"name": "b", "arguments": "{}"}}),
            END,
        )
        ids = [call_id for call_id, _, _ in calls_of(*pieces)]
        assert ids[0] == "same"
        assert len(set(ids)) == 2

    def test_arguments_may_come_as_an_object(self) -> None:
        assert calls_of(call_chunk({"id": "c1", "function": {"name": "a", "arguments": {"x": 1}}}), END) == [
            ("c1", "a", '{"x":1}')
        ]

    def test_a_call_without_a_name_cannot_be_read(self) -> None:
        with pytest.raises(ModelUnavailable, match="without a name"):
            read(call_chunk({"index": 0, "id": "c1", "function": {"arguments": "{}"}}), END)


class TestThoughts:
    @pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
    def test_plain_fields_keep_their_name(self, field: str) -> None:
        completion, deltas = read(chunk({field: "h"}), chunk({field: "m"}), chunk({"content": "x"}), END)
        assert deltas == [ThoughtDelta("h"), ThoughtDelta("m"), TextDelta("x")]
        [thought] = completion.message.reasoning
        assert (thought.field, thought.text, thought.raw) == (field, "hm", '"hm"')

    def test_two_names_for_one_thought_are_told_once(self) -> None:
        completion, deltas = read(chunk({"reasoning": "hm", "reasoning_content": "hm"}), END)
        assert deltas == [ThoughtDelta("hm")]
        assert len(completion.message.reasoning) == 1

    def test_pieces_of_a_block_become_the_block_and_blocks_stay_in_order(self) -> None:
        text = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}
        sealed = {"type": "reasoning.encrypted", "index": 1, "data": "AAA=", "id": "r1"}
        completion, deltas = read(
            chunk({"reasoning": "h", "reasoning_details": [{**text, "text": "h"}]}),
            chunk({"reasoning": "m", "reasoning_details": [{**text, "text": "m", "signature": None}]}),
            chunk({"reasoning_details": [{**text, "signature": "sig=="}]}),
            chunk({"reasoning_details": [sealed]}),
            END,
        )
        assert deltas == [ThoughtDelta("h"), ThoughtDelta("m")]
        [thought] = completion.message.reasoning
        assert (thought.field, thought.text) == ("reasoning_details", "hm")
        assert json.loads(thought.raw) == [{**text, "text": "hm", "signature": "sig=="}, sealed]


class TestUsage:
    @pytest.mark.parametrize(
        ("usage", "counts"),
        [
            ({"prompt_tokens": 9, "completion_tokens": 2}, TokenUsage(9, 0, 2, 0)),
            (
                {
                    "prompt_tokens": 9,
                    "completion_tokens": 2,
                    "prompt_tokens_details": {"cached_tokens": 8},
                    "completion_tokens_details": {"reasoning_tokens": 1},
                },
                TokenUsage(9, 8, 2, 1),
            ),
            (
                {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 7},
                TokenUsage(9, 7, 2, 0),
            ),
            ({"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 6}, TokenUsage(9, 6, 2, 0)),
            ({"prompt_tokens": None, "prompt_tokens_details": None}, TokenUsage()),
        ],
    )
    def test_cached_tokens_under_every_name(self, usage: dict[str, Any], counts: TokenUsage) -> None:
        last = event({"choices": [], "usage": usage})
        assert read(chunk({"content": "x"}, "stop"), last, DONE)[0].usage == counts

    def test_usage_inside_the_last_choice(self) -> None:
        choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"prompt_tokens": 5}}
        assert read(event({"choices": [choice]}), DONE)[0].usage == TokenUsage(5)


class TestErrorsInTheStream:
    def test_one_ends_the_answer(self) -> None:
        for error in ({"message": "Overloaded", "code": 502}, "Overloaded"):
            with pytest.raises(ModelUnavailable, match=r"^acme \(model m\) .*Overloaded"):
                read(chunk({"content": "x"}), event({"error": error}))

    def test_an_error_instead_of_a_stream(self) -> None:
        with pytest.raises(ModelUnavailable, match="Overloaded"):
            read(b'{"error": {"message": "Overloaded", "code": 503}}')

    def test_an_error_as_the_finish_reason(self) -> None:
        with pytest.raises(ModelUnavailable):
            read(chunk({"content": "x"}, "error"), DONE)

    def test_a_chunk_of_another_shape_cannot_be_read(self) -> None:
        with pytest.raises(ModelUnavailable, match="cannot be read"):
            read(event({"choices": 3}), END)


class TestBounds:
    def test_choices_in_one_piece(self) -> None:
        others = [{"index": n, "delta": {"content": "no"}} for n in range(1, 256)]
        first = {"index": 0, "delta": {"content": "yes"}}
        assert read(event({"choices": [first, *others]}), END)[0].message.text == "yes"
        with pytest.raises(AnswerTooLarge, match="has a piece with 257 choices"):
            read(event({"choices": [first, *others, others[0]]}), END)

    def test_reasoning_details_in_one_piece(self) -> None:
        details = [{"type": "reasoning.text", "text": "a", "index": n} for n in range(1001)]
        assert read(chunk({"reasoning_details": details[:1000]}), END)[0].message.reasoning
        with pytest.raises(AnswerTooLarge):
            read(chunk({"reasoning_details": details}), END)

    def test_pieces_of_calls_in_one_event(self) -> None:
        pieces: list[dict[str, Any]] = [{"index": 0}] * 5001
        named = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
        assert calls_of(call_chunk(named), call_chunk(*pieces[:5000]), END) == [("c", "f", "{}")]
        with pytest.raises(AnswerTooLarge, match="has 5001 pieces of tool calls at once"):
            calls_of(call_chunk(named), call_chunk(*pieces), END)
