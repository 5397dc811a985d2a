"""Answers of hostile model servers, as raw bytes: `ModelServer` plays them for `[[hostile NAME BYTES]]`.

Each attack has a name, and exists for every wire format that has what it abuses. An attack is a head, a unit
that is repeated until the wanted size is reached, and a tail. Most tails end the answer in good order, so a
client without limits gets a complete answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

_PIECE_BYTES = 64 << 10

CHAT, RESPONSES, ANTHROPIC = "openai-chat", "openai-responses", "anthropic-messages"


@dataclass(frozen=True, slots=True)
class HostileAnswer:
    """An HTTP response. `unit` is repeated; a function makes the unit with that number.

    `is_json` marks a body that is one JSON object instead of a stream. `headers` are whole lines.
    """

    head: bytes = b""
    unit: bytes | Callable[[int], bytes] = b""
    tail: bytes = b""
    is_json: bool = False
    status: int = 200
    headers: bytes = b""

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield a body of about `size` bytes in pieces of about 64 KiB."""
        yield self.head
        left = size - len(self.head) - len(self.tail)
        if isinstance(self.unit, bytes):
            block = self.unit * (_PIECE_BYTES // len(self.unit) + 1) if self.unit else b""
            while block and left > 0:
                count = max(1, min(len(block), left) // len(self.unit))
                piece = block[: count * len(self.unit)]
                left -= len(piece)
                yield piece
        else:
            n = 0
            while left > 0:
                units, length = [], 0
                while length < min(_PIECE_BYTES, left):
                    units.append(self.unit(n))
                    length += len(units[-1])
                    n += 1
                left -= length
                yield b"".join(units)
        yield self.tail

    def whole(self, size: int) -> bytes:
        return b"".join(self.pieces(size))


def hostile_answers(api: str) -> Mapping[str, HostileAnswer]:
    """Return the attacks on a wire format by name."""
    return _ANSWERS[api]


def find_attack(api: str, name: str) -> HostileAnswer:
    """Return an attack. Raises `KeyError` with the known names."""
    found = _ANSWERS[api].get(name)
    if found is None:
        raise KeyError(f"there is no attack {name} on {api}; there are: {', '.join(_ANSWERS[api])}")
    return found


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _numbered(before: bytes, after: bytes) -> Callable[[int], bytes]:
    """Return a unit with its number between two texts."""
    return lambda n: b"%b%d%b" % (before, n, after)


# -- attacks on the stream itself, the same for every format -------------------------------------------------


def _framing(opening: bytes, end: bytes) -> dict[str, HostileAnswer]:
    """`opening` and `end` are the events of an empty answer."""
    return {
        "endless-line": HostileAnswer(opening + b"data: ", b"x"),
        "endless-comment": HostileAnswer(opening + b":", b"x", b"\n\n" + end),
        "endless-event": HostileAnswer(opening, b"data: x\n"),
        "endless-id": HostileAnswer(opening + b"id: ", b"x", b"\n\n" + end),
        "endless-name": HostileAnswer(opening + b"event: ", b"x", b"\n\n" + end),
        "names": HostileAnswer(opening, b"event: x\n", b"\n" + end),
        "comments": HostileAnswer(opening, b": ping\n\n", end),
        "blank-lines": HostileAnswer(opening, b"\n", end),
        "returns": HostileAnswer(opening, b"\r", b"\n" + end),
        "empty-data": HostileAnswer(opening, b"data:\n\n"),
        "empty-events": HostileAnswer(opening, _event(b"{}"), end),
        "event-of-brackets": HostileAnswer(opening + b"data: ", b"[", b"\n\n" + end),
        "event-of-depth": HostileAnswer(opening + b'data: {"x":', b'{"a":', b"\n\n" + end),
        "event-of-values": HostileAnswer(opening + b'data: {"x":[0', b",0", b"]}\n\n" + end),
        "event-of-members": HostileAnswer(
            opening + b'data: {"x":{"y":0', _numbered(b',"', b'":0'), b"}}\n\n" + end
        ),
        "event-of-objects": HostileAnswer(opening + b'data: {"error":[0', b",{}", b"]}\n\n" + end),
        "event-of-escapes": HostileAnswer(opening + b'data: {"id":"', b"\\u0001", b'"}\n\n' + end),
        "event-of-spaces": HostileAnswer(opening + b"data: {", b" ", b"}\n\n" + end),
        "event-of-digits": HostileAnswer(opening + b'data: {"x":1', b"0", b"}\n\n" + end),
        "junk": HostileAnswer(opening, bytes(range(256)), end),
        "spaces": HostileAnswer(b"", b" \r\n\t", opening + end),
        "body-of-depth": HostileAnswer(b'{"x":', b"[", is_json=True),
        "body-of-values": HostileAnswer(b'{"error":[0', b",0", b"]}", is_json=True),
        "body-of-objects": HostileAnswer(b'{"error":{"message":[{}', b",{}", b"]}}", is_json=True),
        "body-of-text": HostileAnswer(b'{"x":"', b"x", b'"}', is_json=True),
        "body-of-spaces": HostileAnswer(b"{", b" ", b"}", is_json=True),
        "error-of-brackets": HostileAnswer(b"", b"[", status=500),
        "error-of-depth": HostileAnswer(b"", b'{"error":', status=500),
        "error-of-values": HostileAnswer(b'{"error":{"message":[0', b",0", b"]}}", status=500),
        "error-of-text": HostileAnswer(b'{"error":{"message":"', b"\\u00e4 ", b'"}}', status=400),
        "error-without-end": HostileAnswer(b"", b"x", status=503, headers=b"Retry-After: 1e300\r\n"),
    }


# -- OpenAI's chat completions -------------------------------------------------------------------------------


def _delta(delta: bytes) -> bytes:
    return _event(b'{"choices":[{"index":0,"delta":' + delta + b"}]}")


_CHAT_END = _event(b'{"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}]}') + _event(
    b"[DONE]"
)
_CALL = b'{"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"'


def _opened_calls(count: int) -> bytes:
    return b"".join(
        _delta(b'{"tool_calls":[{"index":%d,"id":"c%d","function":{"name":"f"}}]}' % (n, n))
        for n in range(count)
    )


def _chat_usage(usage: bytes) -> HostileAnswer:
    return HostileAnswer(tail=_event(b'{"usage":' + usage + b"}") + _CHAT_END)


def _chat_calls() -> dict[str, HostileAnswer]:
    return {
        "calls": HostileAnswer(
            b"",
            lambda n: _delta(b'{"tool_calls":[{"index":%d,"id":"c%d","function":{"name":"f"}}]}' % (n, n)),
            _CHAT_END,
        ),
        "calls-at-once": HostileAnswer(
            b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}',
            _numbered(b',{"index":', b',"function":{"name":"f"}}'),
            b"]}}]}\n\n" + _CHAT_END,
        ),
        "call-pieces": HostileAnswer(
            _opened_calls(100),
            _delta(b'{"tool_calls":[{"index":0}' + b',{"index":0}' * 4999 + b"]}"),
            _CHAT_END,
        ),
        "call-arguments": HostileAnswer(
            _delta(_CALL + b'{\\""}}]}'),
            _delta(b'{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}'),
            _delta(b'{"tool_calls":[{"index":0,"function":{"arguments":"\\":1}"}}]}') + _CHAT_END,
        ),
        "call-arguments-at-once": HostileAnswer(
            b'data: {"choices":[{"delta":' + _CALL, b"x", b'"}}]}}]}\n\n' + _CHAT_END
        ),
        "call-object": HostileAnswer(
            b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":{"x":[0',
            b",0",
            b"]}}}]}}]}\n\n" + _CHAT_END,
        ),
        "call-name": HostileAnswer(
            b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"',
            b"x",
            b'"}}]}}]}\n\n' + _CHAT_END,
        ),
        "call-id": HostileAnswer(
            b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"f"},"id":"',
            b"x",
            b'"}]}}]}\n\n' + _CHAT_END,
        ),
    }


