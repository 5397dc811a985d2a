"""Answers of the wire format "openai-responses", streamed or whole.

An answer is a list of items: messages, function calls, reasoning. An item comes as `output_item.added`,
pieces and `output_item.done`; one last event ends the answer and repeats all items. Servers leave out any of
these events but the last, so an item is taken from the first event that has it whole, and never told twice.

What must go back as it came is kept in `AssistantMessage.reasoning`, one `Reasoning` for each item in order:
a reasoning item verbatim, of any other item what the message does not hold (see `ItemPlace`).
"""

from __future__ import annotations

import msgspec

from talaria.core.messages import Reasoning, ToolCall
from talaria.models.answer_budget import MAX_ID, MAX_NAME
from talaria.models.failures import DECODE_ERRORS, ErrorBody, is_error, parse_error
from talaria.models.openai_chat import openai_usage
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
    type: str | None = None
    delta: str | None = None
    output_index: int | None = None
    summary_index: int | None = None
    item: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _OddEvent(msgspec.Struct, gc=False):
    """An event whose members have other types. Unknown events may hold anything."""

    type: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


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
    output: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    incomplete_details: _Incomplete | None = None


_EVENTS = frozenset(
    msgspec.json.encode(kind)
    for kind in (
        "response.output_text.delta",
        "response.refusal.delta",
        "response.function_call_arguments.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_text.delta",
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    )
)  # as they stand in the JSON

_decode_event = msgspec.json.Decoder(_ResponseEvent).decode
_decode_odd_event = msgspec.json.Decoder(_OddEvent).decode
_decode_output = msgspec.json.Decoder(list[msgspec.Raw] | None).decode
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
    summary: int | None = None
    start: int = 0
    size: int = 0  # of the arguments
    is_done: bool = False
    told: int = -1  # the number of a call that is told as it comes

    def call(self) -> ToolCall:
        item = self.item
        return ToolCall(item.call_id or "", item.name or "", item.arguments or "".join(self.streamed))


class ResponsesReader(msgspec.Struct, eq=False):
    """See `models.wire.EventReader`."""

    _items: dict[int, _PartialItem] = {}
    _last: int = 0  # the highest index so far
    _calls: int = 0
    _told: set[str] = set()  # ids of calls

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
        try:
            decoded = _decode_event(event)
        except msgspec.ValidationError:
            _skip_odd_event(event, answer)
            return
        match decoded.type:
            case "response.output_text.delta":
                _say(self._find(decoded, "message", answer), decoded.delta or "", answer)
            case "response.refusal.delta":
                _say(self._find(decoded, "message", answer), decoded.delta or "", answer, is_refusal=True)
            case "response.function_call_arguments.delta":
                _argue(self._find(decoded, "function_call", answer), decoded.delta or "", answer)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                _think(self._find(decoded, "reasoning", answer), decoded, answer)
            case "response.output_item.added":
                item = _read_item(decoded.item, answer)
                partial = self._find(decoded, item.type, answer)
                partial.item = item
                if answer.tells_parts and item.type == "function_call":
                    self._tell_call(partial, answer)
            case "response.output_item.done":
                item = _read_item(decoded.item, answer)
                _finish(self._find(decoded, item.type, answer), item, decoded.item, answer)
            case "response.completed" | "response.incomplete" | "response.failed":
                self._take_response(decoded.response, decoded.type.removeprefix("response."), answer)
            case "error":
                raise answer.errors.in_stream(parse_error(event))
            case _ if decoded.error and is_error(decoded.error):
                raise answer.errors.in_stream(parse_error(decoded.error))

    def _tell_call(self, partial: _PartialItem, answer: AnswerDecoder) -> None:
        """Tell that a call begins, if it is the last item and has an id of its own."""
        call_id, name = partial.item.call_id, partial.item.name
        if not call_id or not name or len(call_id) > MAX_ID or call_id in self._told:
            return
        if partial.told < 0 and self._items.get(self._last) is partial:
            self._told.add(call_id)
            partial.told = self._calls - 1
            answer.tell_call(partial.told, call_id, name, "")

    def _find(self, event: _ResponseEvent, kind: str, answer: AnswerDecoder) -> _PartialItem:
        """Find or begin the item of an event: by its index, else the last item if it is of that kind."""
        index = event.output_index
        if index is None:
            index = self._last
            known = self._items.get(index)
            if known is not None and (known.is_done or known.item.type != kind):
                index += 1
        partial = self._items.get(index)
        if partial is None:
            if len(self._items) >= MAX_ITEMS:
                raise answer.budget.refused(f"has more than {MAX_ITEMS} items")
            answer.has_started = True
            if kind == "function_call":
                answer.budget.add_call()
                self._calls += 1
            partial = self._items[index] = _PartialItem(_OutputItem(kind))
            self._last = max(self._last, index)
        elif partial.item.type != kind:
            raise answer.errors.malformed(f"item {index} is a {partial.item.type}, and then a {kind}")
        return partial

    def _take_response(self, data: msgspec.Raw | bytes, status: str, answer: AnswerDecoder) -> None:
        response = _decode_response(data)
        answer.budget.check_shape(response.output)
        output = _decode_output(response.output) if response.output else None
        status = status or response.status or ("completed" if output is not None else "")
        if is_error(response.error):
            raise answer.errors.in_stream(parse_error(response.error))
        if status in ("failed", "cancelled"):
            reason = f"the answer {'has' if status == 'failed' else 'was'} {status}"
            raise answer.errors.in_stream(ErrorBody(reason))
        if status not in ("completed", "incomplete"):
            return
        answer.id = (response.id or "")[:MAX_ID]
        self._take_missing(output or [], answer)
        answer.usage = openai_usage(response.usage) or answer.usage
        if status == "incomplete":
            given = response.incomplete_details and response.incomplete_details.reason
            answer.stop = _STOPS.get(given, given[:MAX_NAME]) if given else "length"
        answer.close()

    def _take_missing(self, output: list[msgspec.Raw], answer: AnswerDecoder) -> None:
        """Take the items that were not streamed to their end."""
        done = {index: partial.item.id for index, partial in self._items.items() if partial.is_done}
        if len(done) >= len(output):
            return
        ids = set(done.values())
        for index, raw in enumerate(output):
            if index not in done:
                item = _read_item(raw, answer)
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
            refusal = any(part.refusal for part in item.content or ())
            _say(partial, text[len(streamed) :], answer, is_refusal=refusal)
        item.content = None  # it is in the text now
    elif item.type == "function_call":
        if item.arguments:
            answer.budget.keep(item.arguments)
            answer.budget.check_arguments(len(item.arguments))
    elif item.type == "reasoning":
        partial.raw = str(raw, "utf-8")
        answer.budget.keep_bytes(len(raw))
        if not partial.streamed:
            parts = item.summary or item.content or ()
            if thought := _PARAGRAPH.join(part.text for part in parts if part.text):
                partial.streamed.append(thought)
                answer.add_thought(thought)


