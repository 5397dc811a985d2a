"""Conversations with the strict server: signatures over turns, other formats in between, a whole gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from talaria.app import Gateway, open_gateway
from talaria.config.home import Home
from talaria.config.load import Loaded
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
from talaria.core.models import Completion, ModelCall
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.anthropic_options import CACHE_MARK
from talaria.models.endpoint import Endpoint, EndpointSettings
from talaria.models.openai_chat import OpenAIChat
from talaria.models.settings import ModelSettings, ProviderSettings
from talaria.models.wire import Wire
from talaria.testing.model_server import ModelServer
from talaria.turns.intake import StatelessCall
from talaria.turns.live import CallOptions

TOOLS = [ToolSpec("read_file", "Read a file.", '{"type":"object"}')]


class Chat:
    """One conversation in our own messages, spoken over whatever format a turn asks for."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self.log: list[Message] = []

    async def ask(self, wire: Wire, effort: str | None = None) -> Completion:
        endpoint = Endpoint(EndpointSettings("acme", self._server.base_url, "sk-test"), wire)
        chunks = [wire.encode(message) for message in self.log]
        call = ModelCall("m", wire.render_prefix("Be kind.", TOOLS), chunks, effort)
        try:
            completion = await endpoint.complete(call, lambda delta: None)
        finally:
            await endpoint.close()
        self.log.append(completion.message)
        return completion

    async def turn(self, wire: Wire, text: str, effort: str | None = None) -> AssistantMessage:
        self.log.append(UserMessage((Text(text),), "Mon 10:00"))
        while calls := (completion := await self.ask(wire, effort)).message.tool_calls:
            results = tuple(ToolResult(call.id, call.name, f"<{call.arguments}>") for call in calls)
            self.log.append(ToolResults(results))
        return completion.message


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


THINKING = (
    '[[think hm 1]] [[call read_file {"path":"a"}]] [[think (sealed) 2]] [[call read_file {"path":"b"}]]'
)


async def test_signed_thoughts_come_back_over_turns(server: ModelServer) -> None:
    wire, chat = AnthropicMessages(), Chat(server)
    await chat.turn(wire, f"{THINKING} [[think hm 3]] [[reply one]]", "low")
    reply = await chat.turn(wire, f"{THINKING} [[reply two]]", "low")
    assert reply.text == "two"
    last = json.loads(server.bodies[-1])
    thoughts = [
        block["type"]
        for message in last["messages"]
        for block in message["content"]
        if "thinking" in block["type"]
    ]
    assert thoughts == ["thinking", "redacted_thinking", "thinking", "thinking", "redacted_thinking"]


async def test_a_changed_thought_is_refused(server: ModelServer) -> None:
    """So the server would have told us, had any thought been changed on its way."""
    wire, chat = AnthropicMessages(), Chat(server)
    await chat.turn(wire, "[[think hm]] [[reply one]]")
    message = chat.log[-1]
    assert isinstance(message, AssistantMessage)
    thought = msgspec.structs.replace(message.reasoning[0], raw=message.reasoning[0].raw.replace("hm", "ha"))
    chat.log[-1] = msgspec.structs.replace(message, reasoning=(thought,))
    with pytest.raises(ModelRefused, match="Invalid `signature`"):
        await chat.turn(wire, "go on")


async def test_a_conversation_moves_between_formats_without_loss(server: ModelServer) -> None:
    chat, anthropic, openai = Chat(server), AnthropicMessages(), OpenAIChat()
    wires: list[Wire] = [openai, anthropic, openai, anthropic, anthropic]
    for n, wire in enumerate(wires):
        effort = "low" if wire is anthropic else None
        text = f"[[think hm {n}]] [[call read_file {{oops {n}]] [[call read_file {{}}]] [[reply {n}]]"
        assert (await chat.turn(wire, text, effort)).text == str(n)
    for wire in wires[:2]:
        chat.log.append(UserMessage((Text("[[history]]"),)))
        assert int((await chat.ask(wire)).message.text) == len(chat.log)
    kept = [t.text for m in chat.log if isinstance(m, AssistantMessage) for t in m.reasoning]
    assert kept == [f"hm {n}" for n in range(5)]
    assert b"hm 1" in server.bodies[-1]
    assert b"hm 1" in server.bodies[-2], "only as words of the user"
    assert b"signature" not in server.bodies[-2]


