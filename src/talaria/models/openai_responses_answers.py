"""Answers of the wire format "openai-responses", streamed or whole.

An answer is a list of items: messages, function calls, reasoning. An item comes as `output_item.added`,
pieces and `output_item.done`; one last event ends the answer and repeats all items. Servers leave out any of
these events but the last, so an item is taken from the first event that has it whole, and never told twice.

What must go back as it came is kept in `AssistantMessage.reasoning`, one `Reasoning` for each item in order:
a reasoning item verbatim, of any other item what the message does not hold (see `ItemPlace`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.messages import Reasoning, ToolCall
from talaria.models.failures import parse_error
from talaria.models.openai_chat import OpenAIUsage
from talaria.models.wire import AnswerDecoder

ITEM = "responses.item"
MAX_ITEMS = 1024
_PARAGRAPH = "\n\n"
_STOPS = {"max_output_tokens": "length"}
_KINDS = frozenset({"message", "function_call", "reasoning"})


class ItemPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a message or a call among the items, and the id by which reasoning refers to it.

    A message is the text from `start` to `end`; a call is the one with the id `call_id`.
    """

    type: str
    id: str = ""
    call_id: str = ""
    phase: str = ""
    start: int = 0
    end: int = 0


class _ResponseEvent(msgspec.Struct, gc=False):
    """Any event. Members are checked where they are used, because unknown events may hold anything."""

    type: Any = None
    delta: Any = None
    output_index: Any = None
    summary_index: Any = None
    item: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _TextPart(msgspec.Struct, gc=False):
    text: str | None = None
    refusal: str | None = None


class _Kind(msgspec.Struct, gc=False):
    type: str