def _say(partial: _PartialItem, text: str, answer: AnswerDecoder, *, is_refusal: bool = False) -> None:
    if not text:
        return
    if not partial.streamed:
        if answer.text_length():
            answer.add_text(_PARAGRAPH)
        partial.start = answer.text_length()
    partial.streamed.append(text)
    if is_refusal:
        answer.add_refusal(text)
    else:
        answer.add_text(text)


def _argue(partial: _PartialItem, text: str, answer: AnswerDecoder) -> None:
    partial.streamed.append(text)
    partial.size += len(text)
    answer.budget.keep(text)
    answer.budget.check_arguments(partial.size)
    if partial.told >= 0 and text:
        answer.tell_call(partial.told, "", "", text)


def _think(partial: _PartialItem, event: _ResponseEvent, answer: AnswerDecoder) -> None:
    """Thoughts may come in full and as a summary; the kind that comes first is used."""
    partial.source = partial.source or event.type or ""
    text = event.delta or ""
    if not text or partial.source != event.type:
        return
    if partial.streamed and partial.summary != event.summary_index:
        text = _PARAGRAPH + text
    partial.summary = event.summary_index
    partial.streamed.append(text)
    answer.add_thought(text)


def _read_item(raw: msgspec.Raw, answer: AnswerDecoder) -> _OutputItem:
    """Read an item. Of an unknown kind only the type is read. An id that is too long is left out."""
    kind = _decode_kind(raw).type
    if kind not in _KINDS:
        return _OutputItem(kind[:MAX_NAME])
    answer.budget.check_shape(raw)
    item = _decode_item(raw)
    answer.budget.check_name(item.name or "")
    if len(item.id or "") > MAX_ID:
        item.id = None
    item.phase = (item.phase or "")[:MAX_NAME]
    return item


def _skip_odd_event(event: bytes, answer: AnswerDecoder) -> None:
    """Skip an unknown event. Raises what decoding it raises if it is a known one."""
    try:
        odd = _decode_odd_event(event)
    except DECODE_ERRORS:
        odd = _OddEvent()
    if not odd.type or bytes(odd.type) in _EVENTS:
        _decode_event(event)
    if is_error(odd.error):
        raise answer.errors.in_stream(parse_error(odd.error))


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
