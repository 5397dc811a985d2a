"""Reading one answer of the responses API as its bytes arrive, streamed or whole.

An answer is a list of items: messages, function calls, reasoning. Each comes as `output_item.added`, pieces,
`output_item.done`; then one last event ends the answer and repeats all items. Servers leave out any of these
but the last, so an item is taken from the first event that has it whole, and nothing is told twice.

What must go back as it came is kept in `AssistantMessage.reasoning`, one `Reasoning` to an item in their
order: a reasoning item verbatim; of the others what the message does not hold (see `Place`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.messages import Reasoning, TokenUsage, ToolCall
from talaria.models.failures import ErrorBody, parse_error
from talaria.models.openai_chat import TokenDetails
from talaria.models.wire import AnswerDecoder

ITEM = "responses.item"
MAX_ITEMS = 1024
_PARAGRAPH = "\n\n"
_STOPS = {"max_output_tokens": "length"}
_KINDS = frozenset({"message", "function_call", "reasoning"})


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a message or a call stood among the items, and the id under which reasoning is paired with it.

    `start` and `end` are the message's part of the text; `call_id` names the call.
    """

    type: str
    id: str = ""
    call_id: str = ""
    phase: str = ""
    start: int = 0
    end: int = 0


class _Event(msgspec.Struct, gc=False):
    """Every event. What only some have is checked where it is used: unknown events may hold anything."""

    type: Any = None
    delta: Any = None
    output_index: Any = None
    summary_index: Any = None
    item: msgspec.Raw = msgspec.Raw()
    response: msgspec.Raw = msgspec.Raw()
    error: Any = None


class _Part(msgspec.Struct, gc=False):
    text: str | None = None
    refusal: str | None = None


class _Kind(msgspec.Struct, gc=False):
    type: str


class _Item(msgspec.Struct, gc=False):
    type: str
    id: str | None = None
    phase: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    output_tokens_details: TokenDetails | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_encode = msgspec.json.Encoder().encode


class _Building(msgspec.Struct):
    """An item in the making: the pieces of its text, thoughts or arguments so far. `source` is which of its
    events thoughts are taken from, `summary` the part of it that the last one belonged to, and `start` where
    a message begins in the text."""

    item: _Item
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

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: dict[int, _Building] = {}

    def read_body(self, body: bytes, answer: AnswerDecoder) -> None:
        self._take_response(body, "", answer)

    def finish(self, answer: AnswerDecoder) -> tuple[tuple[ToolCall, ...], tuple[Reasoning, ...]]:
        items = [self._items[index] for index in sorted(self._items)]
        made = [building for building in items if building.item.type == "function_call"]
        calls = answer.with_ids(building.call() for building in made)
        for building, call in zip(made, calls, strict=True):
            building.item.call_id = call.id
        return calls, _reasoning(items)

    def read_event(self, event: bytes, answer: AnswerDecoder) -> None:
        if event == b"[DONE]":
            return
        told = _decode_event(event)
        match told.type:
            case "response.output_text.delta" | "response.refusal.delta":
                _say(self._find(told, "message", answer), _piece(told), answer)
            case "response.function_call_arguments.delta":
                self._find(told, "function_call", answer).streamed.append(_piece(told))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                _think(self._find(told, "reasoning", answer), told, answer)
            case "response.output_item.added":
                item = _read_item(told.item)
                self._find(told, item.type, answer).item = item
            case "response.output_item.done":
                item = _read_item(told.item)
                _finish(self._find(told, item.type, answer), item, told.item, answer)
            case "response.completed" | "response.incomplete" | "response.failed":
                self._take_response(told.response, told.type.removeprefix("response."), answer)
            case "error":
                raise answer.errors.in_stream(parse_error(msgspec.json.decode(event)))
            case _ if told.error:
                raise answer.errors.in_stream(parse_error(told.error))

    def _find(self, event: _Event, kind: str, answer: AnswerDecoder) -> _Building:
        """By its index; a server that leaves that out means the last item, if it is of that kind."""
        index = event.output_index
        if not isinstance(index, int):
            index = max(self._items, default=0)
            known = self._items.get(index)
            if known is not None and (known.is_done or known.item.type != kind):
                index += 1
        building = self._items.get(index)
        if building is None:
            if len(self._items) >= MAX_ITEMS:
                raise answer.errors.malformed(f"more than {MAX_ITEMS} items at once")
            answer.has_started = True
            building = self._items[index] = _Building(_Item(kind))
        elif building.item.type != kind:
            raise answer.errors.malformed(f"item {index} is a {building.item.type}, and then a {kind}")
        return building

    def _take_response(self, data: msgspec.Raw | bytes, status: str, answer: AnswerDecoder) -> None:
        response = _decode_response(data)
        status = status or response.status or ("completed" if response.output is not None else "")
        if response.error or status in ("failed", "cancelled"):
            raise answer.errors.in_stream(_complaint(response, status))
        if status not in ("completed", "incomplete"):
            return
        answer.id = response.id or ""
        self._take_missing(response.output or [], answer)
        if response.usage is not None:
            answer.usage = _token_usage(response.usage)
        if status == "incomplete":
            reason = response.incomplete_details and response.incomplete_details.reason
            answer.stop = _STOPS.get(reason, reason) if reason else "length"
        answer.close()

    def _take_missing(self, output: list[msgspec.Raw], answer: AnswerDecoder) -> None:
        """The items that were not streamed to their end."""
        done = {index: building.item.id for index, building in self._items.items() if building.is_done}
        if len(done) >= len(output):
            return
        for index, raw in enumerate(output):
            if index not in done:
                item = _read_item(raw)
                if not item.id or item.id not in done.values():
                    _finish(self._find(_Event(output_index=index), item.type, answer), item, raw, answer)


