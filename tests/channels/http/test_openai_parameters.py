"""The table of parameters, as OpenAI's own client meets it: nothing is ignored that changes the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from support.gateway import TOKEN, Api, in_process
from talaria.channels.http.chat_completions import CompletionRequest
from talaria.channels.http.responses_input import ResponsesRequest
from talaria.models.parameters import PARAMETERS, Rule
from talaria.testing.model_server import ModelServer

SESSION = {"X-Talaria-Session": "one"}
VALUES: dict[str, Any] = {
    "tool_choice": "required",
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "parallel_tool_calls": True,
    "max_tokens": 50,
    "max_completion_tokens": 50,
    "reasoning_effort": "low",
    "response_format": {"type": "json_object"},
    "verbosity": "low",
    "stop": ["x"],
    "logit_bias": {"5": 1},
    "user": "ann",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "logprobs": True,
    "seed": 5,
}  # those whose type is checked; any other value will do for the rest


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


async def ask(client: AsyncOpenAI, parameters: dict[str, Any], headers: dict[str, str] | None = None) -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    await client.chat.completions.create(
        model="main", messages=messages, extra_body=parameters, extra_headers=headers
    )


def value(name: str) -> Any:
    return VALUES.get(name, 1 if name.endswith(("_p", "_k", "penalty", "temperature")) else {"x": [2]})


def given(column: str, rule: Rule) -> list[str]:
    own = {"messages", "model", "stream", "stream_options", "tools"}
    return [name for name, row in PARAMETERS.items() if getattr(row, column) is rule and name not in own]


async def refuse(client: AsyncOpenAI, name: str, headers: dict[str, str] | None = None) -> None:
    sent = 3 if name == "n" else value(name)
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(client, {name: sent}, headers)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", name)
    assert f"`{name}`" in caught.value.message


async def test_stateless_parameters_are_passed_on_or_refused_by_name(
    client: AsyncOpenAI, model: ModelServer
) -> None:
    passed = {name: value(name) for name in given("chat", Rule.PASSED)}
    await ask(client, passed)
    sent = json.loads(model.bodies[-1])
    assert {name: sent[name] for name in passed} == passed
    for name in given("chat", Rule.REFUSED):
        await refuse(client, name)
        await ask(client, {name: None})
        for harmless in PARAMETERS[name].harmless:
            await ask(client, {name: harmless})
            assert name not in json.loads(model.bodies[-1])


async def test_a_session_ignores_what_is_harmless_and_refuses_the_rest(
    client: AsyncOpenAI, model: ModelServer
) -> None:
    ignored = {name: value(name) for name in given("session", Rule.IGNORED)}
    await ask(client, ignored, SESSION)
    assert not ignored.keys() & json.loads(model.bodies[-1]).keys()
    for name in [*given("session", Rule.REFUSED), "tools", "top_a"]:
        await refuse(client, name, SESSION)
    harmless = {n: row.harmless[0] for n, row in PARAMETERS.items() if row.harmless and row.chat != "—"}
    await ask(client, harmless, SESSION)
    assert model.requests == 2


async def test_a_parameter_of_one_provider_goes_through_as_it_is(
    client: AsyncOpenAI, model: ModelServer
) -> None:
    extras = {"top_a": 0.2, "chat_template_kwargs": {"enable_thinking": False}, "transforms": []}
    await ask(client, {**extras, "nothing": None, "temperature": 0.5})
    sent = json.loads(model.bodies[-1])
    assert {name: sent[name] for name in extras} == extras
    assert sent["temperature"] == 0.5
    assert "nothing" not in sent


@pytest.mark.parametrize(
    ("wire", "passed", "refused"),
    [
        (
            "openai-responses",
            {"temperature": 0.5, "service_tier": "flex", "metadata": {"a": "b"}, "prompt_cache_key": "k"},
            ["stop", "logit_bias", "top_a", "logprobs"],
        ),
        (
            "anthropic-messages",
            {"temperature": 0.5, "top_k": 5, "service_tier": "auto"},
            ["response_format", "logit_bias", "top_a", "logprobs"],
        ),
    ],
)
async def test_other_wire_formats_get_what_they_have(
    tmp_path: Path, model: ModelServer, wire: str, passed: dict[str, Any], refused: list[str]
) -> None:
    provider = {"base_url": model.base_url, "max_retries": 0, "api": wire, "api_key": "k"}
    async with (
        in_process(tmp_path, model, tables={"providers": {"scripted": provider}}) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        await ask(client, {**passed, "seed": 5, "response_format": {"type": "text"}})
        sent = json.loads(model.bodies[-1])
        assert {name: sent[name] for name in passed} == passed
        assert "seed" not in sent
        for name in refused:
            await refuse(client, name)


async def test_a_field_of_the_wrong_type_is_refused_beside_unknown_ones(api: Api) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "top_a": 1, "temperature": "warm"}
    answer = await api.post("/v1/chat/completions", body, 400)
    assert answer["error"]["param"] == "temperature"


def test_the_table_names_every_field_that_is_read() -> None:
    for name in CompletionRequest.__struct_fields__:
        assert PARAMETERS[name].chat is not Rule.ABSENT, name
    for name in ResponsesRequest.__struct_fields__:
        row = PARAMETERS[name]
        assert row.responses is not Rule.ABSENT, name
    named = {name for name, row in PARAMETERS.items() if row.responses is not Rule.ABSENT}
    assert named == set(ResponsesRequest.__struct_fields__)
