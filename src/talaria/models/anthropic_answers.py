"""Answers of the wire format "anthropic-messages", streamed or whole.

An answer is a list of blocks. Text and calls become our message. Thinking blocks are kept as JSON with their
place among the other blocks, because the provider verifies them when they go back: `Reasoning.field` is
"thinking" for a block in front of everything, and "thinking@T+C" behind T characters of text and C calls. A
block without a signature would be refused; it gets another name and is never sent back.

Unknown events, blocks and deltas are skipped, as the API asks of its clients.
"""

from __future__ import annotations

import msgspec

from talaria.core.messages import Reasoning, TokenUsage, ToolCall
from talaria.models.answer_budget import MAX_ID, MAX_NAME
from talaria.models.failures import DECODE_ERRORS, parse_error
from talaria.models.wire import AnswerDecoder, count, read_counts

THINKING = "thinking"
UNSIGNED = "unsigned_thinking"
MAX_BLOCKS = 4096
_BLOCK_BYTES = 512  # of memory for an empty block, about
_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
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


class _BlockDelta(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _MessageStart(msgspec.Struct, gc=False):
    usage: msgspec.Raw = msgspec.Raw()


class _StreamEvent(msgspec.Struct, gc=False):
    """An event of the stream, or a whole answer, which is an object of the type "message"."""

    type: str
    index: int | None = None
    delta: _BlockDelta | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    message: _MessageStart | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()
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
    size: int = 0  # of the arguments
    call: int = 0  # among the calls

    def arguments(self) -> str:
        given = bytes(self.start.input).decode()
        return "".join(self.pieces) or ("{}" if given in ("", "null") else given)


_decode_event = msgspec.json.Decoder(_StreamEvent).decode
_decode_blocks = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
_decode_type = msgspec.json.Decoder(_Type).decode
_decode_block = msgspec.json.Decoder(_BlockStart).decode
_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_FIELDS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


class AnthropicReader(msgspec.Struct, eq=False):
    """See `models.wire.EventReader`."""

    _blocks: dict[int, _Block] = {}  # in the order in which they began
    _calls: int = 0
    _counts: dict[str, int] = {}

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
            case "content_block_stop":
                self._end_block(decoded.index, answer)
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
                    if len(call_id) > MAX_ID:
                        raise answer.budget.refused(
                            f"has a tool call with an id of {len(call_id)} characters"
                        )
                    arguments = block.arguments()
                    answer.budget.check_arguments(len(arguments))
                    calls[call_id] = ToolCall(call_id, name, arguments)
        return tuple(calls.values()), tuple(thoughts)

    def _take_message(self, event: _StreamEvent, answer: AnswerDecoder) -> None:
        answer.budget.check_shape(event.content)
        for index, raw in enumerate((event.content and _decode_blocks(event.content)) or ()):
            self._begin_block(index, raw, answer)
            self._end_block(index, answer)
        self._take_usage(event.usage, answer)
        if event.stop_reason:
            answer.stop = _STOPS.get(event.stop_reason, "stop")
        answer.close()

    def _take_usage(self, raw: msgspec.Raw, answer: AnswerDecoder) -> None:
        """Counts are cumulative: a later count replaces an earlier one."""
        usage = read_counts(raw)
        if usage is None:
            return
        for name in _COUNTS:
            if usage.get(name) is not None:
                self._counts[name] = count(usage, name)
        if (details := usage.get("output_tokens_details")) is not None:
            self._counts["thinking_tokens"] = count(details, "thinking_tokens")
        answer.usage = _token_usage(self._counts)

    # -- blocks

    def _begin_block(self, index: int | None, raw: msgspec.Raw, answer: AnswerDecoder) -> None:
        kind = _decode_type(raw).type
        start = _decode_block(raw) if kind in _BLOCKS else _BlockStart((kind or "")[:MAX_NAME])
        length = answer.text_length()
        place = f"@{length}+{self._calls}" if length or self._calls else ""
        kept = bytes(raw).decode() if kind == "redacted_thinking" else ""
        answer.budget.check_name(start.name or "")
        answer.budget.hold(_BLOCK_BYTES)
        if kind in ("redacted_thinking", "tool_use") or start.signature:
            answer.budget.keep_bytes(len(raw))
        block = _Block(start, place, kept, signature=[start.signature or ""])
        if len(self._blocks) >= MAX_BLOCKS:
            raise answer.budget.refused(f"has more than {MAX_BLOCKS} blocks")
        if index is None or index in self._blocks:
            raise answer.errors.malformed(f"a block with the index {index}")
        self._blocks[index] = block
        answer.has_started = True
        if start.type == "text" and start.text:
            answer.add_text(start.text)
        elif start.type == "thinking" and start.thinking:
            block.pieces.append(start.thinking)
            answer.add_thought(start.thinking)
        elif start.type == "tool_use":
            block.call = self._calls
            self._calls += 1
            answer.budget.add_call()
            if answer.tells_parts and start.id and start.name and len(start.id) <= MAX_ID:
                answer.tell_call(block.call, start.id, start.name, "")

    def _end_block(self, index: int | None, answer: AnswerDecoder) -> None:
        """Tell a thought that the provider has signed, if the caller wants the parts of the answer."""
        block = self._blocks.get(index) if answer.tells_parts and index is not None else None
        if block is not None and block.start.type in ("thinking", "redacted_thinking"):
            thought = _reasoning(block)
            if thought.field != UNSIGNED:
                answer.end_thought(thought.raw)

    def _take_delta(self, event: _StreamEvent, answer: AnswerDecoder) -> None:
        delta = event.delta
        if delta is None or event.index is None:
            raise answer.errors.malformed("a delta without a block")
        block = self._blocks.get(event.index)
        if block is None:
            raise answer.errors.malformed(f"a delta for the block {event.index}, which never began")
        kind, within = delta.type, block.start.type
        if kind == "signature_delta":
            if delta.signature:
                block.signature.append(delta.signature)
                answer.budget.keep(delta.signature)
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
                block.size += len(delta.partial_json)
                answer.budget.keep(delta.partial_json)
                answer.budget.check_arguments(block.size)
                if answer.tells_parts:
                    answer.tell_call(block.call, "", "", delta.partial_json)


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


def _token_usage(counts: dict[str, int]) -> TokenUsage:
    """The API counts cached and stored tokens apart from `input_tokens`; our `input` is the sum."""
    cached = counts.get("cache_read_input_tokens", 0)
    stored = counts.get("cache_creation_input_tokens", 0)
    return TokenUsage(
        counts.get("input_tokens", 0) + cached + stored,
        cached,
        counts.get("output_tokens", 0),
        counts.get("thinking_tokens", 0),
        stored,
    )
