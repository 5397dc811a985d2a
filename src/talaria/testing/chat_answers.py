"""How an act of the scripted model looks on the wire of OpenAI chat completions."""

from __future__ import annotations

from typing import Any

from talaria.core.messages import TokenUsage
from talaria.testing.script import Act
from talaria.testing.telling import Event, Telling, cut_in_half, encode

DONE = b"data: [DONE]\n\n"


def tell_completion(act: Act, completion_id: str, model: str, usage: TokenUsage) -> Telling:
    head = {"id": completion_id, "object": "chat.completion.chunk", "created": 0, "model": model}
    choice = {"index": 0, "finish_reason": None}
    return Telling(
        [{**head, "choices": [{**choice, "delta": {"role": "assistant", "content": ""}}]}],
        [{**head, "choices": [{**choice, "delta": delta}]} for delta in _deltas(act)],
        [
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(act)}]},
            {**head, "choices": [], "usage": _usage(usage)},
        ],
        {"error": {"message": "The scripted server had an error.", "type": "server_error"}},
    )


def write_chunk(event: Event, n: int) -> bytes:
    return b"data: %b\n\n" % encode(event)


def whole_completion(act: Act, completion_id: str, model: str, usage: TokenUsage) -> bytes:
    """The answer to a request that did not ask for a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": act.text or (None if act.calls else "")}
    if act.thought:
        message["reasoning_content"] = act.thought
    if act.calls:
        message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in act.calls]
    return encode(
        {
            "id": completion_id,
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": _finish(act)}],
            "usage": _usage(usage),
        }
    )


def error_body(message: str, kind: str) -> bytes:
    return encode({"error": {"message": message, "type": kind, "param": None, "code": None}})


def _finish(act: Act) -> str:
    return "tool_calls" if act.calls else "stop"


def _deltas(act: Act) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"reasoning_content": act.thought}] if act.thought else []
    deltas += ({"content": piece} for piece in act.pieces())
    for n, call in enumerate(act.calls):
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
