"""What an Anthropic call carries beside its messages: thinking, limits, sampling, callers' tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from talaria.core.messages import (
    AssistantMessage,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
)
from talaria.core.messages import UserMessage as User
from talaria.core.specs import ModelCall, Prefix
from talaria.core.tools import ToolSpec
from talaria.models.anthropic_messages import AnthropicMessages, claude_version
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses

WIRE = AnthropicMessages()
PREFIX = WIRE.render_prefix("", [ToolSpec("a", "A.", '{"type":"object"}')])
OLD, MIDDLE, NEW = "claude-sonnet-4-5-20250929", "claude-opus-4-6", "claude-sonnet-5"
COMMON = {"model", "messages", "tools", "system", "stream"}


def options_of(
    model: str = OLD, prefix: Prefix = PREFIX, log: list[Message] | None = None, **call: Any
) -> dict[str, Any]:
    chunks = [WIRE.encode(message) for message in log or [User((Text("hi"),))]]
    body = json.loads(b"".join(WIRE.body(ModelCall(model, prefix, chunks, **call))))
    return {key: value for key, value in body.items() if key not in COMMON}


@pytest.mark.parametrize(
    ("model", "version"),
    [
        ("claude-3-7-sonnet-20250219", (3, 7)),
        ("claude-3-opus-20240229", (3, 0)),
        ("claude-sonnet-4-20250514", (4, 0)),
        ("claude-opus-4-1-20250805", (4, 1)),
        ("claude-haiku-4-5", (4, 5)),
        ("anthropic/claude-opus-4.6", (4, 6)),
        ("eu.anthropic.claude-opus-4-6-v1:0", (4, 6)),
        ("claude-opus-5", (5, 0)),
        ("claude-sonnet-5-5", (5, 5)),
        ("claude-mythos-preview", (99, 0)),
        ("kimi-k2", None),
        ("scripted", None),
    ],
)
def test_versions_are_read_from_names(model: str, version: tuple[int, int] | None) -> None:
    assert claude_version(model) == version


@pytest.mark.parametrize(
    ("model", "effort", "options"),
    [
        (OLD, None, {"max_tokens": 32000}),
        (OLD, "none", {"max_tokens": 32000}),
        (OLD, "low", {"max_tokens": 32000, "thinking": {"type": "enabled", "budget_tokens": 4096}}),
        (OLD, "high", {"max_tokens": 32000, "thinking": {"type": "enabled", "budget_tokens": 24000}}),
        ("kimi-k2", "medium", {"max_tokens": 32000, "thinking": {"type": "enabled", "budget_tokens": 12288}}),
        (
            MIDDLE,
            "low",
            {"max_tokens": 32000, "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        ),
        (
            NEW,
            "xhigh",
            {
                "max_tokens": 32000,
                "thinking": {"type": "adaptive", "display": "summarized"},
                "output_config": {"effort": "high"},
            },
        ),
    ],
)
def test_thinking_is_asked_for_in_the_model_s_own_way(
    model: str, effort: str | None, options: dict[str, Any]
) -> None:
    assert options_of(model, reasoning=effort) == options


def test_a_callers_limit_is_for_what_is_said_and_thinking_comes_on_top() -> None:
    assert options_of(max_output=50) == {"max_tokens": 50}
    assert options_of(max_output=50, reasoning="low")["max_tokens"] == 4146


@pytest.mark.parametrize(
    ("sampling", "options"),
    [
        (b'"temperature":0.2', {"temperature": 0.2}),
        (b'"temperature":1.7', {"temperature": 1.0}),
        (b'"top_p":0.5', {"top_p": 0.5}),
        (b'"temperature":0,"top_p":0.5', {"temperature": 0.0}),
        (b'"stop":"END"', {"stop_sequences": ["END"]}),
        (b'"stop":["a"," ","b"]', {"stop_sequences": ["a", "b"]}),
        (b'"tool_choice":"auto"', {"tool_choice": {"type": "auto"}}),
        (b'"tool_choice":"none"', {"tool_choice": {"type": "none"}}),
        (b'"tool_choice":"required"', {"tool_choice": {"type": "any"}}),
        (
            b'"tool_choice":{"type":"function","function":{"name":"a"}}',
            {"tool_choice": {"type": "tool", "name": "a"}},
        ),
        (
            b'"parallel_tool_calls":false',
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
        (b'"seed":1,"logit_bias":{"1":2},"user":"ann","presence_penalty":1,"verbosity":"low"', {}),
    ],
)
def test_sampling_is_translated_or_dropped(sampling: bytes, options: dict[str, Any]) -> None:
    assert options_of(sampling=sampling) == {"max_tokens": 32000, **options}


def test_models_that_refuse_sampling_are_sent_none() -> None:
    assert options_of(NEW, sampling=b'"temperature":0.2,"stop":"x"') == {
        "max_tokens": 32000,
        "stop_sequences": ["x"],
    }
    assert options_of(MIDDLE, sampling=b'"top_p":0.2')["top_p"] == 0.2


def test_a_thinking_model_is_sent_no_temperature() -> None:
    assert "temperature" not in options_of(reasoning="low", sampling=b'"temperature":0.2')


def test_a_forced_call_leaves_no_room_for_thought() -> None:
    options = options_of(reasoning="low", sampling=b'"tool_choice":"required","temperature":0.2')
    assert options == {"max_tokens": 32000, "tool_choice": {"type": "any"}, "temperature": 0.2}


def test_without_tools_there_is_no_choice_among_them() -> None:
    assert options_of(prefix=Prefix(b"", b""), sampling=b'"tool_choice":"none"') == {"max_tokens": 32000}


def turn(*reasoning: Reasoning) -> list[Message]:
    call, result = ToolCall("c", "a", "{}"), ToolResult("c", "a", "x")
    log: list[Message] = [
        User((Text("hi"),)),
        AssistantMessage("so", (call,), reasoning),
        ToolResults((result,)),
    ]
    return [*log, AssistantMessage("", (call,)), ToolResults((result,))]


def test_a_turn_that_another_model_began_goes_on_without_a_budget() -> None:
    foreign = Reasoning("reasoning_content", "hm", '"hm"')
    own = Reasoning("thinking", "hm", '{"type":"thinking","thinking":"hm","signature":"s"}')
    assert "thinking" not in options_of(log=turn(foreign), reasoning="low")
    assert "thinking" in options_of(log=turn(own), reasoning="low")
    later = User((Text("go on"),))
    assert "thinking" not in options_of(log=[*turn(foreign), later], reasoning="low")
    assert "thinking" in options_of(log=[*turn(foreign), AssistantMessage("done"), later], reasoning="low")
    assert "thinking" in options_of(MIDDLE, log=turn(foreign), reasoning="low")


def test_a_prefix_of_another_format_is_rewritten() -> None:
    """A session keeps its bytes when the provider's `api` is changed."""
    tools = [ToolSpec("a", "A.", '{"type":"object"}'), ToolSpec("b", "B.", '{"type":"object"}')]
    own = WIRE.render_prefix('Be "kind".', tools)
    chunks = [WIRE.encode(User((Text("hi"),)))]
    for other in (OpenAIChat(), OpenAIResponses()):
        call = ModelCall("m", other.render_prefix('Be "kind".', tools), chunks)
        assert WIRE.body(call) == WIRE.body(ModelCall("m", own, chunks))


@pytest.mark.parametrize("parameters", ["null", "[]", "3", '"x"', "[" * 200 + "]" * 200])
def test_odd_parameters_break_nothing(parameters: str) -> None:
    theirs = b'[{"type":"function","function":{"name":"x","parameters":%b}}]' % parameters.encode()
    call = ModelCall("m", Prefix(b"", theirs), [WIRE.encode(User((Text("hi"),)))])
    [tool] = json.loads(b"".join(WIRE.body(call)))["tools"]
    assert tool["input_schema"] == {"type": "object"}


def test_a_callers_tools_are_rewritten() -> None:
    theirs = (
        b'[{"type":"function","function":{"name":"x","description":"X.","parameters":{"properties":{}}}},'
    )
    theirs += b'{"type":"function","function":{"name":"y"}}]'
    call = ModelCall("m", Prefix(b"", theirs), [WIRE.encode(User((Text("hi"),)))])
    assert json.loads(b"".join(WIRE.body(call)))["tools"] == [
        {"name": "x", "description": "X.", "input_schema": {"type": "object", "properties": {}}},
        {"name": "y", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
    ]
