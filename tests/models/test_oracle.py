"""The official SDKs send the same conversation: our request must be their request. And they read what our
server says, so that the server that our tests trust speaks the real thing, streamed and whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import ModelCall
from talaria.core.tools import ToolSpec
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.endpoint import Endpoint
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.settings import ProviderSettings
from talaria.models.wire import Wire
from talaria.testing.anthropic_api import sign
from talaria.testing.model_server import ModelServer

if (
    TYPE_CHECKING
):  # importing the SDKs takes seconds, which only the process that runs these tests should spend
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SPEC = ToolSpec("read_file", "Read a file.", json.dumps(SCHEMA))
CLAUDE = "claude-haiku-4-5"
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
        (
            ToolResult.of("c1", "read_file", (Text("AAA"), Image("data:image/png;base64,BBBB"))),
            ToolResult("c2", "read_file", 'B"B"\n', ToolOutcome.ERROR),
        )
    ),
    AssistantMessage("One is short."),
    UserMessage((Text("Thanks. 🎉 [[reply bye]]"),)),
]


async def ask(
    server: ModelServer, wire: Wire, log: list[Message], model: str, sampling: bytes
) -> AssistantMessage:
    endpoint = Endpoint("acme", ProviderSettings(server.base_url, api_key="sk-test"), wire)
    prefix = wire.render_prefix("Be kind.", [SPEC])
    call = ModelCall(model, prefix, [wire.encode(message) for message in log], "low", 50, sampling)
    completion = await endpoint.complete(call, lambda delta: None)
    await endpoint.close()
    return completion.message


def openai(server: ModelServer) -> AsyncOpenAI:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=server.base_url, api_key="sk-test", max_retries=0)


def anthropic(server: ModelServer) -> AsyncAnthropic:
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url=server.base_url.removesuffix("/v1"), api_key="sk-test", max_retries=0)


# -- chat completions

CHAT: list[Any] = [
    {"role": "system", "content": "Be kind."},
    {"role": "developer", "content": "Mind the gap."},
    {
        "role": "user",
        "name": "ann",
        "content": [
            {"type": "text", "text": "Look:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Read Größe.txt"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        ],
    },
    {
        "role": "assistant",
        "content": "Both.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}},
            {"id": "c2", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "AAA\n[image 1: see below]"},
    {"role": "tool", "tool_call_id": "c2", "content": 'B"B"\n'},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "[image 1 from read_file]"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}},
        ],
    },
    {"role": "assistant", "content": "One is short."},
    {"role": "user", "content": "Thanks. 🎉 [[reply bye]]"},
]


async def test_our_chat_request_equals_the_official_clients_request() -> None:
    function: Any = {"name": "read_file", "description": "Read a file.", "parameters": SCHEMA}
    first: list[Message] = [
        SystemMessage("Mind the gap.", "developer"),
        UserMessage((Text("Look:"), Image("data:image/png;base64,AAAA", "low")), name="ann"),
    ]
    async with ModelServer() as server:
        async with openai(server) as client:
            stream = await client.chat.completions.create(
                model="gpt-x",
                messages=CHAT,
                tools=[{"type": "function", "function": function}],
                stream=True,
                stream_options={"include_usage": True},
                reasoning_effort="low",
                max_tokens=50,
                temperature=0.2,
            )
            theirs = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        ours = await ask(server, OpenAIChat(), [*first, *LOG], "gpt-x", b'"temperature":0.2')
        sent_by_them, sent_by_us = (json.loads(body) for body in server.bodies)
    assert sent_by_us == sent_by_them
    assert ours.text == theirs == "bye"


async def test_the_official_client_reads_what_our_server_says_in_chat() -> None:
    text = '[[think hm]] [[usage 100 80 20 5]] [[call read_file {"path": "a"} + call read_file {}]]'
    messages: list[Any] = [{"role": "user", "content": text}]
    async with ModelServer() as server, openai(server) as client:
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


# -- Anthropic's messages

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
            {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": [
                    {"type": "text", "text": "AAA"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "BBBB"},
                    },
                ],
            },
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


async def test_our_messages_equal_the_official_clients_messages() -> None:
    tool = {"name": "read_file", "description": "Read a file.", "input_schema": SCHEMA}
    tools: Any = [{**tool, "cache_control": MARK}]
    async with ModelServer() as server:
        async with anthropic(server) as client:
            stream = await client.messages.create(
                model=CLAUDE,
                system=[{"type": "text", "text": "Be kind.", "cache_control": MARK}],
                messages=MESSAGES,
                tools=tools,
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
        sampling = b'"tool_choice":"auto","stop":"END","temperature":0.5'
        ours = await ask(server, AnthropicMessages(), LOG, CLAUDE, sampling)
        sent_by_them, sent_by_us = (json.loads(body) for body in server.bodies)
    assert sent_by_us == sent_by_them
    assert ours.text == theirs == "bye"


async def test_the_official_client_reads_what_our_server_says_in_messages() -> None:
    text = '[[think hm]] [[usage 100 80 20 5]] [[call read_file {"path": "a"} + call read_file {}]]'
    call: Any = {"model": CLAUDE, "max_tokens": 99, "messages": [{"role": "user", "content": text}]}
    async with ModelServer() as server, anthropic(server) as client:
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


# -- OpenAI's responses

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
SHOWN: list[Any] = [
    {"type": "input_text", "text": "AAA"},
    {"type": "input_image", "image_url": "data:image/png;base64,BBBB", "detail": "auto"},
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


async def test_our_responses_requests_equal_the_official_clients_requests() -> None:
    """A turn with tool calls, and the next one: the later requests replay what the model thought."""
    async with ModelServer() as server:
        async with openai(server) as client:
            theirs = await speak_with_the_sdk(client)
            sent_by_them = [json.loads(body) for body in server.bodies]
        server.bodies.clear()
        server.requests = 0  # which the ids of answers are made of
        ours = await speak(server)
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
        {"type": "function_call_output", "call_id": item.call_id, "output": output}
        for item, output in zip(first.output[1:], (SHOWN, 'B"B"\n'), strict=True)
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


async def speak(server: ModelServer) -> str:
    log: list[Message] = [SystemMessage("Mind the gap.", "developer"), UserMessage((Text(QUESTION),))]

    async def complete() -> AssistantMessage:
        return await ask(server, OpenAIResponses(), log, "gpt-x", b'"temperature":0.2')

    first = await complete()
    shown: tuple[Part, ...] = (Text("AAA"), Image("data:image/png;base64,BBBB"))
    results = zip(first.tool_calls, (shown, (Text('B"B"\n'),)), strict=True)
    log += [first, ToolResults(tuple(ToolResult.of(call.id, call.name, parts) for call, parts in results))]
    log += [await complete()]
    photo = Image("data:image/png;base64,AAAA", "low")
    log += [UserMessage((Text("Thanks. 🎉 [[reply bye]]"), photo))]
    return (await complete()).text


async def test_the_official_client_reads_what_our_server_says_in_responses() -> None:
    text = (
        '[[think hm]] [[usage 100 80 20 5]] [[reply so]] [[call read_file {"path": "a"} + call read_file {}]]'
    )
    async with ModelServer() as server, openai(server) as client:
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
