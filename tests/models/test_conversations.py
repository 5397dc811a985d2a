"""Conversations with the strict server: thoughts over turns, other formats in between, a whole gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.gateway import without_http
from talaria.config.load import load
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
from talaria.core.specs import Completion, ModelCall
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.models.anthropic_messages import CACHE_MARK, AnthropicMessages
from talaria.models.endpoint import Endpoint
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.providers import Providers
from talaria.models.settings import ProviderSettings
from talaria.models.wire import Wire
from talaria.parts import PARTS
from talaria.testing.model_server import ModelServer
from talaria.turns.intake import StatelessCall
from talaria.turns.live import CallOptions

TOOLS = [ToolSpec("read_file", "Read a file.", '{"type":"object"}')]
CHAT, RESPONSES, ANTHROPIC = OpenAIChat(), OpenAIResponses(), AnthropicMessages()


class Chat:
    """One conversation in our own messages, spoken over whatever format a turn asks for."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self.log: list[Message] = []

    async def ask(self, wire: Wire, effort: str | None = None) -> Completion:
        endpoint = Endpoint("acme", ProviderSettings(self._server.base_url, api_key="sk-test"), wire)
        chunks = [wire.encode(message) for message in self.log]
        call = ModelCall("m", wire.render_prefix("Be kind.", TOOLS), chunks, effort)
        try:
            completion = await endpoint.complete(call, lambda delta: None)
        finally:
            await endpoint.close()
        self.log.append(completion.message)
        return completion

    async def turn(self, wire: Wire, text: str, effort: str | None = None) -> str:
        self.log.append(UserMessage((Text(text),), "Mon 10:00"))
        while calls := (completion := await self.ask(wire, effort)).message.tool_calls:
            results = tuple(ToolResult(call.id, call.name, f"<{call.arguments}>") for call in calls)
            self.log.append(ToolResults(results))
        return completion.message.text

    def last_body(self) -> Any:
        return json.loads(self._server.bodies[-1])

    def said(self, at: int) -> AssistantMessage:
        message = self.log[at]
        assert isinstance(message, AssistantMessage)
        return message


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
def chat(server: ModelServer) -> Chat:
    return Chat(server)


SIGNED = '[[think hm 1]] [[call read_file {"path":"a"}]] [[think (sealed) 2]] [[call read_file {"path":"b"}]]'
ENCRYPTED = (
    '[[think first]][[call read_file {"path": "a"} + call read_file {}]]'
    "[[think second]][[reply Look:]][[call read_file {}]][[think third]][[reply done]]"
)


async def test_signed_thoughts_come_back_over_turns(chat: Chat) -> None:
    await chat.turn(ANTHROPIC, f"{SIGNED} [[think hm 3]] [[reply one]]", "low")
    assert await chat.turn(ANTHROPIC, f"{SIGNED} [[reply two]]", "low") == "two"
    blocks = [block["type"] for message in chat.last_body()["messages"] for block in message["content"]]
    thoughts = [kind for kind in blocks if "thinking" in kind]
    assert thoughts == ["thinking", "redacted_thinking", "thinking", "thinking", "redacted_thinking"]


async def test_a_changed_thought_is_refused(chat: Chat) -> None:
    """So the server would have told us, had any thought been changed on its way."""
    await chat.turn(ANTHROPIC, "[[think hm]] [[reply one]]")
    message = chat.said(-1)
    thought = msgspec.structs.replace(message.reasoning[0], raw=message.reasoning[0].raw.replace("hm", "ha"))
    chat.log[-1] = msgspec.structs.replace(message, reasoning=(thought,))
    with pytest.raises(ModelRefused, match="Invalid `signature`"):
        await chat.turn(ANTHROPIC, "go on")


async def test_encrypted_thoughts_come_back_to_the_model_that_thought_them(chat: Chat) -> None:
    assert await chat.turn(RESPONSES, ENCRYPTED) == "done"
    assert await chat.turn(RESPONSES, "[[think fourth]] [[reply more]]") == "more"
    sent = chat.last_body()["input"]
    kinds = " ".join(item.get("type", item.get("role")) for item in sent)
    assert kinds == (
        "system user reasoning function_call function_call function_call_output function_call_output "
        "reasoning message function_call function_call_output reasoning message user"
    )
    thoughts = [item for item in sent if item.get("type") == "reasoning"]
    assert [thought["summary"][0]["text"] for thought in thoughts] == ["first", "second", "third"]
    assert all(thought["encrypted_content"] for thought in thoughts)


@pytest.mark.parametrize("is_forged", [True, False])
async def test_thoughts_of_others_or_in_another_place_would_be_refused(chat: Chat, is_forged: bool) -> None:
    """By the server that these tests run against: so the test above can fail."""
    await chat.turn(RESPONSES, ENCRYPTED)
    first, thought = chat.said(1), chat.said(-1).reasoning[0]
    if is_forged:
        raw = first.reasoning[0].raw.replace('"encrypted_content":"', '"encrypted_content":"AAAA')
        thought = msgspec.structs.replace(thought, raw=raw)
    chat.log[1] = msgspec.structs.replace(first, reasoning=(thought, *first.reasoning[1:]))
    with pytest.raises(ModelRefused, match="verified" if is_forged else "required following item"):
        await chat.turn(RESPONSES, "more")


