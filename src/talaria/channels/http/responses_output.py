"""Answers of `/v1/responses`: their items, the response object, and the events of a stream.

An assistant message of ours is up to three kinds of items in a row: a reasoning item, a message, function
calls. The ids of output items name the turn that made them, so a later request can refer to an item of a
stored response by its id alone.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from talaria.channels.http.api_calls import TurnAnswer
from talaria.channels.http.errors import OpenAiError
from talaria.core.errors import ErrorInfo
from talaria.core.events import (
    Delta,
    Event,
    FellBack,
    ReasoningDelta,
    RefusalDelta,
    Reset,
    ToolCallDelta,
    ToolStarted,
)
from talaria.core.files import SentFile
from talaria.core.ids import TURN_PREFIX, TurnId
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    TokenUsage,
    ToolCall,
    ToolResults,
    UserMessage,
)
from talaria.core.turns import Turn, TurnState

REASONING, MESSAGE, CALL, OUTPUT = "rs", "msg", "fc", "fco"  # how the ids of items begin
_RESPONSE: Final = "resp_"
_ITEM_ID: Final = re.compile(r"(rs|msg|fc)_([0-9a-z]{26})_([0-9]{1,4})")
_SEAL: Final = "talaria1."  # how our `encrypted_content` begins
_RATE_LIMITED: Final = 429
_REFUSAL: Final = "refusal"  # the kind of a message that declines
_encode = msgspec.json.Encoder().encode

# -- ids --------------------------------------------------------------------------------------------------


def response_id(turn_id: TurnId) -> str:
    return _RESPONSE + turn_id.removeprefix(TURN_PREFIX)


def turn_of(response: str) -> TurnId | None:
    """Return the turn of a response, or None for a text that is no response's id."""
    found = re.fullmatch(r"resp_([0-9a-z]{26})", response)
    return TurnId(TURN_PREFIX + found[1]) if found else None


def item_id(kind: str, turn_id: TurnId, n: int) -> str:
    """Return the id of the turn's output item `n` of this kind."""
    return f"{kind}_{turn_id.removeprefix(TURN_PREFIX)}_{n}"


class ItemRef(NamedTuple):
    """An output item by the parts of its id."""

    kind: str
    turn_id: TurnId
    n: int

    @classmethod
    def parse(cls, text: str | None) -> ItemRef | None:
        found = _ITEM_ID.fullmatch(text or "")
        return cls(found[1], TurnId(TURN_PREFIX + found[2]), int(found[3])) if found else None


# -- items ------------------------------------------------------------------------------------------------


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def message_item(
    id: str, text: str, status: str = "completed", *, is_refusal: bool = False
) -> dict[str, Any]:
    content = [refusal_part(text) if is_refusal else output_text(text)]
    return {"type": "message", "id": id, "status": status, "role": "assistant", "content": content}


