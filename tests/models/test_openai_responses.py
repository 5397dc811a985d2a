"""How messages and calls are written for the responses API."""

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
from talaria.models.openai_responses import OpenAIResponses

WIRE = OpenAIResponses()
CALL = ToolCall("c1", "read_file", '{"path": "a"}')
WIRE_CALL = {"type": "function_call", "call_id": "c1", "name": "read_file", "arguments": '{"path": "a"}'}
OTHER = ToolCall("c2", "now", "")
WIRE_OTHER = {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"}
PHOTO = Image("data:image/png;base64,AAAA")
REPORT = File("report.pdf", "inbox/report.pdf", "application/pdf", 1234)
NOTE = "[file report.pdf (application/pdf, 1234 bytes) at inbox/report.pdf]"

SEALED = '{"id":"rs_1", "type":"reasoning","summary":[],"encrypted_content":"gAAA=="}'
ODD = '{"id":null,"type":"reasoning","phase":null,"start":"x","encrypted_content":"gAAA=="}'
BARE = '{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]}'
SHOWN = '{"id":"rs_1","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]}'


def kept(raw: str, text: str = "") -> Reasoning:
    return Reasoning("responses.item", text, raw)


PLACE_CALL = kept('{"type":"function_call","id":"fc_1","call_id":"c1"}')
PLACE_OTHER = kept('{"type":"function_call","id":"fc_2","call_id":"c2"}')
PLACE_TEXT = kept('{"type":"message","id":"msg_1","end":5}')
PLACE_COMMENT = kept('{"type":"message","id":"msg_1","phase":"commentary","end":5}')
PLACE_FINAL = kept('{"type":"message","id":"msg_2","phase":"final_answer","start":7,"end":11}')


def paired(item_id: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {**message, "id": item_id}


def encode(message: Message) -> Any:
    return json.loads(b"[" + WIRE.encode(message) + b"]")


def body(call: ModelCall) -> Any:
    return json.loads(b"".join(WIRE.body(call)))


@pytest.mark.parametrize(
    ("message", "items"),
    [
        (SystemMessage("Be brief.", "developer"), [{"role": "developer", "content": "Be brief."}]),
        (UserMessage((Text("hi"),)), [{"role": "user", "content": "hi"}]),
        (UserMessage((Text("a"), Text("b")), name="ann"), [{"role": "user", "content": "a\nb"}]),
        (UserMessage((Text("see"), REPORT), "Mon"), [{"role": "user", "content": f"[Mon] see\n{NOTE}"}]),
        (
            UserMessage((Text("what?"), PHOTO, Image("https://x/y.png", "low")), "Mon 10:00"),
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "[Mon 10:00] what?"},
                        {"type": "input_image", "image_url": PHOTO.url, "detail": "auto"},
                        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
                    ],
                }
            ],
        ),
        (AssistantMessage("hello"), [{"role": "assistant", "content": "hello"}]),
        (AssistantMessage(), [{"role": "assistant", "content": ""}]),
        (AssistantMessage("", (CALL, OTHER)), [WIRE_CALL, WIRE_OTHER]),
        (AssistantMessage("look", (CALL,)), [{"role": "assistant", "content": "look"}, WIRE_CALL]),
        (
            AssistantMessage("par", interrupted=True),
            [{"role": "assistant", "content": "par\n[interrupted]"}],
        ),
        (
            AssistantMessage(interrupted=True),
            [{"role": "assistant", "content": "[interrupted]"}],
        ),
        (
            ToolResults((ToolResult("c1", "a", "one"), ToolResult("c2", "b", "two"))),
            [
                {"type": "function_call_output", "call_id": "c1", "output": "one"},
                {"type": "function_call_output", "call_id": "c2", "output": "two"},
            ],
        ),
    ],
)
def test_a_message_is_written_as_its_items(message: Message, items: list[Any]) -> None:
    assert encode(message) == items