async def test_a_turn_changes_hands_in_the_middle(server: ModelServer) -> None:
    """As a fallback does: the other model's calls are there, its thoughts are not, nor is a budget."""
    chat = Chat(server)
    chat.log.append(UserMessage((Text("[[think hm]] [[call read_file {}]] [[reply done]]"),)))
    first = await chat.ask(OpenAIChat())
    chat.log.append(ToolResults((ToolResult(first.message.tool_calls[0].id, "read_file", "x"),)))
    assert (await chat.ask(AnthropicMessages(), "high")).message.text == "done"
    assert "thinking" not in json.loads(server.bodies[-1])


# -- a whole gateway


@asynccontextmanager
async def life(home: Path, url: str, effort: str) -> AsyncIterator[Gateway]:
    provider = ProviderSettings(url, "anthropic-messages", api_key="sk-test")
    settings = Settings(
        model=ModelSettings("claude", "scripted", effort),  # type: ignore[arg-type]
        providers={"claude": provider},
    )
    async with open_gateway(Home(home), Loaded(settings, (), None), {}) as gateway:
        yield gateway


async def say(gateway: Gateway, text: str) -> Turn:
    key = ChatAddress("main", "test", "dm", "1").key()
    inbound = Inbound(key, Sender("tester"), (Text(text),))
    return await gateway.turns.wait(await gateway.turns.submit(inbound))


class Body(msgspec.Struct):
    messages: msgspec.Raw
    tools: msgspec.Raw
    system: msgspec.Raw


@pytest.mark.parametrize("effort", ["none", "low"])
async def test_a_gateway_runs_turns_with_tools_and_keeps_its_prefix(
    server: ModelServer, tmp_path: Path, effort: str
) -> None:
    text = '[[think hm]] [[call write_file {"path":"a.txt","content":"ünï"}]]'
    text += '[[call read_file {"path":"a.txt"}]]+[[call list_files {}]] [[reply done]]'
    for _ in range(2):
        async with life(tmp_path, server.base_url, effort) as gateway:
            for _ in range(2):
                turn = await say(gateway, text)
                assert (turn.state, turn.reply) == (TurnState.DONE, "done")
    sent = [msgspec.json.decode(body, type=Body) for body in server.bodies]
    assert len(sent) == 12
    for earlier, later in pairwise(sent):
        before, after = (bytes(body.messages).replace(CACHE_MARK, b"") for body in (earlier, later))
        assert after.startswith(before[:-1])
        assert (bytes(later.tools), bytes(later.system)) == (bytes(earlier.tools), bytes(earlier.system))


async def test_a_stateless_call_brings_its_own_tools_and_system_message(
    server: ModelServer, tmp_path: Path
) -> None:
    tool = b'[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}]'
    context = (SystemMessage("Be brief."), UserMessage((Text("[[call look {}]]"),)))
    options = CallOptions(None, 50, b'"temperature":0.5,"seed":1')
    async with life(tmp_path, server.base_url, "none") as gateway:
        call = StatelessCall(Sender("tester"), context, tools=tool, options=options)
        receipt = await gateway.turns.call(call)
        assert receipt.live is not None
        turn = await gateway.turns.wait(receipt)
        assert turn.state is TurnState.DONE, turn
        assert receipt.live.answer is not None
        assert receipt.live.answer.completion.message.tool_calls[0].name == "look"
    body = json.loads(server.bodies[-1])
    assert body["system"] == [{"type": "text", "text": "Be brief."}]
    assert (body["max_tokens"], body["temperature"], len(body["messages"])) == (50, 0.5, 1)