def _chat() -> dict[str, HostileAnswer]:
    detail = b'{"type":"reasoning.text","text":"x"}'
    return {
        **_framing(b"", _CHAT_END),
        "text": HostileAnswer(b"", _delta(b'{"content":"x"}'), _CHAT_END),
        "thoughts": HostileAnswer(b"", _delta(b'{"reasoning_content":"x"}'), _CHAT_END),
        "details": HostileAnswer(b"", _delta(b'{"reasoning_details":[' + detail + b"]}"), _CHAT_END),
        "details-at-once": HostileAnswer(
            b'data: {"choices":[{"delta":{"reasoning_details":[' + detail,
            b"," + detail,
            b"]}}]}\n\n" + _CHAT_END,
        ),
        "detail-blocks": HostileAnswer(
            b"",
            lambda n: _delta(b'{"reasoning_details":[{"type":"reasoning.text","index":%d,"text":"x"}]}' % n),
            _CHAT_END,
        ),
        "detail-members": HostileAnswer(
            b"",
            lambda n: _delta(b'{"reasoning_details":[{"type":"reasoning.text","k%d":"x"}]}' % n),
            _CHAT_END,
        ),
        "detail-id": HostileAnswer(
            b'data: {"choices":[{"delta":{"reasoning_details":[{"type":"reasoning.text","id":"',
            b"x",
            b'"}]}}]}\n\n'
            + _delta(b'{"reasoning_details":[{"type":"reasoning.text","id":"y"}]}')
            + _CHAT_END,
        ),
        **_chat_calls(),
        "answer-id": HostileAnswer(b'data: {"id":"', b"x", b'"}\n\n' + _CHAT_END),
        "choices": HostileAnswer(b'data: {"choices":[{"index":1}', b',{"delta":{}}', b"]}\n\n" + _CHAT_END),
        "body": HostileAnswer(
            b'{"choices":[{"message":{"content":"', b"x", b'"},"finish_reason":"stop"}]}', is_json=True
        ),
        "body-of-calls": HostileAnswer(
            b'{"choices":[{"message":{"tool_calls":[{"id":"c","function":{"name":"f"}}',
            _numbered(b',{"id":"', b'","function":{"name":"f"}}'),
            b']},"finish_reason":"stop"}]}',
            is_json=True,
        ),
        "usage-huge": _chat_usage(b'{"prompt_tokens":9000000000000000,"completion_tokens":9000000000000000}'),
        "usage-beyond-64-bits": _chat_usage(b'{"prompt_tokens":' + b"9" * 40 + b',"completion_tokens":1}'),
        "usage-negative": _chat_usage(b'{"prompt_tokens":-5,"completion_tokens":-7}'),
        "usage-of-other-types": _chat_usage(
            b'{"prompt_tokens":1.5,"completion_tokens":"7","prompt_tokens_details":[],"cached_tokens":true}'
        ),
    }


