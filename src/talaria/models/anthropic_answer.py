"""Reading one answer of the wire format "anthropic-messages" as its bytes arrive, streamed or whole.

An answer is a list of blocks. Text and calls become our message; thinking blocks are kept as their own JSON,
because the provider verifies each on the way back, together with their place among the others: `field` is
"thinking" for one in front of everything, and "thinking@T+C" behind T characters of text and C calls. One
without a signature would be refused, so it gets another name and is never sent back.

Unknown events, unknown blocks and unknown deltas are skipped, as the API asks of its clients.
"""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.messages import AssistantMessage, Reasoning, TokenUsage, ToolCall
from talaria.core.models import Completion, ModelDelta, TextDelta, ThoughtDelta
from talaria.models.faults import Faults, complaint_from
from talaria.models.inflow import Inflow
from talaria.net.sse import SseEvent

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


class _Delta(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Message(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Event(msgspec.Struct, gc=False):
    """Any event of the stream, and also a whole answer, which is an object of the type "message"."""

    type: str
    index: int | None = None
    delta: _Delta | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    message: _Message | None = None
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


class _Block:
    """A block in the making; `raw` is set for one that is kept as it came."""

    __slots__ = ("id", "input", "kind", "name", "pieces", "raw", "signature")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.id = ""
        self.name = ""
        self.input = ""
        self.signature = ""
        self.raw = ""


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_type = msgspec.json.Decoder(_Type).decode
_decode_block = msgspec.json.Decoder(_BlockStart).decode
_BLOCKS = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_FIELDS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}


class AnthropicAnswer:
    """One answer; see `models.wire.Answer`."""

    __slots__ = ("_blocks", "_closed", "_faults", "_inflow", "_model", "_stop", "_usage")

    def __init__(self, model: str, faults: Faults) -> None:
        self._model = model
        self._faults = faults
        self._inflow = Inflow(faults)
        self._closed = False
        self._blocks: dict[int, _Block] = {}  # in the order in which they began
        self._usage = _Usage()
        self._stop = ""

    @property
    def has_begun(self) -> bool:
        return bool(self._blocks)

    @property
    def is_whole(self) -> bool:
        return bool(self._stop) or self._closed

    @property
    def is_closed(self) -> bool:
        return self._closed

    def feed(self, data: bytes) -> list[ModelDelta]:
        return self._take(self._inflow.feed(data))

    def end(self) -> list[ModelDelta]:
        body = self._inflow.whole()
        if body is None:
            return self._take(self._inflow.flush())
        deltas: list[ModelDelta] = []
        self._take_json(body, deltas)
        return deltas

    def completion(self) -> Completion:
        if not self.is_whole:
            raise self._faults.cut_off()
        message = self._message()
        stop = self._stop or ("tool_use" if message.tool_calls else "end_turn")
        return Completion(message, _token_usage(self._usage), _STOPS.get(stop, "stop"))

    # -- the stream

    def _take(self, events: list[SseEvent]) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        for event in events:
            if not self._closed:
                self._take_json(event.data, deltas)
        return deltas

    def _take_json(self, data: bytes, deltas: list[ModelDelta]) -> None:
        try:
            event = _decode_event(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if self._is_unknown(data):
                return
            raise self._faults.malformed(str(error)) from None
        match event.type:
            case "content_block_delta":
                self._take_delta(event, deltas)
            case "content_block_start":
                self._begin(event.index, event.content_block, deltas)
            case "message_start":
                if event.message is not None:
                    self._take_usage(event.message.usage)
            case "message_delta":
                self._take_usage(event.usage)
                if event.delta is not None and event.delta.stop_reason:
                    self._stop = event.delta.stop_reason
            case "message_stop":
                self._closed = True
            case "message":
                self._take_whole(event, deltas)
            case "error":
                raise self._faults.in_stream(complaint_from(event.error))

    def _is_unknown(self, data: bytes) -> bool:
        """Whether this is an event of a kind that we may skip, whatever its shape."""
        try:
            kind = _decode_type(data).type
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return kind is not None and kind not in _EVENTS

    def _take_whole(self, event: _Event, deltas: list[ModelDelta]) -> None:
        for index, raw in enumerate(event.content or ()):
            self._begin(index, raw, deltas)
        self._take_usage(event.usage)
        self._stop = event.stop_reason or ""
        self._closed = True

    def _take_usage(self, usage: _Usage | None) -> None:
        """Counts are cumulative: the last one said is the one that holds."""
        if usage is None:
            return
        for name in _Usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._usage, name, value)

    # -- blocks

    def _begin(self, index: int | None, raw: msgspec.Raw, deltas: list[ModelDelta]) -> None:
        try:
            kind = _decode_type(raw).type
            start = _decode_block(raw) if kind in _BLOCKS else _BlockStart(kind or "")
            text = bytes(raw).decode() if start.type == "redacted_thinking" else ""
            arguments = bytes(start.input).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._faults.malformed(str(error)) from None
        if index is None or index in self._blocks or len(self._blocks) >= MAX_BLOCKS:
            raise self._faults.malformed(f"a block with the index {index}")
        block = self._blocks[index] = _Block(start.type)
        block.raw = text
        block.id, block.name = start.id or "", start.name or ""
        block.signature = start.signature or ""
        if arguments not in ("", "{}", "null"):
            block.input = arguments
        if start.type == "text" and start.text:
            self._add(block, TextDelta(start.text), deltas)
        elif start.type == "thinking" and start.thinking:
            self._add(block, ThoughtDelta(start.thinking), deltas)

    def _take_delta(self, event: _Event, deltas: list[ModelDelta]) -> None:
        delta = event.delta
        if delta is None or event.index is None:
            raise self._faults.malformed("a delta without a block")
        block = self._blocks.get(event.index)
        if block is None:
            raise self._faults.malformed(f"a delta for the block {event.index}, which never began")
        kind = delta.type
        if kind == "signature_delta":
            block.signature += delta.signature or ""
        elif kind in ("text_delta", "thinking_delta", "input_json_delta"):
            if block.kind not in _FIELDS:
                return  # a part of a block that we do not know
            if _FIELDS[block.kind] != kind:
                raise self._faults.malformed(f"a {kind} in a block of type {block.kind}")
            if kind == "text_delta":
                if delta.text:
                    self._add(block, TextDelta(delta.text), deltas)
            elif kind == "thinking_delta":
                if delta.thinking:
                    self._add(block, ThoughtDelta(delta.thinking), deltas)
            elif delta.partial_json:
                block.pieces.append(delta.partial_json)

    @staticmethod
    def _add(block: _Block, delta: TextDelta | ThoughtDelta, deltas: list[ModelDelta]) -> None:
        block.pieces.append(delta.text)
        deltas.append(delta)

    def _message(self) -> AssistantMessage:
        text = ""
        calls: list[ToolCall] = []
        thoughts: list[Reasoning] = []
        ids: set[str] = set()
        for block in self._blocks.values():
            whole = "".join(block.pieces)
            match block.kind:
                case "text":
                    text += whole
                case "thinking" | "redacted_thinking":
                    thoughts.append(_reasoning(block, whole, len(text), len(calls)))
                case "tool_use":
                    if not block.name or not block.id or block.id in ids:
                        raise self._faults.malformed("a tool call without a name or an id of its own")
                    ids.add(block.id)
                    calls.append(ToolCall(block.id, block.name, whole or block.input or "{}"))
        return AssistantMessage(text, tuple(calls), tuple(thoughts), self._model)


def _reasoning(block: _Block, text: str, behind_text: int, behind_calls: int) -> Reasoning:
    place = f"@{behind_text}+{behind_calls}" if behind_text or behind_calls else ""
    if block.raw:
        return Reasoning(THINKING + place, "", block.raw)
    if not block.signature:
        return Reasoning(UNSIGNED, text, msgspec.json.encode(text).decode())
    raw = {"type": "thinking", "thinking": text, "signature": block.signature}
    return Reasoning(THINKING + place, text, msgspec.json.encode(raw).decode())


def _token_usage(usage: _Usage) -> TokenUsage:
    """What the cache served or stored is apart from `input_tokens`; our `input` is the whole."""
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
