"""Responses on the wire: the response object, and the events of a stream."""

from __future__ import annotations

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
    response_id,
    thought_text,
)
from talaria.core.errors import ErrorInfo
from talaria.core.events import Delta, Event, ReasoningDelta, Reset, ToolStarted
from talaria.core.ids import TurnId
from talaria.core.messages import AssistantMessage, TokenUsage
from talaria.core.turns import Turn, TurnState

_encode = msgspec.json.Encoder().encode
_RATE_LIMITED: Final = 429


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
    """The members of a response that stay the same. `told` are those that repeat the request, as JSON members
    joined by commas."""

    turn_id: TurnId
    created_at: float
    told: bytes
    previous: TurnId | None = None

    def encode(self, outcome: Outcome, items: list[dict[str, Any]]) -> bytes:
        """Return the response object."""
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
            "output": items,
            "usage": outcome.usage and _usage(outcome.usage),
        }
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


class ResponseEvents:
    """Encodes the events of one response, which has at most one open item at a time.

    Each text of the turn is a message. Thoughts before a text are a reasoning item; later ones of the same
    answer are not streamed. `items` are those that are done.
    """

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._number = 0
        self._pieces: list[str] = []  # of the open item
        self._kind = ""  # of the open item, empty for none
        self._id = ""
        self._delta_head = b""
        self._counts = {REASONING: 0, MESSAGE: 0, CALL: 0}
        self._has_begun = False
        self.items: list[dict[str, Any]] = []

    @property
    def has_text(self) -> bool:
        return bool(self._counts[MESSAGE])

    def encode(self, event: Event) -> bytes:
        """Return the events for an event of the turn, or nothing."""
        match event:
            case Delta(text=text):
                opened = b"" if self._kind == MESSAGE else self._open(MESSAGE)
            case ReasoningDelta(text=text):
                if self._kind == MESSAGE:
                    return b""
                opened = self._open(REASONING) if not self._kind else b""
            case ToolStarted() | Reset():
                return self._close()
            case _:
                return b""
        self._pieces.append(text)
        self._number = number = self._number + 1
        return b'%b%b%d,"delta":%b}\n\n' % (opened, self._delta_head, number - 1, _encode(text))

    def end(self, answer: AssistantMessage, outcome: Outcome) -> bytes:
        """Return the last events: what was not streamed of the answer, and the response with all of it."""
        events = []
        if not self.items and self._kind in ("", REASONING) and (thought := thought_text(answer)):
            streamed = "".join(self._pieces)
            if thought.startswith(streamed) and len(thought) > len(streamed):
                events.append(self.encode(ReasoningDelta(thought[len(streamed) :])))
        if (answer.text or not answer.tool_calls) and self._kind != MESSAGE and not self.has_text:
            events.append(self._open(MESSAGE) if not answer.text else self.encode(Delta(answer.text)))
        events.append(self._close("incomplete" if outcome.reason else "completed"))
        for call in answer.tool_calls:
            id, index = self._next_id(CALL), len(self.items)
            place = {"item_id": id, "output_index": index}
            added = call_item(id, msgspec.structs.replace(call, arguments=""), "in_progress")
            item = call_item(id, call)
            events += [
                self._begin(),
                self._event("response.output_item.added", {"output_index": index, "item": added}),
                self._event("response.function_call_arguments.delta", {**place, "delta": call.arguments}),
                self._event(
                    "response.function_call_arguments.done",
                    {**place, "name": call.name, "arguments": call.arguments},
                ),
                self._event("response.output_item.done", {"output_index": index, "item": item}),
            ]
            self.items.append(item)
        events.append(self._end(outcome))
        return b"".join(events)

    def fail(self, error: ErrorInfo, turn: Turn) -> bytes:
        """Return the end of a response that has no answer."""
        status = "cancelled" if turn.state is TurnState.CANCELLED else "failed"
        return self._close("incomplete") + self._end(Outcome(status, turn.usage, error, "", turn.ended_at))

    def _begin(self) -> bytes:
        if self._has_begun:
            return b""
        self._has_begun = True
        response = msgspec.Raw(self._head.encode(IN_PROGRESS, []))
        return b"".join(
            self._event(name, {"response": response}) for name in ("response.created", "response.in_progress")
        )

    def _end(self, outcome: Outcome) -> bytes:
        response = msgspec.Raw(self._head.encode(outcome, self.items))
        # A stream has no event for a response that was cancelled.
        status = "failed" if outcome.status == "cancelled" else outcome.status
        return self._begin() + self._event(f"response.{status}", {"response": response})

    def _next_id(self, kind: str) -> str:
        n = self._counts[kind]
        self._counts[kind] = n + 1
        return item_id(kind, self._head.turn_id, n)

    def _open(self, kind: str) -> bytes:
        closed, begun = self._close(), self._begin()
        self._kind, self._id = kind, self._next_id(kind)
        place = {"item_id": self._id, "output_index": len(self.items)}
        if kind == MESSAGE:
            item = {**message_item(self._id, "", "in_progress"), "content": []}
            part = ("response.content_part.added", {**place, "content_index": 0, "part": output_text("")})
            name, more = "response.output_text.delta", {"content_index": 0, "logprobs": []}
        else:
            item = {**reasoning_item(self._id, ""), "summary": []}
            summary = {"type": "summary_text", "text": ""}
            part = ("response.reasoning_summary_part.added", {**place, "summary_index": 0, "part": summary})
            name, more = "response.reasoning_summary_text.delta", {"summary_index": 0}
        # Every piece of the item repeats these members, up to its number.
        members = _encode({"type": name, **place, **more})[:-1]
        self._delta_head = b'event: %b\ndata: %b,"sequence_number":' % (name.encode(), members)
        added = {"output_index": len(self.items), "item": item}
        return closed + begun + self._event("response.output_item.added", added) + self._event(*part)

    def _close(self, status: str = "completed") -> bytes:
        """End the open item, if there is one."""
        if not self._kind:
            return b""
        text, place = "".join(self._pieces), {"item_id": self._id, "output_index": len(self.items)}
        if self._kind == MESSAGE:
            item = message_item(self._id, text, status)
            content = {**place, "content_index": 0}
            events = [
                self._event("response.output_text.done", {**content, "text": text, "logprobs": []}),
                self._event("response.content_part.done", {**content, "part": output_text(text)}),
            ]
        else:
            item, summary = reasoning_item(self._id, text), {**place, "summary_index": 0}
            part = {"type": "summary_text", "text": text}
            events = [
                self._event("response.reasoning_summary_text.done", {**summary, "text": text}),
                self._event("response.reasoning_summary_part.done", {**summary, "part": part}),
            ]
        done = {"output_index": len(self.items), "item": item}
        events.append(self._event("response.output_item.done", done))
        self.items.append(item)
        self._pieces, self._kind = [], ""
        return b"".join(events)

    def _event(self, name: str, members: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        encoded = _encode({"type": name, "sequence_number": number, **members})
        return b"event: %b\ndata: %b\n\n" % (name.encode(), encoded)


def stored_items(answer: AssistantMessage | None, turn_id: TurnId, outcome: Outcome) -> list[dict[str, Any]]:
    """Return the items of a response that is read from its row."""
    if answer is None:
        return []
    return output_items(answer, turn_id, "completed" if outcome.status == "completed" else "incomplete")
