"""`/v1/responses` through OpenAI's own client: answers, streams, tools, structured output."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from support.gateway import TOKEN, Api, in_process
from talaria.testing.model_server import ModelServer

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WHOLE = TypeAdapter(Response)


@pytest.fixture
async def client(api: Api) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=TOKEN, max_retries=0) as client:
        yield client


def text(text: str) -> Any:
    return {"type": "input_text", "text": text}


async def events_of(api: Api, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    """The events of a stream as they were sent. Each must fit the client's own types, exactly."""
    url = f"{api.url}/v1/responses"
    async with api.client.post(url, json={**body, "stream": True}, headers=headers) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    events = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event, strict=True)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def names(events: list[dict[str, Any]]) -> list[str]:
    """The types of events in order, with pieces of the same item as one."""
    short = [event["type"].removeprefix("response.") for event in events]
    return [name for n, name in enumerate(short) if n == 0 or short[n - 1] != name]


# -- whole answers ----------------------------------------------------------------------------------------


async def test_a_text_is_answered_with_everything_that_the_type_demands(
    api: Api, client: AsyncOpenAI, model: ModelServer
) -> None:
    body = await api.post(
        "/v1/responses",
        {
            "model": "fast",
            "input": "[[think why]][[usage 9 4 3 2]]hello",
            "instructions": "Be brief.",
            "temperature": 0.2,
            "top_p": 1,
            "max_output_tokens": 50,
            "reasoning": {"effort": "low"},
            "metadata": {"a": "b"},
            "text": {"verbosity": "low"},
        },
    )
    answer = WHOLE.validate_python(body, strict=True)
    assert answer.output_text == "You said: hello"
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.status == "completed"
    assert (answer.instructions, answer.metadata, answer.max_output_tokens) == ("Be brief.", {"a": "b"}, 50)
    usage = answer.usage
    assert usage is not None
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (9, 4)
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens, usage.total_tokens) == (
        3,
        2,
        12,
    )
    sent = json.loads(model.bodies[0])
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["model"], sent["temperature"], sent["top_p"], sent["max_tokens"]) == ("fast", 0.2, 1, 50)
    assert (sent["reasoning_effort"], sent["verbosity"]) == ("low", "low")
    assert "tools" not in sent
    assert (await api.get("/api/pool"))["size"] == 0
    assert (await api.get("/api/sessions"))["items"] == []


async def test_items_become_the_conversation_that_they_are(client: AsyncOpenAI, model: ModelServer) -> None:
    image = "data:image/png;base64,AAAA"
    answer = await client.responses.create(
        model="main",
        tools=[WEATHER],
        input=[
            {"role": "developer", "content": "Really."},
            {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": "rain"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "sun"}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "[[history]]"},
                    {"type": "input_image", "image_url": image, "detail": "low"},
                ],
            },
        ],
    )
    assert answer.output_text == "6"
    sent = json.loads(model.bodies[0])["messages"]
    assert [message["role"] for message in sent] == ["developer", "user", "assistant", "tool", "tool", "user"]
    assert sent[2]["content"] == "I look."
    assert [call["function"]["arguments"] for call in sent[2]["tool_calls"]] == ['{"a": 1}', "{}"]
    assert [(message["tool_call_id"], message["content"]) for message in sent[3:5]] == [
        ("c1", "sun"),
        ("c2", "rain"),
    ]
    assert sent[5]["content"][1]["image_url"] == {"url": image, "detail": "low"}


async def test_structured_output_reaches_the_model_and_is_parsed(
    client: AsyncOpenAI, model: ModelServer
) -> None:
    class City(pydantic.BaseModel):
        name: str

    said = '[[reply {"name": "Rome"}]]'
    parsed = await client.responses.parse(model="main", input=said, text_format=City)
    assert parsed.output_parsed == City(name="Rome")
    wanted = json.loads(model.bodies[0])["response_format"]
    assert (wanted["type"], wanted["json_schema"]["name"]) == ("json_schema", "City")
    assert wanted["json_schema"]["strict"] is True
    assert "name" in wanted["json_schema"]["schema"]["properties"]


async def test_an_empty_answer_is_an_empty_text(api: Api, client: AsyncOpenAI) -> None:
    for headers in ({}, {"X-Talaria-Session": "s"}):
        answer = await client.responses.create(model="main", input="[[empty]]", extra_headers=headers)
        assert (answer.status, answer.output_text) == ("completed", "")
    names(await events_of(api, {"input": "[[empty]]"}))


# -- streams ----------------------------------------------------------------------------------------------


