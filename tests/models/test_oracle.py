"""The official SDK sends the same conversation: our request must be its request."""

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
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import ModelCall
from talaria.core.tools import ToolSpec
from talaria.models.endpoint import Endpoint, EndpointSettings
from talaria.models.openai_chat import OpenAIChat
from talaria.testing.model_server import ModelServer

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
LOG: list[Message] = [
    SystemMessage("Mind the gap.", "developer"),
    UserMessage((Text("Read Größe.txt"), Image("data:image/png;base64,AAAA", "low")), name="ann"),
    AssistantMessage("", (ToolCall("c1", "read_file", '{"path": "a"}'), ToolCall("c2", "read_file", "{}"))),
    ToolResults((ToolResult("c1", "read_file", "AAA"), ToolResult("c2", "read_file", 'B"B"\n'))),
    AssistantMessage("Both are short."),
    UserMessage((Text("Thanks. 🎉 [[reply bye]]"),)),
]
MESSAGES: list[Any] = [
    {"role": "system", "content": "Be kind."},
    {"role": "developer", "content": "Mind the gap."},
    {
        "role": "user",
        "name": "ann",
        "content": [
            {"type": "text", "text": "Read Größe.txt"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}},
            {"id": "c2", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "AAA"},
    {"role": "tool", "tool_call_id": "c2", "content": 'B"B"\n'},
    {"role": "assistant", "content": "Both are short."},
    {"role": "user", "content": "Thanks. 🎉 [[reply bye]]"},
]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "read_file", "description": "Read a file.", "parameters": SCHEMA},
    }
]


async def test_our_request_equals_the_official_clients_request() -> None:
    wire = OpenAIChat()
    async with ModelServer() as server:
        async with AsyncOpenAI(base_url=server.base_url, api_key="sk-test", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="gpt-x",
                messages=MESSAGES,
                tools=TOOLS,
                stream=True,
                stream_options={"include_usage": True},
                reasoning_effort="low",
                max_tokens=50,
                temperature=0.2,
            )
            theirs = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        prefix = wire.render_prefix("Be kind.", [ToolSpec("read_file", "Read a file.", json.dumps(SCHEMA))])
        call = ModelCall("gpt-x", prefix, [wire.encode(m) for m in LOG], "low", 50, b'"temperature":0.2')
        endpoint = Endpoint(EndpointSettings("acme", server.base_url, "sk-test"), wire)
        ours = await endpoint.complete(call, lambda delta: None)
        await endpoint.close()
        sent_by_them, sent_by_us = (json.loads(body) for body in server.bodies)
    assert sent_by_us == sent_by_them
    assert ours.message.text == theirs == "bye"


async def test_the_official_client_reads_what_our_server_says() -> None:
    """So the server that our tests trust speaks the real thing, streamed and whole."""
    text = '[[think hm]] [[usage 100 80 20 5]] [[call read_file {"path": "a"} + call read_file {}]]'
    messages: list[Any] = [{"role": "user", "content": text}]
    async with ModelServer() as server, AsyncOpenAI(base_url=server.base_url, api_key="sk-test") as client:
        whole = await client.chat.completions.create(model="m", messages=messages)
        async with client.chat.completions.stream(
            model="m", messages=messages, stream_options={"include_usage": True}
        ) as stream:
            streamed = await stream.get_final_completion()
        listed = [model.id async for model in client.models.list()]
    for completion in (whole, streamed):
        [choice] = completion.choices
        assert choice.finish_reason == "tool_calls"
        calls: Any = choice.message.tool_calls
        assert [call.function.arguments for call in calls] == ['{"path": "a"}', "{}"]
        assert completion.usage is not None
        assert completion.usage.prompt_tokens_details is not None
        assert completion.usage.prompt_tokens_details.cached_tokens == 80
    assert listed == ["scripted"]
