"""`/v1/messages`: Anthropic's API with its own client, and with models of every wire format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from support.gateway import TOKEN, Api, in_process
from talaria.testing.model_server import ModelServer

WIRES = ["openai-chat", "openai-responses", "anthropic-messages"]
WEATHER: Any = {"name": "weather", "description": "Tells it.", "input_schema": {"type": "object"}}
HELLO: Any = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def opened(folder: Path, wire: str, name: str) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Any]]:
    """Yield a client of a gateway whose model speaks `wire`, and the bodies that the model gets."""
    async with ModelServer() as model:
        provider = {"base_url": model.base_url, "max_retries": 0, "api": wire, "api_key": "k"}
        tables = {"providers": {"scripted": provider}, "model": {"provider": "scripted", "name": name}}
        async with (
            in_process(folder, model, tables=tables) as api,
            anthropic.AsyncAnthropic(base_url=api.url, api_key=TOKEN, max_retries=0) as client,
        ):
            yield client, model.bodies


async def post(api: Api, body: dict[str, Any], status: int = 200, **headers: str) -> Any:
    return await api.post("/v1/messages", {"max_tokens": 100, **body}, status, headers=headers)


async def refusal(api: Api, body: dict[str, Any], status: int = 400) -> str:
    answer = await post(api, body, status)
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    return str(answer["error"]["message"])


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_official_client_calls_tools_and_sends_thoughts_back(
    tmp_path: Path, wire: str, streams: bool
) -> None:
    """The strict fake of Anthropic's API refuses a thought whose signature has changed."""
    thinking: Any = {"type": "enabled", "budget_tokens": 2000}
    async with opened(tmp_path, wire, "claude-sonnet-4-5") as (client, bodies):
        said: list[Any] = [{"role": "user", "content": '[[think why]][[call weather {"city": "Rome"}]]'}]
        for _ in range(2):
            given: Any = {"model": "main", "max_tokens": 4000, "messages": said, "thinking": thinking}
            given |= {"tools": [WEATHER], "system": [{"type": "text", "text": "Be kind."}]}
            if streams:
                async with client.messages.stream(**given) as stream:
                    message: Any = await stream.get_final_message()
            else:
                message = await client.messages.create(**given)
            if message.stop_reason != "tool_use":
                break
            thought, call = message.content
            assert (thought.type, thought.thinking) == ("thinking", "why")
            assert bool(thought.signature) is (wire == "anthropic-messages")
            assert (call.name, call.input) == ("weather", {"city": "Rome"})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
            said += [{"role": "assistant", "content": message.content}]
            said += [{"role": "user", "content": [result, {"type": "text", "text": "[[reply so]]"}]}]
    assert [block.text for block in message.content if block.type == "text"] == ["so"]
    last = json.loads(bodies[-1])
    assert "Be kind." in json.dumps(last)
    if wire == "anthropic-messages":
        assert (last["thinking"], last["max_tokens"]) == (thinking, 4000)
    elif wire == "openai-responses":
        assert last["reasoning"]["effort"] == "low"


async def test_fields_that_only_claude_knows_are_ignored_by_name_for_other_models(api: Api) -> None:
    body = {"model": "main", "max_tokens": 9, "messages": HELLO, "top_k": 5, "new_field": {"a": 1}}
    async with api.client.post(api.url + "/v1/messages?beta=true", json=body) as response:
        assert response.status == 200
        assert response.headers["X-Talaria-Ignored"] == "new_field, top_k"
        assert response.headers["request-id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
async def test_choices_of_tools_are_translated(
    api: Api, model: ModelServer, choice: dict[str, Any], expected: Any
) -> None:
    body = {
        "messages": HELLO,
        "tools": [WEATHER],
        "tool_choice": {**choice, "disable_parallel_tool_use": True},
    }
    await post(api, {**body, "stop_sequences": ["END"], "temperature": 0.5})
    sent = json.loads(model.bodies[-1])
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == (expected, False)
    assert (sent["stop"], sent["temperature"], sent["max_tokens"]) == (["END"], 0.5, 100)


async def test_a_schema_for_the_answer_is_translated(api: Api, model: ModelServer) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    await post(api, {"messages": HELLO, "output_config": {"format": wanted, "effort": "low"}})
    sent = json.loads(model.bodies[-1])
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert sent["reasoning_effort"] == "low"


async def test_neighbouring_messages_of_one_role_are_one_message(api: Api, model: ModelServer) -> None:
    uses = [{"type": "tool_use", "id": f"c{n}", "name": "weather", "input": {}} for n in (1, 2)]
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": f"c{n}", "content": f"r{n}"} for n in (2, 1)
    ]
    results[0] |= {"is_error": True}
    said = [*HELLO, {"role": "assistant", "content": uses}]
    said += [{"role": "user", "content": [result]} for result in results]
    said += [{"role": "user", "content": [{"type": "text", "text": "go on"}]}]
    await post(api, {"messages": said, "tools": [WEATHER]})
    sent = json.loads(model.bodies[-1])["messages"]
    assert [(one["role"], one.get("tool_call_id")) for one in sent[2:]] == [
        ("tool", "c1"),
        ("tool", "c2"),
        ("user", None),
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        ({"messages": HELLO, "mcp_servers": []}, "mcp_servers"),
        (
            {"messages": HELLO, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0].type",
        ),
        ({"messages": HELLO, "tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"messages": HELLO, "tools": [{"name": "a", "input_schema": []}]}, "tools[0].input_schema"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "document",
                                "source": {"type": "base64", "media_type": "application/pdf", "data": ""},
                            }
                        ],
                    }
                ]
            },
            "messages[0].content[0].source",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {}}],
                    },
                    *HELLO,
                ]
            },
            "messages[2].content",
        ),
    ],
)
async def test_what_cannot_be_answered_is_refused_by_its_field(
    api: Api, body: dict[str, Any], field: str
) -> None:
    assert f"`{field}`" in await refusal(api, body)