def reasoning_item(id: str, text: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return {"type": "reasoning", "id": id, "summary": summary, "encrypted_content": None}


def call_item(id: str, call: ToolCall, status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": id,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    }


def thought_text(message: AssistantMessage) -> str:
    return "".join(thought.text for thought in message.reasoning)


def output_items(
    message: AssistantMessage, turn_id: TurnId, status: str = "completed"
) -> list[dict[str, Any]]:
    """Return the items of an answer: reasoning, message, calls. The text of an answer without calls is a
    message even if it is empty."""
    items = []
    if thought := thought_text(message):
        items.append(reasoning_item(item_id(REASONING, turn_id, 0), thought))
    if message.text or not message.tool_calls:
        id, is_refusal = item_id(MESSAGE, turn_id, 0), message.refused is True
        items.append(message_item(id, message.text, status, is_refusal=is_refusal))
    for n, call in enumerate(message.tool_calls):
        items.append(call_item(item_id(CALL, turn_id, n), call))
    return items


def input_items(messages: Sequence[Message], turn_id: TurnId) -> list[dict[str, Any]]:
    """Return the items of a stored input, oldest first."""
    items: list[dict[str, Any]] = []

    def name(kind: str) -> str:
        return f"{item_id(kind, turn_id, len(items))}i"

    for message in messages:
        match message:
            case SystemMessage(text=text, role=role):
                content = [{"type": "input_text", "text": text}]
                items.append({"type": "message", "id": name(MESSAGE), "role": role, "content": content})
            case UserMessage(parts=parts):
                content = list(map(_content, parts))
                items.append({"type": "message", "id": name(MESSAGE), "role": "user", "content": content})
            case AssistantMessage():
                if thought := thought_text(message):
                    items.append(reasoning_item(name(REASONING), thought))
                if message.text or not message.tool_calls:
                    items.append(message_item(name(MESSAGE), message.text))
                for call in message.tool_calls:
                    items.append(call_item(name(CALL), call))
            case ToolResults(results=results):
                for result in results:
                    output = list(map(_content, result.parts)) if result.parts else result.text
                    items.append(
                        {
                            "type": "function_call_output",
                            "id": name(OUTPUT),
                            "call_id": result.call_id,
                            "status": "completed",
                            "output": output,
                        }
                    )
    return items


def _content(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "input_text", "text": text}
        case Image(url=url, detail=detail):
            return {"type": "input_image", "image_url": url, "detail": detail or "auto"}
        case _:
            return {"type": "input_text", "text": f"[file {part.name}]"}


# -- reasoning that callers without a store send back -----------------------------------------------------


class SealedReasoning(msgspec.Struct, frozen=True, array_like=True):
    """The reasoning of an answer, with the model that it must go back to."""

    provider: str
    model: str
    reasoning: tuple[Reasoning, ...]


_decode_sealed = msgspec.json.Decoder(SealedReasoning).decode


def seal_reasoning(message: AssistantMessage) -> str | None:
    """Return the reasoning as an `encrypted_content`, or None if the message has none.

    It is encoded, not encrypted: what must stay secret in it is encrypted by the provider. `open_reasoning`
    reads it.
    """
    if not message.reasoning:
        return None
    sealed = SealedReasoning(message.provider, message.model, message.reasoning)
    return _SEAL + urlsafe_b64encode(_encode(sealed)).decode()


def open_reasoning(text: str | None) -> SealedReasoning | None:
    """Return the content of a seal, or None for a text that is not ours."""
    if text is None or not text.startswith(_SEAL):
        return None
    try:
        return _decode_sealed(urlsafe_b64decode(text[len(_SEAL) :]))
    except (ValueError, msgspec.DecodeError):
        return None


# -- the response object ----------------------------------------------------------------------------------


class Outcome(msgspec.Struct, frozen=True):
    """The end of a response. `status` is "completed", "incomplete", "failed" or "cancelled"; a response that
    is not over is "in_progress". `reason` says why it is incomplete."""

    status: str
    usage: TokenUsage | None = None
    error: ErrorInfo | None = None
    reason: str = ""
    at: float | None = None


IN_PROGRESS: Final = Outcome("in_progress")


def outcome_of(stop: str, usage: TokenUsage | None, at: float | None) -> Outcome:
    """Return the outcome of a model's answer that ended for the reason `stop`."""
    if stop == "length":
        return Outcome("incomplete", usage, None, "max_output_tokens", at)
    if stop == "content_filter":
        return Outcome("incomplete", usage, None, "content_filter", at)
    return Outcome("completed", usage, None, "", at)


class ResponseHead(msgspec.Struct, frozen=True):
    """The members of a response that stay the same. `model` is the model that the request names. `told` are
    the members that repeat the request, as JSON joined by commas."""

    turn_id: TurnId
    created_at: float
    model: str
    told: bytes
    previous: TurnId | None = None

    def encode(
        self, outcome: Outcome, items: list[dict[str, Any]], model: str = "", files: Sequence[SentFile] = ()
    ) -> bytes:
        """Return the response object. `model` has answered; it is empty if no model has."""
        members = {
            "id": response_id(self.turn_id),
            "object": "response",
            "created_at": int(self.created_at),
            "completed_at": outcome.at and int(outcome.at),
            "status": outcome.status,
            "background": False,
            "error": outcome.error and _error(outcome.error),
            "incomplete_details": {"reason": outcome.reason} if outcome.reason else None,
            "previous_response_id": self.previous and response_id(self.previous),
            "model": model or self.model,
            "output": items,
            "usage": outcome.usage and _usage(outcome.usage),
        }
        if files:
            members["files"] = files
        return b"%b,%b}" % (_encode(members)[:-1], self.told)


def _error(info: ErrorInfo) -> dict[str, Any]:
    """Return an error with one of the codes that the type of a response has."""
    code = "server_error"
    if info.type == "context_too_long":
        code = "invalid_prompt"
    elif info.type == "over_budget" or info.status == _RATE_LIMITED:
        code = "rate_limit_exceeded"
    return {"code": code, "message": OpenAiError.of(info).message}


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.stored},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }


