"""Conversations over the responses API: turns with tools, encrypted thoughts, a change of wire format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from talaria.app import Gateway, open_gateway
from talaria.config.home import Home
from talaria.config.load import Loaded, load
from talaria.config.settings import Settings
from talaria.core.errors import ModelRefused
from talaria.core.ids import ChatAddress
from talaria.core.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import ModelCall
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.endpoint import Endpoint, EndpointSettings
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.providers import Providers
from talaria.models.settings import ModelSettings, ProviderSettings
from talaria.models.wire import Wire
from talaria.testing.model_server import ModelServer
from talaria.turns.intake import StatelessCall
from talaria.turns.live import CallOptions

TOOLS = (ToolSpec("read_file", "Read a file.", '{"type":"object"}'),)
QUESTION = (
    '[[think first]][[call read_file {"path": "a"} + call read_file {}]]'
    "[[think second]][[reply Look:]][[call read_file {}]][[think third]][[reply done]]"
)
CHAT, RESPONSES, ANTHROPIC = OpenAIChat(), OpenAIResponses(), AnthropicMessages()


@asynccontextmanager
async def speaking(server: ModelServer, wire: Wire) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(EndpointSettings("acme", server.base_url, "sk-test"), wire)
    try:
        yield endpoint
    finally:
        await endpoint.close()


async def turn(endpoint: Endpoint, log: list[Message], text: str) -> str:
    """Until the answer; every call of a tool gives its own arguments."""
    wire = endpoint.wire
    log.append(UserMessage((Text(text),)))
    while True:
        chunks = [wire.encode(message) for message in log]
        call = ModelCall("m", wire.render_prefix("Be kind.", TOOLS), chunks)
        message = (await endpoint.complete(call, lambda delta: None)).message
        log.append(message)
        if not message.tool_calls:
            return message.text
        results = (ToolResult(call.id, call.name, call.arguments) for call in message.tool_calls)
        log.append(ToolResults(tuple(results)))


async def test_encrypted_thoughts_come_back_to_the_model_that_thought_them() -> None:
    log: list[Message] = []
    async with ModelServer() as server, speaking(server, RESPONSES) as endpoint:
        assert await turn(endpoint, log, QUESTION) == "done"
        assert await turn(endpoint, log, "[[think fourth]] more") == "You said: more"
        sent = json.loads(server.bodies[-1])["input"]
    kinds = [item.get("type", item.get("role")) for item in sent]
    assert kinds == [
        "system",
        "user",
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        "message",
        "user",
    ]
    thoughts = [item for item in sent if item.get("type") == "reasoning"]
    assert [thought["summary"][0]["text"] for thought in thoughts] == ["first", "second", "third"]
    assert all(thought["encrypted_content"] for thought in thoughts)


@pytest.mark.parametrize("is_forged", [True, False])
async def test_thoughts_of_others_or_in_another_place_would_be_refused(is_forged: bool) -> None:
    """By the server that these tests run against: so the test above can fail."""
    log: list[Message] = []
    async with ModelServer() as server, speaking(server, RESPONSES) as endpoint:
        await turn(endpoint, log, QUESTION)
        first, last = log[1], log[-1]
        assert isinstance(first, AssistantMessage)
        assert isinstance(last, AssistantMessage)
        thought = last.reasoning[0]
        if is_forged:
            raw = first.reasoning[0].raw.replace('"encrypted_content":"', '"encrypted_content":"AAAA')
            thought = msgspec.structs.replace(thought, raw=raw)
        log[1] = msgspec.structs.replace(first, reasoning=(thought, *first.reasoning[1:]))
        with pytest.raises(ModelRefused, match="verified" if is_forged else "required following item"):
            await turn(endpoint, log, "more")


@pytest.mark.parametrize("other", [CHAT, ANTHROPIC], ids=lambda wire: wire.name)
async def test_a_conversation_moves_from_format_to_format_and_back_without_loss(other: Wire) -> None:
    log: list[Message] = []
    async with ModelServer() as server, speaking(server, other) as there, speaking(server, RESPONSES) as here:
        for endpoint in (there, here, there, here):
            assert await turn(endpoint, log, QUESTION) == "done"
        last = json.loads(server.bodies[-1])
    said = [item for item in last["input"] if item.get("role") in ("user", "assistant")]
    assert len([item for item in said if item["role"] == "user"]) == 4
    assert len([item for item in said if item["role"] == "assistant"]) == 3 + 4
    assert {"role": "assistant", "content": "Look:"} in said
    assert sum(item.get("type") == "function_call" for item in last["input"]) == 4 * 3
    assert sum(item.get("type") == "function_call_output" for item in last["input"]) == 4 * 3
    # Thoughts of this format go back, also those from before the excursion; those of the other do not.
    assert sum(item.get("type") == "reasoning" for item in last["input"]) == 3 + 2


class Body(msgspec.Struct):
    input: msgspec.Raw
    tools: msgspec.Raw


@asynccontextmanager
async def gateway_over(server: ModelServer, home: Path) -> AsyncIterator[Gateway]:
    settings = Settings(
        model=ModelSettings("acme", "gpt-x", reasoning="low"),
        providers={"acme": ProviderSettings(server.base_url, api="openai-responses")},
    )
    async with open_gateway(Home(home), Loaded(settings, (), None), {}) as gateway:
        yield gateway


async def test_a_gateway_runs_turns_over_it_and_keeps_the_prefix(tmp_path: Path) -> None:
    """Two lives of a gateway: what the second sends begins with what the first has sent."""
    key = ChatAddress("main", "test", "dm", "1").key()
    text = '[[think a]][[call write_file {"path":"n.txt","content":"ünï"}]]'
    text += '[[think b]][[call read_file {"path":"n.txt"}]]'
    async with ModelServer() as server:
        for _ in range(2):
            async with gateway_over(server, tmp_path) as gateway:
                for _ in range(2):
                    inbound = Inbound(key, Sender("tester"), (Text(text),))
                    done = await gateway.turns.wait(await gateway.turns.submit(inbound))
                    assert done.state is TurnState.DONE, done
                    assert done.reply is not None
                    assert "ünï" in done.reply
        bodies = list(server.bodies)
    assert len(bodies) == 4 * 3
    sent = [msgspec.json.decode(body, type=Body) for body in bodies]
    for earlier, later in pairwise(sent):
        assert bytes(later.input).startswith(bytes(earlier.input)[:-1] + b",")
        assert bytes(later.tools) == bytes(earlier.tools)
    last: Any = json.loads(bodies[-1])
    assert sum(item.get("type") == "reasoning" for item in last["input"]) == 2 * 4
    assert (last["store"], last["reasoning"]) == (False, {"effort": "low"})


async def test_a_stateless_callers_tools_and_sampling_are_translated(tmp_path: Path) -> None:
    """The server would refuse them as the caller wrote them, for chat completions."""
    tools = b'[{"function":{"name":"theirs","parameters":{"type":"object"}},"type":"function"}]'
    sampling = b'"seed":1,"tool_choice":{"type":"function","function":{"name":"theirs"}}'
    context = (SystemMessage("Be kind."), UserMessage((Text("[[think hm]][[call theirs {}]]"),)))
    call = StatelessCall(
        sender=Sender("tester"),
        context=context,
        tools=tools,
        options=CallOptions(max_output=5, sampling=sampling),
    )
    async with ModelServer() as server, gateway_over(server, tmp_path) as gateway:
        receipt = await gateway.turns.call(call)
        await gateway.turns.wait(receipt)
        assert receipt.live is not None
        assert receipt.live.answer is not None
        [called] = receipt.live.answer.completion.message.tool_calls
        sent = json.loads(server.bodies[-1])
    assert called.name == "theirs"
    assert (sent["max_output_tokens"], sent["tool_choice"]) == (16, {"type": "function", "name": "theirs"})


async def test_one_line_of_configuration_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[model]\nprovider = "openai"\nname = "gpt-x"\n[providers.openai]\napi = "openai-responses"\n'
    )
    environ = {"OPENAI_API_KEY": "sk-1"}
    loaded = load(tmp_path, environ)
    assert loaded.warnings == ()
    async with Providers(loaded.settings.providers, environ) as providers:
        assert providers.wire("openai").name == "openai-responses"
        assert providers.get("openai").wire is providers.wire("openai")