# -- OpenAI's responses --------------------------------------------------------------------------------------

_RESPONSES_END = _event(b'{"type":"response.output_text.delta","output_index":9999,"delta":"ok"}') + _event(
    b'{"type":"response.completed","response":{"id":"r","status":"completed"}}'
)


def _responses_usage(usage: bytes) -> HostileAnswer:
    return HostileAnswer(
        tail=_event(b'{"type":"response.output_text.delta","output_index":0,"delta":"ok"}')
        + _event(
            b'{"type":"response.completed","response":{"id":"r","status":"completed","usage":' + usage + b"}}"
        )
    )


def _item(item: bytes, index: int = 0) -> bytes:
    return _event(b'{"type":"response.output_item.added","output_index":%d,"item":%b}' % (index, item))


def _responses_delta(kind: bytes) -> bytes:
    return _event(b'{"type":"response.%b.delta","output_index":0,"delta":"x"}' % kind)


def _responses_calls(call: bytes, done: bytes) -> dict[str, HostileAnswer]:
    return {
        "call-arguments": HostileAnswer(
            _item(call), _responses_delta(b"function_call_arguments"), _RESPONSES_END
        ),
        "call-arguments-at-once": HostileAnswer(
            done + b'{"type":"function_call","call_id":"c","name":"f","arguments":"',
            b"x",
            b'"}}\n\n' + _RESPONSES_END,
        ),
        "call-name": HostileAnswer(
            done + b'{"type":"function_call","call_id":"c","name":"', b"x", b'"}}\n\n' + _RESPONSES_END
        ),
        "call-id": HostileAnswer(
            done + b'{"type":"function_call","name":"f","call_id":"', b"x", b'"}}\n\n' + _RESPONSES_END
        ),
    }


