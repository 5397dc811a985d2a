"""How an act of the scripted model looks on the wire of OpenAI chat completions."""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.messages import TokenUsage
from talaria.testing.script import Act, Fault

_encode = msgspec.json.Encoder().encode

_DONE = b"data: [DONE]\n\n"
_BROKEN = b'data: {"choices":[{"index":0,"delta":{"content":"oh\n\n'


def usage_of(act: Act, body_bytes: int) -> TokenUsage:
    """The act's own counts, else about four bytes to a token."""
    if act.usage is not None:
        return act.usage
    said = len(act.text) + sum(len(call.arguments) for call in act.calls)
    return TokenUsage(body_bytes // 4 + 1, 0, (said + len(act.thought)) // 4 + 1, len(act.thought) // 4)


def stream_events(act: Act, completion_id: str, model: str, usage: TokenUsage) -> tuple[list[bytes], bool]:
    """The server-sent events of `act`, and whether the connection is lost after them."""
    head = b'data: {"id":%b,"object":"chat.completion.chunk","created":0,"model":%b,"choices":[' % (
        _encode(completion_id),
        _encode(model),
    )
    deltas = _deltas(act)
    if act.fault is Fault.CUT:
        deltas = deltas[: act.cut_after + 1]
    events = [b'%b{"index":0,"delta":%b,"finish_reason":null}]}\n\n' % (head, delta) for delta in deltas]
    match act.fault:
        case Fault.CUT | Fault.HALF_CALL:
            return events, True
        case Fault.MALFORMED:
            return [*events[:1], _BROKEN], False
        case Fault.ERROR_IN_STREAM:
            error = {"error": {"message": "The scripted server had an error.", "type": "server_error"}}
            return [*events[:1], b"data: %b\n\n" % _encode(error)], False
    stop = b"tool_calls" if act.calls else b"stop"
    events.append(b'%b{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % (head, stop))
    events.append(b'%b],"usage":%b}\n\n' % (head, _encode(_usage(usage))))
    events.append(_DONE)
    return events, False


def whole_answer(act: Act, completion_id: str, model: str, usage: TokenUsage) -> bytes:
    """The answer to a request that did not ask for a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": act.text or (None if act.calls else "")}
    if act.thought:
        message["reasoning_content"] = act.thought
    if act.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in act.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if act.calls else "stop"}
    return _encode(
        {
            "id": completion_id,
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [choice],
            "usage": _usage(usage),
        }
    )


def error_body(message: str, kind: str, code: str | None = None) -> bytes:
    return _encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def _deltas(act: Act) -> list[bytes]:
    deltas = [b'{"role":"assistant","content":""}']
    if act.thought:
        deltas.append(b'{"reasoning_content":%b}' % _encode(act.thought))
    deltas.extend(b'{"content":%b}' % _encode(piece) for piece in act.pieces())
    if act.fault is Fault.HALF_CALL:
        deltas.append(_call_piece(0, "call_half", "terminal", ""))
        deltas.append(_arguments_piece(0, '{"comm'))
    for n, call in enumerate(act.calls):
        deltas.append(_call_piece(n, call.id, call.name, ""))
        middle = len(call.arguments) // 2
        deltas.extend(
            _arguments_piece(n, part) for part in (call.arguments[:middle], call.arguments[middle:]) if part
        )
    return deltas


def _call_piece(index: int, call_id: str, name: str, arguments: str) -> bytes:
    function = {"name": name, "arguments": arguments}
    return _encode(
        {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
    )


def _arguments_piece(index: int, arguments: str) -> bytes:
    return _encode({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