def stored_items(answer: AssistantMessage | None, turn_id: TurnId, outcome: Outcome) -> list[dict[str, Any]]:
    """Return the items of a response that is read from its row."""
    if answer is None:
        return []
    return output_items(answer, turn_id, "completed" if outcome.status == "completed" else "incomplete")


# -- the events of a stream -------------------------------------------------------------------------------


class ResponseForm(msgspec.Struct, frozen=True):
    """Details of the items. With `tells_refusals`, a text in which the model declines is a refusal. With
    `seals`, a reasoning item comes first and has `encrypted_content`."""

    tells_refusals: bool = False
    seals: bool = False


PLAIN: Final = ResponseForm()


class _TextNames(NamedTuple):
    """The names in the events about a text: of the text's own events, of those about its part, and of their
    members. `more` are members that stand beside the text."""

    text: str
    part: str
    position: str
    member: str = "text"
    more: Mapping[str, Any] = {}


_TEXTS: Final[Mapping[str, _TextNames]] = {
    REASONING: _TextNames(
        "response.reasoning_summary_text", "response.reasoning_summary_part", "summary_index"
    ),
    MESSAGE: _TextNames(
        "response.output_text", "response.content_part", "content_index", more={"logprobs": []}
    ),
    _REFUSAL: _TextNames("response.refusal", "response.content_part", "content_index", "refusal"),
}


def _text_part(kind: str, text: str) -> dict[str, Any]:
    if kind == REASONING:
        return {"type": "summary_text", "text": text}
    return refusal_part(text) if kind == _REFUSAL else output_text(text)


def _text_item(kind: str, id: str, text: str | None, status: str = "in_progress") -> dict[str, Any]:
    """Return the item of a text, without its part if the text has not begun."""
    if kind == REASONING:
        item = reasoning_item(id, text or "")
        return item if text is not None else {**item, "summary": []}
    item = message_item(id, text or "", status, is_refusal=kind == _REFUSAL)
    return item if text is not None else {**item, "content": []}


class _OpenCall(msgspec.Struct):
    """A function call at the place `index` among the items. `pieces` of its arguments were streamed."""

    index: int
    id: str
    call_id: str
    name: str
    pieces: list[str] = []
    length: int = 0


