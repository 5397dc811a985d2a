"""The OpenAI-compatible door, through OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from support.gateway import TOKEN, Api, in_process
from talaria.channels.http.response import StreamTiming
from talaria.testing.model_server import ModelServer

WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


async def test_models_are_the_agent_the_model_and_the_aliases(client: AsyncOpenAI) -> None:
    names = [model.id async for model in client.models.list()]
    assert names == ["main", "scripted/scripted", "fast"]


# -- without a session ------------------------------------------------------------------------------------


async def test_a_stateless_call_sends_what_it_was_given(client: AsyncOpenAI, model: ModelServer) -> None:
    answer = await client.chat.completions.create(
        model="fast",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Really."}]},
            {"role": "user", "content": [{"type": "text", "text": "one"}], "name": "ann"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "[[usage 9 4 3 2]]"},
        ],
        temperature=0.2,
        top_p=1,
        stop=["x"],
        max_completion_tokens=50,
        reasoning_effort="low",
        response_format={"type": "json_object"},
    )
    assert answer.choices[0].message.content == "You said: "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        9,
        3,
        12,
    )
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    sent = json.loads(model.bodies[0])
    assert [message["role"] for message in sent["messages"]] == [
        "system",
        "developer",
        "user",
        "assistant",
        "user",
    ]
    assert sent["model"] == "fast"
    assert sent["temperature"] == 0.2
    assert sent["top_p"] == 1
    assert sent["stop"] == ["x"]
    assert sent["max_tokens"] == 50
    assert sent["reasoning_effort"] == "low"
    assert sent["response_format"] == {"type": "json_object"}
    assert "tools" not in sent


async def test_a_stateless_call_leaves_nothing_in_pool_or_list(client: AsyncOpenAI, api: Api) -> None:
    raw = await client.chat.completions.with_raw_response.create(model="main", messages=user("hi"))
    assert (await api.get("/api/pool"))["size"] == 0
    assert (await api.get("/api/sessions"))["items"] == []
    turn = await api.get(f"/api/turns/{raw.headers['x-talaria-turn-id']}")
    assert turn["session_id"] == raw.headers["x-talaria-session-id"]
    assert raw.parse().id == f"chatcmpl-{turn['id']}"


async def test_the_callers_tools_come_back_as_calls_and_go_on_with_results(
    client: AsyncOpenAI, model: ModelServer
) -> None:
    messages = user('[[call weather {"a": 1} + call weather {"b": 2}]]')
    first = await client.chat.completions.create(model="main", messages=messages, tools=[WEATHER])
    assert first.choices[0].finish_reason == "tool_calls"
    calls = first.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.arguments for call in calls if call.type == "function"] == ['{"a": 1}', '{"b": 2}']
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": call.id} for call in reversed(calls)]
    second = await client.chat.completions.create(model="main", messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == f"Tool results: {calls[0].id}; {calls[1].id}"
    sent = json.loads(model.bodies[1])
    assert sent["tools"] == [WEATHER]
    assert [message.get("tool_call_id") for message in sent["messages"][2:]] == [call.id for call in calls]


async def test_a_repeated_key_gives_the_same_answer_calls_included(
    client: AsyncOpenAI, model: ModelServer
) -> None:
    answers = [
        await client.chat.completions.create(
            model="main",
            messages=user('[[call weather {"a": 1}]]'),
            tools=[WEATHER],
            extra_headers={"Idempotency-Key": "same"},
        )
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert model.requests == 1


async def test_a_stateless_call_is_cancelled_when_its_client_leaves(
    client: AsyncOpenAI, api: Api, model: ModelServer
) -> None:
    asked = asyncio.create_task(client.chat.completions.create(model="main", messages=user("[[hang]]")))
    await model.until(lambda: model.requests > 0)
    asked.cancel()
    await model.until(lambda: not model.connections)
    assert await states(api) == {"cancelled": 1}


async def test_a_stateless_stream_is_cancelled_when_its_client_leaves(
    client: AsyncOpenAI, api: Api, model: ModelServer
) -> None:
    stream = await client.chat.completions.create(
        model="main", messages=user("[[chunks 500]] [[words 500]] [[chunk-delay 0.02]]"), stream=True
    )
    await anext(aiter(stream))
    await stream.close()
    await model.until(lambda: not model.connections)
    assert await states(api) == {"cancelled": 1}


async def states(api: Api) -> dict[str, int]:
    """The ledger's turns by state, once none is under way."""
    while (status := await api.get("/api/status"))["owed"]["turns"]:
        await asyncio.sleep(0)
    return {state: count for state, count in status["turns"].items() if count}


# -- with a session ---------------------------------------------------------------------------------------


