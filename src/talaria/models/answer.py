"""One answer as its bytes arrive: events of a stream, or one JSON object from a server that does not stream.

A `Reader` knows the events of a wire format, and tells the answer what each of them means.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Protocol

import msgspec

from talaria.core.messages import AssistantMessage, Reasoning, TokenUsage, ToolCall
from talaria.core.models import Completion, ModelDelta, TextDelta, ThoughtDelta
from talaria.models.failures import ProviderErrors
from talaria.net.sse import SseEvent, SseOverflow, SseParser

MAX_ANSWER_BYTES = 64 << 20
BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a reader may raise for bytes that are not what they should be."""
_NO_USAGE = TokenUsage()


class Reader(Protocol):
    """Of one answer. It also raises the `errors` of the answer, and any of `BROKEN`."""

    def take(self, event: bytes, answer: Answer) -> None: ...

    def take_whole(self, body: bytes, answer: Answer) -> None:
        """All of an answer that is no stream."""
        ...

    def finish(self, answer: Answer) -> tuple[tuple[ToolCall, ...], tuple[Reasoning, ...]]:
        """What was called and thought in an answer that is whole."""
        ...


class Answer:
    """What has come so far. What an endpoint calls raises `ModelError` and nothing else.

    - `has_begun`: the model has said something: text, a thought, a part of a call. A sign of life is nothing.
    - `is_whole`: the model has said that it is finished; a connection lost after that costs nothing.
    - `is_closed`: the provider has said that no more bytes will follow.
    """

    __slots__ = (
        "_deltas",
        "_length",
        "_measured",
        "_model",
        "_plain",
        "_reader",
        "_received",
        "_saw_first_byte",
        "_sse",
        "_text",
        "errors",
        "has_begun",
        "id",
        "is_closed",
        "is_whole",
        "stop",
        "usage",
    )

    def __init__(self, model: str, errors: ProviderErrors, reader: Reader) -> None:
        self.errors = errors
        self.has_begun = self.is_whole = self.is_closed = False
        self.id = ""
        self.stop = ""  # why, in our words; empty for the usual reason
        self.usage = _NO_USAGE
        self._model = model
        self._reader = reader
        self._text: list[str] = []
        self._length = self._measured = 0
        self._deltas: list[ModelDelta] = []
        self._sse = SseParser()
        self._plain: list[bytes] | None = None  # of one that is no stream, which shows at its first byte
        self._received = 0
        self._saw_first_byte = False

    # -- for the endpoint

    def feed(self, data: bytes) -> list[ModelDelta]:
        self._received += len(data)
        if self._received > MAX_ANSWER_BYTES:
            raise self.errors.malformed(f"it is longer than {MAX_ANSWER_BYTES} bytes")
        if not self._saw_first_byte:
            if not (data := data.lstrip(b" \t\r\n")):
                return []
            self._saw_first_byte = True
            self._plain = [] if data.startswith(b"{") else None
        if self._plain is not None:
            self._plain.append(data)
            return []
        try:
            return self._take(self._sse.feed(data))
        except SseOverflow as error:
            raise self.errors.malformed(str(error)) from None

    def end(self) -> list[ModelDelta]:
        """The stream has ended: what it still held back."""
        if self._plain is None:
            return self._take(self._sse.flush())
        body = b"".join(self._plain)
        self._plain.clear()
        told = self._deltas = []
        try:
            self._reader.take_whole(body, self)
        except BROKEN as error:
            raise self.errors.malformed(str(error)) from None
        return told

    def completion(self) -> Completion:
        """The whole, after `end`; raises `ModelUnavailable` when the answer was cut off."""
        if not self.is_whole:
            raise self.errors.cut_off()
        try:
            calls, thoughts = self._reader.finish(self)
        except BROKEN as error:
            raise self.errors.malformed(str(error)) from None
        message = AssistantMessage("".join(self._text), calls, thoughts, self._model)
        return Completion(message, self.usage, self.stop or ("tool_calls" if calls else "stop"))

    # -- for the reader

    def length(self) -> int:
        """Of the text; only what came since it was last asked for is counted."""
        self._length += sum(map(len, self._text[self._measured :]))
        self._measured = len(self._text)
        return self._length

    def say(self, text: str) -> None:
        self.has_begun = True
        self._text.append(text)
        self._deltas.append(TextDelta(text))

    def think(self, text: str) -> None:
        self.has_begun = True
        self._deltas.append(ThoughtDelta(text))

    def close(self) -> None:
        self.is_whole = self.is_closed = True

    def name_calls(self, calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
        """Each with an id of its own; those that are made up are the same whenever the answer is."""
        named: dict[str, ToolCall] = {}
        for n, call in enumerate(calls):
            if not call.name:
                raise self.errors.malformed("a tool call without a name")
            if not call.id or call.id in named:
                seed = msgspec.json.encode((self.id, n, call.name, call.arguments))
                made = "call_" + hashlib.sha256(seed).hexdigest()[:24]
                call = msgspec.structs.replace(call, id=made)  # noqa: PLW2901
            named[call.id] = call
        return tuple(named.values())

    def _take(self, events: list[SseEvent]) -> list[ModelDelta]:
        told = self._deltas = []
        try:
            for event in events:
                if self.is_closed:
                    break
                self._reader.take(event.data, self)
        except BROKEN as error:
            raise self.errors.malformed(str(error)) from None
        return told
