"""Servers that speak chat completions, each in its own way: an answer as it sends one, and how it goes back.

The streams have the shapes that these servers send, shortened to one thought, one text and a call or two.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from talaria.agent.transcript import Transcript
from talaria.core.messages import AssistantMessage, TokenUsage, ToolCall, ToolResult, ToolResults
from talaria.core.specs import AgentSpec, Completion, ModelCall, Prefix
from talaria.models.failures import ProviderErrors
from talaria.models.openai_chat import OpenAIChat
from talaria.testing.openai_chat_api import ChatCompletionsApi

Chunk = dict[str, Any]


def stream(*chunks: Chunk | str, done: bool = True) -> bytes:
    """Chunks as events, texts as comments."""
    lines = [
        f": {chunk}\n\n" if isinstance(chunk, str) else f"data: {json.dumps(chunk)}\n\n" for chunk in chunks
    ]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def say(delta: Chunk, finish: str | None = None, **more: Any) -> Chunk:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more.pop("choice", {})}
    return {"id": "c-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def call(index: int | None, arguments: Any, call_id: str | None = None, name: str | None = None) -> Chunk:
    piece: Chunk = {"type": "function", "function": {"arguments": arguments}}
    if name is not None:
        piece["function"]["name"] = name
    if index is not None:
        piece["index"] = index
    if call_id is not None:
        piece["id"] = call_id
    return {"tool_calls": [piece]}


USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
READ = ("read_file", {"path": "a"})


class Dialect(msgspec.Struct, frozen=True):
    """An answer of a server, what it means, and what of the thought must be in the next request."""

    model: str
    answer: bytes
    text: str
    calls: tuple[tuple[str, Chunk], ...]
    usage: TokenUsage
    goes_back: Chunk


DIALECTS: dict[str, Dialect] = {
    "openrouter": Dialect(
        "anthropic/claude-sonnet-4",
        stream(
            "OPENROUTER PROCESSING",
            say(
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning": "Let me",
                    "reasoning_details": [{"type": "reasoning.text", "text": "Let me", "index": 0}],
                },
                provider="Anthropic",
            ),
            say(
                {
                    "content": "",
                    "reasoning": " look.",
                    "reasoning_details": [{"type": "reasoning.text", "text": " look.", "index": 0}],
                }
            ),
            say(
                {
                    "content": "",
                    "reasoning_details": [{"type": "reasoning.text", "signature": "sig==", "index": 0}],
                }
            ),
            say({"content": "I read."}),
            say(call(0, "", "toolu_1", "read_file")),
            say(call(0, '{"path": "a"}')),
            say({"content": ""}, "tool_calls", choice={"native_finish_reason": "tool_use"}),
            say(
                {"role": "assistant", "content": ""},
                usage=USAGE | {"prompt_tokens_details": {"cached_tokens": 60}},
            ),
        ),
        "I read.",
        (READ,),
        TokenUsage(100, 60, 20, 0),
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "Let me look.", "index": 0, "signature": "sig=="}
            ]
        },
    ),
    "openrouter, encrypted": Dialect(
        "openai/gpt-5",
        stream(
            say({"reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.summary", "summary": "Hm."}]}),
            say({"reasoning_details": [{"type": "reasoning.encrypted", "data": "gAA=", "id": "rs_1"}]}),
            say(call(0, '{"path": "a"}', "call_1", "read_file")),
            say({}, "tool_calls", usage=USAGE),
        ),
        "",
        (READ,),
        TokenUsage(100, 0, 20, 0),
        {
            "reasoning_details": [
                {"type": "reasoning.summary", "summary": "Hm."},
                {"type": "reasoning.encrypted", "data": "gAA=", "id": "rs_1"},
            ]
        },
    ),
    "deepseek": Dialect(
        "deepseek-reasoner",
        stream(
            "keep-alive",
            say({"role": "assistant", "content": None, "reasoning_content": ""}),
            say({"content": None, "reasoning_content": "Let me look."}),
            say({"content": "I read.", "reasoning_content": None}),
            say(call(0, "", "call_00_x", "read_file")),
            say(call(0, '{"path":')),
            say(call(0, ' "a"}')),
            say(
                {"content": "", "reasoning_content": None},
                "tool_calls",
                usage=USAGE
                | {
                    "prompt_cache_hit_tokens": 64,
                    "prompt_cache_miss_tokens": 36,
                    "completion_tokens_details": {"reasoning_tokens": 7},
                },
            ),
        ),
        "I read.",
        (READ,),
        TokenUsage(100, 64, 20, 7),
        {"reasoning_content": "Let me look."},
    ),
    "moonshot": Dialect(
        "kimi-k2-thinking",
        stream(
            say({"role": "assistant", "content": ""}),
            say({"reasoning_content": "Let me look."}),
            say(call(0, "", "functions.read_file:0", "read_file")),
            say(call(0, '{"path": "a"}')),
            say({}, "tool_calls", choice={"usage": USAGE | {"cached_tokens": 50}}),
        ),
        "",
        (READ,),
        TokenUsage(100, 50, 20, 0),
        {"reasoning_content": "Let me look."},
    ),
    "mimo": Dialect(
        "mimo-v2.5-pro",
        stream(
            say({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}),
            say({"content": None, "reasoning_content": "Let me look.", "tool_calls": None}),
            say({"content": None, **call(0, '{"path": "a"}', "call_1", "read_file")}),
            say({"content": ""}, "tool_calls"),
            {"id": "c-1", "choices": [], "usage": USAGE},
        ),
        "",
        (READ,),
        TokenUsage(100, 0, 20, 0),
        {"reasoning_content": "Let me look.", "content": " "},
    ),
    "vllm": Dialect(
        "Qwen/Qwen3-8B",
        stream(
            say({"role": "assistant", "content": ""}, usage=None),
            say({"reasoning": "Let me look."}),
            say(call(0, "", "chatcmpl-tool-1", "read_file")),
            say(call(0, '{"path": ')),
            say(call(0, '"a"}')),
            say(call(1, "", "chatcmpl-tool-2", "todo")),
            say(call(1, "{}")),
            say({"content": ""}, "tool_calls", choice={"stop_reason": None}),
            {"id": "c-1", "choices": [], "usage": USAGE | {"prompt_tokens_details": None}},
        ),
        "",
        (READ, ("todo", {})),
        TokenUsage(100, 0, 20, 0),
        {"reasoning": "Let me look."},
    ),
    "vllm, older": Dialect(
        "Qwen/QwQ-32B",
        stream(
            say({"reasoning_content": "Let me look."}),
            say(call(0, '{"path": "a"}', "chatcmpl-tool-1", "read_file")),
            say({}, "tool_calls"),
            done=False,
        ),
        "",
        (READ,),
        TokenUsage(),
        {"reasoning_content": "Let me look."},
    ),
    "ollama": Dialect(
        "qwen3:8b",
        stream(
            say({"role": "assistant", "content": "", "reasoning": "Let me look."}),
            # Every call is whole at once, and all of them have the same index.
            say({"role": "assistant", "content": "", **call(0, '{"path":"a"}', "call_abc", "read_file")}),
            say({"role": "assistant", "content": "", **call(0, "{}", "call_def", "todo")}),
            say({"role": "assistant", "content": ""}, "tool_calls"),
            {"id": "c-1", "choices": [], "usage": USAGE},
        ),
        "",
        (READ, ("todo", {})),
        TokenUsage(100, 0, 20, 0),
        {"reasoning": "Let me look."},
    ),
    "llama.cpp": Dialect(
        "gemma-3",
        stream(
            say({"role": "assistant", "content": None}),
            say({"reasoning_content": "Let me look."}),
            say({"content": "I read."}),
            say(call(0, "{", "", "read_file")),
            say(call(0, '"path":"a"}', "", "")),
            say({}, "tool_calls"),
            {"id": "c-1", "choices": [], "usage": USAGE, "timings": {"cache_n": 90, "prompt_n": 10}},
        ),
        "I read.",
        (READ,),
        TokenUsage(100, 0, 20, 0),
        {"reasoning_content": "Let me look."},
    ),
    "without index, empty ids and names later": Dialect(
        "home-made",
        stream(
            say(call(None, '{"path":', "call_1", "read_file")),
            say(call(None, ' "a"}', "", "")),
            say(call(None, "{", "call_2", "todo")),
            say(call(None, "}", "", "")),
            say({}, "tool_calls", usage=USAGE),
        ),
        "",
        (READ, ("todo", {})),
        TokenUsage(100, 0, 20, 0),
        {},
    ),
    "without index or id, arguments as an object": Dialect(
        "home-made",
        stream(
            say({"tool_calls": [{"function": {"name": "read_file", "arguments": {"path": "a"}}}]}),
            say({"tool_calls": [{"function": {"name": "read_file", "arguments": {"path": "a"}}}]}),
            say({}, "stop", usage=USAGE),
        ),
        "",
        (READ, READ),
        TokenUsage(100, 0, 20, 0),
        {},
    ),
}
dialects = pytest.mark.parametrize("name", DIALECTS)


def read(dialect: Dialect, step: int = 0) -> Completion:
    answer = OpenAIChat().decoder(dialect.model, ProviderErrors("acme", dialect.model))
    size = step or len(dialect.answer)
    for at in range(0, len(dialect.answer), size):
        answer.feed(dialect.answer[at : at + size])
    answer.end()
    return answer.completion()


def request(model: str, *messages: AssistantMessage, **more: Any) -> bytes:
    """The request that follows these answers and their results."""
    spec = AgentSpec("main", "acme", model, "openai-chat", "p", (), "", "")
    transcript = Transcript(OpenAIChat(), spec)
    for message in messages:
        transcript.append(message)
        results = [ToolResult(call.id, call.name, "ok") for call in message.tool_calls]
        transcript.append(ToolResults(tuple(results)))
    tools = [{"type": "function", "function": {"name": name}} for name in ("read_file", "todo")]
    prefix = Prefix(b'{"role":"user","content":"hi"}', json.dumps(tools).encode())
    return b"".join(OpenAIChat().body(ModelCall(model, prefix, transcript.chunks, **more)))


@dialects
def test_its_answer_means_what_it_says(name: str) -> None:
    dialect = DIALECTS[name]
    completion = read(dialect)
    message = completion.message
    assert message.text == dialect.text
    assert tuple((call.name, json.loads(call.arguments)) for call in message.tool_calls) == dialect.calls
    assert completion.usage == dialect.usage
    ids = [call.id for call in message.tool_calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)


@dialects
@pytest.mark.parametrize("step", [1, 7])
def test_its_answer_is_the_same_in_small_pieces(name: str, step: int) -> None:
    assert read(DIALECTS[name], step) == read(DIALECTS[name])


@dialects
def test_its_thoughts_go_back_as_it_wants_them(name: str) -> None:
    dialect = DIALECTS[name]
    message = msgspec.structs.replace(read(dialect).message, provider="acme")
    body = request(dialect.model, message)
    ChatCompletionsApi().read(body)
    sent = json.loads(body)["messages"][1]
    assert {key: sent.get(key) for key in dialect.goes_back} == dialect.goes_back
    thoughts = {key for key in sent if key.startswith("reasoning")}
    assert thoughts == {key for key in dialect.goes_back if key.startswith("reasoning")}


FOREIGN = AssistantMessage(tool_calls=(ToolCall("c1", "todo", "{}"),), model="other", provider="elsewhere")


@pytest.mark.parametrize(
    ("model", "added"),
    [
        ("deepseek-reasoner", {"reasoning_content": " "}),
        ("deepseek/deepseek-v3.2", {"reasoning_content": " "}),
        ("moonshotai/kimi-k2.5", {"reasoning_content": " "}),
        ("mimo-v2-flash", {"reasoning_content": " ", "content": " "}),
        ("gpt-4o", {}),
        ("anthropic/claude-sonnet-4", {}),
    ],
)
def test_calls_of_another_model_are_padded_only_for_those_who_refuse_them_bare(
    model: str, added: dict[str, str]
) -> None:
    sent = json.loads(request(model, FOREIGN))["messages"][1]
    bare = {"role": "assistant", "content": None, "tool_calls": sent["tool_calls"]}
    assert sent == bare | added


def test_a_plain_answer_of_another_model_is_not_padded() -> None:
    spec = AgentSpec("main", "acme", "mimo-v2-flash", "openai-chat", "p", (), "", "")
    transcript = Transcript(OpenAIChat(), spec)
    transcript.append(AssistantMessage("Hello."))
    assert json.loads(transcript.chunks[0]) == {"role": "assistant", "content": "Hello."}


@pytest.mark.parametrize(
    ("model", "member"),
    [
        ("gpt-5", "max_completion_tokens"),
        ("gpt-5.1-codex", "max_completion_tokens"),
        ("o3-mini", "max_completion_tokens"),
        ("o1", "max_completion_tokens"),
        ("gpt-4o", "max_tokens"),
        ("openai/gpt-5", "max_tokens"),  # openrouter translates it
        ("olmo-2", "max_tokens"),
        ("o3x", "max_tokens"),
    ],
)
def test_the_limit_has_the_name_that_the_model_takes(model: str, member: str) -> None:
    body = json.loads(request(model, max_output=5))
    assert {key: body[key] for key in body if key.startswith("max_")} == {member: 5}


def test_usage_in_the_stream_is_always_asked_for() -> None:
    assert json.loads(request("m"))["stream_options"] == {"include_usage": True}