def _finish(building: _Building, item: _Item, raw: msgspec.Raw, answer: AnswerDecoder) -> None:
    """What the whole item has and no piece brought comes now."""
    if building.is_done:
        return
    building.is_done = True
    building.item = item
    if item.type == "message":
        text = "".join(part.text or part.refusal or "" for part in item.content or ())
        streamed = "".join(building.streamed)
        if text.startswith(streamed):
            _say(building, text[len(streamed) :], answer)
    elif item.type == "reasoning":
        building.raw = str(raw, "utf-8")
        if not building.streamed:
            parts = item.summary or item.content or ()
            if thought := _PARAGRAPH.join(part.text for part in parts if part.text):
                building.streamed.append(thought)
                answer.add_thought(thought)


def _say(building: _Building, text: str, answer: AnswerDecoder) -> None:
    if not text:
        return
    if not building.streamed:
        if answer.text_length():
            answer.add_text(_PARAGRAPH)
        building.start = answer.text_length()
    building.streamed.append(text)
    answer.add_text(text)


def _think(building: _Building, event: _Event, answer: AnswerDecoder) -> None:
    """Thoughts may come in full and as a summary; what came first is told."""
    building.source = building.source or event.type
    text = _piece(event)
    if not text or building.source != event.type:
        return
    if building.streamed and building.summary != event.summary_index:
        text = _PARAGRAPH + text
    building.summary = event.summary_index
    building.streamed.append(text)
    answer.add_thought(text)


def _read_item(raw: msgspec.Raw) -> _Item:
    """Items of other kinds, which nobody asked for, may look like anything."""
    kind = _decode_kind(raw).type
    return _decode_item(raw) if kind in _KINDS else _Item(kind)


def _piece(event: _Event) -> str:
    if not isinstance(event.delta, str):
        raise msgspec.ValidationError(f"Expected `str`, got `{type(event.delta).__name__}` - at `$.delta`")
    return event.delta


def _reasoning(items: list[_Building]) -> tuple[Reasoning, ...]:
    """Nothing, unless an item thought or has a phase: then every item's place counts."""
    if not any(building.item.type == "reasoning" or building.item.phase for building in items):
        return ()
    kept = []
    for building in items:
        item = building.item
        if item.type == "reasoning":
            thought = "".join(building.streamed)
            raw = building.raw or _encode({"type": "reasoning", "summary": []}).decode()
            kept.append(Reasoning(ITEM, thought, raw))
        elif item.type in ("message", "function_call"):
            end = building.start + len("".join(building.streamed)) if item.type == "message" else 0
            place = Place(item.type, item.id or "", item.call_id or "", item.phase or "", building.start, end)
            kept.append(Reasoning(ITEM, "", _encode(place).decode()))
    return tuple(kept)


def _complaint(response: _Response, status: str) -> ErrorBody:
    if response.error:
        return parse_error(response.error)
    return ErrorBody(f"the answer has {status}" if status == "failed" else f"the answer was {status}")


def _token_usage(usage: _Usage) -> TokenUsage:
    taken, given = usage.input_tokens_details, usage.output_tokens_details
    return TokenUsage(
        usage.input_tokens or 0,
        (taken and taken.cached_tokens) or 0,
        usage.output_tokens or 0,
        (given and given.reasoning_tokens) or 0,
    )
