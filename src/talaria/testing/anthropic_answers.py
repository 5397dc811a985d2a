"""How an act of the scripted model looks on the wire of Anthropic messages.

Thoughts are signed; a thought that begins with "(sealed)" comes as a redacted block.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import msgspec

from talaria.core.messages import TokenUsage
from talaria.testing.script import Act, Fault

SEALED = "(sealed)"
_encode = msgspec.json.Encoder().encode


def sign(thought: str) -> str:
    """The signature of a thought; whoever changes the thought has none for it."""
    return base64.b64encode(hashlib.sha256(b"scripted\0" + thought.encode()).digest()).decode()


def messages_error(message: str, kind: str) -> bytes:
    kind = "api_error" if kind == "server_error" else kind
    return _encode(
        {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}
    )


def stream_message(act: Act, message_id: str, model: str, usage: TokenUsage) -> tuple[list[bytes], bool]:
    """The server-sent events of `act`, and whether the connection is lost after them."""
    start = _event(
        {
            "type": "message_start",
            "message": {**_envelope(message_id, model), "content": [], "usage": _usage(usage, 1)},
        }
    )
    match act.fault:
        case Fault.MALFORMED:
            broken = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"del\n\n'
            return [start, broken], False
        case Fault.ERROR_IN_STREAM:
            error = {"type": "overloaded_error", "message": "The scripted server had an error."}
            return [start, _event({"type": "error", "error": error})], False
    events = [start, _event({"type": "ping"})]
    deltas = 0
    for index, (block, pieces) in enumerate(_blocks(act)):
        events.append(_event({"type": "content_block_start", "index": index, "content_block": block}))
        for piece in pieces:
            if act.fault is Fault.CUT and deltas >= act.cut_after:
                return events, True
            events.append(_event({"type": "content_block_delta", "index": index, "delta": piece}))
            deltas += 1
        if act.fault is Fault.HALF_CALL and block["type"] == "tool_use":
            return events, True
        events.append(_event({"type": "content_block_stop", "index": index}))
    if act.fault is Fault.CUT:
        return events, True
    delta = {"stop_reason": _stop(act), "stop_sequence": None}
    events.append(_event({"type": "message_delta", "delta": delta, "usage": _usage(usage, usage.output)}))
    events.append(_event({"type": "message_stop"}))
    return events, False


def whole_message(act: Act, message_id: str, model: str, usage: TokenUsage) -> bytes:
    """The answer to a request that did not ask for a stream."""
    content: list[dict[str, Any]] = []
    if act.thought:
        content.append(_thought(act.thought))
    if act.text:
        content.append({"type": "text", "text": act.text})
    for call in act.calls:
        content.append(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
        )
    answer = {**_envelope(message_id, model), "content": content, "usage": _usage(usage, usage.output)}
    return _encode({**answer, "stop_reason": _stop(act)})


def _envelope(message_id: str, model: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(act: Act) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each block as it begins, and the deltas that make it whole."""
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if act.thought.startswith(SEALED):
        blocks.append((_thought(act.thought), []))
    elif act.thought:
        start = {"type": "thinking", "thinking": "", "signature": ""}
        thought = {"type": "thinking_delta", "thinking": act.thought}
        blocks.append((start, [thought, {"type": "signature_delta", "signature": sign(act.thought)}]))
    if pieces := act.pieces():
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        blocks.append(({"type": "text", "text": ""}, deltas))
    if act.fault is Fault.HALF_CALL:
        blocks.append(_call("toolu_half", "terminal", ["", '{"comm']))
    for call in act.calls:
        middle = len(call.arguments) // 2
        blocks.append(_call(call.id, call.name, ["", call.arguments[:middle], call.arguments[middle:]]))
    return blocks


def _call(call_id: str, name: str, pieces: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    start = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return start, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def _thought(thought: str) -> dict[str, Any]:
    if thought.startswith(SEALED):
        return {"type": "redacted_thinking", "data": f"{sign(thought)}.{thought.encode().hex()}"}
    return {"type": "thinking", "thinking": thought, "signature": sign(thought)}


def _input(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _stop(act: Act) -> str:
    return "tool_use" if act.calls else "end_turn"


def _usage(usage: TokenUsage, output: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.input - usage.cached - usage.stored,
        "cache_creation_input_tokens": usage.stored,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


def _event(value: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), _encode(value))
