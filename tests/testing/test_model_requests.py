"""The model server accepts and refuses the same requests as the real servers, on each of its APIs."""

from __future__ import annotations

import base64
from typing import Any

import aiohttp
import pytest

from talaria.testing.anthropic_api import sign
from talaria.testing.model_server import ModelServer
from talaria.testing.openai_responses_api import seal

HEADERS = {"x-api-key": "sk-test", "anthropic-version": "2023-06-01"}


async def post(
    server: ModelServer, http: aiohttp.ClientSession, path: str, body: Any, headers: Any = HEADERS
) -> tuple[int, Any]:
    async with http.post(f"{server.base_url}/{path}", json=body, headers=headers) as response:
        return response.status, await response.json()


USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "ok"}


CHAT_TOOL = {"type": "function", "function": {"name": "a", "parameters": {}}}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
CHAT_CALLS = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CHAT_RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}


def chat(*messages: Any, **more: Any) -> tuple[str, Any]:
    return "chat/completions", {"model": "m", "messages": list(messages), **more}


ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}"}
ITEM_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "x"}
ITEM_IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
ITEM_TOOL = {"type": "function", "name": "a", "parameters": {}, "strict": False}
ITEM_SEALED = seal("rs_1", "fc_1_thought")
ITEM_THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": ITEM_SEALED}
ITEM_LED_TO = {**ITEM_CALL, "id": "fc_1_thought"}
ITEM_UNSIGNED = base64.b64encode(bytes(32) + b"rs_1 fc_1_thought").decode()


def responses(*items: Any, **more: Any) -> tuple[str, Any]:
    return "responses", {"model": "m", "store": False, "input": list(items), **more}


def thought(**more: Any) -> tuple[str, Any]:
    """Return reasoning with another signature, before the item that it led to."""
    return responses(USER, ITEM_THOUGHT | more, ITEM_LED_TO, ITEM_OUTPUT)


BLOCK_TOOL = {"name": "a", "input_schema": {"type": "object"}}
BLOCK_MARK = {"cache_control": {"type": "ephemeral"}}
BLOCK_CALL = {"type": "tool_use", "id": "c1", "name": "a", "input": {}}
BLOCK_CALLS = {"role": "assistant", "content": [BLOCK_CALL]}
BLOCK_THOUGHT = {"type": "thinking", "thinking": "hm", "signature": sign("hm")}
BLOCK_IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
BLOCK_RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
BLOCK_RESULTS = {"role": "user", "content": [BLOCK_RESULT]}
BLOCK_THINKING = {"type": "enabled", "budget_tokens": 1024}


def messages(*said: Any, **more: Any) -> tuple[str, Any]:
    return "messages", {"model": "m", "max_tokens": 4000, "messages": list(said), **more}