class _OutputItem(msgspec.Struct, gc=False):
    type: str
    id: str | None = None
    phase: str | None = None
    content: list[_TextPart] | None = None
    summary: list[_TextPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: OpenAIUsage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


_decode_event = msgspec.json.Decoder(_ResponseEvent).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_item = msgspec.json.Decoder(_OutputItem).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_encode = msgspec.json.Encoder().encode


class _PartialItem(msgspec.Struct):
    """An item so far, with the pieces of its text, thoughts or arguments.

    `source` is the type of event that thoughts are taken from, `summary` the part of the thoughts that the
    last piece belonged to, and `start` the place in the text where a message begins.
    """

    item: _OutputItem
    raw: str = ""
    streamed: list[str] = []
    source: str = ""
    summary: Any = None
    start: int = 0
    is_done: bool = False

    def call(self) -> ToolCall:
        item = self.item
        return ToolCall(item.call_id or "", item.name or "", item.arguments or "".join(self.streamed))


class ResponsesReader:
    """See `models.wire.EventReader`."""

    __slots__ = ("_items", "_last")

    def __init__(self) -> None:
        self._items: dict[int, _PartialItem] = {}
        self._last = 0  # the highest index so far

    def read_body(self, body: bytes, answer: AnswerDecoder) -> None:
        self._take_response(body, "", answer)

    def finish(self, answer: AnswerDecoder) -> tuple[tuple[ToolCall, ...], tuple[Reasoning, ...]]:
        items = [self._items[index] for index in sorted(self._items)]
        made = [partial for partial in items if partial.item.type == "function_call"]
        calls = answer.with_ids(partial.call() for partial in made)
        for partial, call in zip(made, calls, strict=True):
            partial.item.call_id = call.id
        return calls, _reasoning(items)

    def read_event(self, event: bytes, answer: AnswerDecoder) -> None:
        if event == b"[DONE]":
            return
        decoded = _decode_event(event)
        match decoded.type:
            case "response.output_text.delta" | "response.refusal.delta":
                _say(self._find(decoded, "message", answer), _piece(decoded), answer)
            case "response.function_call_arguments.delta":
                self._find(decoded, "function_call", answer).streamed.append(_piece(decoded))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                _think(self._find(decoded, "reasoning", answer), decoded, answer)
            case "response.output_item.added":
                item = _read_item(decoded.item)
                self._find(decoded, item.type, answer).item = item
            case "response.output_item.done":
                item = _read_item(decoded.item)
                _finish(self._find(decoded, item.type, answer), item, decoded.item, answer)
            case "response.completed" | "response.incomplete" | "response.failed":
                self._take_response(decoded.response, decoded.type.removeprefix("response."), answer)
            case "error":
                raise answer.errors.in_stream(parse_error(msgspec.json.decode(event)))
            case _ if decoded.error:
                raise answer.errors.in_stream(parse_error(decoded.error))

    def _find(self, event: _ResponseEvent, kind: str, answer: AnswerDecoder) -> _PartialItem:
        """Find or begin the item of an event: by its index, else the last item if it is of that kind."""
        index = event.output_index
        if not isinstance(index, int):
            index = self._last
            known = self._items.get(index)
            if known is not None and (known.is_done or known.item.type != kind):
                index += 1
        partial = self._items.get(index)
        if partial is None:
            if len(self._items) >= MAX_ITEMS:
                raise answer.errors.malformed(f"more than {MAX_ITEMS} items at once")
            answer.has_started = True
            partial = self._items[index] = _PartialItem(_OutputItem(kind))
            self._last = max(self._last, index)
        elif partial.item.type != kind:
            raise answer.errors.malformed(f"item {index} is a {partial.item.type}, and then a {kind}")
        return partial

    def _take_response(self, data: msgspec.Raw | bytes, status: str, answer: AnswerDecoder) -> None:
        response = _decode_response(data)
        status = status or response.status or ("completed" if response.output is not None else "")
        if response.error or status in ("failed", "cancelled"):
            reason = response.error or f"the answer {'has' if status == 'failed' else 'was'} {status}"
            raise answer.errors.in_stream(parse_error(reason))
        if status not in ("completed", "incomplete"):
            return
        answer.id = response.id or ""
        self._take_missing(response.output or [], answer)
        if response.usage is not None:
            answer.usage = response.usage.counted()
        if status == "incomplete":
            reason = response.incomplete_details and response.incomplete_details.reason
            answer.stop = _STOPS.get(reason, reason) if reason else "length"
        answer.close()

    def _take_missing(self, output: list[msgspec.Raw], answer: AnswerDecoder) -> None:
        """Take the items that were not streamed to their end."""
        done = {index: partial.item.id for index, partial in self._items.items() if partial.is_done}
        if len(done) >= len(output):
            return
        ids = set(done.values())
        for index, raw in enumerate(output):
            if index not in done:
                item = _read_item(raw)
                if not item.id or item.id not in ids:
                    partial = self._find(_ResponseEvent(output_index=index), item.type, answer)
                    _finish(partial, item, raw, answer)


def _finish(partial: _PartialItem, item: _OutputItem, raw: msgspec.Raw, answer: AnswerDecoder) -> None:
    """Take a whole item: add what no piece has brought."""
    if partial.is_done:
        return
    partial.is_done = True
    partial.item = item
    if item.type == "message":
        text = "".join(part.text or part.refusal or "" for part in item.content or ())
        streamed = "".join(partial.streamed)
        if text.startswith(streamed):
            _say(partial, text[len(streamed) :], answer)
    elif item.type == "reasoning":
        partial.raw = str(raw, "utf-8")
        if not partial.streamed:
            parts = item.summary or item.content or ()
            if thought := _PARAGRAPH.join(part.text for part in parts if part.text):
                partial.streamed.append(thought)
                answer.add_thought(thought)


def _say(partial: _PartialItem, text: str, answer: AnswerDecoder) -> None:
    if not text:
        return
    if not partial.streamed:
        if answer.text_length():
            answer.add_text(_PARAGRAPH)
        partial.start = answer.text_length()
    partial.streamed.append(text)
    answer.add_text(text)


def _think(partial: _PartialItem, event: _ResponseEvent, answer: AnswerDecoder) -> None:
    """Thoughts may come in full and as a summary; the kind that comes first is used."""
    partial.source = partial.source or event.type
    text = _piece(event)
    if not text or partial.source != event.type:
        return
    if partial.streamed and partial.summary != event.summary_index:
        text = _PARAGRAPH + text
    partial.summary = event.summary_index
    partial.streamed.append(text)
    answer.add_thought(text)


def _read_item(raw: msgspec.Raw) -> _OutputItem:
    """Read an item. Of an unknown kind only the type is read."""
    kind = _decode_kind(raw).type
    return _decode_item(raw) if kind in _KINDS else _OutputItem(kind)


def _piece(event: _ResponseEvent) -> str:
    if not isinstance(event.delta, str):
        raise msgspec.ValidationError(f"Expected `str`, got `{type(event.delta).__name__}` - at `$.delta`")
    return event.delta


def _reasoning(items: list[_PartialItem]) -> tuple[Reasoning, ...]:
    """Return what must go back as it came. Without reasoning or a phase in any item, that is nothing."""
    if not any(partial.item.type == "reasoning" or partial.item.phase for partial in items):
        return ()
    kept = []
    for partial in items:
        item = partial.item
        if item.type == "reasoning":
            thought = "".join(partial.streamed)
            raw = partial.raw or _encode({"type": "reasoning", "summary": []}).decode()
            kept.append(Reasoning(ITEM, thought, raw))
        elif item.type in ("message", "function_call"):
            end = partial.start + len("".join(partial.streamed)) if item.type == "message" else 0
            place = ItemPlace(
                item.type, item.id or "", item.call_id or "", item.phase or "", partial.start, end
            )
            kept.append(Reasoning(ITEM, "", _encode(place).decode()))
    return tuple(kept)
