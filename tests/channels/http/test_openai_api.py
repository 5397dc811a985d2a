"""Chat completions on the wire, without a gateway: the whole answer, and the ends of streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from channels.http.test_response_events import ended
from talaria.channels.http.api_calls import TurnAnswer, join_texts
from talaria.channels.http.chat_completions import (
    CompletionChunks,
    CompletionHead,
    encode_completion,
    finish_reason,
)
from talaria.core.errors import ErrorInfo
from talaria.core.events import Delta, Event, FellBack, ReasoningDelta, ToolCallDelta, UsageReported
from talaria.core.messages import AssistantMessage, Reasoning, TokenUsage, ToolCall
from talaria.core.turns import TurnState

NAMED = CompletionHead("chatcmpl-1", 12, "main")
USAGE = TokenUsage(input=9, output=3, cached=4, reasoning=1)
A, B = ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}")


def result(text: str = "", *calls: ToolCall, stop: str = "stop", **more: Any) -> TurnAnswer:
    return TurnAnswer(AssistantMessage(text, calls, **more), stop, USAGE)


def whole(answer: TurnAnswer, *, tells_refusals: bool = False) -> Any:
    text = answer.message.text
    return json.loads(encode_completion(NAMED, answer, text, tells_refusals=tells_refusals))


def stream(
    *events: Event, end: TurnAnswer, with_usage: bool = False, tells_refusals: bool = False
) -> list[Any]:
    chunks = CompletionChunks(NAMED, lambda: "p/m", with_usage=with_usage, tells_refusals=tells_refusals)
    data = b"".join([*map(chunks.encode, events), chunks.end(end)]).decode()
    *blocks, done, rest = data.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def deltas(chunks: list[Any]) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]


def piece(index: int, id: str, name: str, arguments: str) -> ToolCallDelta:
    return ToolCallDelta(index, id, name, arguments)


def whole_call(index: int, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": index, "id": call.id, "type": "function", "function": function}


@pytest.mark.parametrize(
    ("stop", "calls", "finish"),
    [
        ("stop", (), "stop"),
        ("stop", (A,), "tool_calls"),
        ("length", (), "length"),
        ("length", (A,), "length"),
        ("content_filter", (), "content_filter"),
        ("tool_calls", (A,), "tool_calls"),
        ("eos", (), "stop"),
        ("eos", (A,), "tool_calls"),
    ],
)
def test_the_reason_is_one_that_clients_know(stop: str, calls: tuple[ToolCall, ...], finish: str) -> None:
    assert finish_reason(result("", *calls, stop=stop)) == finish


def test_a_whole_answer() -> None:
    thought = (Reasoning("reasoning_content", "hm", '"hm"'),)
    found = whole(result("hi", reasoning=thought, provider="p", model="m"))
    message = {"role": "assistant", "content": "hi", "refusal": None, "reasoning_content": "hm"}
    assert found["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert (found["id"], found["object"], found["created"], found["model"]) == (
        "chatcmpl-1", "chat.completion", 12, "p/m",
    )  # fmt: skip
    assert found["usage"] == {
        "prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 1},
    }  # fmt: skip


def test_content_is_null_only_beside_calls() -> None:
    def message(found: TurnAnswer) -> Any:
        return whole(found)["choices"][0]["message"]

    assert message(result(""))["content"] == ""
    assert "tool_calls" not in message(result(""))
    assert message(result("", A))["content"] is None
    assert message(result("hi", A, B))["content"] == "hi"
    assert [call["id"] for call in message(result("", A, B))["tool_calls"]] == ["a", "b"]
    assert whole(result(""))["model"] == "main"


def test_a_refusal_is_told_as_such_to_a_stateless_call_alone() -> None:
    said = result("no", refused=True)
    told = whole(said, tells_refusals=True)
    assert told["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "no"}
    assert whole(said)["choices"][0]["message"] == {"role": "assistant", "content": "no", "refusal": None}
    assert deltas(stream(end=said, tells_refusals=True))[1] == {"refusal": "no"}
    assert deltas(stream(end=said))[1] == {"content": "no"}


async def test_the_texts_of_a_turn_are_kept_apart() -> None:
    async def follow(*events: Event) -> AsyncGenerator[tuple[int, Event], None]:
        for n, event in enumerate(events):
            yield n, event

    events = (Delta("one"), UsageReported(USAGE, "p/m"), UsageReported(USAGE, "p/m"), Delta("t"), Delta("wo"))
    joined = await join_texts(follow(*events))
    assert "".join(delta.get("content", "") for delta in deltas(stream(*events, end=result("x")))) == joined
    assert joined == "one\n\ntwo"


def test_a_stream_begins_with_the_role_and_ends_with_the_reason_and_the_usage() -> None:
    found = stream(ReasoningDelta("hm"), Delta("hi"), end=result("hi"), with_usage=True)
    assert deltas(found) == [
        {"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "hi"}, {},
    ]  # fmt: skip
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in found if chunk["choices"]]
    assert finishes == [None, None, None, "stop"]
    assert [chunk["usage"] for chunk in found[:-1]] == [None] * 4
    assert (found[-1]["choices"], found[-1]["usage"]["total_tokens"]) == ([], 12)
    assert {chunk["model"] for chunk in found} == {"p/m"}
    assert "usage" not in stream(end=result("hi"))[0]


def test_text_that_was_never_streamed_comes_at_the_end() -> None:
    assert deltas(stream(end=result("hi"))) == [{"role": "assistant", "content": ""}, {"content": "hi"}, {}]
    assert deltas(stream(end=result(""))) == [{"role": "assistant", "content": ""}, {}]


def test_another_model_is_named_from_where_it_answers() -> None:
    found = stream(FellBack("q/n", "p/m", "busy"), Delta("hi"), end=result("hi"))
    assert {chunk["model"] for chunk in found} == {"q/n"}


@pytest.mark.parametrize(
    ("pieces", "calls", "missing"),
    [
        ([], (), None),
        ([], (A, B), [whole_call(0, A), whole_call(1, B)]),
        ([piece(0, "a", "f", ""), piece(0, "", "", '{"x": 1}')], (A,), None),
        (
            [piece(0, "a", "f", '{"x"')],
            (A, B),
            [{"index": 0, "function": {"arguments": ": 1}"}}, whole_call(1, B)],
        ),
        ([piece(1, "b", "g", "{}")], (A, B), [whole_call(0, A)]),
        ([piece(0, "z", "f", "{}")], (A,), [whole_call(1, A)]),
    ],
)
def test_calls_that_were_not_streamed_come_at_the_end(
    pieces: list[ToolCallDelta], calls: tuple[ToolCall, ...], missing: list[Any] | None
) -> None:
    *streamed, last = deltas(stream(*pieces, end=result("", *calls)))
    assert last == {}
    told = [delta["tool_calls"] for delta in streamed if "tool_calls" in delta]
    assert len(told) == len(pieces) + (missing is not None)
    if missing is not None:
        assert told[-1] == missing


def test_a_piece_of_a_call_has_its_name_once() -> None:
    found = deltas(stream(piece(0, "a", "f", "{"), piece(0, "", "", "}"), end=result("", A)))
    assert found[1] == {"tool_calls": [whole_call(0, ToolCall("a", "f", "{"))]}
    assert found[2] == {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}


def test_a_failure_in_the_stream_ends_it() -> None:
    chunks = CompletionChunks(NAMED, lambda: "p/m", with_usage=False)
    data = chunks.fail(ErrorInfo("model_error", "It broke."), ended(TurnState.FAILED)).decode()
    error, done, _ = data.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["message"].startswith("It broke.")
    assert done == "data: [DONE]"