async def test_a_session_takes_the_last_message_and_says_that_the_system_text_is_ignored(api: Api) -> None:
    body = {
        "max_tokens": 9,
        "system": "Be kind.",
        "messages": [*HELLO, *HELLO, {"role": "user", "content": "x"}],
    }
    headers = {"X-Talaria-Session": "demo"}
    async with api.client.post(api.url + "/v1/messages", json=body, headers=headers) as response:
        assert response.headers["X-Talaria-Ignored"] == "system"
        assert (await response.json())["content"] == [{"type": "text", "text": "You said: x"}]
    refused = await post(api, {"messages": HELLO, "tools": [WEATHER]}, 400, **headers)
    assert "`tools`" in refused["error"]["message"]


async def test_tokens_are_counted_by_size_and_an_image_counts_as_an_image(api: Api) -> None:
    async def count(content: Any) -> int:
        body = {"model": "main", "messages": [{"role": "user", "content": content}]}
        counted = await api.post("/v1/messages/count_tokens", body)
        return int(counted["input_tokens"])

    assert 900 < await count("word " * 600) - await count("") < 1100
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 300_000}
    assert 1000 < await count([{"type": "image", "source": source}]) < 3000


async def test_the_api_key_of_the_official_client_must_be_a_token_of_the_gateway(api: Api) -> None:
    async with anthropic.AsyncAnthropic(base_url=api.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as error:
            await client.messages.create(model="main", max_tokens=9, messages=HELLO)
        assert error.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    async with anthropic.AsyncAnthropic(base_url=api.url, api_key=TOKEN, max_retries=0) as client:
        assert "main" in [card.id async for card in client.models.list()]


async def test_a_conversation_that_is_too_long_begins_with_the_words_that_claude_code_looks_for(
    api: Api,
) -> None:
    said = [{"role": "user", "content": "[[status 400]] [[code context_length_exceeded]]"}]
    assert (await refusal(api, {"messages": said})).startswith("prompt is too long: ")


@pytest.mark.parametrize(
    "given",
    [
        {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "max"}},
        {"thinking": {"type": "disabled"}},
    ],
)
async def test_claude_gets_thinking_and_effort_as_they_were_sent(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    async with opened(tmp_path, "anthropic-messages", "claude-opus-4-7") as (client, bodies):
        await client.messages.create(model="main", max_tokens=4000, messages=HELLO, **given)
    sent = json.loads(bodies[-1])
    assert {name: sent[name] for name in given} == given


async def test_wrong_members_are_refused_by_their_field(api: Api) -> None:
    for given in ({"thinking": {"type": 1}}, {"output_config": {"effort": 1}}):
        (field,) = given
        assert f"`{field}." in await refusal(api, {"messages": HELLO, **given})


async def test_counting_tokens_takes_the_requests_that_are_answered(api: Api) -> None:
    tools = [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]
    url, body = api.url + "/v1/messages/count_tokens", {"messages": HELLO, "tools": tools}
    async with api.client.post(url, json=body, headers={"X-Talaria-Tools": "functions"}) as response:
        assert response.status == 200
        assert response.headers["X-Talaria-Ignored"] == "tools.web_search_20250305"
    answer = await api.post("/v1/messages/count_tokens", {"messages": HELLO * 5001}, 413)
    assert answer["error"]["type"] == "request_too_large"


async def test_a_session_answers_in_text(api: Api) -> None:
    wanted = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    body = {"messages": HELLO, "output_config": wanted}
    refused = await post(api, body, 400, **{"X-Talaria-Session": "demo"})
    assert "`output_config.format`" in refused["error"]["message"]


async def test_every_answer_and_every_error_has_the_id_of_its_request(api: Api) -> None:
    for path, status in (("/v1/messages", 401), ("/v1/messages/batches", 401)):
        async with api.client.post(
            api.url + path, json={"messages": HELLO}, headers={"Authorization": "Bearer wrong"}
        ) as response:
            assert response.status == status
            assert (await response.json())["request_id"] == response.headers["request-id"]
