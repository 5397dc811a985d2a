"""The model server's responses API: as strict as the real one, and as forgetful."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from talaria.testing.model_server import ModelServer
from talaria.testing.responses_requests import seal

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "a", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "x"}
TOOL = {"type": "function", "name": "a", "parameters": {}, "strict": False}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": seal("rs_1", "fc_1_thought"),
}
LED_TO = {**CALL, "id": "fc_1_thought"}
UNSIGNED = base64.b64encode(bytes(32) + b"rs_1 fc_1_thought").decode()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


async def post(server: ModelServer, **members: Any) -> tuple[int, Any]:
    body = {"model": "m", "store": False, **members}
    async with (
        aiohttp.ClientSession() as http,
        http.post(server.base_url + "/responses", json=body) as response,
    ):
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("items", "complaint"),
    [
        ([USER, OUTPUT], "No tool call found for function call output"),
        ([USER, CALL, OUTPUT, OUTPUT], "No tool call found for function call output"),
        ([USER, CALL], "No tool output found for function call c1"),
        ([USER, CALL, USER], "No tool output found for function call c1"),
        ([USER, CALL, CALL, OUTPUT], "Duplicate function call c1"),
        ([USER, {**CALL, "arguments": ""}, OUTPUT], "Missing required parameter: 'input[1].arguments'"),
        ([USER, {**CALL, "call_id": "c" * 65}], "Invalid 'input[1].call_id'"),
        ([USER, {**CALL, "id": "call_1"}, OUTPUT], "expected an ID that begins with 'fc'"),
        ([USER, {**CALL, "tool_calls": []}, OUTPUT], "Unknown parameter: 'input[1].tool_calls'"),
        ([{"type": "robot"}], "Invalid value for 'input[0].type': 'robot'"),
        ([{"role": "tool", "content": "x"}], "Invalid value for 'input[0].role'"),
        ([{"role": "user", "content": None}], "Invalid type for 'input[0].content'"),
        ([{**USER, "name": "ann"}], "Unknown parameter: 'input[0].name'"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "'input[0].content[0].type': 'text'",
        ),
        (
            [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
            "'input[0].content[0].type': 'input_text'",
        ),
        ([], "Missing required parameter: 'input'"),
        # Reasoning: issued here, whole, and in front of what it led to.
        ([USER, THOUGHT], "without its required following item"),
        ([USER, THOUGHT, CALL, OUTPUT], "without its required following item"),
        ([USER, THOUGHT, USER], "without its required following item"),
        ([USER, THOUGHT, THOUGHT, LED_TO, OUTPUT], "without its required following item"),
        ([USER, LED_TO, OUTPUT], "without its required 'reasoning' item"),
        ([USER, {**THOUGHT, "encrypted_content": "AAAA"}, LED_TO, OUTPUT], "could not be verified"),
        ([USER, {**THOUGHT, "encrypted_content": "?"}, LED_TO, OUTPUT], "could not be verified"),
        ([USER, {**THOUGHT, "encrypted_content": UNSIGNED}, LED_TO, OUTPUT], "could not be verified"),
        ([USER, {**THOUGHT, "id": "rs_2"}, LED_TO, OUTPUT], "could not be verified"),
        ([USER, {**THOUGHT, "encrypted_content": None}, LED_TO, OUTPUT], "Item with id 'rs_1' not found"),
        ([USER, {k: v for k, v in THOUGHT.items() if k != "summary"}], "'input[1].summary'"),
    ],
)
async def test_it_refuses_items_that_the_real_one_refuses(
    server: ModelServer, items: list[Any], complaint: str
) -> None:
    status, answer = await post(server, input=items)
    assert status == 400
    assert complaint in answer["error"]["message"]


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"messages": []}, "Unknown parameter: 'messages'"),
        ({"max_tokens": 5}, "Unknown parameter: 'max_tokens'"),
        ({"seed": 5}, "Unknown parameter: 'seed'"),
        ({"max_output_tokens": 15}, "Invalid 'max_output_tokens'"),
        ({"model": ""}, "Missing required parameter: 'model'"),
        ({"tools": [TOOL, TOOL]}, "Tool names must be unique"),
        ({"tools": [{**TOOL, "name": "no spaces"}]}, "Invalid 'tools[0].name'"),
        (
            {"tools": [{"type": "function", "function": {"name": "a"}}]},
            "Unknown parameter: 'tools[0].function'",
        ),
        ({"tools": [{"type": "function", "name": "a"}]}, "'tools[0].parameters'"),
        ({"tools": [{"type": "robot"}]}, "'tools[0].type'"),
        ({"tools": {}}, "'tools'"),
    ],
)
async def test_it_refuses_members_that_the_real_one_refuses(
    server: ModelServer, members: dict[str, Any], complaint: str
) -> None:
    status, answer = await post(server, input=[USER], **members)
    assert status == 400
    assert complaint in answer["error"]["message"]


async def test_it_takes_what_the_real_one_takes(server: ModelServer) -> None:
    items = [USER, THOUGHT, LED_TO, OUTPUT, {"role": "assistant", "content": "ok"}, USER]
    status, answer = await post(server, input=items, tools=[TOOL], instructions="Be kind.")
    assert (status, answer["output"][0]["content"][0]["text"]) == (200, "You said: hi")
    status, answer = await post(server, input="[[system]]", instructions="Be kind.")
    assert (status, len(answer["output"][0]["content"][0]["text"])) == (200, 64)


async def test_without_strictness_any_conversation_is_answered() -> None:
    async with ModelServer(strict=False) as server:
        status, answer = await post(server, input=[OUTPUT, USER, CALL, 3], max_tokens=1)
        assert status == 200
        assert answer["output"][0]["content"][0]["text"] == "You said: hi"


async def test_a_body_that_is_no_object_is_refused(server: ModelServer) -> None:
    async with aiohttp.ClientSession() as http:
        for body in (b"[1]", b"{", b"\xff"):
            async with http.post(server.base_url + "/responses", data=body) as response:
                assert response.status == 400