async def test_a_session_keeps_the_history_and_takes_the_last_message_only(
    client: AsyncOpenAI, api: Api
) -> None:
    header = {"X-Talaria-Session": "one"}
    await client.chat.completions.create(model="main", messages=user("hi"), extra_headers=header)
    answer = await client.chat.completions.create(
        model="main",
        messages=[*user("never seen"), {"role": "assistant", "content": "nor this"}, *user("[[history]]")],
        extra_headers=header,
    )
    assert answer.choices[0].message.content == "4"
    assert (await api.get("/api/sessions/one"))["chat_key"] == "agent:main:http:api:one"
    assert (await api.get("/api/pool"))["size"] == 1


async def test_a_sessions_turn_goes_on_without_its_client(
    client: AsyncOpenAI, api: Api, model: ModelServer
) -> None:
    stream = await client.chat.completions.create(
        model="main",
        messages=user("[[chunks 4]] [[chunk-delay 0.05]] [[reply abcd]]"),
        stream=True,
        extra_headers={"X-Talaria-Session": "one"},
    )
    await anext(aiter(stream))
    await stream.close()
    await api.say("one", "and then")
    assert await states(api) == {"done": 2}


async def test_a_command_is_answered_as_the_assistant(client: AsyncOpenAI) -> None:
    for stream in (False, True):
        answer: Any = await client.chat.completions.create(
            model="main",
            messages=user("/whoami"),
            stream=stream,
            extra_headers={"X-Talaria-Session": "one"},
        )
        if stream:
            said = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
        else:
            said = answer.choices[0].message.content
        assert "api" in said


async def test_images_reach_the_model(client: AsyncOpenAI, model: ModelServer) -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    content: Any = [{"type": "text", "text": "look"}, image]
    for header in ({}, {"X-Talaria-Session": "one"}):
        await client.chat.completions.create(
            model="main", messages=[{"role": "user", "content": content}], extra_headers=header
        )
    assert len(model.bodies) == 2
    for body in model.bodies:
        assert image in json.loads(body)["messages"][-1]["content"]


# -- streams ----------------------------------------------------------------------------------------------


async def test_a_stream_has_role_text_reason_and_usage(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="main",
        messages=user("[[think hm]] [[chunks 3]] [[chunk-delay 0.01]] [[reply abc]]"),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "abc"
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


async def test_a_stream_ends_with_the_calls(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="main", messages=user('[[call weather {"a": 1}]]'), tools=[WEATHER], stream=True
    )
    chunks = [chunk async for chunk in stream]
    [calls] = [chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices[0].delta.tool_calls]
    assert calls[0].function is not None
    assert (calls[0].function.name, calls[0].function.arguments) == ("weather", '{"a": 1}')
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_texts_before_and_after_a_tool_do_not_run_together(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="main",
        messages=user('[[reply Let me see.]] [[call todo {"action": "list"}]] [[reply Done.]]'),
        stream=True,
        extra_headers={"X-Talaria-Session": "one"},
    )
    said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert said == "Let me see.\n\nDone."


async def test_a_slow_stream_opens_before_its_first_word(tmp_path: Path, model: ModelServer) -> None:
    async with (
        in_process(tmp_path, model, timing=StreamTiming(header_delay=0.01)) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model="main", messages=user("[[delay 0.1]] [[status 503]]"), stream=True
        )
        with pytest.raises(openai.APIError, match="503"):
            [chunk async for chunk in stream]


# -- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("[[status 503]]", 503, "model_unavailable"),
        ("[[status 401]]", 502, "model_refused"),
    ],
)
async def test_a_failed_turn_has_a_status(
    client: AsyncOpenAI, text: str, status: int, kind: str, stream: bool
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model="main", messages=user(text), stream=stream)
    assert caught.value.status_code == status
    assert caught.value.type == kind
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.response.headers["x-talaria-turn-id"].startswith("turn_")


async def test_a_failure_in_the_middle_of_a_stream_is_raised_by_the_client(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="main",
        messages=user("[[chunks 4]] [[chunk-delay 0.02]] [[cut 2]] [[reply abcd]]"),
        stream=True,
        extra_headers={"X-Talaria-Session": "one"},
    )
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]


async def test_a_cancelled_turn_is_a_conflict(client: AsyncOpenAI, api: Api, model: ModelServer) -> None:
    asked = asyncio.create_task(
        client.chat.completions.create(
            model="main", messages=user("[[hang]]"), extra_headers={"X-Talaria-Session": "one"}
        )
    )
    await model.until(lambda: model.requests > 0)
    await api.say("one", "/stop")
    with pytest.raises(openai.ConflictError):
        await asked


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        await client.chat.completions.create(model="gpt-9", messages=user("hi"))


async def test_a_wrong_token_is_an_authentication_error(api: Api) -> None:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
