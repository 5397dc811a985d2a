"""The items and fields of `/v1/responses`, without a gateway: tables of what becomes of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from talaria.channels.http.responses_api import ResponseItems
from talaria.channels.http.responses_input import (
    Context,
    ResponsesRequest,
    decode_items,
    encode_tools,
    references,
)
from talaria.channels.http.responses_output import (
    ItemRef,
    Outcome,
    input_items,
    item_id,
    output_items,
    response_id,
    stored_items,
    turn_of,
)
from talaria.core.errors import BadRequest
from talaria.core.ids import TurnId
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

TURN = TurnId("turn_" + "0" * 26)
RS, MSG, FC = (item_id(kind, TURN, 0) for kind in ("rs", "msg", "fc"))
HM = Reasoning("reasoning_content", "hm", '"hm"')
CALL = ToolCall("c1", "weather", "{}")
SUN: Any = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
RESULTS = ToolResults((ToolResult.of("c1", "weather", (Text("sun"),)),))
ANSWER = AssistantMessage("I look.", (CALL,), (HM,))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def read(*items: Any, stored: Mapping[TurnId, AssistantMessage] | None = None, **more: Any) -> list[Message]:
    decoded = decode_items([msgspec.Raw(json.dumps(item).encode()) for item in items])
    return list(Context(decoded, stored or {}, **more).messages)


def said(text: str, *calls: ToolCall, thought: str = "") -> AssistantMessage:
    thoughts = (Reasoning("reasoning_content", thought, json.dumps(thought)),) if thought else ()
    return AssistantMessage(text, calls, thoughts)


# -- input items ------------------------------------------------------------------------------------------


def call(id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "weather", "arguments": "{}"}


def thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"text": text}], **more}


ASSISTANT: Any = {"role": "assistant", "content": "yes"}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ([user("a"), user("b")], [UserMessage((Text("a"),)), UserMessage((Text("b"),))]),
        ([{"role": "system", "content": "a"}], [SystemMessage("a", "system")]),
        (
            [{"role": "developer", "content": [{"type": "input_text", "text": t} for t in "ab"]}],
            [SystemMessage("a\nb", "developer")],
        ),
        ([ASSISTANT, ASSISTANT], [said("yes"), said("yes")]),
        ([ASSISTANT, user("a")], [said("yes"), UserMessage((Text("a"),))]),
        ([ASSISTANT, call(), SUN], [said("yes", CALL), RESULTS]),
        ([SUN, call()], [said("", CALL), RESULTS]),
        ([call(), ASSISTANT, SUN], [said("", CALL), RESULTS, said("yes")]),
        ([thought("hm"), ASSISTANT], [said("yes", thought="hm")]),
        ([thought("hm"), call(), SUN], [said("", CALL, thought="hm"), RESULTS]),
        ([ASSISTANT, thought("hm"), ASSISTANT], [said("yes"), said("yes", thought="hm")]),
        ([call(), thought("hm"), ASSISTANT, SUN], [said("", CALL), RESULTS, said("yes", thought="hm")]),
        ([thought("no"), thought("hm"), ASSISTANT], [said("yes", thought="hm")]),
        ([thought("hm"), user("a"), ASSISTANT], [UserMessage((Text("a"),)), said("yes")]),
        ([thought("a", content=[{"text": "b"}]), ASSISTANT], [said("yes", thought="a\n\nb")]),
        ([{"type": "reasoning"}, ASSISTANT], [said("yes")]),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], [said("no")]),
        ([{"role": "assistant", "content": [{"type": "output_text", "text": "o"}]}], [said("o")]),
        (
            [user([{"type": "text", "text": "t"}, {"type": "input_image", "image_url": "https://x/a.png"}])],
            [UserMessage((Text("t"), Image("https://x/a.png")))],
        ),
    ],
)
def test_neighbouring_items_of_the_assistant_are_one_message(
    items: list[Any], messages: list[Message]
) -> None:
    assert read(*items) == messages


def test_outputs_of_the_response_before_come_first() -> None:
    assert read(user("a"), SUN, pending=(CALL,)) == [RESULTS, UserMessage((Text("a"),))]
    with pytest.raises(BadRequest, match=r"'c1' \(weather\) has no output"):
        read(user("a"), pending=(CALL,))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([RS, MSG, FC], ANSWER),
        ([MSG], AssistantMessage("I look.")),
        ([FC], AssistantMessage("", (CALL,))),
        ([RS, FC], AssistantMessage("", (CALL,), (HM,))),
    ],
)
def test_a_reference_stands_for_the_item_that_was_stored(items: list[str], message: AssistantMessage) -> None:
    outputs = [SUN] if message.tool_calls else []
    named = [{"type": "item_reference", "id": id} for id in items]
    found = read(*named, *outputs, stored={TURN: ANSWER})
    assert found == [message, RESULTS] if outputs else found == [message]


def test_the_stored_thought_counts_and_not_the_copy_that_was_sent() -> None:
    found = read(thought("a summary", id=RS), ASSISTANT, stored={TURN: ANSWER})
    assert found == [AssistantMessage("yes", (), (HM,))]


@pytest.mark.parametrize(
    "id", [item_id("fc", TURN, 1), "msg_1", item_id("msg", TurnId("turn_" + "1" * 26), 0)]
)
def test_a_reference_to_nothing_is_refused(id: str) -> None:
    with pytest.raises(BadRequest, match=r"`input\[1\]\.id`: there is no stored item") as refused:
        read(user("a"), {"type": "item_reference", "id": id}, stored={TURN: ANSWER})
    assert "store: false" in refused.value.hint


@pytest.mark.parametrize("id", [RS, MSG])
def test_a_reference_to_what_the_answer_has_not_is_refused(id: str) -> None:
    with pytest.raises(BadRequest, match=r"`input\[0\]\.id`"):
        read({"type": "item_reference", "id": id}, SUN, stored={TURN: AssistantMessage("", (CALL,))})


def test_what_items_refer_to() -> None:
    items = decode_items(
        [
            msgspec.Raw(json.dumps(item).encode())
            for item in [
                {"type": "item_reference", "id": FC},
                thought("a", id=RS),
                thought("b", id="rs_foreign"),
                thought("c", id=MSG),
                {"type": "message", "role": "assistant", "content": "x", "id": MSG},
            ]
        ]
    )
    assert references(items) == [ItemRef("fc", TURN, 0), ItemRef("rs", TURN, 0)]
    with pytest.raises(BadRequest, match=r"`input\[0\]\.id`"):
        references(decode_items([msgspec.Raw(b'{"type": "item_reference", "id": "fc_1"}')]))


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([call(), SUN, SUN], r"input\[2\]\.call_id`: 'c1' has its output already"),
        ([SUN], r"input\[0\]\.call_id`: 'c1' is no call of this conversation"),
        ([call()], r"the function call 'c1' \(weather\) has no output"),
        ([user([{"type": "input_image", "image_url": "http://x/a.png"}])], r"content\[0\]\.image_url"),
        ([user([{"type": "input_text", "text": "a"}, {"type": "input_file"}])], r"content\[1\]`: input_file"),
        ([user([{"type": "input_audio"}])], r"input\[0\]\.content\[0\]`: input_audio"),
        ([{**SUN, "output": [{"type": "input_file"}]}, call()], r"input\[0\]\.output\[0\]"),
        ([{"role": "system", "content": [{"type": "input_image"}]}], r"input\[0\]\.content\[0\]`: only text"),
        ([user("a"), {"type": "computer_call"}], r"input\[1\]\.type`: items of the type 'computer_call'"),
    ],
)  # fmt: skip
def test_items_that_do_not_fit_are_refused_by_their_place(items: list[Any], field: str) -> None:
    with pytest.raises(BadRequest, match=field) as refused:
        read(*items)
    assert refused.value.hint


def test_a_session_is_sent_the_last_message_of_the_user() -> None:
    def last(*items: Any) -> Any:
        decoded = decode_items([msgspec.Raw(json.dumps(item).encode()) for item in items])
        return ResponseItems(decoded).last_message()

    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    assert last(user("a"), user("b"), ASSISTANT) == (Text("b"),)
    assert last(user([image])) == (Image("data:image/png;base64,AA"),)
    with pytest.raises(BadRequest, match=r"`input\[1\]\.content`: it is empty"):
        last(user("a"), user(" \n"))
    with pytest.raises(BadRequest, match="no message with the role user"):
        last(ASSISTANT, {"role": "system", "content": "a"})


# -- ids and output items ---------------------------------------------------------------------------------


def test_ids_are_read_back_and_others_are_none() -> None:
    assert turn_of(response_id(TURN)) == TURN
    for text in (
        "",
        "resp_1",
        TURN,
        response_id(TURN) + "0",
        response_id(TURN).upper(),
        "x" + response_id(TURN),
    ):
        assert turn_of(text) is None
    assert ItemRef.parse(item_id("fc", TURN, 9999)) == ItemRef("fc", TURN, 9999)
    for id in (None, "", f"fco_{RS[3:]}", RS + "i", f"{RS[:-1]}10000", RS.removesuffix("_0")):
        assert ItemRef.parse(id) is None


def test_an_answer_is_reasoning_then_a_message_then_calls() -> None:
    kinds = [(item["type"], item["id"]) for item in output_items(ANSWER, TURN)]
    assert kinds == [("reasoning", RS), ("message", MSG), ("function_call", FC)]
    assert [item["type"] for item in output_items(said("", CALL), TURN)] == ["function_call"]
    (empty,) = output_items(said(""), TURN)
    assert (empty["content"][0]["text"], empty["status"], empty["role"]) == ("", "completed", "assistant")
    (cut,) = stored_items(said("a"), TURN, Outcome("incomplete"))
    assert cut["status"] == "incomplete"
    assert stored_items(said("a"), TURN, Outcome("completed"))[0]["status"] == "completed"
    assert stored_items(None, TURN, Outcome("failed")) == []


def test_the_items_of_an_input_are_told_with_ids_that_are_no_references() -> None:
    photo = ToolResult.of("c2", "look", (Text("a"), Image("data:image/png;base64,AA", "low")))
    messages: list[Message] = [
        SystemMessage("s", "developer"),
        UserMessage((Text("a"), Image("https://x/a.png"), File("a.pdf", "application/pdf", "a.pdf", 1))),
        ANSWER,
        ToolResults((ToolResult.of("c1", "weather", (Text("sun"),)), photo)),
        said(""),
    ]
    items = input_items(messages, TURN)
    assert [item["type"] for item in items] == [
        "message", "message", "reasoning", "message", "function_call",
        "function_call_output", "function_call_output", "message",
    ]  # fmt: skip
    assert [item.get("role") for item in items[:4]] == ["developer", "user", None, "assistant"]
    assert items[1]["content"] == [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "https://x/a.png", "detail": "auto"},
        {"type": "input_text", "text": "[file a.pdf]"},
    ]
    assert (items[5]["output"], items[5]["call_id"], items[5]["status"]) == ("sun", "c1", "completed")
    assert items[6]["output"][1] == {
        "type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"
    }  # fmt: skip
    ids = [item["id"] for item in items]
    assert [id.rpartition("_")[2] for id in ids] == [f"{n}i" for n in range(8)]
    assert [ItemRef.parse(id) for id in ids] == [None] * 8


# -- fields -----------------------------------------------------------------------------------------------


def request(**fields: Any) -> ResponsesRequest:
    return msgspec.json.decode(json.dumps({"input": "x", **fields}).encode(), type=ResponsesRequest)


def test_the_edges_of_what_is_accepted() -> None:
    request(max_output_tokens=1, include=[]).check()
    request(input="", previous_response_id="resp_1").check()
    request(input=[], previous_response_id="resp_1").check()
    for missing in (request(input=""), request(input=None, previous_response_id="resp_1")):
        with pytest.raises(BadRequest, match="`input` is missing or empty"):
            missing.check()
    with pytest.raises(BadRequest, match="`max_output_tokens`: expected at least 1"):
        request(max_output_tokens=0).check()
    with pytest.raises(BadRequest, match="`max_output_tokens`: expected at most"):
        request(max_output_tokens=1 << 62).check()


def sent(**fields: Any) -> Any:
    return json.loads(b"{%b}" % request(**fields).options().sampling)


@pytest.mark.parametrize(
    ("fields", "passed"),
    [
        ({}, {}),
        ({"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}),
        ({"text": {}}, {}),
        ({"text": {"format": None}}, {}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}}},
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": False}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}, "strict": False},
                }
            },
        ),
        ({"text": {"verbosity": "high"}}, {"verbosity": "high"}),
        ({"tool_choice": None}, {}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "f"}],
                }
            },
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "f"}}],
                    },
                }
            },
        ),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"user": "u", "service_tier": "flex"}, {"user": "u", "service_tier": "flex"}),
        ({"prompt_cache_key": "k"}, {"prompt_cache_key": "k"}),
        ({"safety_identifier": "s"}, {"safety_identifier": "s"}),
        ({"prompt_cache_retention": "24h"}, {"prompt_cache_retention": "24h"}),
        ({"metadata": {"a": "b"}, "store": False}, {}),
    ],
)  # fmt: skip
def test_fields_reach_the_model_in_the_form_of_chat_completions(
    fields: dict[str, Any], passed: dict[str, Any]
) -> None:
    assert sent(**fields) == passed


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "more": 1}}}, "text.format"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "x"}]}}, "tool_choice"),
    ],
)  # fmt: skip
def test_a_malformed_wish_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        request(**fields).options()


def test_limits_and_effort_are_options_of_the_call() -> None:
    options = request(max_output_tokens=7, reasoning={"effort": "high"}).options()
    assert (options.max_output, options.reasoning) == (7, "high")
    options = request().options()
    assert (options.max_output, options.reasoning) == (None, None)


def test_what_an_answer_repeats_when_nothing_was_asked() -> None:
    told = json.loads(b"{%b}" % request().told([]))
    assert told == {
        "instructions": None, "max_output_tokens": None, "metadata": {},
        "parallel_tool_calls": True, "reasoning": {"effort": None, "summary": None}, "service_tier": None,
        "store": True, "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
        "tools": [], "top_p": None, "truncation": "disabled", "user": None, "safety_identifier": None,
        "prompt_cache_key": None,
    }  # fmt: skip


def test_what_an_answer_repeats_of_everything() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"a": 1}}
    fields: dict[str, Any] = {
        "instructions": "i", "max_output_tokens": 5, "metadata": {"a": "b"},
        "parallel_tool_calls": False, "reasoning": {"effort": "low", "summary": "auto"},
        "service_tier": "flex", "store": False, "temperature": 0, "top_p": 1, "user": "u",
        "text": {"format": {"type": "json_object"}, "verbosity": "low"}, "tool_choice": {"type": "function"},
        "safety_identifier": "s", "prompt_cache_key": "k",
    }  # fmt: skip
    asked = request(**fields, tools=[tool])
    told = json.loads(b"{%b}" % asked.told(asked.function_tools()))
    assert {name: told[name] for name in fields} == fields
    assert told["tools"] == [{**tool, "description": None, "strict": None}]
    assert not asked.is_stored


def test_tools_are_told_in_the_form_of_chat_completions() -> None:
    tools = request(
        tools=[
            {"type": "function", "name": "a", "description": "A", "strict": True, "parameters": {"x": [1]}},
            {"type": "function", "name": "b", "parameters": None, "output_schema": {}},
        ]
    ).function_tools()
    whole = {"name": "a", "description": "A", "strict": True, "parameters": {"x": [1]}}
    assert json.loads(encode_tools(tools)) == [
        {"type": "function", "function": whole},
        {"type": "function", "function": {"name": "b"}},
    ]
    assert encode_tools([]) == b""


def test_a_call_after_the_output_of_another_is_an_answer_of_its_own() -> None:
    """The model has seen the first result then. Calls before any output are of one answer."""
    first, second = (
        {"type": "function_call", "call_id": c, "name": "weather", "arguments": "{}"} for c in "ab"
    )
    sun, rain = ({"type": "function_call_output", "call_id": c, "output": "sun"} for c in "ab")
    assert [type(each) for each in read(first, sun, second, rain)] == [AssistantMessage, ToolResults] * 2
    assert [type(each) for each in read(first, second, sun, rain)] == [AssistantMessage, ToolResults]
    loop = read(first, sun, second, rain)
    assert loop[:2] == read(first, sun), "a longer request begins with the shorter one"
