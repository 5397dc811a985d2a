"""Stored responses: chains and branches, who sees them, and how they go."""

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
from talaria.core.ids import TurnId
from talaria.testing.model_server import ModelServer

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


def said(model: ModelServer) -> list[Any]:
    """The contents of the last request's messages."""
    return [message["content"] for message in json.loads(model.bodies[-1])["messages"]]


async def session_of(api: Api, response: str) -> str:
    turn = await api.get(f"/api/turns/{response.replace('resp_', 'turn_')}")
    return str(turn["session_id"])


async def test_the_head_is_continued_in_its_session_and_an_earlier_one_branches(
    api: Api, client: AsyncOpenAI, model: ModelServer
) -> None:
    one = await client.responses.create(model="main", input="one", instructions="First.")
    two = await client.responses.create(model="main", input="two", previous_response_id=one.id)
    assert said(model) == ["one", "You said: one", "two"]
    three = await client.responses.create(model="fast", input="three", previous_response_id=two.id)
    fork = await client.responses.create(model="main", input="fork", previous_response_id=one.id)
    assert said(model) == ["one", "You said: one", "fork"]
    last = await client.responses.create(model="main", input="last", previous_response_id=fork.id)
    assert said(model) == ["one", "You said: one", "fork", "You said: fork", "last"]
    places = [await session_of(api, response.id) for response in (one, two, three, fork, last)]
    assert places[0] == places[1] == places[2] != places[3] == places[4]
    assert [response.previous_response_id for response in (one, two, fork)] == [None, one.id, one.id]
    again = await client.responses.retrieve(three.id)
    assert (again.model, again.output_text) == ("scripted/fast", "You said: three")
    assert again.model_dump() == three.model_dump()


async def test_of_two_that_continue_the_same_response_at_once_one_branches(
    api: Api, client: AsyncOpenAI, model: ModelServer
) -> None:
    one = await client.responses.create(model="main", input="one")
    ask = client.responses.create
    both = await asyncio.gather(
        *(ask(model="main", input=f"[[history]]{n}", previous_response_id=one.id) for n in range(3))
    )
    assert [answer.output_text for answer in both] == ["3"] * 3
    assert len({await session_of(api, answer.id) for answer in both}) == 3


async def test_a_response_that_is_not_stored_leaves_the_chain_as_it_was(
    api: Api, client: AsyncOpenAI, model: ModelServer
) -> None:
    one = await client.responses.create(model="main", input="one")
    aside = await client.responses.create(
        model="main", input="aside", previous_response_id=one.id, store=False
    )
    assert said(model) == ["one", "You said: one", "aside"]
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            await call(aside.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="main", input="x", previous_response_id=aside.id)
    two = await client.responses.create(model="main", input="two", previous_response_id=one.id)
    assert await session_of(api, two.id) == await session_of(api, one.id) != await session_of(api, aside.id)


async def test_references_are_resolved_from_stored_responses(client: AsyncOpenAI, model: ModelServer) -> None:
    one = await client.responses.create(
        model="main", input='[[think hm]][[call weather {"a": 1}]]', tools=[WEATHER]
    )
    items: Any = [{"role": "user", "content": "go"}]
    items += [{"type": "item_reference", "id": item.id} for item in one.output]
    call = next(item for item in one.output if item.type == "function_call")
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sun"})
    await client.responses.create(model="main", input=items, tools=[WEATHER])
    assistant = json.loads(model.bodies[-1])["messages"][1]
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    items[1]["id"] = "msg_" + "0" * 26 + "_0"
    with pytest.raises(openai.BadRequestError, match="no stored item"):
        await client.responses.create(model="main", input=items)


async def test_calls_of_the_response_before_must_have_their_outputs(client: AsyncOpenAI) -> None:
    one = await client.responses.create(model="main", input="[[call weather {}]]", tools=[WEATHER])
    other: Any = [{"type": "function_call_output", "call_id": "other", "output": "x"}]
    for items in ("go on", other):
        with pytest.raises(openai.BadRequestError, match="has no output"):
            await client.responses.create(model="main", input=items, previous_response_id=one.id)


