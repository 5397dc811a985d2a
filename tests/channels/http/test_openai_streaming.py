"""Details of answers that clients rely on, streamed and whole, through OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from support.gateway import TOKEN, Api, in_process
from talaria.testing.model_server import ModelServer

SESSION = {"X-Talaria-Session": "one"}
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "g")]
CALLS = '[[chunk-delay 0.005]] [[call f {"a": "long enough"} + call g {"b": 2}]]'


def user(text: Any) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


async def stream(client: AsyncOpenAI, text: str, **more: Any) -> list[Any]:
    return [
        chunk
        async for chunk in await client.chat.completions.create(
            **{"model": "main", "messages": user(text), "stream": True, **more}
        )
    ]


def said(chunks: list[Any], name: str = "content") -> str:
    return "".join(getattr(chunk.choices[0].delta, name) or "" for chunk in chunks)


# -- tool calls -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic-messages"])
async def test_arguments_are_streamed_as_they_come(tmp_path: Path, model: ModelServer, wire: str) -> None:
    provider = {"base_url": model.base_url, "max_retries": 0, "api": wire, "api_key": "k"}
    async with (
        in_process(tmp_path, model, tables={"providers": {"scripted": provider}}) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        whole = await client.chat.completions.create(model="main", messages=user(CALLS), tools=TOOLS)
        chunks = await stream(client, CALLS, tools=TOOLS)
    pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert len(pieces) >= 4  # the scripted server sends the arguments of a call in two pieces
    calls = whole.choices[0].message.tool_calls
    assert calls is not None
    for n, call in enumerate(calls):
        own = [piece for piece in pieces if piece.index == n]
        assert [piece.id for piece in own if piece.id] == [call.id]
        assert call.type == "function"
        assert [piece.function.name for piece in own if piece.function.name] == [call.function.name]
        assert "".join(piece.function.arguments or "" for piece in own) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"


async def test_a_call_that_breaks_off_is_repeated_only_if_nothing_of_it_was_streamed(
    tmp_path: Path, model: ModelServer
) -> None:
    tables = {"providers": {"scripted": {"base_url": model.base_url, "max_retries": 1}}}
    async with (
        in_process(tmp_path, model, tables=tables) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        text = "[[first 1 half-call]] [[chunk-delay 0.005]] [[call f {}]]"
        with pytest.raises(openai.APIError):
            await stream(client, text, tools=TOOLS)
        assert model.requests == 1


@pytest.mark.parametrize("word", ["stop", "eos", "tool_calls"])
async def test_the_reason_beside_calls_is_the_calls(client: AsyncOpenAI, word: str) -> None:
    text = f"[[finish {word}]] [[call f {{}}]]"
    whole = await client.chat.completions.create(model="main", messages=user(text), tools=TOOLS)
    chunks = await stream(client, text, tools=TOOLS)
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(("word", "told"), [("length", "length"), ("content_filter",) * 2, ("eos", "stop")])
async def test_other_reasons_are_those_of_the_api(client: AsyncOpenAI, word: str, told: str) -> None:
    whole = await client.chat.completions.create(
        model="main", messages=user(f"[[finish {word}]] [[reply hi]]")
    )
    assert whole.choices[0].finish_reason == told


# -- texts ------------------------------------------------------------------------------------------------


async def test_a_refusal_is_told_as_one(client: AsyncOpenAI) -> None:
    text = "[[chunks 3]] [[refuse I would rather not.]]"
    key = {"Idempotency-Key": "k"}
    for _ in range(2):
        whole = await client.chat.completions.create(model="main", messages=user(text), extra_headers=key)
        assert whole.choices[0].message.refusal == "I would rather not."
        assert whole.choices[0].message.content is None
    chunks = await stream(client, text)
    assert (said(chunks, "refusal"), said(chunks)) == ("I would rather not.", "")
    in_session = await client.chat.completions.create(
        model="main", messages=user(text), extra_headers=SESSION
    )
    assert in_session.choices[0].message.content == "I would rather not."


async def test_streamed_and_whole_answers_of_a_session_are_the_same_text(
    tmp_path: Path, model: ModelServer
) -> None:
    text = '[[reply Let me see.]] [[call todo {"action": "list"}]] [[reply Done.]]'
    async with (
        in_process(tmp_path, model) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        key = {**SESSION, "Idempotency-Key": "k"}
        whole = await client.chat.completions.create(model="main", messages=user(text), extra_headers=key)
        assert whole.choices[0].message.content == "Let me see.\n\nDone."
        again = await client.chat.completions.create(model="main", messages=user(text), extra_headers=key)
        assert again.choices == whole.choices
        assert said(await stream(client, text, extra_headers=key)) == "Let me see.\n\nDone."
        assert said(await stream(client, text, extra_headers=SESSION)) == "Let me see.\n\nDone."


# -- models -----------------------------------------------------------------------------------------------


async def test_the_model_of_an_answer_is_the_one_that_answered(tmp_path: Path, model: ModelServer) -> None:
    fallback = [{"provider": "second", "name": "spare"}]
    tables = {
        "model": {"provider": "scripted", "fallback": fallback},
        "providers": {
            name: {"base_url": model.base_url, "max_retries": 0} for name in ("scripted", "second")
        },
    }
    async with (
        in_process(tmp_path, model, tables=tables) as api,
        AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        for name, told in (("main", "scripted/scripted"), ("fast", "scripted/fast")):
            whole = await client.chat.completions.create(model=name, messages=user("hi"))
            assert whole.model == told
            assert {chunk.model for chunk in await stream(client, "hi", model=name)} == {told}
        text = "[[first 1 status 400]] [[reply {}]]"
        whole = await client.chat.completions.create(model="main", messages=user(text.format(1)))
        assert whole.model == "second/spare"
        chunks = await stream(client, text.format(2))
        assert {chunk.model for chunk in chunks} == {"second/spare"}


async def test_a_session_is_switched_by_a_models_name_and_tells_which_it_has(
    client: AsyncOpenAI, model: ModelServer
) -> None:
    for name, told in (
        ("main", "scripted/scripted"),
        ("fast", "scripted/fast"),
        ("main", "scripted/fast"),
        ("scripted/scripted", "scripted/scripted"),
    ):
        whole = await client.chat.completions.create(model=name, messages=user("hi"), extra_headers=SESSION)
        assert whole.model == told
        assert json.loads(model.bodies[-1])["model"] == told.removeprefix("scripted/")


async def test_a_model_is_found_by_its_name_with_slashes(client: AsyncOpenAI, api: Api) -> None:
    for name in ("main", "fast", "scripted/scripted", "scripted/org/model:free"):
        assert (await client.models.retrieve(name)).id == name
        assert (await api.get(f"/v1/models/{name}"))["id"] == name
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("none/such")


# -- messages ---------------------------------------------------------------------------------------------


async def test_parts_of_a_text_are_one_text(client: AsyncOpenAI, model: ModelServer) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages: Any = [{"role": role, "content": parts} for role in ("system", "user", "assistant", "user")]
    await client.chat.completions.create(model="main", messages=messages)
    sent = json.loads(model.bodies[-1])["messages"]
    assert [message["content"] for message in sent] == ["one two"] * 4


async def test_older_function_calls_are_understood(client: AsyncOpenAI, model: ModelServer) -> None:
    messages: Any = [
        *user("weather?"),
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a":1}'}},
        {"role": "function", "name": "f", "content": "sunny"},
        *user("thanks"),
    ]
    await client.chat.completions.create(model="main", messages=messages, tools=TOOLS)
    sent = json.loads(model.bodies[-1])["messages"]
    [call] = sent[1]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert sent[2] == {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    for wrong in (messages[:2], messages[:1] + messages[2:]):
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="main", messages=wrong)


# -- answers that are read again --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_the_reason_of_an_early_end_is_stored(
    tmp_path: Path, model: ModelServer, word: str, reason: str
) -> None:
    text, key = f"[[finish {word}]] [[reply hi]]", {"Idempotency-Key": "k"}
    response_id = ""
    for life in range(2):
        async with (
            in_process(tmp_path, model) as api,
            AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client,
        ):
            for extra in (key, key | SESSION):
                said = await client.chat.completions.create(
                    model="main", messages=user(text), extra_headers=extra
                )
                assert said.choices[0].finish_reason == word, life
            if not life:
                response_id = (await client.responses.create(model="main", input=text)).id
            again = await client.responses.retrieve(response_id)
            assert again.status == "incomplete"
            assert again.incomplete_details is not None
            assert again.incomplete_details.reason == reason
    assert model.requests == 3


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_session_on_another_model_says_so_to_a_call_by_the_agents_name(
    client: AsyncOpenAI, streamed: bool
) -> None:
    await client.chat.completions.create(model="fast", messages=user("hi"), extra_headers=SESSION)
    if streamed:
        chunks = await stream(client, "hi", extra_headers=SESSION)
        assert {chunk.model for chunk in chunks} == {"scripted/fast"}
        events = await client.responses.create(model="main", input="hi", stream=True, extra_headers=SESSION)
        told = {event.response.model async for event in events if hasattr(event, "response")}
        assert told == {"scripted/fast"}
    else:
        said = await client.chat.completions.create(model="main", messages=user("hi"), extra_headers=SESSION)
        assert said.model == "scripted/fast"
        response = await client.responses.create(model="main", input="hi", extra_headers=SESSION)
        assert response.model == "scripted/fast"


async def test_a_turn_that_is_begun_anew_in_mid_stream_says_nothing_twice(
    api: Api, model: ModelServer
) -> None:
    """As when its lease is lost, or the gateway that answers dies behind another one."""
    slow = "[[chunks 8]][[chunk-delay 0.03]][[words 40]]"
    body = {"messages": [{"role": "user", "content": slow}], "stream": True}
    texts: list[str] = []
    async with api.client.post(
        f"{api.url}/v1/chat/completions", json=body, headers={"X-Talaria-Session": "one"}
    ) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            piece = json.loads(line[6:])["choices"][0]["delta"].get("content")
            if piece and not "".join(texts):
                [live] = api.gateway.turns.live
                live.lose()
            texts.append(piece or "")
    turn = await api.get(f"/api/turns/{answer.headers['X-Talaria-Turn-Id']}")
    assert model.requests == 2
    assert "".join(texts) == turn["reply"]
