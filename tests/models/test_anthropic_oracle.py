"""Anthropic's own SDK sends the same conversation: our request must be its request."""

from __future__ import annotations

import json
from typing import Any

from anthropic import AsyncAnthropic

from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import ModelCall
from talaria.core.tools import ToolSpec
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.endpoint import Endpoint, EndpointSettings
from talaria.testing.anthropic_answers import sign
from talaria.testing.model_server import ModelServer

MODEL = "claude-haiku-4-5"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
MARK: Any = {"type": "ephemeral"}
THOUGHT: Any = {"type": "thinking", "thinking": "hm", "signature": sign("hm")}
LOG: list[Message] = [
    UserMessage((Text("Read Größe.txt"), Image("data:image/png;base64,AAAA"), Image("https://x/y.png"))),
    AssistantMessage(
        "Both.",
        (ToolCall("c1", "read_file", '{"path": "a"}'), ToolCall("c2", "read_file", "{}")),
        (Reasoning("thinking", "hm", json.dumps(THOUGHT)),),
    ),
    ToolResults(
        (ToolResult("c1", "read_file", "AAA"), ToolResult("c2", "read_file", 'B"B"\n', ToolOutcome.ERROR))
    ),
    AssistantMessage("One is short."),
    UserMessage((Text("Thanks. 🎉 [[reply bye]]"),)),
]
MESSAGES: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Read Größe.txt"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        ],
    },
    {
        "role": "assistant",
        "content": [
            THOUGHT,
            {"type": "text", "text": "Both."},
            {"type": "tool_use", "id": "c1", "name": "read_file", "input": {"path": "a"}},
            {"type": "tool_use", "id": "c2", "name": "read_file", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "AAA"},
            {
                "type": "tool_result",
                "tool_use_id": "c2",
                "content": 'B"B"\n',
                "is_error": True,
                "cache_control": MARK,
            },
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "One is short."}]},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Thanks. 🎉 [[reply bye]]", "cache_control": MARK}],
    },
]
TOOLS: list[Any] = [
    {"name": "read_file", "description": "Read a file.", "input_schema": SCHEMA, "cache_control": MARK}
]


async def test_our_request_equals_the_official_clients_request() -> None:
    wire = AnthropicMessages()
    async with ModelServer() as server:
        url = server.base_url.removesuffix("/v1")
        async with AsyncAnthropic(base_url=url, api_key="sk-test", max_retries=0) as client:
            stream = await client.messages.create(
                model=MODEL,
                system=[{"type": "text", "text": "Be kind.", "cache_control": MARK}],
                messages=MESSAGES,
                tools=TOOLS,
                tool_choice={"type": "auto"},
                stop_sequences=["END"],
                thinking={"type": "enabled", "budget_tokens": 4096},
                max_tokens=4146,
                stream=True,
            )
            theirs = "".join(
                [
                    event.delta.text
                    async for event in stream
                    if event.type == "content_block_delta" and event.delta.type == "text_delta"
                ]
            )
        prefix = wire.render_prefix("Be kind.", [ToolSpec("read_file", "Read a file.", json.dumps(SCHEMA))])
        sampling = b'"tool_choice":"auto","stop":"END","temperature":0.5'
        call = ModelCall(MODEL, prefix, [wire.encode(m) for m in LOG], "low", 50, sampling)
        endpoint = Endpoint(EndpointSettings("acme", server.base_url, "sk-test"), wire)
        ours = await endpoint.complete(call, lambda delta: None)
        await endpoint.close()
        sent_by_them, sent_by_us = (json.loads(body) for body in server.bodies)
    assert sent_by_us == sent_by_them
    assert ours.message.text == theirs == "bye"


async def test_the_official_client_reads_what_our_server_says() -> None:
    """So the server that our tests trust speaks the real thing, streamed and whole."""
    text = '[[think hm]] [[usage 100 80 20 5]] [[call read_file {"path": "a"} + call read_file {}]]'
    call: Any = {"model": MODEL, "max_tokens": 99, "messages": [{"role": "user", "content": text}]}
    async with ModelServer() as server:
        url = server.base_url.removesuffix("/v1")
        async with AsyncAnthropic(base_url=url, api_key="sk-test", max_retries=0) as client:
            whole = await client.messages.create(**call)
            async with client.messages.stream(**call) as stream:
                streamed = await stream.get_final_message()
    for message in (whole, streamed):
        thought, *calls = message.content
        assert thought.model_dump(include={"type", "thinking", "signature"}) == {
            "type": "thinking",
            "thinking": "hm",
            "signature": sign("hm"),
        }
        assert [block.model_dump()["input"] for block in calls] == [{"path": "a"}, {}]
        assert message.stop_reason == "tool_use"
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (20, 80)
