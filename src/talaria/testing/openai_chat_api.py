"""OpenAI chat completions, as a server sees them."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from talaria.core.messages import TokenUsage
from talaria.testing.model_api import (
    NAME,
    PICTURE,
    AnswerEvents,
    Event,
    ModelApi,
    RequestRefused,
    ScriptedReply,
    ScriptedRequest,
    cut_in_half,
    decode,
    encode,
    make_request,
    require,
    require_unique_tools,
    validate,
)
from talaria.testing.script import ScriptContext, ScriptedAnswer, read_context, read_steps

_USER = b'{"role":"user",'
_HEAD = re.compile(rb'\{"model":("(?:[^"\\]|\\.)*")')
_AFTER = ('],"tools":', '],"stream":')
_TAIL = 4096
_scan_json = json.JSONDecoder().raw_decode


class _Function(Struct):
    name: Annotated[str, Meta(pattern=NAME)]


class _Tool(Struct):
    function: _Function


class _Called(Struct):
    name: str
    arguments: str


class _Call(Struct):
    id: str
    function: _Called


class _Text(Struct, tag="text"):
    text: str


class _Picture(Struct):
    url: Annotated[str, Meta(pattern=PICTURE)]


class _Image(Struct, tag="image_url"):
    image_url: _Picture


_Content = str | Annotated[list[_Text | _Image], Meta(min_length=1)]


class _User(Struct, tag_field="role", tag="user"):
    content: _Content


class _System(_User, tag="system"):
    pass


class _Developer(_User, tag="developer"):
    pass


class _Assistant(Struct, tag_field="role", tag="assistant"):
    content: _Content | None = None
    tool_calls: Annotated[list[_Call], Meta(min_length=1)] | None = None


class _Result(Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str | Annotated[list[_Text], Meta(min_length=1)]


class _Request(Struct):
    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[_User | _System | _Developer | _Assistant | _Result], Meta(min_length=1)]
    tools: Annotated[list[_Tool], Meta(min_length=1)] | None = None


class ChatCompletionsApi(ModelApi):
    wire = "openai-chat"
    path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    end = b"data: [DONE]\n\n"

    def read(self, body: bytes) -> ScriptedRequest:
        request = decode(body)
        _check(validate(request, _Request))
        return make_request(request, read_context(request["messages"]))

    def read_loosely(self, body: bytes) -> ScriptedRequest:
        fast = read_fast(body)
        if fast is not None:
            return fast
        request = decode(body)
        messages = [m for m in request.get("messages") or () if isinstance(m, dict)]
        return make_request(request, read_context(messages))

    def events(self, reply: ScriptedReply) -> AnswerEvents:
        head = {"id": reply.id, "object": "chat.completion.chunk", "created": 0, "model": reply.model}
        choice = {"index": 0, "finish_reason": None}
        return AnswerEvents(
            [{**head, "choices": [{**choice, "delta": {"role": "assistant", "content": ""}}]}],
            [{**head, "choices": [{**choice, "delta": delta}]} for delta in _deltas(reply.answer)],
            [
                {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply.answer)}]},
                {**head, "choices": [], "usage": _usage(reply.usage)},
            ],
            {"error": {"message": "The scripted server had an error.", "type": "server_error"}},
        )

    def whole(self, reply: ScriptedReply) -> bytes:
        answer = reply.answer
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text or (None if answer.calls else ""),
        }
        if answer.thought:
            message["reasoning_content"] = answer.thought
        if answer.calls:
            message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in answer.calls]
        return encode(
            {
                "id": reply.id,
                "object": "chat.completion",
                "created": 0,
                "model": reply.model,
                "choices": [{"index": 0, "message": message, "finish_reason": _finish(answer)}],
                "usage": _usage(reply.usage),
            }
        )

    def write(self, event: Event, n: int) -> bytes:
        return b"data: %b\n\n" % encode(event)


def _check(request: _Request) -> None:
    """Check what a schema cannot say: every call of the assistant has its result. Raises `RequestRefused`."""
    require_unique_tools(tool.function.name for tool in request.tools or ())
    owed: set[str] = set()
    for n, message in enumerate(request.messages):
        if isinstance(message, _Result):
            answers = message.tool_call_id in owed
            require(answers, f"Invalid 'messages[{n}]': a tool message must answer a call before it.")
            owed.discard(message.tool_call_id)
            continue
        _need_nothing_owed(owed)
        if isinstance(message, _Assistant):
            calls = message.tool_calls or []
            says = message.content is not None or bool(calls)
            require(says, f"Invalid 'messages[{n}].content': expected a string without 'tool_calls'.")
            owed = {call.id for call in calls}
            require(len(owed) == len(calls), f"Invalid 'messages[{n}].tool_calls': ids must be unique.")
    _need_nothing_owed(owed)


def _need_nothing_owed(owed: set[str]) -> None:
    if owed:
        raise RequestRefused(
            "An assistant message with 'tool_calls' must be followed by tool messages for each "
            f"'tool_call_id'. These have none: {', '.join(sorted(owed))}."
        )


def read_fast(body: bytes) -> ScriptedRequest | None:
    """Read the last user message and what follows it, from the end, so that a long history costs nothing.

    Returns None for a request that is not compact JSON, or whose script asks about the whole request. In
    compact JSON the searched bytes stand for nothing else: inside a string the quotes would be escaped.
    """
    start = body.rfind(_USER)
    head = _HEAD.match(body)
    if start < 0 or head is None:
        return None
    try:
        text = body[start:].decode()
        user, at = _scan_json(text, 0)
        later: list[dict[str, Any]] = []
        while text[at] == ",":
            message, at = _scan_json(text, at + 1)
            later.append(message)
    except (ValueError, IndexError):
        return None
    content = user.get("content")
    if not text.startswith(_AFTER, at) or not isinstance(content, str):
        return None
    if "[[system" in content or "[[history" in content:
        return None
    steps, results = read_steps(later)
    stream = body.find(b'"stream":true', max(start, len(body) - _TAIL)) > 0
    return ScriptedRequest(msgspec.json.decode(head[1]), stream, ScriptContext(content, steps, results))


def _finish(answer: ScriptedAnswer) -> str:
    return answer.finish or ("tool_calls" if answer.calls else "stop")


def _deltas(answer: ScriptedAnswer) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"reasoning_content": answer.thought}] if answer.thought else []
    deltas += ({"refusal" if answer.refuses else "content": piece} for piece in answer.pieces())
    for n, call in enumerate(answer.calls):
        deltas.append({"tool_calls": [{"index": n, **_call(call.id, call.name, "")}]})
        for part in cut_in_half(call.arguments):
            deltas.append({"tool_calls": [{"index": n, "function": {"arguments": part}}]})
    return deltas


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