def _responses() -> dict[str, HostileAnswer]:
    call = b'{"type":"function_call","id":"i","call_id":"c","name":"f"}'
    done = b'data: {"type":"response.output_item.done","output_index":0,"item":'
    completed = b'data: {"type":"response.completed","response":{"id":"r","status":"completed","output":['
    return {
        **_framing(b"", _RESPONSES_END),
        "text": HostileAnswer(b"", _responses_delta(b"output_text"), _RESPONSES_END),
        "thoughts": HostileAnswer(b"", _responses_delta(b"reasoning_text"), _RESPONSES_END),
        "thought-parts": HostileAnswer(
            b"",
            lambda n: _event(
                b'{"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":%d,'
                b'"delta":"x"}' % n
            ),
            _RESPONSES_END,
        ),
        "calls": HostileAnswer(b"", lambda n: _item(call, n), _RESPONSES_END),
        "items": HostileAnswer(b"", lambda n: _item(b'{"type":"x"}', n), _RESPONSES_END),
        "items-again": HostileAnswer(b"", _item(call), _RESPONSES_END),
        "items-done-again": HostileAnswer(b"", done + call + b"}\n\n", _RESPONSES_END),
        "items-without-index": HostileAnswer(
            b"", _event(b'{"type":"response.output_item.done","item":{"type":"x"}}'), _RESPONSES_END
        ),
        "reasoning-item": HostileAnswer(
            done + b'{"type":"reasoning","encrypted_content":"', b"x", b'"}}\n\n' + _RESPONSES_END
        ),
        **_responses_calls(call, done),
        "item-id": HostileAnswer(
            done + b'{"type":"message","phase":"x","id":"', b"x", b'"}}\n\n' + _RESPONSES_END
        ),
        "item-kind": HostileAnswer(done + b'{"type":"', b"x", b'"}}\n\n' + _RESPONSES_END),
        "message-parts": HostileAnswer(
            done + b'{"type":"message","content":[{"text":"x"}', b',{"text":"x"}', b"]}}\n\n" + _RESPONSES_END
        ),
        "output": HostileAnswer(completed + call, b"," + call, b"]}}\n\n"),
        "body": HostileAnswer(
            b'{"status":"completed","output":[{"type":"message","content":[{"text":"',
            b"x",
            b'"}]}]}',
            is_json=True,
        ),
        "body-of-items": HostileAnswer(
            b'{"status":"completed","output":[{"type":"x"}', b',{"type":"x"}', b"]}", is_json=True
        ),
        "usage-huge": _responses_usage(b'{"input_tokens":9000000000000000,"output_tokens":9000000000000000}'),
        "usage-beyond-64-bits": _responses_usage(b'{"input_tokens":' + b"9" * 40 + b',"output_tokens":1}'),
        "usage-negative": _responses_usage(b'{"input_tokens":-5,"output_tokens":-7}'),
        "usage-of-other-types": _responses_usage(
            b'{"input_tokens":1.5,"output_tokens":"7","input_tokens_details":[],"cached_tokens":true}'
        ),
    }


# -- Anthropic's messages ------------------------------------------------------------------------------------


def _block(index: bytes, block: bytes) -> bytes:
    return _event(b'{"type":"content_block_start","index":%b,"content_block":%b}' % (index, block))


def _block_delta(delta: bytes) -> bytes:
    return _event(b'{"type":"content_block_delta","index":0,"delta":%b}' % delta)


_ANTHROPIC_END = (
    _block(b"999999999", b'{"type":"text","text":"ok"}')
    + _event(b'{"type":"message_delta","delta":{"stop_reason":"end_turn"}}')
    + _event(b'{"type":"message_stop"}')
)


def _anthropic_usage(usage: bytes) -> HostileAnswer:
    return HostileAnswer(
        tail=_event(b'{"type":"message_start","message":{"usage":' + usage + b"}}") + _ANTHROPIC_END
    )