async def test_a_response_that_failed_can_be_fetched_but_not_continued(api: Api, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as failed:
        await client.responses.create(model="main", input="[[status 500]]")
    name = failed.value.response.headers["x-talaria-turn-id"].replace("turn_", "resp_")
    found = await client.responses.retrieve(name)
    assert found.status == "failed"
    assert found.error is not None
    with pytest.raises(openai.BadRequestError, match="failed"):
        await client.responses.create(model="main", input="x", previous_response_id=name)


async def test_cancel_stops_a_response_and_leaves_one_that_is_over(
    api: Api, client: AsyncOpenAI, model: ModelServer
) -> None:
    running = asyncio.create_task(client.responses.create(model="main", input="[[hang]]"))
    while not (live := list(api.gateway.turns.live)) or not model.bodies:
        await asyncio.sleep(0.01)
    name = live[0].turn.id.replace("turn_", "resp_")
    assert (await client.responses.retrieve(name)).status == "in_progress"
    with pytest.raises(openai.ConflictError):
        await client.responses.delete(name)
    with pytest.raises(openai.ConflictError):
        await client.responses.create(model="main", input="x", previous_response_id=name)
    assert (await client.responses.cancel(name)).status == "cancelled"
    with pytest.raises(openai.APIStatusError):
        await running
    done = await client.responses.create(model="main", input="hi")
    assert (await client.responses.cancel(done.id)).status == "completed"


async def test_a_client_that_leaves_cancels_its_response(api: Api, model: ModelServer) -> None:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client:
        call = asyncio.create_task(client.responses.create(model="main", input="[[hang]]", stream=True))
        while not (live := list(api.gateway.turns.live)) or not model.bodies:
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        assert (await live[0].settled).state == "cancelled"


async def test_the_chain_goes_with_the_last_response_that_is_deleted(api: Api, client: AsyncOpenAI) -> None:
    one = await client.responses.create(model="main", input="one")
    two = await client.responses.create(model="main", input="two", previous_response_id=one.id)
    session = await session_of(api, one.id)
    answer = await client.delete(f"/responses/{one.id}", cast_to=object)
    assert answer == {"id": one.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(one.id)
    three = await client.responses.create(model="main", input="[[history]]", previous_response_id=two.id)
    assert three.output_text == "5"
    for response in (two, three):
        await client.responses.delete(response.id)
    assert (await api.get(f"/api/sessions/{session}", 404))["error"]["type"] == "not_found"
    assert (await api.get(f"/api/turns/turn_{one.id[5:]}", 404))["error"]["type"] == "not_found"


async def test_a_chain_that_is_deleted_as_a_session_takes_its_responses_along(
    api: Api, client: AsyncOpenAI
) -> None:
    one = await client.responses.create(model="main", input="one", instructions="A secret.")
    session = await session_of(api, one.id)
    async with api.client.delete(f"{api.url}/api/sessions/{session}") as response:
        assert response.status == 200
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(one.id)
    assert await api.gateway.store.responses.prune(api.gateway.clock.now() + 1) == 0


async def test_input_items_are_those_of_the_request_in_pages(client: AsyncOpenAI) -> None:
    one = await client.responses.create(model="main", input="one")
    items: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"role": "user", "content": "two"},
    ]
    two = await client.responses.create(model="main", input=items, previous_response_id=one.id)
    kinds = ["message", "function_call_output", "function_call", "message", "message"]
    listed = [item async for item in client.responses.input_items.list(two.id, limit=2)]
    assert [item.type for item in listed] == kinds
    oldest = [item async for item in client.responses.input_items.list(two.id, order="asc")]
    assert [item.id for item in oldest] == [item.id for item in reversed(listed)]
    with pytest.raises(openai.BadRequestError):
        await client.responses.input_items.list(two.id, after="nothing")


