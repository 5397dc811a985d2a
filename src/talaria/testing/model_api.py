"""The base of the model APIs that the scripted server speaks: requests, event streams and refusals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from talaria.core.messages import TokenUsage, ToolCall
from talaria.testing.billing import Bill
from talaria.testing.script import ScriptContext, ScriptedAnswer, ScriptedFault

T = TypeVar("T")
Event = dict[str, Any]

NAME = r"^[a-zA-Z0-9_-]{1,64}$"
PICTURE = r"^https?://|^data:image/(?:png|jpe?g|gif|webp);base64,[A-Za-z0-9+/]+=*\Z"
_BROKEN = b'data: {"choices":[{"index":0,"delta":{"content":"oh\n\n'
_HALF = ToolCall("call_half", "terminal", '{"comm')

encode = msgspec.json.Encoder().encode


class RequestRefused(Exception):
    """A request that a real server would refuse with `status` and this `kind` of error."""

    status = 400
    kind = "invalid_request_error"


class WrongKey(RequestRefused):
    status = 401
    kind = "authentication_error"


class ModelNotFound(RequestRefused):
    status = 404
    kind = "not_found_error"


class ScriptedRequest(msgspec.Struct, frozen=True):
    model: str
    stream: bool
    context: ScriptContext


class ScriptedReply(msgspec.Struct, frozen=True):
    """A scripted answer with what its envelope needs."""

    answer: ScriptedAnswer
    id: str
    model: str
    usage: TokenUsage
    bill: Bill = msgspec.field(default_factory=Bill)


class AnswerEvents(msgspec.Struct, frozen=True):
    """The events of one answer. `error` takes the place of the body when the server fails."""

    opening: list[Event]
    body: list[Event]
    closing: list[Event]
    error: Event

    def body_up_to(self, pieces: int) -> list[Event]:
        """Return the body with so many pieces of text, up to the event before the next piece."""
        kept = []
        for event in self.body:
            pieces -= _is_piece(event)
            if pieces < 0:
                break
            kept.append(event)
        return kept

    def body_without_end(self) -> list[Event]:
        """Return the body up to its last piece, without the events that complete it."""
        last = max(n for n, event in enumerate(self.body) if _is_piece(event))
        return self.body[: last + 1]


class ModelApi(ABC):
    """A wire format: how requests are read, answered and refused."""

    wire: ClassVar[str]  # the name of the wire format
    path: ClassVar[str]
    id_prefix: ClassVar[str]
    end: ClassVar[bytes] = b""  # sent after the last event

    @abstractmethod
    def read(self, body: bytes) -> ScriptedRequest:
        """Read the whole request as strictly as a real server. Raises `RequestRefused`."""

    def read_loosely(self, body: bytes) -> ScriptedRequest:
        """Read only what the answer depends on. For benchmarks. Raises `RequestRefused`."""
        return self.read(body)

    def check_headers(self, headers: Mapping[str, str]) -> None:  # noqa: B027 - most have nothing to check
        """Check the headers, whose names are in lower case. Raises `RequestRefused`."""

    @abstractmethod
    def events(self, reply: ScriptedReply) -> AnswerEvents: ...

    @abstractmethod
    def whole(self, reply: ScriptedReply) -> bytes:
        """Return the body of an answer that is not streamed."""

    def refusal(self, message: str, kind: str) -> bytes:
        """Return the body of an error response."""
        return encode({"error": {"message": message, "type": kind, "param": None, "code": None}})

    def write(self, event: Event, n: int) -> bytes:
        """Encode the `n`th event of a stream."""
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))

    def stream(self, reply: ScriptedReply) -> tuple[list[bytes], bool]:
        """Return the encoded events of a reply, and whether the connection breaks after them."""
        fault = reply.answer.fault
        if fault is ScriptedFault.HALF_CALL:
            answer = msgspec.structs.replace(reply.answer, calls=(*reply.answer.calls, _HALF))
            reply = msgspec.structs.replace(reply, answer=answer)
        stream = self.events(reply)
        events, end = stream.opening, b""
        match fault:
            case ScriptedFault.MALFORMED:
                end = _BROKEN
            case ScriptedFault.ERROR_IN_STREAM:
                events = [*events, stream.error]
            case ScriptedFault.CUT:
                events = [*events, *stream.body_up_to(reply.answer.cut_after)]
            case ScriptedFault.HALF_CALL:
                events = [*events, *stream.body_without_end()]
            case _:
                events, end = [*events, *stream.body, *stream.closing], self.end
        written = [self.write(event, n) for n, event in enumerate(events)]
        is_cut = fault in (ScriptedFault.CUT, ScriptedFault.HALF_CALL)
        return [*written, end] if end else written, is_cut


def decode(body: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises `RequestRefused`."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestRefused(f"The body of a request must be a JSON object: {error}") from None


def validate(request: dict[str, Any], schema: type[T]) -> T:
    """Convert the request to the schema of its API. Raises `RequestRefused`."""
    try:
        return msgspec.convert(request, schema)
    except msgspec.ValidationError as error:
        raise RequestRefused(f"Invalid request: {error}") from None


def require(condition: bool, complaint: str) -> None:
    """Raises `RequestRefused` unless the condition holds."""
    if not condition:
        raise RequestRefused(complaint)


def require_unique_tools(names: Iterable[str]) -> None:
    listed = list(names)
    require(len(set(listed)) == len(listed), "Tool names must be unique.")


def make_request(request: dict[str, Any], context: ScriptContext) -> ScriptedRequest:
    return ScriptedRequest(str(request.get("model")), bool(request.get("stream")), context)


def cut_in_half(arguments: str) -> list[str]:
    """Cut the arguments of a call for streaming."""
    middle = len(arguments) // 2
    return [part for part in (arguments[:middle], arguments[middle:]) if part]


def _is_piece(event: Event) -> bool:
    """Return whether an event brings content. In chat completions every event does, and has no type."""
    return str(event.get("type", "delta")).endswith("delta")