class ResponseEvents:
    """Encodes the events of one response. At most one text is open at a time; calls are open until the end.

    Each text of the turn is a message. Thoughts before a text are a reasoning item; later ones of the same
    answer are not streamed. `items` has a place for each item, which is filled when the item is done.
    `find_model` returns the turn's model, once it is known.
    """

    def __init__(
        self,
        head: ResponseHead,
        form: ResponseForm = PLAIN,
        find_model: Callable[[], str] = str,
    ) -> None:
        self._head = head
        self._form = form
        self._find_model = find_model
        self._model = ""  # that took over from the turn's own
        self._number = 0
        self._pieces: list[str] = []  # of the open text
        self._kind = ""  # of the open text, empty for none
        self._id = ""
        self._index = 0  # of the open text
        self._delta_head = b""
        self._counts = {REASONING: 0, MESSAGE: 0, CALL: 0}
        self._calls: dict[int, _OpenCall] = {}  # by their number in the answer
        self._unsealed: int | None = None  # the reasoning item that waits for the end of the answer
        self._has_begun = False
        self.items: list[dict[str, Any]] = []

    @property
    def has_text(self) -> bool:
        return bool(self._counts[MESSAGE])

    def encode(self, event: Event) -> bytes:
        """Return the events for an event of the turn, or nothing."""
        match event:
            case Delta(text=text):
                kind = MESSAGE
                if type(event) is RefusalDelta and self._form.tells_refusals:
                    kind = _REFUSAL
                opened = b"" if self._kind == kind else self._open(kind)
            case ReasoningDelta(text=text):
                if self._kind in (MESSAGE, _REFUSAL) or self._calls or self._unsealed is not None:
                    return b""
                opened = self._open(REASONING) if not self._kind else b""
            case ToolCallDelta():
                return self._call_piece(event)
            case ToolStarted() | Reset():
                return self._close()
            case FellBack(model=model):
                self._model = model
                return b""
            case _:
                return b""
        self._pieces.append(text)
        self._number = number = self._number + 1
        return b'%b%b%d,"delta":%b}\n\n' % (opened, self._delta_head, number - 1, _encode(text))

    def end(self, answer: TurnAnswer) -> bytes:
        """Return the last events: the items that were not streamed, and the response with all of them."""
        events = self.finish_items(answer)
        outcome = outcome_of(answer.stop, answer.usage, answer.ended_at)
        return events + self._end(outcome, answer.model, answer.files)

    def finish_items(self, answer: TurnAnswer) -> bytes:
        """Complete `items` with everything of the answer that was not streamed. Return the events for it."""
        message = answer.message
        is_cut = bool(outcome_of(answer.stop, None, None).reason)
        events = [self._rest_of_reasoning(message), self._unstreamed_text(message)]
        events.append(self._close("incomplete" if is_cut else "completed"))
        events += [self._finish_call(n, call) for n, call in enumerate(message.tool_calls)]
        events += map(self._break_off, self._calls.values())
        events.append(self._seal(message))
        return b"".join(events)

    def _rest_of_reasoning(self, message: AssistantMessage) -> bytes:
        """A response that has nothing yet, or a part of its first reasoning item, gets the rest of it."""
        is_first = len(self.items) == bool(self._kind)
        if not is_first or self._kind not in ("", REASONING):
            return b""
        streamed, thought = "".join(self._pieces), thought_text(message)
        if len(thought) <= len(streamed) or not thought.startswith(streamed):
            return b""
        return self.encode(ReasoningDelta(thought[len(streamed) :]))

    def _unstreamed_text(self, message: AssistantMessage) -> bytes:
        """An answer without calls has a message, even if its text is empty."""
        if self.has_text or (message.tool_calls and not message.text):
            return b""
        if not message.text:
            return self._open(MESSAGE)
        is_refusal = self._form.tells_refusals and message.refused is True
        return self.encode(RefusalDelta(message.text) if is_refusal else Delta(message.text))

    def fail(self, error: ErrorInfo, turn: Turn) -> bytes:
        """Return the end of a response that has no answer."""
        status = "cancelled" if turn.state is TurnState.CANCELLED else "failed"
        calls = map(self._break_off, self._calls.values())
        outcome = Outcome(status, turn.usage, error, "", turn.ended_at)
        return b"".join((self._close("incomplete"), *calls, self._seal(None), self._end(outcome)))

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        response = msgspec.Raw(self._head.encode(IN_PROGRESS, [], self._model or self._find_model()))
        return b"".join(
            self._event(name, {"response": response}) for name in ("response.created", "response.in_progress")
        )

    def _end(self, outcome: Outcome, model: str = "", files: Sequence[SentFile] = ()) -> bytes:
        begun = self._begin()
        model = model or self._model or self._find_model()
        response = msgspec.Raw(self._head.encode(outcome, self.items, model, files))
        # A stream has no event for a response that was cancelled.
        status = "failed" if outcome.status == "cancelled" else outcome.status
        return begun + self._event(f"response.{status}", {"response": response})

    # -- texts ----------------------------------------------------------------------------------------------

    def _open(self, kind: str) -> bytes:
        before = self._close() + self._begin()
        if kind != REASONING:
            before += self._open_sealed()
        names = _TEXTS[kind]
        self._kind, self._index = kind, len(self.items)
        self._id = self._next_id(REASONING if kind == REASONING else MESSAGE)
        self.items.append(_text_item(kind, self._id, None))
        place = {"item_id": self._id, "output_index": self._index, names.position: 0}
        # Every piece of the item repeats these members, up to its number.
        name = f"{names.text}.delta"
        members = _encode({"type": name, **place, **names.more})[:-1]
        self._delta_head = b'event: %b\ndata: %b,"sequence_number":' % (name.encode(), members)
        added = self._added(self._index)
        return before + added + self._event(f"{names.part}.added", {**place, "part": _text_part(kind, "")})

    def _close(self, status: str = "completed") -> bytes:
        """End the open text, if there is one. A reasoning item that is to be sealed is done at the end."""
        if not self._kind:
            return b""
        text, kind, names = "".join(self._pieces), self._kind, _TEXTS[self._kind]
        self._kind, self._pieces = "", []
        place = {"item_id": self._id, "output_index": self._index, names.position: 0}
        events = self._event(f"{names.text}.done", {**place, names.member: text, **names.more})
        events += self._event(f"{names.part}.done", {**place, "part": _text_part(kind, text)})
        item = _text_item(kind, self._id, text, status)
        if kind == REASONING and self._form.seals:
            self.items[self._index], self._unsealed = item, self._index
            return events
        return events + self._done(self._index, item)

    def _open_sealed(self) -> bytes:
        """Begin with a reasoning item without a text, if the response is to have one."""
        if not self._form.seals or self.items:
            return b""
        self.items.append(_text_item(REASONING, self._next_id(REASONING), None))
        self._unsealed = 0
        return self._added(0)

    def _seal(self, answer: AssistantMessage | None) -> bytes:
        """End the reasoning item that waits for it. `encrypted_content` is null without an answer, or if the
        answer has no reasoning."""
        if (index := self._unsealed) is None:
            return b""
        self._unsealed = None
        sealed = None if answer is None else seal_reasoning(answer)
        return self._done(index, {**self.items[index], "encrypted_content": sealed})

    # -- calls ----------------------------------------------------------------------------------------------

    def _call_piece(self, event: ToolCallDelta) -> bytes:
        call, events = self._calls.get(event.index), b""
        if call is None:
            before = self._close() + self._begin() + self._open_sealed()
            call, events = self._open_call(event.call_id, event.name)
            self._calls[event.index] = call
            events = before + events
        call.pieces.append(event.arguments)
        call.length += len(event.arguments)
        return events + self._arguments(call, event.arguments) if event.arguments else events

    def _finish_call(self, n: int, call: ToolCall) -> bytes:
        """Return what was not streamed of the answer's call `n`."""
        opened, events = self._calls.get(n), b""
        if opened is not None and opened.call_id == call.id:
            del self._calls[n]
        else:
            opened, events = self._open_call(call.id, call.name)
        if (rest := call.arguments[opened.length :]) or not call.arguments:
            events += self._arguments(opened, rest)
        return events + self._call_done(opened, call.arguments)

    def _open_call(self, call_id: str, name: str) -> tuple[_OpenCall, bytes]:
        before = self._begin()
        call = _OpenCall(len(self.items), self._next_id(CALL), call_id, name)
        self.items.append(call_item(call.id, ToolCall(call_id, name, ""), "in_progress"))
        return call, before + self._added(call.index)

    def _arguments(self, call: _OpenCall, delta: str) -> bytes:
        place = {"item_id": call.id, "output_index": call.index}
        return self._event("response.function_call_arguments.delta", {**place, "delta": delta})

    def _call_done(self, call: _OpenCall, arguments: str, status: str = "completed") -> bytes:
        place = {"item_id": call.id, "output_index": call.index}
        told = {**place, "name": call.name, "arguments": arguments}
        done = self._event("response.function_call_arguments.done", told)
        item = call_item(call.id, ToolCall(call.call_id, call.name, arguments), status)
        return done + self._done(call.index, item)

    def _break_off(self, call: _OpenCall) -> bytes:
        """End a call that the answer does not have."""
        return self._call_done(call, "".join(call.pieces), "incomplete")

    # -- events ---------------------------------------------------------------------------------------------

    def _next_id(self, kind: str) -> str:
        n = self._counts[kind]
        self._counts[kind] = n + 1
        return item_id(kind, self._head.turn_id, n)

    def _added(self, index: int) -> bytes:
        return self._event("response.output_item.added", {"output_index": index, "item": self.items[index]})

    def _done(self, index: int, item: dict[str, Any]) -> bytes:
        self.items[index] = item
        return self._event("response.output_item.done", {"output_index": index, "item": item})

    def _event(self, name: str, members: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        encoded = _encode({"type": name, "sequence_number": number, **members})
        return b"event: %b\ndata: %b\n\n" % (name.encode(), encoded)
