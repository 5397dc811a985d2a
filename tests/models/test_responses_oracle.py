"""The official SDK sends the same conversation to the responses API: our request must be its request."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    Text,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import ModelCall
from talaria.core.tools import ToolSpec
from talaria.models.endpoint import Endpoint, EndpointSettings
from talaria.models.openai_responses import OpenAIResponses
from talaria.testing.model_server import ModelServer

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "read_file",
        "description": "Read a file.",
        "parameters": SCHEMA,
        "strict": False,
    }
]
QUESTION = '[[think hm]] [[call read_file {"path": "a"} + call read_file {}]] [[think so]] Größe 🎉'
INPUT: list[Any] = [
    {"role": "system", "content": "Be kind."},
    {"role": "developer", "content": "Mind the gap."},
    {"role": "user", "content": QUESTION},
]
MORE: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Thanks. 🎉 [[reply bye]]"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"},
        ],
    }
]


async def test_our_requests_equal_the_official_clients_requests() -> None:
    """A turn with tool calls, and the next one: the later requests replay what the model thought."""
    wire = OpenAIResponses()
    async with ModelServer() as server:
        async with AsyncOpenAI(base_url=server.base_url, api_key="sk-test", max_retries=0) as client:
            theirs = await speak_with_the_sdk(client)
            sent_by_them = [json.loads(body) for body in server.bodies]
        server.bodies.clear()
        server.requests = 0  # which the ids of answers are made of
        endpoint = Endpoint(EndpointSettings("acme", server.base_url, "sk-test"), wire)
        ours = await speak(endpoint, wire)
        await endpoint.close()
        sent_by_us = [json.loads(body) for body in server.bodies]
    assert len(sent_by_us) == 3
    assert [item.get("type") for item in sent_by_us[-1]["input"]].count("reasoning") == 2
    assert sent_by_us == sent_by_them
    assert ours == theirs == "bye"


async def speak_with_the_sdk(client: AsyncOpenAI) -> str:
    items = list(INPUT)

    async def create() -> Any:
        stream = await client.responses.create(
            model="gpt-x",
            input=items,
            tools=TOOLS,
            stream=True,
            store=False,
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "low"},
            max_output_tokens=50,
            temperature=0.2,
        )
        return [event async for event in stream][-1].response  # type: ignore[union-attr]

    first = await create()
    items += replay(first)
    items += [
        {"type": "function_call_output", "call_id": item.call_id, "output": text}
        for item, text in zip(first.output[1:], ("AAA", 'B"B"\n'), strict=True)
    ]
    second = await create()
    items += [*replay(second), *MORE]
    return str((await create()).output_text)


def replay(response: Any) -> list[Any]:
    """What the SDK's user hands back: thoughts and what they led to as they came, all else without ids."""
    items = [item.model_dump(exclude_none=True) for item in response.output]
    replayed: list[Any] = []
    for item in items:
        is_paired = bool(replayed) and replayed[-1]["type"] == "reasoning"
        if item["type"] == "reasoning":
            replayed.append(item)
        elif item["type"] == "function_call":
            left_out = {"status"} if is_paired else {"status", "id"}
            replayed.append({key: value for key, value in item.items() if key not in left_out})
        elif is_paired:
            del item["content"][0]["logprobs"]
            replayed.append(item)
        else:
            replayed.append({"role": "assistant", "content": item["content"][0]["text"]})
    return replayed


async def speak(endpoint: Endpoint, wire: OpenAIResponses) -> str:
    log: list[Message] = [SystemMessage("Mind the gap.", "developer"), UserMessage((Text(QUESTION),))]
    prefix = wire.render_prefix("Be kind.", [ToolSpec("read_file", "Read a file.", json.dumps(SCHEMA))])

    async def complete() -> AssistantMessage:
        chunks = [wire.encode(message) for message in log]
        call = ModelCall("gpt-x", prefix, chunks, "low", 50, b'"temperature":0.2')
        return (await endpoint.complete(call, lambda delta: None)).message

    first = await complete()
    results = zip(first.tool_calls, ("AAA", 'B"B"\n'), strict=True)
    log += [first, ToolResults(tuple(ToolResult(call.id, call.name, text) for call, text in results))]
    log += [await complete()]
    photo = Image("data:image/png;base64,AAAA", "low")
    log += [UserMessage((Text("Thanks. 🎉 [[reply bye]]"), photo))]
    return (await complete()).text


async def test_the_official_client_reads_what_our_server_says() -> None:
    """So the server that our tests trust speaks the real thing, streamed and whole."""
    text = (
        '[[think hm]] [[usage 100 80 20 5]] [[reply so]] [[call read_file {"path": "a"} + call read_file {}]]'
    )
    async with ModelServer() as server, AsyncOpenAI(base_url=server.base_url, api_key="sk-test") as client:
        whole = await client.responses.create(model="m", input=text)
        async with client.responses.stream(model="m", input=text) as stream:
            kinds = {event.type async for event in stream}
            streamed: Any = await stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    response: Any
    for response in (whole, streamed):
        thought, said, *calls = response.output
        assert (thought.type, thought.summary[0].text) == ("reasoning", "hm")
        assert (said.type, response.output_text) == ("message", "so")
        assert [call.arguments for call in calls] == ['{"path": "a"}', "{}"]
        assert response.usage.input_tokens_details.cached_tokens == 80