async def test_a_token_reaches_its_own_responses_only(api: Api, client: AsyncOpenAI) -> None:
    async def as_token(name: str, role: str) -> AsyncOpenAI:
        made = await api.post("/api/tokens", {"name": name, "role": role}, 201)
        return client.with_options(api_key=made["secret"])

    ann, ben = await as_token("ann", "chat"), await as_token("ben", "chat")
    reader = await as_token("rita", "read")
    mine = await ann.responses.create(model="main", input="one")
    assert (await ann.responses.retrieve(mine.id)).id == mine.id
    assert (await client.responses.retrieve(mine.id)).id == mine.id  # operates, and sees everything
    assert (await reader.responses.retrieve(mine.id)).id == mine.id
    for other in (ben, client):
        with pytest.raises(openai.NotFoundError):
            await other.responses.delete(mine.id)
        with pytest.raises(openai.NotFoundError):
            await other.responses.create(model="main", input="x", previous_response_id=mine.id)
    for call in (ben.responses.retrieve, ben.responses.cancel, ben.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await call(mine.id)
    message: Any = [{"type": "item_reference", "id": mine.output[0].id}, {"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError, match="no stored item"):
        await ben.responses.create(model="main", input=message)
    await ann.responses.delete(mine.id)


async def test_a_repeated_key_gives_the_same_response(client: AsyncOpenAI, model: ModelServer) -> None:
    async def ask(store: bool) -> str:
        answer = await client.responses.create(
            model="main",
            input="[[call weather {}]]",
            tools=[WEATHER],
            store=store,
            extra_headers={"Idempotency-Key": f"key {store}"},
        )
        return answer.model_dump_json()

    for store in (True, False):
        first = await ask(store)
        assert "function_call" in first
        assert await ask(store) == first
    assert len(model.bodies) == 2


async def test_a_chain_goes_on_after_a_restart_and_ends_with_its_time(
    tmp_path: Path, model: ModelServer
) -> None:
    home = tmp_path / "home"
    async with in_process(home, model) as api:
        one = await api.post("/v1/responses", {"input": "one"})
        await api.post("/v1/responses", {"input": "gone", "store": False})
    async with in_process(home, model) as api:
        body = {"input": "two", "previous_response_id": one["id"]}
        two = await api.post("/v1/responses", body)
        assert said(model) == ["one", "You said: one", "two"]
        assert (await api.get(f"/v1/responses/{one['id']}"))["output"] == one["output"]
        store = api.gateway.store
        now = api.gateway.clock.now()
        await store.prune_ephemeral(now + 1)
        assert (await api.get(f"/v1/responses/{two['id']}"))["output"] == two["output"]
        assert await store.responses.prune(now + 1) == 2
        await api.get(f"/v1/responses/{two['id']}", 404)
        turn = TurnId(two["id"].replace("resp_", "turn_"))
        assert await store.turn_record(turn) is None


# -- with a session ---------------------------------------------------------------------------------------


async def test_a_session_answers_with_its_agent_and_keeps_the_history(
    api: Api, client: AsyncOpenAI, model: ModelServer
) -> None:
    session = client.with_options(default_headers={"X-Talaria-Session": "s"})
    said = '[[reply First.]][[call todo {"action": "list"}]][[reply Then.]]'
    whole = await session.responses.create(model="main", input=said)
    async with session.responses.stream(model="main", input=said) as stream:
        streamed = await stream.get_final_response()
    answers = [answer.model_dump()["output"] for answer in (whole, streamed)]
    texts = [[item["content"][0]["text"] for item in output] for output in answers]
    assert texts[0] == texts[1]
    assert texts[0][-1] == "Then."
    counted = await session.responses.create(model="main", input="[[history]]")
    assert int(counted.output_text) > 5
    turns = (await api.get("/api/sessions"))["items"]
    assert [item["name"] for item in turns] == ["s"]
    with pytest.raises(openai.NotFoundError):
        await session.responses.retrieve(whole.id)
    command = await session.responses.create(model="main", input="/help")
    assert "/new" in command.output_text


async def test_what_a_session_cannot_keep_is_refused_by_name(api: Api) -> None:
    headers = {"X-Talaria-Session": "s"}
    fields: list[dict[str, Any]] = [
        {"tools": [WEATHER]},
        {"previous_response_id": "resp_1"},
        {"max_output_tokens": 5},
        {"text": {"format": {"type": "json_object"}}},
    ]
    for field in fields:
        answer = await api.post("/v1/responses", {"input": "hi", **field}, 400, headers=headers)
        assert next(iter(field)) in answer["error"]["message"]
    assert (await api.get("/api/sessions"))["items"] == []


# -- refusals ---------------------------------------------------------------------------------------------


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "input"),
    ({"input": []}, "input"),
    ({"input": "x", "background": True}, "background"),
    ({"input": "x", "conversation": 5}, "conversation"),
    ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
    ({"input": "x", "truncation": "auto"}, "truncation"),
    ({"input": "x", "top_logprobs": 2}, "top_logprobs"),
    ({"input": "x", "include": ["message.output_text.logprobs"]}, "logprobs"),
    ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
    ({"input": "x", "modalities": ["audio"]}, "modalities"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "web_search"),
    ({"input": "x", "tools": [{"type": "file_search", "vector_store_ids": []}]}, "file_search"),
    ({"input": "x", "tools": [{"type": "computer_use_preview"}]}, "computer_use_preview"),
    ({"input": "x", "tools": [WEATHER, WEATHER]}, "weather"),
    ({"input": "x", "tools": [{**WEATHER, "async": True}]}, "async"),
    ({"input": "x", "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format"),
    ({"input": "x", "reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"input": [{"type": "web_search_call", "id": "ws"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "image_url"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
    ({"input": [5]}, "input[0]"),
]


async def test_what_is_not_supported_is_refused_by_name(api: Api, model: ModelServer) -> None:
    for body, named in REFUSED:
        answer = await api.post("/v1/responses", body, 400)
        assert named in answer["error"]["message"]
        assert answer["error"]["hint"]
    assert not model.bodies


async def test_a_response_that_does_not_exist_is_not_found(api: Api) -> None:
    for name in ("resp_1", "resp_" + "0" * 26, "turn_" + "0" * 26, "%2e%2e"):
        assert (await api.get(f"/v1/responses/{name}", 404))["error"]["type"] == "not_found"
        body = {"input": "x", "previous_response_id": name}
        assert (await api.post("/v1/responses", body, 404))["error"]["type"] == "not_found"
