"""The messages and fields of chat completions, without a gateway: tables of what becomes of each."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from talaria.channels.http.chat_completions import ChatMessages, CompletionRequest, whole_context
from talaria.core.errors import BadRequest
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)

USER: Any = {"role": "user", "content": "hi"}
PNG = "data:image/png;base64,AA"


def request(*messages: Any, **fields: Any) -> CompletionRequest:
    body = json.dumps({"messages": messages, **fields}).encode()
    return msgspec.json.decode(body, type=CompletionRequest)


def calls(*ids: str) -> dict[str, Any]:
    made = [{"id": id, "type": "function", "function": {"name": f"f_{id}", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(id: str, text: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def image(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


OLD_CALL: Any = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
OLD_RESULT: Any = {"role": "function", "name": "f", "content": "ok"}
TWO = AssistantMessage("", (ToolCall("a", "f_a", "{}"), ToolCall("b", "f_b", "{}")))
TWO_RESULTS = ToolResults((ToolResult("a", "f_a", "ok"), ToolResult("b", "f_b", "ok")))


@pytest.mark.parametrize(
    ("messages", "context"),
    [
        ([{"role": "system", "content": "s"}], [SystemMessage("s")]),
        ([{"role": "developer", "content": text("a", "b")}], [SystemMessage("ab", "developer")]),
        ([{**USER, "name": "Ann"}], [UserMessage((Text("hi"),), name="Ann")]),
        ([{"role": "user", "content": text("a", "b")}], [UserMessage((Text("ab"),))]),
        (
            [
                {
                    "role": "user",
                    "content": [*text("a", "b"), image(PNG, detail="low"), *text("c"), image(PNG)],
                }
            ],
            [UserMessage((Text("ab"), Image(PNG, "low"), Text("c"), Image(PNG)))],
        ),
        ([{"role": "assistant", "content": text("a", "b")}], [AssistantMessage("ab")]),
        ([{"role": "assistant", "content": None, "refusal": "no"}], [AssistantMessage("no")]),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            [AssistantMessage("no")],
        ),
        (
            [{"role": "assistant", "content": "a", "reasoning_content": "hm"}],
            [AssistantMessage("a", (), (Reasoning("reasoning_content", "hm", '"hm"'),))],
        ),
        (
            [USER, calls("a", "b"), result("b"), result("a", text("o", "k")), USER],
            [UserMessage((Text("hi"),)), TWO, TWO_RESULTS, UserMessage((Text("hi"),))],
        ),
        (
            [calls("a"), result("a"), calls("b"), result("b")],
            [
                AssistantMessage("", (ToolCall("a", "f_a", "{}"),)),
                ToolResults((ToolResult("a", "f_a", "ok"),)),
                AssistantMessage("", (ToolCall("b", "f_b", "{}"),)),
                ToolResults((ToolResult("b", "f_b", "ok"),)),
            ],
        ),
        (
            [OLD_CALL, OLD_RESULT, USER],
            [
                AssistantMessage("", (ToolCall("call_0", "f", "{}"),)),
                ToolResults((ToolResult("call_0", "f", "ok"),)),
                UserMessage((Text("hi"),)),
            ],
        ),
        (
            [OLD_CALL, {**OLD_RESULT, "content": None}],
            [
                AssistantMessage("", (ToolCall("call_0", "f", "{}"),)),
                ToolResults((ToolResult("call_0", "f", ""),)),
            ],
        ),
    ],
)
def test_messages_become_ours(messages: list[Any], context: list[Message]) -> None:
    assert list(whole_context(request(*messages).messages)) == context


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([USER, calls("a", "b"), result("a")], r"messages\[1\]\.tool_calls`: the call 'b' has no result"),
        ([calls("a"), USER, result("a")], r"messages\[0\]\.tool_calls`: the call 'a' has no result"),
        ([calls("a"), result("a"), result("a")], r"\[2\]\.tool_call_id`: 'a' has its result already"),
        ([calls("a"), result("x")], r"messages\[1\]\.tool_call_id`: 'x' is no call of messages\[0\]"),
        ([USER, result("a")], r"messages\[1\]`: it answers no call"),
        ([OLD_RESULT], r"messages\[0\]`: it answers no call"),
        ([OLD_CALL], r"messages\[0\]\.function_call`: the call has no result"),
        ([OLD_CALL, USER], r"messages\[0\]\.function_call`: the call has no result"),
        ([OLD_CALL, {**OLD_RESULT, "name": "g"}], r"messages\[0\]\.function_call`: the call has no result"),
        ([USER, {"role": "user", "content": [image("http://x")]}], r"messages\[1\]\.content\[0\]\.image_url"),
    ],
)
def test_calls_and_results_that_do_not_match_are_refused_by_their_place(
    messages: list[Any], said: str
) -> None:
    with pytest.raises(BadRequest, match=said) as refused:
        whole_context(request(*messages).messages)
    assert refused.value.hint


def test_a_session_is_sent_the_last_message_of_the_user() -> None:
    def last(*messages: Any) -> Any:
        return ChatMessages(request(*messages).messages).last_message()

    assistant = {"role": "assistant", "content": "yes"}
    assert last(USER, {"role": "user", "content": "b"}, assistant) == (Text("b"),)
    assert last({"role": "user", "content": [image(PNG)]}) == (Image(PNG),)
    with pytest.raises(BadRequest, match=r"messages\[1\]\.content`: it is empty"):
        last(USER, {"role": "user", "content": text(" ", "\n")})
    with pytest.raises(BadRequest, match="no message with the role user"):
        last(assistant)


def test_tools_are_sent_as_they_came_without_blanks() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": [1, 2]}}}
    other = {"type": "function", "function": {"name": "g"}}
    encoded = request(USER, tools=[tool, other]).encoded_tools()
    assert encoded == json.dumps([tool, other], separators=(",", ":")).encode()
    assert request(USER).encoded_tools() == request(USER, tools=[]).encoded_tools() == b""
    with pytest.raises(BadRequest, match=r"`tools\[1\]\.function\.name`: 'f' is there twice"):
        request(USER, tools=[tool, tool]).encoded_tools()
    for wrong in ({"type": "web_search"}, {"type": "function"}, {"type": "function", "function": {}}):
        with pytest.raises(BadRequest, match=r"tools\[1\]"):
            request(USER, tools=[tool, wrong]).encoded_tools()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_edges_of_a_limit(name: str) -> None:
    request(USER, **{name: 1}).check()
    for value, expected in ((0, "at least 1"), (-1, "at least 1"), (1 << 62, "at most ")):
        with pytest.raises(BadRequest, match=f"`{name}`: expected {expected}"):
            request(USER, **{name: value}).check()


def test_options_of_the_call() -> None:
    options = request(USER).options({})
    assert (options.reasoning, options.max_output, options.sampling) == (None, None, b"")
    options = request(USER, reasoning_effort="low", max_tokens=5, temperature=0).options({})
    assert (options.reasoning, options.max_output, options.sampling) == ("low", 5, b'"temperature":0')
    assert request(USER, max_tokens=5, max_completion_tokens=7).options({}).max_output == 7
    with pytest.raises(BadRequest, match="`messages` is missing or empty"):
        request().check()


def test_usage_is_streamed_if_it_is_asked_for() -> None:
    assert not request(USER).wants_usage
    assert not request(USER, stream_options={}).wants_usage
    assert request(USER, stream_options={"include_usage": True}).wants_usage
