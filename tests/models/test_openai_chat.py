"""How messages and calls are written for chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from talaria.core.messages import (
    AssistantMessage,
    File,
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
from talaria.core.specs import ModelCall, Prefix
from talaria.core.tools import ToolSpec
from talaria.models.openai_chat import OpenAIChat

WIRE = OpenAIChat()
CALL = ToolCall("c1", "read_file", '{"path": "a"}')
WIRE_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "read_file", "arguments": '{"path": "a"}'},
}
PLAIN = Reasoning("reasoning_content", "hm", '"hm"')
DETAILS = Reasoning("reasoning_details", "hm", '[{"type":"reasoning.text","text":"hm","signature":"s=="}]')
PHOTO = Image("data:image/png;base64,AAAA")
REPORT = File("report.pdf", "inbox/report.pdf", "application/pdf", 1234)
NOTE = "[file report.pdf (application/pdf, 1234 bytes) at inbox/report.pdf]"


def encode(message: Message) -> Any:
    return json.loads(b"[" + WIRE.encode(message) + b"]")


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (SystemMessage("Be brief."), {"role": "system", "content": "Be brief."}),
        (SystemMessage("Be brief.", "developer"), {"role": "developer", "content": "Be brief."}),
        (UserMessage((Text("hi"),)), {"role": "user", "content": "hi"}),
        (UserMessage((Text("a"), Text("b")), name="ann"), {"role": "user", "content": "a\nb", "name": "ann"}),
        (UserMessage((Text("hi"),), "Mon 10:00"), {"role": "user", "content": "[Mon 10:00] hi"}),
        (UserMessage((Text("see"), REPORT)), {"role": "user", "content": f"see\n{NOTE}"}),
        (
            UserMessage((Text("what?"), PHOTO), "Mon 10:00"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "[Mon 10:00] what?"},
                    {"type": "image_url", "image_url": {"url": PHOTO.url}},
                ],
            },
        ),
        (
            UserMessage((Image("https://x/y.png", "low"), REPORT), "Mon 10:00"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "[Mon 10:00]"},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
                    {"type": "text", "text": NOTE},
                ],
            },
        ),
        (AssistantMessage("hello"), {"role": "assistant", "content": "hello"}),
        (AssistantMessage(), {"role": "assistant", "content": ""}),
        (
            AssistantMessage("", (CALL,)),
            {"role": "assistant", "content": None, "tool_calls": [WIRE_CALL]},
        ),
        (
            AssistantMessage("par", interrupted=True),
            {"role": "assistant", "content": "par\n[interrupted]"},
        ),
        (AssistantMessage(interrupted=True), {"role": "assistant", "content": "[interrupted]"}),
        (AssistantMessage("x", reasoning=(PLAIN,)), {"role": "assistant", "content": "x"}),
        (
            AssistantMessage("x", (CALL,), (PLAIN,)),
            {"role": "assistant", "content": "x", "reasoning_content": "hm", "tool_calls": [WIRE_CALL]},
        ),
        (
            AssistantMessage("x", reasoning=(DETAILS,)),
            {"role": "assistant", "content": "x", "reasoning_details": json.loads(DETAILS.raw)},
        ),
    ],
)
def test_a_message_is_written_as_one_object(message: Message, encoded: dict[str, Any]) -> None:
    assert encode(message) == [encoded]


def test_results_are_written_one_by_one_in_order() -> None:
    results = ToolResults((ToolResult("c1", "a", "one"), ToolResult("c2", "b", "two")))
    assert encode(results) == [
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
    ]


def test_a_call_without_arguments_is_written_with_none() -> None:
    [message] = encode(AssistantMessage("", (ToolCall("c1", "now", ""),)))
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


def test_reasoning_details_go_back_byte_for_byte() -> None:
    assert DETAILS.raw.encode() in WIRE.encode(AssistantMessage("x", reasoning=(DETAILS,)))


def test_an_empty_prompt_and_no_tools_leave_no_trace() -> None:
    prefix = WIRE.render_prefix("", [])
    assert prefix == Prefix(b"", b"")
    body = json.loads(b"".join(WIRE.body(ModelCall("m", prefix, [WIRE.encode(UserMessage((Text("hi"),)))]))))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_belongs_to_one_call_stands_behind_the_messages_and_tools() -> None:
    prefix = WIRE.render_prefix("Be kind.", [ToolSpec("a", "A.", "{}")])
    chunks = [WIRE.encode(UserMessage((Text("hi"),)))]
    plain = b"".join(WIRE.body(ModelCall("m", prefix, chunks)))
    tuned = b"".join(WIRE.body(ModelCall("m", prefix, chunks, "high", 100, b'"temperature":0.2')))
    assert tuned.startswith(plain[:-1])
    extra = {"reasoning_effort": "high", "max_tokens": 100, "temperature": 0.2}
    assert json.loads(tuned) == {**json.loads(plain), **extra}


def test_no_reasoning_sends_no_word_about_it() -> None:
    body = b"".join(WIRE.body(ModelCall("m", Prefix(b"", b""), [], "none")))
    assert b"reasoning" not in body