@pytest.mark.parametrize(
    ("message", "items"),
    [
        (
            AssistantMessage("", (CALL, OTHER), (kept(SEALED, "hm"), PLACE_CALL, PLACE_OTHER)),
            [json.loads(SEALED), {**WIRE_CALL, "id": "fc_1"}, WIRE_OTHER],
        ),
        (
            AssistantMessage("hello", (), (kept(SEALED), PLACE_TEXT)),
            [json.loads(SEALED), paired("msg_1", "hello")],
        ),
        (
            AssistantMessage("hello", (CALL,), (kept(SEALED), PLACE_TEXT, kept(SHOWN), PLACE_CALL)),
            [
                json.loads(SEALED),
                paired("msg_1", "hello"),
                json.loads(SHOWN),
                {**WIRE_CALL, "id": "fc_1"},
            ],
        ),
        # A call in front of the text.
        (
            AssistantMessage("hello", (CALL,), (kept(SEALED), PLACE_CALL, PLACE_TEXT)),
            [json.loads(SEALED), {**WIRE_CALL, "id": "fc_1"}, {"role": "assistant", "content": "hello"}],
        ),
        # Without encrypted content it would be looked up by its id, and nothing is stored.
        (
            AssistantMessage("hello", (), (kept(BARE, "hm"), PLACE_TEXT)),
            [{"role": "assistant", "content": "hello"}],
        ),
        # Items are sent back as they came, whatever else they hold.
        (
            AssistantMessage("hello", (), (kept(ODD), PLACE_TEXT)),
            [json.loads(ODD), paired("msg_1", "hello")],
        ),
        # Cut off before it led to anything.
        (AssistantMessage("", (), (kept(SEALED),)), [{"role": "assistant", "content": ""}]),
        (
            AssistantMessage("hello", (), (PLACE_TEXT, kept(SEALED))),
            [{"role": "assistant", "content": "hello"}],
        ),
        # What it led to is gone.
        (AssistantMessage("", (OTHER,), (kept(SEALED), PLACE_CALL, PLACE_OTHER)), [WIRE_OTHER]),
        # Phases go back, and messages stay apart.
        (
            AssistantMessage("hello\n\nmore", (), (PLACE_COMMENT, PLACE_FINAL)),
            [
                {"role": "assistant", "content": "hello", "phase": "commentary"},
                {"role": "assistant", "content": "more", "phase": "final_answer"},
            ],
        ),
        # Text that no item accounts for is never lost.
        (
            AssistantMessage("hello, you", (), (kept(SEALED), PLACE_TEXT)),
            [{"role": "assistant", "content": "hello, you"}],
        ),
        # Of another format.
        (
            AssistantMessage("x", (CALL,), (Reasoning("reasoning_content", "hm", '"hm"'),)),
            [{"role": "assistant", "content": "x"}, WIRE_CALL],
        ),
    ],
)
def test_reasoning_stands_in_front_of_what_it_led_to(message: Message, items: list[Any]) -> None:
    assert encode(message) == items


def test_reasoning_goes_back_byte_for_byte() -> None:
    message = AssistantMessage("hello", (), (kept(SEALED), PLACE_TEXT))
    assert WIRE.encode(message).startswith(SEALED.encode() + b",")


def test_a_call_id_that_is_too_long_is_shortened_on_both_sides() -> None:
    long, longer = "x" * 65, "x" * 66
    [call, other] = encode(AssistantMessage("", (ToolCall(long, "a", "{}"), ToolCall(longer, "a", "{}"))))
    [output] = encode(ToolResults((ToolResult(long, "a", "one"),)))
    assert call["call_id"] == output["call_id"] != other["call_id"]
    assert len(call["call_id"]) <= 64


def test_tools_are_flat_and_not_strict() -> None:
    tools = [ToolSpec("b", "B.", '{"type": "object"}'), ToolSpec("a", "A.", "{}")]
    prefix = WIRE.render_prefix("Be kind.", tools)
    assert json.loads(prefix.tools) == [
        {
            "type": "function",
            "name": "b",
            "description": "B.",
            "parameters": {"type": "object"},
            "strict": False,
        },
        {"type": "function", "name": "a", "description": "A.", "parameters": {}, "strict": False},
    ]


