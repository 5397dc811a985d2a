"""Removal of secrets from messages: whole ones, and the pieces of an answer while it is streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from talaria.core.events import ThoughtEnded
from talaria.core.messages import (
    AssistantMessage,
    File,
    Message,
    Part,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.redaction import Redactor
from talaria.core.specs import CallDelta, ModelDelta, TextDelta, ThoughtDelta

M = TypeVar("M", bound=Message)
_TEXTS = (TextDelta, ThoughtDelta)


def redact_parts(parts: tuple[Part, ...], redactor: Redactor) -> tuple[Part, ...]:
    """Return the parts without secrets. Images are left as they are."""
    return tuple([_redact_part(part, redactor) for part in parts])


def _redact_part(part: Part, redactor: Redactor) -> Part:
    if not isinstance(part, Text | File):
        return part
    text = redactor(part.text)
    if isinstance(part, File) and part.beginning:
        part = msgspec.structs.replace(part, beginning=redactor(part.beginning))
    return part if text == part.text else msgspec.structs.replace(part, text=text)


def redact_message(message: M, redactor: Redactor) -> M:
    """Return the message without secrets; the same one if it has none.

    A thought with a secret is left out: providers verify thoughts, and would refuse a changed one.
    """
    if not redactor:
        return message
    changed: dict[str, object]
    match message:
        case UserMessage(parts=parts):
            changed = {"parts": redact_parts(parts, redactor)}
        case SystemMessage(text=text):
            changed = {"text": redactor(text)}
        case AssistantMessage(text=text, tool_calls=calls, reasoning=thoughts):
            kept = tuple(each for each in thoughts if redactor(each.raw) == each.raw)
            calls = tuple(_redact_call(call, redactor) for call in calls)
            changed = {"text": redactor(text), "tool_calls": calls, "reasoning": kept}
        case ToolResults(results=results):
            changed = {"results": tuple(_redact_result(result, redactor) for result in results)}
    redacted = msgspec.structs.replace(message, **changed)
    return message if redacted == message else redacted


def redact_messages(messages: tuple[M, ...], redactor: Redactor) -> tuple[M, ...]:
    return tuple([redact_message(message, redactor) for message in messages])


def weigh_message(message: Message) -> int:
    """Return how many characters the message has, about."""
    match message:
        case UserMessage(parts=parts):
            return sum(len(part.text) for part in parts if isinstance(part, Text | File))
        case SystemMessage(text=text):
            return len(text)
        case AssistantMessage(text=text, tool_calls=calls):
            return len(text) + sum(len(call.arguments) for call in calls)
        case ToolResults(results=results):
            return sum(len(result.text) for result in results)


def _redact_call(call: ToolCall, redactor: Redactor) -> ToolCall:
    return msgspec.structs.replace(call, arguments=redactor(call.arguments))


def _redact_result(result: ToolResult, redactor: Redactor) -> ToolResult:
    parts = redact_parts(result.parts, redactor)
    return msgspec.structs.replace(result, text=redactor(result.text), parts=parts)


class DeltaRedactor:
    """Takes secrets out of the pieces of one answer and passes them on to `sink`.

    A piece that may be the beginning of a secret waits for the next one, for a piece of another kind, or for
    `finish`.
    """

    def __init__(self, redactor: Redactor, sink: Callable[[ModelDelta], None]) -> None:
        self._sink = sink
        self._redactor = redactor
        self._stream = redactor.stream()
        self._last: TextDelta | ThoughtDelta | CallDelta | None = None

    def __call__(self, delta: ModelDelta) -> None:
        last = self._last
        if isinstance(delta, _TEXTS):
            if last is not None and type(delta) is not type(last):
                self.finish()
            self._last = delta
            text = self._stream.feed_text(delta.text)
            if text == delta.text:
                self._sink(delta)
            elif text:
                self._sink(msgspec.structs.replace(delta, text=text))
        elif isinstance(delta, CallDelta):
            if not isinstance(last, CallDelta) or last.index != delta.index:
                self.finish()
            self._last = delta
            arguments = self._stream.feed_text(delta.arguments)
            if arguments or delta.name:
                self._sink(msgspec.structs.replace(delta, arguments=arguments))
        elif isinstance(delta, ThoughtEnded):
            self.finish()
            if self._redactor(delta.raw) == delta.raw:  # see `redact_message`
                self._sink(delta)
        else:
            self._sink(delta)

    def finish(self) -> None:
        """Pass on what waits."""
        last, self._last = self._last, None
        if last is None or not (rest := self._stream.finish_text()):
            return
        if isinstance(last, CallDelta):
            self._sink(CallDelta(last.index, "", "", rest))
        else:
            self._sink(msgspec.structs.replace(last, text=rest))