def _anthropic_calls(start: bytes) -> dict[str, HostileAnswer]:
    tool = b'{"type":"tool_use","id":"c","name":"f","input":{}}'
    return {
        "call-arguments": HostileAnswer(
            _block(b"0", tool),
            _block_delta(b'{"type":"input_json_delta","partial_json":"x"}'),
            _ANTHROPIC_END,
        ),
        "call-arguments-at-once": HostileAnswer(
            start + b'{"type":"tool_use","id":"c","name":"f","input":{"x":"',
            b"x",
            b'"}}}\n\n' + _ANTHROPIC_END,
        ),
        "call-name": HostileAnswer(
            start + b'{"type":"tool_use","id":"c","name":"', b"x", b'"}}\n\n' + _ANTHROPIC_END
        ),
        "call-id": HostileAnswer(
            start + b'{"type":"tool_use","name":"f","id":"', b"x", b'"}}\n\n' + _ANTHROPIC_END
        ),
    }


def _anthropic() -> dict[str, HostileAnswer]:
    start = b'data: {"type":"content_block_start","index":0,"content_block":'
    thinking = _block(b"0", b'{"type":"thinking","thinking":"","signature":""}')
    return {
        **_framing(b"", _ANTHROPIC_END),
        "text": HostileAnswer(
            _block(b"0", b'{"type":"text","text":""}'),
            _block_delta(b'{"type":"text_delta","text":"x"}'),
            _ANTHROPIC_END,
        ),
        "thoughts": HostileAnswer(
            thinking, _block_delta(b'{"type":"thinking_delta","thinking":"x"}'), _ANTHROPIC_END
        ),
        "signatures": HostileAnswer(
            thinking, _block_delta(b'{"type":"signature_delta","signature":"x"}'), _ANTHROPIC_END
        ),
        "signatures-empty": HostileAnswer(
            thinking, _block_delta(b'{"type":"signature_delta"}'), _ANTHROPIC_END
        ),
        "unknown-deltas": HostileAnswer(thinking, _block_delta(b'{"type":"x"}'), _ANTHROPIC_END),
        "calls": HostileAnswer(
            b"",
            lambda n: _block(b"%d" % n, b'{"type":"tool_use","id":"c%d","name":"f","input":{}}' % n),
            _ANTHROPIC_END,
        ),
        "blocks": HostileAnswer(b"", lambda n: _block(b"%d" % n, b'{"type":"x"}'), _ANTHROPIC_END),
        "redacted-blocks": HostileAnswer(
            b"", lambda n: _block(b"%d" % n, b'{"type":"redacted_thinking","data":"xxxx"}'), _ANTHROPIC_END
        ),
        "redacted-block": HostileAnswer(
            start + b'{"type":"redacted_thinking","data":"', b"x", b'"}}\n\n' + _ANTHROPIC_END
        ),
        **_anthropic_calls(start),
        "kind": HostileAnswer(b'data: {"type":"', b"x", b'"}\n\n' + _ANTHROPIC_END),
        "usages": HostileAnswer(
            b"", _event(b'{"type":"message_delta","usage":{"output_tokens":1}}'), _ANTHROPIC_END
        ),
        "body": HostileAnswer(
            b'{"type":"message","content":[{"type":"text","text":"', b"x", b'"}]}', is_json=True
        ),
        "body-of-blocks": HostileAnswer(
            b'{"type":"message","content":[{"type":"x"}', b',{"type":"x"}', b"]}", is_json=True
        ),
        "usage-huge": _anthropic_usage(b'{"input_tokens":9000000000000000,"output_tokens":9000000000000000}'),
        "usage-beyond-64-bits": _anthropic_usage(b'{"input_tokens":' + b"9" * 40 + b',"output_tokens":1}'),
        "usage-negative": _anthropic_usage(b'{"input_tokens":-5,"output_tokens":-7}'),
        "usage-of-other-types": _anthropic_usage(
            b'{"input_tokens":1.5,"output_tokens":"7","cache_read_input_tokens":true}'
        ),
    }


_ANSWERS: Mapping[str, Mapping[str, HostileAnswer]] = {
    CHAT: _chat(),
    RESPONSES: _responses(),
    ANTHROPIC: _anthropic(),
}