def says(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def replies(*blocks: Any) -> dict[str, Any]:
    return says(*blocks, role="assistant")


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


CHAT = [
    (chat(USER, CHAT_CALLS, CHAT_RESULT, tools=[CHAT_TOOL, CHAT_TOOL]), "Tool names must be unique"),
    (chat(USER, tools=[]), "$.tools"),
    (chat(USER, tools=[{"type": "function", "function": {"name": "no spaces"}}]), "$.tools[0].function.name"),
    (chat(USER, CHAT_RESULT), "must answer a call"),
    (chat(USER, CHAT_CALLS, CHAT_RESULT, CHAT_RESULT), "must answer a call"),
    (chat(USER, CHAT_CALLS), "must be followed by tool messages"),
    (chat(USER, CHAT_CALLS, USER), "must be followed by tool messages"),
    (chat(USER, replies() | {"tool_calls": [CHAT_CALL, CHAT_CALL], "content": None}), "must be unique"),
    (chat(USER, {"role": "assistant", "content": None}), "expected a string"),
    (chat({"role": "robot", "content": "x"}), "$.messages[0].role"),
    (chat({"role": "user", "content": None}), "$.messages[0].content"),
    (chat(says({"type": "image_url", "image_url": {"url": "data:text/plain,x"}})), "image_url.url"),
    (chat(USER, CHAT_CALLS, CHAT_RESULT | {"content": None}), "$.messages[2].content"),
    (chat(USER, CHAT_CALLS, CHAT_RESULT | {"content": []}), "$.messages[2].content"),
    (chat(USER, CHAT_CALLS, CHAT_RESULT | {"content": [CHAT_IMAGE]}), "$.messages[2].content[0].type"),
    (chat(), "$.messages"),
    (chat(USER, model=""), "$.model"),
    (("chat/completions", [1]), "must be a JSON object"),
]
RESPONSES = [
    (responses(USER, ITEM_OUTPUT), "No tool call found for function call output"),
    (responses(USER, ITEM_CALL, ITEM_OUTPUT, ITEM_OUTPUT), "No tool call found for function call output"),
    (responses(USER, ITEM_CALL), "No tool output found for function call ['c1']"),
    (responses(USER, ITEM_CALL, USER), "No tool output found for function call ['c1']"),
    (responses(USER, ITEM_CALL, ITEM_CALL, ITEM_OUTPUT), "Duplicate function call c1"),
    (responses(USER, ITEM_CALL | {"arguments": ""}, ITEM_OUTPUT), "$.input[1].arguments"),
    (responses(USER, ITEM_CALL | {"call_id": "c" * 65}), "$.input[1].call_id"),
    (responses(USER, ITEM_CALL | {"id": "call_1"}, ITEM_OUTPUT), "$.input[1].id"),
    (responses(USER, ITEM_CALL | {"tool_calls": []}, ITEM_OUTPUT), "unknown field `tool_calls`"),
    (responses({"type": "robot"}), "Invalid value 'robot' - at `$.input[0].type`"),
    (responses({"role": "tool", "content": "x"}), "$.input[0].role"),
    (responses({"role": "user", "content": None}), "$.input[0].content"),
    (responses(USER | {"name": "ann"}), "unknown field `name`"),
    (responses(says(text("x"))), "$.input[0].content[0].type"),
    (responses(replies({"type": "input_text", "text": "x"})), "'input[0].content'"),
    (responses(says({"type": "output_text", "text": "x"})), "'input[0].content'"),
    (responses(USER, ITEM_CALL, ITEM_OUTPUT | {"output": []}), "$.input[2].output"),
    (responses(USER, ITEM_CALL, ITEM_OUTPUT | {"output": [CHAT_IMAGE]}), "$.input[2].output[0].type"),
    (
        responses(USER, ITEM_CALL, ITEM_OUTPUT | {"output": [ITEM_IMAGE | {"image_url": "file:///x"}]}),
        "$.input[2].output[0].image_url",
    ),
    (
        responses(USER, ITEM_CALL, ITEM_OUTPUT | {"output": [ITEM_IMAGE | {"detail": "huge"}]}),
        "$.input[2].output[0].detail",
    ),
    (responses(), "$.input"),
    (responses(USER, ITEM_THOUGHT), "without its required following item"),
    (responses(USER, ITEM_THOUGHT, ITEM_CALL, ITEM_OUTPUT), "without its required following item"),
    (responses(USER, ITEM_THOUGHT, USER), "without its required following item"),
    (responses(USER, ITEM_THOUGHT, ITEM_THOUGHT, ITEM_LED_TO), "without its required following item"),
    (responses(USER, ITEM_LED_TO, ITEM_OUTPUT), "without its required 'reasoning' item"),
    (thought(encrypted_content="AAAA"), "could not be verified"),
    (thought(encrypted_content="?"), "could not be verified"),
    (thought(encrypted_content=ITEM_UNSIGNED), "could not be verified"),
    (thought(id="rs_2"), "could not be verified"),
    (thought(encrypted_content=None), "Item with id 'rs_1' not found"),
    (responses(USER, {"type": "reasoning", "id": "rs_1"}), "required field `summary`"),
    (responses(USER, messages=[]), "Unknown parameter: ['messages']"),
    (responses(USER, max_tokens=5), "Unknown parameter: ['max_tokens']"),
    (responses(USER, seed=5), "Unknown parameter: ['seed']"),
    (responses(USER, max_output_tokens=15), "$.max_output_tokens"),
    (responses(USER, model=""), "$.model"),
    (responses(USER, tools=[ITEM_TOOL, ITEM_TOOL]), "Tool names must be unique"),
    (responses(USER, tools=[ITEM_TOOL | {"name": "no spaces"}]), "$.tools[0].name"),
    (responses(USER, tools=[{"type": "function", "function": {"name": "a"}}]), "$.tools[0]"),
    (responses(USER, tools=[{"type": "function", "name": "a"}]), "required field `parameters`"),
    (responses(USER, tools=[{"type": "robot"}]), "$.tools[0].type"),
    (responses(USER, tools={}), "$.tools"),
]
MESSAGES = [
    (messages(), "$.messages"),
    (messages(USER, max_tokens=None), "$.max_tokens"),
    (messages(USER, model=""), "$.model"),
    (messages(USER, stream_options={}), "unknown field `stream_options`"),
    (messages(USER, tools=[BLOCK_TOOL, BLOCK_TOOL]), "Tool names must be unique"),
    (messages(USER, tools=[BLOCK_TOOL | {"name": "no spaces"}]), "$.tools[0].name"),
    (messages(USER, tools=[{"name": "a"}]), "input_schema"),
    (messages(USER, tools=[{"name": "a", "input_schema": {}}]), "input_schema"),
    (messages(USER, tools=[{"type": "function", "function": {"name": "a"}}]), "$.tools[0]"),
    (messages(USER, tool_choice={"type": "auto"}), "tool_choice"),
    (messages(ASSISTANT, USER), 'first message must use the "user" role'),
    (messages(USER, {"role": "system", "content": "x"}), "$.messages[1].role"),
    (messages({"role": "tool", "content": "x"}), "$.messages[0].role"),
    (messages(USER | {"name": "ann"}), "unknown field `name`"),
    (messages({"role": "user", "content": ""}), "$.messages[0].content"),
    (messages({"role": "user", "content": []}), "$.messages[0].content"),
    (messages(says(text(" \n"))), "content[0].text"),
    (messages(USER, system=[text("")]), "$.system[0].text"),
    (messages(USER, replies(text("")), USER), "content[0].text"),
    (messages(says(text("x") | {"extra": 1})), "unknown field `extra`"),
    (messages(says({"type": "image_url"})), "content[0].type"),
    (messages(says({"type": "image", "source": {"type": "base64"}})), "source"),
    (messages(USER, BLOCK_RESULTS), "unexpected `tool_use_id`"),
    (messages(USER, BLOCK_CALLS, BLOCK_RESULTS, BLOCK_RESULTS), "unexpected `tool_use_id`"),
    (
        messages(USER, BLOCK_CALLS, says(BLOCK_RESULT | {"content": [CHAT_IMAGE]})),
        "content[0].content[0].type",
    ),
    (
        messages(USER, BLOCK_CALLS, says(BLOCK_RESULT | {"content": [BLOCK_IMAGE], "is_error": True})),
        "all content must be type 'text' if 'is_error' is true",
    ),
    (messages(USER, BLOCK_CALLS), "without `tool_result`"),
    (messages(USER, BLOCK_CALLS, USER), "without `tool_result`"),
    (messages(USER, BLOCK_CALLS, says(text("x"), BLOCK_RESULT)), "must come first"),
    (messages(USER, replies(BLOCK_CALL, BLOCK_CALL), BLOCK_RESULTS), "must be unique"),
    (messages(USER, replies(BLOCK_CALL | {"id": "a.b:0"})), "content[0].id"),
    (messages(USER, replies(BLOCK_CALL | {"input": "{}"})), "content[0].input"),
    (messages(USER, replies(BLOCK_THOUGHT), USER), "cannot be `thinking`"),
    (messages(USER, replies(BLOCK_THOUGHT | {"signature": "x"}, text("y"))), "Invalid `signature`"),
    (messages(USER, replies(BLOCK_THOUGHT | {"thinking": "x"}, text("y"))), "Invalid `signature`"),
    (messages(USER, replies({"type": "thinking", "thinking": "hm"}, BLOCK_CALL)), "`signature`"),
    (messages(USER, replies({"type": "redacted_thinking", "data": "x"}, BLOCK_CALL)), "`data`"),
    (messages(USER, replies(BLOCK_THOUGHT | BLOCK_MARK, text("y")), USER), "unknown field"),
    (messages(says(*[text("x") | BLOCK_MARK] * 5)), "A maximum of 4 blocks"),
    (messages(USER, thinking={"type": "enabled", "budget_tokens": 100}), "$.thinking.budget_tokens"),
    (messages(USER, thinking={"type": "enabled", "budget_tokens": 4000}), "must be greater than"),
    (messages(USER, thinking={"type": "adaptive", "budget_tokens": 4000}), "unknown field `budget_tokens`"),
    (messages(USER, thinking=BLOCK_THINKING, temperature=0.5), "`temperature` may only"),
    (
        messages(USER, thinking=BLOCK_THINKING, tools=[BLOCK_TOOL], tool_choice={"type": "any"}),
        "forces tool use",
    ),
    (
        messages(USER, BLOCK_CALLS, BLOCK_RESULTS, thinking=BLOCK_THINKING),
        "must start with a thinking block",
    ),
    (messages(USER, temperature=0.5, top_p=0.5), "cannot both be specified"),
    (messages(USER, stop_sequences=["\n"]), "$.stop_sequences[0]"),
    (messages(USER, 3), "$.messages[1]"),
]


@pytest.mark.parametrize(("request_", "complaint"), CHAT + RESPONSES + MESSAGES)
async def test_it_refuses_what_the_real_server_refuses(
    server: ModelServer, http: aiohttp.ClientSession, request_: tuple[str, Any], complaint: str
) -> None:
    status, answer = await post(server, http, *request_)
    assert status == 400
    assert complaint in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "request_",
    [
        chat(USER, CHAT_CALLS, CHAT_RESULT, ASSISTANT, USER, tools=[CHAT_TOOL]),
        responses(USER, ITEM_THOUGHT, ITEM_LED_TO, ITEM_OUTPUT, ASSISTANT, USER, tools=[ITEM_TOOL]),
        ("responses", {"model": "m", "input": "hi"}),
        chat(USER, CHAT_CALLS, CHAT_RESULT, says(text("[image 1 from a]"), CHAT_IMAGE)),
        responses(
            USER, ITEM_CALL, ITEM_OUTPUT | {"output": [{"type": "input_text", "text": ""}, ITEM_IMAGE]}
        ),
        messages(USER, BLOCK_CALLS, says(BLOCK_RESULT | {"content": [text("a"), BLOCK_IMAGE]})),
        messages(USER, BLOCK_CALLS, says(BLOCK_RESULT | {"content": [text("a")], "is_error": True})),
        messages(USER, BLOCK_CALLS, BLOCK_RESULTS, USER, tools=[BLOCK_TOOL]),
        messages(USER, USER, replies(BLOCK_THOUGHT, BLOCK_CALL), BLOCK_RESULTS, thinking=BLOCK_THINKING),
        messages(USER, BLOCK_CALLS, BLOCK_RESULTS, ASSISTANT, USER, thinking=BLOCK_THINKING),
        messages(USER, system="Be kind.", stop_sequences=["x"], temperature=0.5),
        messages(says(text("hi"), {"type": "image", "source": {"type": "url", "url": "https://x"}})),
    ],
)
async def test_it_takes_what_the_real_server_takes(
    server: ModelServer, http: aiohttp.ClientSession, request_: tuple[str, Any]
) -> None:
    status, answer = await post(server, http, *request_)
    assert status == 200, answer


async def test_instructions_are_the_system_message(server: ModelServer, http: aiohttp.ClientSession) -> None:
    body = {"model": "m", "input": "[[system]]", "instructions": "Be kind."}
    _, answer = await post(server, http, "responses", body)
    assert len(answer["output"][0]["content"][0]["text"]) == 64


async def test_anthropics_wants_a_key_and_a_version(server: ModelServer, http: aiohttp.ClientSession) -> None:
    version, key = {"anthropic-version": "2023-06-01"}, {"x-api-key": "k"}
    status, answer = await post(server, http, *messages(USER), version)
    assert (status, answer["type"], answer["error"]["type"]) == (401, "error", "authentication_error")
    status, answer = await post(server, http, *messages(USER), key)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert "anthropic-version" in answer["error"]["message"]
    for each in (key, {"Authorization": "Bearer k"}):
        status, _ = await post(server, http, *messages(USER), each | version)
        assert status == 200