@pytest.mark.parametrize(
    ("there", "here"),
    list(permutations((CHAT, RESPONSES, ANTHROPIC), 2)),
    ids=lambda wire: wire.name,
)
async def test_a_conversation_moves_between_formats_without_loss(chat: Chat, there: Wire, here: Wire) -> None:
    """Thoughts of a format go back to it, also those from before the excursion; to another they do not."""
    for n, wire in enumerate((there, here, there, here)):
        effort = "low" if wire is ANTHROPIC else None
        text = f"[[think hm {n}]] [[call read_file {{oops {n}]] [[call read_file {{}}]] [[reply {n}]]"
        assert await chat.turn(wire, text, effort) == str(n)
    kept = [t.text for m in chat.log if isinstance(m, AssistantMessage) for t in m.reasoning if t.text]
    assert kept == [f"hm {n}" for n in range(4)]
    chat.log.append(UserMessage((Text("[[history]]"),)))
    assert int((await chat.ask(here)).message.text) == len(chat.log)
    sent = json.dumps(chat.last_body())
    mark = {CHAT: '"reasoning_content"', RESPONSES: '"encrypted_content"', ANTHROPIC: '"signature"'}
    assert (sent.count(mark[here]), sent.count(mark[there])) == (2, 0), sent


async def test_a_turn_changes_hands_in_the_middle(chat: Chat) -> None:
    """As a fallback does: the other model's calls are there, its thoughts are not, nor is a budget."""
    chat.log.append(UserMessage((Text("[[think hm]] [[call read_file {}]] [[reply done]]"),)))
    first = await chat.ask(CHAT)
    chat.log.append(ToolResults((ToolResult(first.message.tool_calls[0].id, "read_file", "x"),)))
    assert (await chat.ask(ANTHROPIC, "high")).message.text == "done"
    assert "thinking" not in chat.last_body()


# -- a whole gateway


def speaking(wire: Wire, server: ModelServer, effort: str = "none") -> dict[str, Any]:
    return {
        "model": {"provider": "acme", "name": "scripted", "reasoning": effort},
        "providers": {"acme": {"base_url": server.base_url, "api": wire.name, "api_key": "sk-test"}},
    }


class Body(msgspec.Struct):
    conversation: list[msgspec.Raw]
    tools: msgspec.Raw
    system: msgspec.Raw = msgspec.Raw()


@pytest.mark.parametrize(
    ("wire", "effort"), [(ANTHROPIC, "none"), (ANTHROPIC, "low"), (RESPONSES, "low"), (CHAT, "low")]
)
async def test_a_gateway_runs_turns_with_tools_and_keeps_its_prefix(
    server: ModelServer, tmp_path: Path, wire: Wire, effort: str
) -> None:
    """Two lives of a gateway: what the second sends begins with what the first has sent."""
    text = '[[think hm]] [[call write_file {"path":"a.txt","content":"ünï"}]]'
    text += '[[think so]] [[call read_file {"path":"a.txt"}]]+[[call list_files {}]] [[reply done]]'
    key = ChatAddress("main", "test", "dm", "1").key()
    for _ in range(2):
        async with without_http(tmp_path, server, tables=speaking(wire, server, effort)) as gateway:
            for _ in range(2):
                said = Inbound(key, Sender("tester"), (Text(text),))
                turn = await gateway.turns.wait(await gateway.turns.submit(said))
                assert (turn.state, turn.reply) == (TurnState.DONE, "done")
    name = b'"input":' if wire is RESPONSES else b'"messages":'
    plain = [body.replace(CACHE_MARK, b"").replace(name, b'"conversation":', 1) for body in server.bodies]
    sent = [msgspec.json.decode(body, type=Body) for body in plain]
    assert len(sent) == 12
    for earlier, later in pairwise(sent):
        assert later.conversation[: len(earlier.conversation)] == earlier.conversation
        assert (later.tools, later.system) == (earlier.tools, earlier.system)


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (ANTHROPIC, {"max_tokens": 50, "temperature": 0.5, "tool_choice": {"type": "tool", "name": "look"}}),
        (
            RESPONSES,
            {
                "max_output_tokens": 50,
                "temperature": 0.5,
                "tool_choice": {"type": "function", "name": "look"},
            },
        ),
    ],
)
async def test_a_stateless_callers_tools_and_sampling_are_translated(
    server: ModelServer, tmp_path: Path, wire: Wire, expected: dict[str, Any]
) -> None:
    """The server would refuse them as the caller wrote them, for chat completions."""
    tools = b'[{"function":{"name":"look","parameters":{"type":"object"}},"type":"function"}]'
    sampling = b'"temperature":0.5,"seed":1,"tool_choice":{"type":"function","function":{"name":"look"}}'
    context = (SystemMessage("Be brief."), UserMessage((Text("[[call look {}]]"),)))
    call = StatelessCall(
        Sender("tester"), context, tools=tools, options=CallOptions(max_output=50, sampling=sampling)
    )
    async with without_http(tmp_path, server, tables=speaking(wire, server)) as gateway:
        receipt = await gateway.turns.call(call)
        assert (await gateway.turns.wait(receipt)).state is TurnState.DONE
        assert receipt.completion is not None
        [called] = receipt.completion.message.tool_calls
    assert called.name == "look"
    sent = json.loads(server.bodies[-1])
    assert {key: sent[key] for key in expected} == expected
    if wire is ANTHROPIC:
        assert (sent["system"], len(sent["messages"])) == ([{"type": "text", "text": "Be brief."}], 1)


async def test_one_line_of_configuration_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[model]\nprovider = "openai"\nname = "gpt-x"\n[providers.openai]\napi = "openai-responses"\n'
    )
    environ = {"OPENAI_API_KEY": "sk-1"}
    loaded = load(tmp_path, environ, PARTS)
    assert loaded.warnings == ()
    async with Providers(loaded.settings.providers, environ) as providers:
        assert providers.wire("openai").name == "openai-responses"
        assert providers.get("openai").wire is providers.wire("openai")