async def test_a_stream_has_every_event_in_its_order(api: Api) -> None:
    events = await events_of(api, {"input": "[[think let me see]][[chunks 3]][[reply one two three]]"})
    assert names(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    pieces = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(pieces) == "one two three"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    response = events[-1]["response"]
    assert response["output"] == done
    assert response["output"][1]["content"][0]["text"] == "one two three"
    assert (await api.get(f"/v1/responses/{response['id']}"))["output"] == done


async def test_calls_are_streamed_and_their_outputs_continue_the_response(
    api: Api, client: AsyncOpenAI, model: ModelServer
) -> None:
    said = '[[reply I look.]][[call weather {"a": 1} + call weather {"b": 2}]]'
    events = await events_of(api, {"input": said, "tools": [WEATHER]})
    assert names(events)[-9:] == [
        *["output_item.added", "function_call_arguments.delta"] * 2,
        *["function_call_arguments.done", "output_item.done"] * 2,
        "completed",
    ]
    response = events[-1]["response"]
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert [call["arguments"] for call in calls] == ['{"a": 1}', '{"b": 2}']
    outputs: Any = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": call["arguments"]}
        for call in reversed(calls)
    ]
    second = await client.responses.create(
        model="main", previous_response_id=response["id"], input=outputs, tools=[WEATHER]
    )
    assert second.output_text == 'Tool results: {"a": 1}; {"b": 2}'
    sent = json.loads(model.bodies[1])
    assert [message.get("tool_call_id") for message in sent["messages"][-2:]] == [
        call["call_id"] for call in calls
    ]
    function = {name: WEATHER[name] for name in ("name", "description", "strict", "parameters")}
    assert sent["tools"] == [{"type": "function", "function": function}]


async def test_the_clients_own_accumulator_reads_the_stream(client: AsyncOpenAI) -> None:
    async with client.responses.stream(
        model="main", input='[[think hm]][[call weather {"a": 1}]]', tools=[WEATHER]
    ) as stream:
        seen = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert "response.function_call_arguments.delta" in seen
    assert [item.type for item in final.output] == ["reasoning", "function_call"]


async def test_a_failure_before_the_first_piece_is_a_status_and_a_later_one_an_event(
    api: Api, client: AsyncOpenAI
) -> None:
    with pytest.raises(openai.APIStatusError):
        await client.responses.create(model="main", input="[[status 503]]", stream=True)
    events = await events_of(api, {"input": "[[cut 2]][[chunks 4]][[reply one two three four]]"})
    assert names(events)[-1] == "failed"
    response = events[-1]["response"]
    assert response["error"]["message"]
    again = await api.get(f"/v1/responses/{response['id']}")
    assert again["status"] == "failed"
    assert again["error"] == response["error"]


# -- every wire format ------------------------------------------------------------------------------------

WIRES = pytest.mark.parametrize("wire", ["openai-chat", "openai-responses", "anthropic-messages"])


@asynccontextmanager
async def behind(wire: str, home: Path, model: ModelServer) -> AsyncIterator[Api]:
    """A gateway whose model speaks this format. Its server checks what comes back to it."""
    provider = {"base_url": model.base_url, "max_retries": 0, "api": wire, "api_key": "k"}
    async with in_process(home, model, tables={"providers": {"scripted": provider}}) as api:
        yield api


@WIRES
async def test_arguments_are_streamed_as_they_come(tmp_path: Path, model: ModelServer, wire: str) -> None:
    said = '[[chunk-delay 0.005]] [[call weather {"a": "long enough"} + call weather {"b": 2}]]'
    async with behind(wire, tmp_path, model) as api:
        events = await events_of(api, {"input": said, "tools": [WEATHER]})
    pieces = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert len(pieces) >= 4  # the scripted server sends the arguments of a call in two pieces
    response = events[-1]["response"]
    assert response["model"] == events[0]["response"]["model"] == "scripted/scripted"
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert [call["arguments"] for call in calls] == [
        "".join(piece["delta"] for piece in pieces if piece["item_id"] == call["id"]) for call in calls
    ]


@WIRES
@pytest.mark.parametrize("stream", [True, False])
async def test_reasoning_comes_back_to_its_model_without_a_store(
    tmp_path: Path, model: ModelServer, wire: str, stream: bool
) -> None:
    said = {"role": "user", "content": "[[think hm]][[call weather {}]]"}
    body = {
        "input": [said], "tools": [WEATHER], "store": False, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
    }  # fmt: skip
    async with behind(wire, tmp_path, model) as api:
        if stream:
            response = (await events_of(api, body))[-1]["response"]
        else:
            response = await api.post("/v1/responses", body)
        thought, call = response["output"]
        assert thought["encrypted_content"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        again = await api.post("/v1/responses", {**body, "input": [said, thought, call, output]})
        assert again["output"][-1]["content"][0]["text"] == "Tool results: sunny"
        sent = json.loads(model.bodies[-1])
        assert "hm" in json.dumps(sent.get("messages") or sent["input"])
        other = {**body, "input": [said, thought, call, output], "model": "fast"}
        await api.post("/v1/responses", other)
        assert "encrypted" not in json.dumps(json.loads(model.bodies[-1]).get("input", ""))
