"""How an act of the scripted model looks on the wire of Anthropic messages.

Thoughts are signed; a thought that begins with "(sealed)" comes as a redacted block.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import msgspec

from talaria.core.messages import TokenUsage
from talaria.testing.script import Act
from talaria.testing.telling import Event, Telling, cut_in_half, encode

SEALED = "(sealed)"

Block = dict[str, Any]


def sign(thought: str) -> str:
    """The signature of a thought; whoever changes the thought has none for it."""
    return base64.b64encode(hashlib.sha256(b"scripted\0" + thought.encode()).digest()).decode()


def messages_error(message: str, kind: str) -> bytes:
    kind = "api_error" if kind == "server_error" else kind
    return encode(
        {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}
    )


def tell_message(act: Act, message_id: str, model: str, usage: TokenUsage) -> Telling:
    start = {**_envelope(message_id, model), "content": [], "usage": _usage(usage, 1)}
    body: list[Event] = [{"type": "ping"}]
    for index, (opened, deltas, _) in enumerate(_blocks(act)):
        body.append({"type": "content_block_start", "index": index, "content_block": opened})
        body += ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        body.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": _stop(act), "stop_sequence": None}
    error = {"type": "overloaded_error", "message": "The scripted server had an error."}
    return Telling(
        [{"type": "message_start", "message": start}],
        body,
        [
            {"type": "message_delta", "delta": delta, "usage": _usage(usage, usage.output)},
            {"type": "message_stop"},
        ],
        {"type": "error", "error": error},
    )


def whole_message(act: Act, message_id: str, model: str, usage: TokenUsage) -> bytes:
    """The answer to a request that did not ask for a stream."""
    content = [whole for _, _, whole in _blocks(act)]
    answer = {**_envelope(message_id, model), "content": content, "usage": _usage(usage, usage.output)}
    return encode({**answer, "stop_reason": _stop(act)})


def _envelope(message_id: str, model: str) -> dict[str, Any]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(act: Act) -> list[tuple[Block, list[Block], Block]]:
    """Each block as it begins, the deltas that make it whole, and the whole."""
    blocks: list[tuple[Block, list[Block], Block]] = []
    if act.thought.startswith(SEALED):
        redacted = {
            "type": "redacted_thinking",
            "data": f"{sign(act.thought)}.{act.thought.encode().hex()}",
        }
        blocks.append((redacted, [], redacted))
    elif act.thought:
        signed = {"type": "thinking", "thinking": act.thought, "signature": sign(act.thought)}
        deltas = [
            {"type": "thinking_delta", "thinking": act.thought},
            {"type": "signature_delta", "signature": signed["signature"]},
        ]
        blocks.append(({**signed, "thinking": "", "signature": ""}, deltas, signed))
    if pieces := act.pieces():
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        blocks.append(({"type": "text", "text": ""}, deltas, {"type": "text", "text": act.text}))
    for call in act.calls:
        start: Block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        parts = ["", *cut_in_half(call.arguments)]
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        blocks.append((start, deltas, {**start, "input": _input(call.arguments)}))
    return blocks


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
