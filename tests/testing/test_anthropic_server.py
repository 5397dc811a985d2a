"""The scripted server's side of Anthropic messages: what it takes and refuses, as the real one does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from talaria.testing.anthropic_answers import sign
from talaria.testing.model_server import ModelServer

HEADERS = {"x-api-key": "sk-test", "anthropic-version": "2023-06-01"}
TOOL = {"name": "a", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "hi"}
MARK = {"cache_control": {"type": "ephemeral"}}
CALL = {"type": "tool_use", "id": "c1", "name": "a", "input": {}}
CALLS = {"role": "assistant", "content": [CALL]}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": sign("hm")}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "x"}
RESULTS = {"role": "user", "content": [RESULT]}
THINKING = {"type": "enabled", "budget_tokens": 1024}


def says(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def post(
    http: aiohttp.ClientSession, server: ModelServer, body: Any, headers: dict[str, str] = HEADERS
) -> tuple[int, Any]:
    async with http.post(server.base_url + "/messages", json=body, headers=headers) as response:
        return response.status, await response.json()


def request(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 4000, "messages": list(messages), **more}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (request(), "at least one message"),
        (request(USER) | {"max_tokens": None}, "max_tokens: Field required"),
        (request(USER) | {"model": ""}, "model: Field required"),
        (request(USER, stream_options={}), "stream_options: Extra inputs are not permitted"),
        (request(USER, tools=[TOOL, TOOL]), "Tool names must be unique"),
        (request(USER, tools=[TOOL | {"name": "no spaces"}]), "should match pattern"),
        (request(USER, tools=[{"name": "a"}]), "input_schema"),
        (request(USER, tools=[{"type": "function", "function": {"name": "a"}}]), "Extra inputs"),
        (request(USER, tool_choice={"type": "auto"}), "tool_choice"),
        (request({"role": "assistant", "content": "x"}, USER), 'first message must use the "user" role'),
        (request(USER, {"role": "system", "content": "x"}), "should be 'user' or 'assistant'"),
        (request({"role": "tool", "content": "x"}), "should be 'user' or 'assistant'"),
        (request(USER | {"name": "ann"}), "Extra inputs"),
        (request({"role": "user", "content": ""}), "non-empty content"),
        (request({"role": "user", "content": []}), "non-empty content"),
        (request(says(text(" \n"))), "non-whitespace text"),
        (request(USER, system=[text("")]), "non-whitespace text"),
        (request(USER, says(text(""), role="assistant"), USER), "non-whitespace text"),
        (request(says(text("x") | {"extra": 1})), "Extra inputs"),
        (request(says({"type": "image_url"})), "does not match"),
        (request(says({"type": "image", "source": {"type": "base64"}})), "image.source"),
        (request(USER, RESULTS), "unexpected `tool_use_id`"),
        (request(USER, CALLS, RESULTS, RESULTS), "unexpected `tool_use_id`"),
        (request(USER, CALLS), "without `tool_result`"),
        (request(USER, CALLS, USER), "without `tool_result`"),
        (request(USER, CALLS, says(text("x"), RESULT)), "must come first"),
        (request(USER, says(CALL, CALL, role="assistant"), RESULTS), "must be unique"),
        (request(USER, says(CALL | {"id": "a.b:0"}, role="assistant")), "tool_use.id"),
        (request(USER, says(CALL | {"input": "{}"}, role="assistant")), "should be an object"),
        (request(USER, says(THOUGHT, role="assistant"), USER), "cannot be `thinking`"),
        (
            request(USER, says(THOUGHT | {"signature": "x"}, text("y"), role="assistant")),
            "Invalid `signature`",
        ),
        (
            request(USER, says(THOUGHT | {"thinking": "x"}, text("y"), role="assistant")),
            "Invalid `signature`",
        ),
        (request(USER, says({"type": "thinking", "thinking": "hm"}, CALL, role="assistant")), "`signature`"),
        (request(USER, says({"type": "redacted_thinking", "data": "x"}, CALL, role="assistant")), "`data`"),
        (request(USER, says(THOUGHT | MARK, text("y"), role="assistant"), USER), "Extra inputs"),
        (request(says(*[text("x") | MARK] * 5)), "A maximum of 4 blocks"),
        (request(USER, thinking={"type": "enabled", "budget_tokens": 100}), "at least 1024"),
        (request(USER, thinking={"type": "enabled", "budget_tokens": 4000}), "must be greater than"),
        (request(USER, thinking={"type": "adaptive", "budget_tokens": 4000}), "Extra inputs"),
        (request(USER, thinking=THINKING, temperature=0.5), "`temperature` may only"),
        (request(USER, thinking=THINKING, tools=[TOOL], tool_choice={"type": "any"}), "forces tool use"),
        (request(USER, CALLS, RESULTS, thinking=THINKING), "must start with a thinking block"),
        (request(USER, temperature=0.5, top_p=0.5), "cannot both be specified"),
        (request(USER, stop_sequences=["\n"]), "non-whitespace"),
        (request(USER, 3), "wrong shape"),
        ([1], "not valid JSON"),
    ],
)
async def test_it_refuses_what_the_real_server_refuses(
    server: ModelServer, http: aiohttp.ClientSession, body: Any, complaint: str
) -> None:
    status, answer = await post(http, server, body)
    assert status == 400
    assert complaint in answer["error"]["message"]
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")


@pytest.mark.parametrize(
    "body",
    [
        request(USER, CALLS, RESULTS, USER, tools=[TOOL]),
        request(USER, USER, says(THOUGHT, CALL, role="assistant"), RESULTS, thinking=THINKING),
        request(USER, CALLS, RESULTS, says(text("x"), role="assistant"), USER, thinking=THINKING),
        request(USER, system="Be kind.", stop_sequences=["x"], temperature=0.5),
        request(says(text("hi"), {"type": "image", "source": {"type": "url", "url": "https://x"}})),
    ],
)
async def test_it_takes_what_the_real_server_takes(
    server: ModelServer, http: aiohttp.ClientSession, body: Any
) -> None:
    status, answer = await post(http, server, body)
    assert status == 200, answer
    assert answer["type"] == "message"


async def test_it_wants_a_key_and_a_version(server: ModelServer, http: aiohttp.ClientSession) -> None:
    status, answer = await post(http, server, request(USER), {"anthropic-version": "2023-06-01"})
    assert (status, answer["error"]["type"]) == (401, "authentication_error")
    status, answer = await post(http, server, request(USER), {"x-api-key": "k"})
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert "anthropic-version" in answer["error"]["message"]
    for key in ({"x-api-key": "k"}, {"Authorization": "Bearer k"}):
        status, _ = await post(http, server, request(USER), {**key, "anthropic-version": "2023-06-01"})
        assert status == 200


async def test_without_strictness_any_conversation_is_answered(http: aiohttp.ClientSession) -> None:
    async with ModelServer(strict=False, record=False) as server:
        status, answer = await post(http, server, {"model": "m", "messages": [RESULTS, USER, CALLS]}, {})
        assert (status, answer["content"][0]["text"]) == (200, "You said: hi")
