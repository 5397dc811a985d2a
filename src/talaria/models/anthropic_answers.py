"""Answers of the wire format "anthropic-messages", streamed or whole.

An answer is a list of blocks. Text and calls become our message. Thinking blocks are kept as JSON with their
place among the other blocks, because the provider verifies them when they go back: `Reasoning.field` is
"thinking" for a block in front of everything, and "thinking@T+C" behind T characters of text and C calls. A
block without a signature would be refused; it gets another name and is never sent back.

Unknown events, blocks and deltas are skipped, as the API asks of its clients.
"""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.messages import Reasoning, TokenUsage, ToolCall
from talaria.models.failures import parse_error
from talaria.models.wire import DECODE_ERRORS, AnswerDecoder

THINKING = "thinking"
UNSIGNED = "unsigned_thinking"
MAX_BLOCKS = 4096
_EVENTS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "message",
        "error",
    }
)
_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


class _OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _BlockDelta(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _MessageStart(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _StreamEvent(msgspec.Struct, gc=False):
    """An event of the stream, or a whole answer, which is an object of the type "message"."""

    type: str
    index: int | None = None
    delta: _BlockDelta | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    message: _MessageStart | None = None
    usage: _Usage | None = None
    error: Any = None
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None


class _Type(msgspec.Struct, gc=False):
    type: str | None = None


class _BlockStart(msgspec.Struct, gc=False):
    type: str
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None


class _Block(msgspec.Struct):
    """A block so far: `pieces` of its thought or arguments, and its `place` among text and calls.

    `raw` is the JSON of a block that is kept as it came.
    """

    start: _BlockStart
    place: str
    raw: str = ""
    pieces: list[str] = []
    signature: list[str] = []

    def arguments(self) -> str:
        given = bytes(self.start.input).decode()
        return "".join(self.pieces) or ("{}" if given in ("", "null") else given)


_decode_event = msgspec.json.Decoder(_StreamEvent).decode
_decode_type = msgspec.json.Decoder(_Type).decode
_decode_block = msgspec.json.Decoder(_BlockStart).decode
_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_FIELDS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


class AnthropicReader:
    """See `models.wire.EventReader`."""

    __slots__ = ("_blocks", "_calls", "_usage")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}  # in the order in which they began
        self._calls = 0
        self._usage = _Usage()

    def read_event(self, event: bytes, answer: AnswerDecoder) -> None:
        try:
            decoded = _decode_event(event)
        except DECODE_ERRORS:
            if _is_unknown(event):
                return
            raise
        match decoded.type:
            case "content_block_delta":
                self._take_delta(decoded, answer)
            case "content_block_start":
                self._begin_block(decoded.index, decoded.content_block, answer)
            case "message_start":
                if decoded.message is not None:
                    self._take_usage(decoded.message.usage, answer)
            case "message_delta":
                self._take_usage(decoded.usage, answer)
                if decoded.delta is not None and decoded.delta.stop_reason:
                    answer.stop, answer.is_complete = _STOPS.get(decoded.delta.stop_reason, "stop"), True
            case "message_stop":
                answer.close()
            case "message":
                self._take_message(decoded, answer)
            case "error":
                raise answer.errors.in_stream(parse_error(decoded.error))

    def read_body(self, body: bytes, answer: AnswerDecoder) -> None:
        self.read_event(body, answer)

    def finish(self, answer: AnswerDecoder) -> tuple[tuple[ToolCall, ...], tuple[Reasoning, ...]]:
        calls: dict[str, ToolCall] = {}
        thoughts: list[Reasoning] = []
        for block in self._blocks.values():
            match block.start:
                case _BlockStart(type="thinking" | "redacted_thinking"):
                    thoughts.append(_reasoning(block))
                case _BlockStart(type="tool_use", id=call_id, name=name):
                    if not name or not call_id or call_id in calls:
                        raise answer.errors.malformed("a tool call without a name or an id of its own")
                    calls[call_id] = ToolCall(call_id, name, block.arguments())
        return tuple(calls.values()), tuple(thoughts)

    def _take_message(self, event: _StreamEvent, answer: AnswerDecoder) -> None:
        for index, raw in enumerate(event.content or ()):
            self._begin_block(index, raw, answer)
        self._take_usage(event.usage, answer)
        if event.stop_reason:
            answer.stop = _STOPS.get(event.stop_reason, "stop")
        answer.close()

    def _take_usage(self, usage: _Usage | None, answer: AnswerDecoder) -> None:
        """Counts are cumulative: a later count replaces an earlier one."""
        if usage is None:
            return
        for name in _Usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._usage, name, value)
        answer.usage = _token_usage(self._usage)

    # -- blocks

    def _begin_block(self, index: int | None, raw: msgspec.Raw, answer: AnswerDecoder) -> None:
        kind = _decode_type(raw).type
        start = _decode_block(raw) if kind in _BLOCKS else _BlockStart(kind or "")
        length = answer.text_length()
        place = f"@{length}+{self._calls}" if length or self._calls else ""
        kept = bytes(raw).decode() if kind == "redacted_thinking" else ""
        block = _Block(start, place, kept, signature=[start.signature or ""])
        if index is None or index in self._blocks or len(self._blocks) >= MAX_BLOCKS:
            raise answer.errors.malformed(f"a block with the index {index}")
        self._blocks[index] = block
        answer.has_started = True
        if start.type == "text" and start.text:
            answer.add_text(start.text)
        elif start.type == "thinking" and start.thinking:
            block.pieces.append(start.thinking)
            answer.add_thought(start.thinking)
        elif start.type == "tool_use":
            self._calls += 1

    def _take_delta(self, event: _StreamEvent, answer: AnswerDecoder) -> None:
        delta = event.delta
        if delta is None or event.index is None:
            raise answer.errors.malformed("a delta without a block")
        block = self._blocks.get(event.index)
        if block is None:
            raise answer.errors.malformed(f"a delta for the block {event.index}, which never began")
        kind, within = delta.type, block.start.type
        if kind == "signature_delta":
            block.signature.append(delta.signature or "")
        elif kind in ("text_delta", "thinking_delta", "input_json_delta"):
            if within not in _FIELDS:
                return  # of an unknown block
            if _FIELDS[within] != kind:
                raise answer.errors.malformed(f"a {kind} in a block of type {within}")
            if delta.text and kind == "text_delta":
                answer.add_text(delta.text)
            elif delta.thinking and kind == "thinking_delta":
                block.pieces.append(delta.thinking)
                answer.add_thought(delta.thinking)
            elif delta.partial_json and kind == "input_json_delta":
                block.pieces.append(delta.partial_json)


def _is_unknown(event: bytes) -> bool:
    """Return whether the event has an unknown type, and may be skipped whatever else it has."""
    try:
        kind = _decode_type(event).type
    except DECODE_ERRORS:
        return False
    return kind is not None and kind not in _EVENTS


def _reasoning(block: _Block) -> Reasoning:
    if block.raw:
        return Reasoning(THINKING + block.place, "", block.raw)
    text, signature = "".join(block.pieces), "".join(block.signature)
    if not signature:
        return Reasoning(UNSIGNED, text, msgspec.json.encode(text).decode())
    raw = {"type": "thinking", "thinking": text, "signature": signature}
    return Reasoning(THINKING + block.place, text, msgspec.json.encode(raw).decode())


def _token_usage(usage: _Usage) -> TokenUsage:
    """The API counts cached and stored tokens apart from `input_tokens`; our `input` is the sum."""
    cached = usage.cache_read_input_tokens or 0
    stored = usage.cache_creation_input_tokens or 0
    details = usage.output_tokens_details
    return TokenUsage(
        (usage.input_tokens or 0) + cached + stored,
        cached,
        usage.output_tokens or 0,
        (details and details.thinking_tokens) or 0,
        stored,
    )
