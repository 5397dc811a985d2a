"""Reading one answer of the responses API as its bytes arrive, streamed or whole.

An answer is a list of items: messages, function calls, reasoning. Each comes as `output_item.added`, pieces,
`output_item.done`; then one last event ends the answer and repeats all items. Servers leave out any of these
but the last, so an item is taken from the first event that has it whole, and nothing is told twice.

What must go back as it came is kept in `AssistantMessage.reasoning`, one `Reasoning` to an item in their
order: a reasoning item verbatim; of the others what the message does not hold (see `Place`).
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from talaria.core.messages import AssistantMessage, Reasoning, TokenUsage, ToolCall
from talaria.core.models import Completion, ModelDelta, TextDelta, ThoughtDelta
from talaria.models.faults import Complaint, Faults, complaint_from
from talaria.models.inflow import Inflow
from talaria.net.sse import SseEvent

ITEM = "responses.item"
MAX_ITEMS = 1024
_PARAGRAPH = "\n\n"
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
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


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


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


class _Building:
    """An item in the making. `streamed` are the pieces of its text, thoughts or arguments so far."""

    __slots__ = ("end", "is_done", "item", "raw", "source", "start", "streamed", "summary")

    def __init__(self) -> None:
        self.item = _Item("")
        self.raw = ""
        self.streamed: list[str] = []
        self.source = ""  # which of its events its thoughts are taken from
        self.summary: Any = None  # the part of the summary that the last thought belonged to
        self.start = self.end = 0
        self.is_done = False


class ResponsesAnswer:
    """One answer; see `models.wire.Answer`."""

    __slots__ = ("_faults", "_id", "_inflow", "_items", "_length", "_model", "_stop", "_text", "_usage")

    def __init__(self, model: str, faults: Faults) -> None:
        self._model = model
        self._faults = faults
        self._inflow = Inflow(faults)
        self._id = ""
        self._items: dict[int, _Building] = {}
        self._text: list[str] = []
        self._length = 0  # of all text
        self._usage: _Usage | None = None
        self._stop: str | None = None  # None: not finished; empty: for the usual reason

    @property
    def has_begun(self) -> bool:
        return bool(self._items)

    @property
    def is_whole(self) -> bool:
        return self._stop is not None

    @property
    def is_closed(self) -> bool:
        return self._stop is not None

    def feed(self, data: bytes) -> list[ModelDelta]:
        return self._take(self._inflow.feed(data))

    def end(self) -> list[ModelDelta]:
        body = self._inflow.whole()
        if body is None:
            return self._take(self._inflow.flush())
        deltas: list[ModelDelta] = []
        try:
            self._take_response(body, "", deltas)
        except _BROKEN as error:
            raise self._faults.malformed(str(error)) from None
        return deltas

    def completion(self) -> Completion:
        if self._stop is None:
            raise self._faults.cut_off()
        items = [self._items[index] for index in sorted(self._items)]
        calls = self._calls([building for building in items if building.item.type == "function_call"])
        message = AssistantMessage("".join(self._text), calls, _reasoning(items), self._model)
        return Completion(
            message, _token_usage(self._usage), self._stop or ("tool_calls" if calls else "stop")
        )

    # -- the stream

    def _take(self, events: list[SseEvent]) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        for event in events:
            if self._stop is not None or event.data == b"[DONE]":
                break
            try:
                self._take_event(_decode_event(event.data), event.data, deltas)
            except _BROKEN as error:
                raise self._faults.malformed(str(error)) from None
        return deltas

    def _take_event(self, event: _Event, data: bytes, deltas: list[ModelDelta]) -> None:
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._add_text(self._find(event, "message"), _piece(event), deltas)
            case "response.function_call_arguments.delta":
                self._find(event, "function_call").streamed.append(_piece(event))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._add_thought(self._find(event, "reasoning"), event, deltas)
            case "response.output_item.added":
                item = _read_item(event.item)
                self._find(event, item.type).item = item
            case "response.output_item.done":
                item = _read_item(event.item)
                self._finish(self._find(event, item.type), item, event.item, deltas)
            case "response.completed" | "response.incomplete" | "response.failed":
                self._take_response(event.response, event.type.removeprefix("response."), deltas)
            case "error":
                raise self._faults.in_stream(complaint_from(msgspec.json.decode(data)))
            case _ if event.error:
                raise self._faults.in_stream(complaint_from(event.error))

    def _find(self, event: _Event, kind: str) -> _Building:
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
                raise self._faults.malformed(f"more than {MAX_ITEMS} items at once")
            building = self._items[index] = _Building()
            building.item = _Item(kind)
        elif building.item.type != kind:
            raise self._faults.malformed(f"item {index} is a {building.item.type}, and then a {kind}")
        return building

    def _take_response(self, data: msgspec.Raw | bytes, status: str, deltas: list[ModelDelta]) -> None:
        response = _decode_response(data)
        status = status or response.status or ("completed" if response.output is not None else "")
        if response.error or status in ("failed", "cancelled"):
            raise self._faults.in_stream(_complaint(response, status))
        if status not in ("completed", "incomplete"):
            return
        self._id = response.id or ""
        self._take_missing(response.output or [], deltas)
        self._usage = response.usage
        self._stop = ""
        if status == "incomplete":
            reason = response.incomplete_details and response.incomplete_details.reason
            self._stop = _STOPS.get(reason, reason) if reason else "length"

    def _take_missing(self, output: list[msgspec.Raw], deltas: list[ModelDelta]) -> None:
        """The items that were not streamed to their end."""
        done = {index: building.item.id for index, building in self._items.items() if building.is_done}
        if len(done) >= len(output):
            return
        for index, raw in enumerate(output):
            if index not in done:
                item = _read_item(raw)
                if not item.id or item.id not in done.values():
                    self._finish(self._find(_Event(output_index=index), item.type), item, raw, deltas)

    # -- items

    def _finish(self, building: _Building, item: _Item, raw: msgspec.Raw, deltas: list[ModelDelta]) -> None:
        """What the whole item has and no piece brought comes now."""
        if building.is_done:
            return
        building.is_done = True
        if not item.arguments:
            item.arguments = "".join(building.streamed)
        building.item = item
        if item.type == "message":
            text = "".join(part.text or part.refusal or "" for part in item.content or ())
            streamed = "".join(building.streamed)
            if text.startswith(streamed):
                self._add_text(building, text[len(streamed) :], deltas)
        elif item.type == "reasoning":
            building.raw = str(raw, "utf-8")
            if not building.streamed:
                parts = item.summary or item.content or ()
                if thought := _PARAGRAPH.join(part.text for part in parts if part.text):
                    building.streamed.append(thought)
                    deltas.append(ThoughtDelta(thought))

    def _add_text(self, building: _Building, text: str, deltas: list[ModelDelta]) -> None:
        if not text:
            return
        if not building.streamed:
            if self._length:
                self._text.append(_PARAGRAPH)
                self._length += len(_PARAGRAPH)
                deltas.append(TextDelta(_PARAGRAPH))
            building.start = self._length
        building.streamed.append(text)
        self._text.append(text)
        self._length += len(text)
        building.end = self._length
        deltas.append(TextDelta(text))

    def _add_thought(self, building: _Building, event: _Event, deltas: list[ModelDelta]) -> None:
        """Thoughts may come in full and as a summary; what came first is told."""
        building.source = building.source or event.type
        text = _piece(event)
        if not text or building.source != event.type:
            return
        if building.streamed and building.summary != event.summary_index:
            text = _PARAGRAPH + text
        building.summary = event.summary_index
        building.streamed.append(text)
        deltas.append(ThoughtDelta(text))

    def _calls(self, items: list[_Building]) -> tuple[ToolCall, ...]:
        ids: set[str] = set()
        calls = []
        for n, building in enumerate(items):
            item = building.item
            if not item.name:
                raise self._faults.malformed("a tool call without a name")
            arguments = item.arguments or "".join(building.streamed)
            if not item.call_id or item.call_id in ids:
                item.call_id = _make_id(self._id, n, item.name, arguments)
            ids.add(item.call_id)
            calls.append(ToolCall(item.call_id, item.name, arguments))
        return tuple(calls)


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
            place = Place(
                item.type, item.id or "", item.call_id or "", item.phase or "", building.start, building.end
            )
            kept.append(Reasoning(ITEM, "", _encode(place).decode()))
    return tuple(kept)


def _complaint(response: _Response, status: str) -> Complaint:
    if response.error:
        return complaint_from(response.error)
    return Complaint(f"the answer has {status}" if status == "failed" else f"the answer was {status}")


def _make_id(response_id: str, n: int, name: str, arguments: str) -> str:
    """The same answer always gives the same ids."""
    seed = _encode((response_id, n, name, arguments))
    return "call_" + hashlib.sha256(seed).hexdigest()[:24]


def _token_usage(usage: _Usage | None) -> TokenUsage:
    if usage is None:
        return TokenUsage()
    taken, given = usage.input_tokens_details, usage.output_tokens_details
    return TokenUsage(
        usage.input_tokens or 0,
        (taken and taken.cached_tokens) or 0,
        usage.output_tokens or 0,
        (given and given.reasoning_tokens) or 0,
    )
