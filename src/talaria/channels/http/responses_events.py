"""Responses on the wire: the response object, and the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from talaria.channels.http.openai_errors import OpenAiError
from talaria.channels.http.responses_items import (
    CALL,
    MESSAGE,
    REASONING,
    call_item,
    item_id,
    message_item,
    output_items,
    output_text,
    reasoning_item,
    refusal_part,
    response_id,
    thought_text,
)
from talaria.channels.http.sealed_reasoning import seal_reasoning
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
from talaria.core.ids import TurnId
from talaria.core.messages import AssistantMessage, TokenUsage, ToolCall
from talaria.core.turns import Turn, TurnState

_encode = msgspec.json.Encoder().encode
_RATE_LIMITED: Final = 429
_REFUSAL: Final = "refusal"  # the kind of a message that declines


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


class ResponseForm(msgspec.Struct, frozen=True):
    """Details of the items. With `tells_refusals`, a text in which the model declines is a refusal. With
    `seals`, a reasoning item comes first and has `encrypted_content`."""

    tells_refusals: bool = False
    seals: bool = False


PLAIN: Final = ResponseForm()


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

    def end(self, answer: AssistantMessage, outcome: Outcome, files: Sequence[SentFile] = ()) -> bytes:
        """Return the last events: what was not streamed of the answer, and the response with all of it."""
        is_refusal = self._form.tells_refusals and answer.refused is True
        events = []
        is_first = len(self.items) == bool(self._kind)
        if is_first and self._kind in ("", REASONING) and (thought := thought_text(answer)):
            streamed = "".join(self._pieces)
            if thought.startswith(streamed) and len(thought) > len(streamed):
                events.append(self.encode(ReasoningDelta(thought[len(streamed) :])))
        if (answer.text or not answer.tool_calls) and not self.has_text:
            text = RefusalDelta(answer.text) if is_refusal else Delta(answer.text)
            events.append(self.encode(text) if answer.text else self._open(MESSAGE))
        events.append(self._close("incomplete" if outcome.reason else "completed"))
        for n, call in enumerate(answer.tool_calls):
            opened = self._calls.get(n)
            if opened is not None and opened.call_id == call.id:
                del self._calls[n]
            else:
                events.append(self._begin())
                opened = self._open_call(call.id, call.name)
                events.append(self._added(opened.index))
            if (rest := call.arguments[opened.length :]) or not call.arguments:
                events.append(self._arguments(opened, rest))
            events.append(self._call_done(opened, call.arguments))
        events += map(self._break_off, self._calls.values())
        return b"".join((*events, self._seal(answer), self._end(outcome, model_of(answer), files)))

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
        id_kind = MESSAGE if kind == _REFUSAL else kind
        self._kind, self._index, self._id = kind, len(self.items), self._next_id(id_kind)
        place: dict[str, Any] = {"item_id": self._id, "output_index": self._index}
        more: dict[str, Any]
        if kind == REASONING:
            item = {**reasoning_item(self._id, ""), "summary": []}
            summary = {"type": "summary_text", "text": ""}
            part = ("response.reasoning_summary_part.added", {**place, "summary_index": 0, "part": summary})
            name, more = "response.reasoning_summary_text.delta", {"summary_index": 0}
        else:
            item = {**message_item(self._id, "", "in_progress"), "content": []}
            empty = refusal_part("") if kind == _REFUSAL else output_text("")
            part = ("response.content_part.added", {**place, "content_index": 0, "part": empty})
            name, more = "response.refusal.delta", {"content_index": 0}
            if kind == MESSAGE:
                name, more = "response.output_text.delta", {"content_index": 0, "logprobs": []}
        self.items.append(item)
        # Every piece of the item repeats these members, up to its number.
        members = _encode({"type": name, **place, **more})[:-1]
        self._delta_head = b'event: %b\ndata: %b,"sequence_number":' % (name.encode(), members)
        return before + self._added(self._index) + self._event(*part)

    def _close(self, status: str = "completed") -> bytes:
        """End the open text, if there is one. A reasoning item that is to be sealed is done at the end."""
        if not self._kind:
            return b""
        text, told = "".join(self._pieces), dict[str, Any]()
        place: dict[str, Any] = {"item_id": self._id, "output_index": self._index}
        kind, self._kind, self._pieces = self._kind, "", []
        if kind == REASONING:
            item, summary = reasoning_item(self._id, text), {**place, "summary_index": 0}
            part = {"type": "summary_text", "text": text}
            events = [
                self._event("response.reasoning_summary_text.done", {**summary, "text": text}),
                self._event("response.reasoning_summary_part.done", {**summary, "part": part}),
            ]
        else:
            content: dict[str, Any] = {**place, "content_index": 0}
            item = message_item(self._id, text, status, is_refusal=kind == _REFUSAL)
            name, told = "response.refusal.done", {"refusal": text}
            if kind == MESSAGE:
                name, told = "response.output_text.done", {"text": text, "logprobs": []}
            events = [
                self._event(name, {**content, **told}),
                self._event("response.content_part.done", {**content, "part": item["content"][0]}),
            ]
        if kind == REASONING and self._form.seals:
            self.items[self._index], self._unsealed = item, self._index
        else:
            events.append(self._done(self._index, item))
        return b"".join(events)

    def _open_sealed(self) -> bytes:
        """Begin with a reasoning item without a text, if the response is to have one."""
        if not self._form.seals or self.items:
            return b""
        self.items.append({**reasoning_item(self._next_id(REASONING), ""), "summary": []})
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
            events = self._close() + self._begin() + self._open_sealed()
            call = self._calls[event.index] = self._open_call(event.call_id, event.name)
            events += self._added(call.index)
        call.pieces.append(event.arguments)
        call.length += len(event.arguments)
        return events + self._arguments(call, event.arguments) if event.arguments else events

    def _open_call(self, call_id: str, name: str) -> _OpenCall:
        call = _OpenCall(len(self.items), self._next_id(CALL), call_id, name)
        self.items.append(call_item(call.id, ToolCall(call_id, name, ""), "in_progress"))
        return call

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


def model_of(answer: AssistantMessage) -> str:
    """Return the model that answered, as provider/name. It is empty for a text of the gateway's own."""
    return f"{answer.provider}/{answer.model}" if answer.provider else answer.model


def stored_items(answer: AssistantMessage | None, turn_id: TurnId, outcome: Outcome) -> list[dict[str, Any]]:
    """Return the items of a response that is read from its row."""
    if answer is None:
        return []
    return output_items(answer, turn_id, "completed" if outcome.status == "completed" else "incomplete")