def test_an_empty_prompt_and_no_tools_leave_no_trace() -> None:
    prefix = WIRE.render_prefix("", [])
    assert prefix == Prefix(b"", b"")
    assert body(ModelCall("m", prefix, [WIRE.encode(UserMessage((Text("hi"),)))])) == {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_a_prefix_of_the_chat_format_still_works() -> None:
    """A session keeps its prefix when its provider's `api` is changed."""
    tools = [ToolSpec("a", "A.", '{"type":"object"}'), ToolSpec("b", "B.", "{}")]
    chunks = [WIRE.encode(UserMessage((Text("hi"),)))]
    old = body(ModelCall("m", OpenAIChat().render_prefix("Be kind.", tools), chunks))
    assert old == body(ModelCall("m", WIRE.render_prefix("Be kind.", tools), chunks))


def test_a_callers_tools_are_rewritten() -> None:
    tools = [
        {"function": {"name": "a", "strict": True, "parameters": {"type": "object"}}, "type": "function"},
        {"type": "function", "function": {"name": "b", "description": "B."}},
        {"type": "custom", "custom": {"name": "c"}},
        {"type": "web_search"},
    ]
    sent = body(ModelCall("m", Prefix(b"", json.dumps(tools).encode()), []))
    assert sent["tools"] == [
        {"type": "function", "name": "a", "strict": True, "parameters": {"type": "object"}},
        {
            "type": "function",
            "name": "b",
            "description": "B.",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        },
        {"type": "custom", "name": "c"},
        {"type": "web_search"},
    ]


SCHEMA = {"name": "s", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("sampling", "members"),
    [
        ({"temperature": 0.2, "top_p": 0, "user": "u"}, {"temperature": 0.2, "top_p": 0, "user": "u"}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "a"}}},
            {"tool_choice": {"type": "function", "name": "a"}},
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "a"}}],
                    },
                }
            },
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "a"}],
                }
            },
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}, "verbosity": "low"},
            {"text": {"format": {"type": "json_schema", **SCHEMA}, "verbosity": "low"}},
        ),
        ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        (
            {"stop": ["x"], "seed": 1, "presence_penalty": 1, "frequency_penalty": 1, "logit_bias": {"1": 1}},
            {},
        ),
    ],
)
def test_sampling_is_translated(sampling: dict[str, Any], members: dict[str, Any]) -> None:
    bare = body(ModelCall("m", Prefix(b"", b""), []))
    encoded = json.dumps(sampling).encode()[1:-1]
    assert body(ModelCall("m", Prefix(b"", b""), [], sampling=encoded)) == {**bare, **members}


def test_the_effort_and_the_limit_of_a_call_have_names_of_their_own() -> None:
    bare = body(ModelCall("m", Prefix(b"", b""), []))
    members = {"max_output_tokens": 700, "reasoning": {"effort": "low"}}
    assert body(ModelCall("m", Prefix(b"", b""), [], "low", 700)) == {**bare, **members}
    assert body(ModelCall("m", Prefix(b"", b""), [], None, 5)) == {**bare, "max_output_tokens": 16}


def test_what_belongs_to_one_call_stands_behind_the_items_and_tools() -> None:
    prefix = WIRE.render_prefix("Be kind.", [ToolSpec("a", "A.", "{}")])
    chunks = [WIRE.encode(UserMessage((Text("hi"),)))]
    plain = b"".join(WIRE.body(ModelCall("m", prefix, chunks)))
    tuned = b"".join(WIRE.body(ModelCall("m", prefix, chunks, "high", 100, b'"temperature":0.2')))
    assert tuned.startswith(plain[:-1])
    extra = {"reasoning": {"effort": "high"}, "max_output_tokens": 100, "temperature": 0.2}
    assert json.loads(tuned) == {**json.loads(plain), **extra}


def test_no_reasoning_sends_no_effort() -> None:
    assert "reasoning" not in body(ModelCall("m", Prefix(b"", b""), [], "none"))
