"""An HTTP request: reading it within limits, writing the response, noticing that the client has left."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import re
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from talaria.access.callers import ApiCaller
from talaria.core.errors import BadRequest, ErrorInfo, Refused
from talaria.core.limits import Limits, count_marks, count_values
from talaria.core.text import cut
from talaria.core.units import format_size
from talaria.operations.operation import SMALL_BODY, OperationCall

if TYPE_CHECKING:
    from talaria.channels.http.connections import AnswerWatcher, ClientConnection

T = TypeVar("T")
RawHeaders = tuple[tuple[bytes, bytes], ...]
Message = MutableMapping[str, Any]  # of ASGI
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODY_RATE: Final = 4 << 10  # bytes in a second; a slower body ends after `limits.request_body`
_STRANGER_SECONDS: Final = 5.0  # for the body of a request that has not passed the guard
_UNCOUNTED: Final = 64 << 10  # a body up to this size does not count against `limits.client_memory`
_PIECE: Final = 64 << 10  # of a response; the next one is written when the client has read
_DISCARD_SECONDS: Final = 2.0  # how long the rest of an unwanted body is read and thrown away
_MAX_KEY: Final = 255
_MAX_FIELDS: Final = 50  # of a query
_MAX_DIGITS: Final = 15
_MAX_QUOTED: Final = 80
_DEFAULT_LIMITS: Final = Limits()
_GZIP: Final = 31  # for zlib: the window, and the header of gzip
_HASHED: Final = 256 << 10  # bytes that take about a millisecond; more are hashed in a thread
_UNKNOWN_FIELD: Final = "Object contains unknown field"
# The complaints of msgspec that name a field, what a caller is told instead, and OpenAI's word for it.
_NAMED_FIELD: Final = re.compile(r"(object contains unknown|object missing required) field `([^`]*)`")
_FIELD_COMPLAINTS: Final = {
    "object contains unknown": ("there is no such field", "unknown_parameter"),
    "object missing required": ("it is missing", "missing_required_parameter"),
}
_numbers = itertools.count(int.from_bytes(os.urandom(7)))
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_lenients: dict[Any, Any] = {}


def new_request_id() -> bytes:
    """Return the value of `x-request-id` for one response. No two processes use the same ones."""
    return b"req_%016x" % next(_numbers)


def read_number(name: str, text: str) -> int:
    """Return a number of a query or header: up to 15 decimal digits. Raises `BadRequest`."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise BadRequest(f"{name} {quoted(text)} is not a number.", f"Send up to {_MAX_DIGITS} digits.")
    return int(text)


def quoted(text: str) -> str:
    """Return the text in quotes for an error, shortened to a length that a person reads."""
    return repr(cut(text, _MAX_QUOTED))


class HttpError(Refused):
    """An error that only this channel has."""

    def __init__(self, kind: str, user_text: str, hint: str, headers: RawHeaders = ()) -> None:
        super().__init__(kind, user_text, hint)
        self.headers = headers
        self.status: int | None = None  # in place of the one that goes with the type
        self._told: ErrorInfo | None = None

    @classmethod
    def told(cls, info: ErrorInfo, headers: RawHeaders) -> HttpError:
        """Return an error that has happened elsewhere: in a turn."""
        error = cls(info.type, info.message, info.hint, headers)
        error._told = info
        return error

    def info(self) -> ErrorInfo:
        return self._told or super().info()


class ClientDisconnected(Exception):
    """The client has closed the connection, so no response can reach it."""


class Request:
    """A request, as a handler gets it. The body is read only when the handler asks for it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.id = new_request_id()
        self.has_anthropic_id = False  # the response has the id under the name that Anthropic's clients know
        self.route = "refused"  # for the metrics: the pattern of the route, once the guard has let it pass
        self._call: OperationCall | None = None
        self.params: dict[str, str] = {}  # parts of the path, by their names in the pattern
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.more_headers: RawHeaders = ()  # of the response, whichever it is
        self.has_started = False  # the status has been sent
        self.is_overdue = False  # the body did not come in time
        self.hashes_body = False  # set before the body is read: `body_hash` is wanted
        self.body_hash = b""
        self.signed_digest: bytes | None = None  # set by the guard: the SHA-256 that the body must have
        self.watcher: AnswerWatcher | None = None
        self.is_trusted = False  # the guard, or the secret of a webhook, has let it pass
        self.connection: ClientConnection | None = (
            scope["state"].get("connection") if "state" in scope else None
        )
        if self.connection is None:
            self.limits = _DEFAULT_LIMITS
        else:
            self.limits = self.connection.limits
            self.connection.unread = None  # the client has read the response before
            if scope.get("http_version") == "1.0":
                self.send = self.connection.without_chunks(send)
        self.is_read = not (
            self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers
        )

    @property
    def call(self) -> OperationCall:
        """The caller that the guard has let in, and what the request is about. A route that is open to
        everybody has none."""
        if self._call is None:
            raise RuntimeError(f"{self.path} was reached without a caller")
        return self._call

    @property
    def caller(self) -> ApiCaller:
        return self.call.caller

    @caller.setter
    def caller(self, caller: ApiCaller) -> None:
        self._call = OperationCall(caller)
        self.trust()

    @property
    def has_caller(self) -> bool:
        return self._call is not None

    def trust(self) -> None:
        """The caller has proved who it is, so the gateway waits for it longer, and for its connection."""
        self.is_trusted = True
        if self.connection is not None:
            self.connection.trust()

    def end(self) -> None:
        """The request is answered: what it held counts no longer."""
        if self.watcher is not None:
            self.watcher.ended()
        if self.connection is not None and self.connection.held_bytes:
            self.connection.table.release(self.connection, self.connection.held_bytes)

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return value.decode("latin-1").strip() if value is not None else None

    def query(self) -> dict[str, str]:
        """Return the fields of the query. Raises `BadRequest` if there are too many."""
        raw: bytes = self.scope["query_string"]
        if not raw:
            return {}
        try:
            return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
        except ValueError:
            text = f"The query has more than {_MAX_FIELDS} fields."
            raise BadRequest(text, "docs/http-api.md names the fields of each call.") from None

    def idempotency_key(self) -> str | None:
        key = self.header(b"idempotency-key")
        if key is not None and not 0 < len(key) <= _MAX_KEY:
            raise BadRequest(
                f"The header Idempotency-Key has {len(key)} characters.",
                f"Send 1 to {_MAX_KEY} of them, for example a UUID.",
            )
        return key

    # -- the body -------------------------------------------------------------------------------------------

    @property
    def content_length(self) -> int:
        """The announced length of the body, or 0 if none was announced. Raises `BadRequest`."""
        given = self.headers.get(b"content-length")
        return 0 if given is None else read_number("Content-Length", given.decode("latin-1"))

    async def json(self, kind: type[T], max_bytes: int) -> T:
        """Return the decoded body. Raises `BadRequest`, which says what is wrong and where, `HttpError` (413)
        for a body with too many values, and what `body` raises."""
        return _decode(kind, await self._json_body(max_bytes))

    async def json_and_rest(self, kind: type[T], max_bytes: int) -> tuple[T, dict[str, msgspec.Raw]]:
        """Return the decoded body as `json` does, and the members that `kind` does not have. It must forbid
        unknown fields, so that the usual body, which has none, is read once."""
        body = await self._json_body(max_bytes)
        try:
            return _decoder(kind).decode(body), {}
        except msgspec.ValidationError as error:
            if not str(error).startswith(_UNKNOWN_FIELD):
                raise invalid_field(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _decode(kind, body)  # raises what it means
        decoded: T = _decode(_lenient(kind), body)
        known = kind.__struct_encode_fields__  # type: ignore[attr-defined]
        members: dict[str, msgspec.Raw] = _decode(dict[str, msgspec.Raw], body)
        return decoded, {name: value for name, value in members.items() if name not in known}

    async def _json_body(self, max_bytes: int) -> bytes | bytearray:
        body = await self.body(max_bytes)
        if len(body) > self.limits.now.body_values:
            await self._check_values(body)
        if self.hashes_body:
            self.body_hash = await _hash(body)
        return body

    async def hash_late(self, body: bytes) -> None:
        """Set `body_hash` for a request whose body says that it may be sent again by itself."""
        if not self.hashes_body and self.idempotency_key() is None:
            self.hashes_body, self.body_hash = True, await _hash(body)

    async def _check_values(self, body: bytes | bytearray) -> None:
        """Raise `HttpError` (413) for a body whose decoding would hold up the loop.

        The time for decoding depends on the number of values. Few bodies have as many commas and brackets.
        Only those are looked at more closely: a comma in a text is no value.
        """
        most = self.limits.now.body_values
        for count in (count_marks, count_values):
            seen = 0
            for more in count(body):
                seen += more
                if seen > most:
                    break
                await asyncio.sleep(0)
            if seen <= most:
                return
        raise HttpError("too_large", "The body has too many values.", self.limits.refuse("body_values"))

    async def body(self, max_bytes: int) -> bytes | bytearray:
        """Return the whole body; never holds more than `max_bytes` and one chunk.

        Raises `HttpError` (413 for a larger body, 408 for one that comes too slowly, 401 for one that is not
        the signed one), `Overloaded` if the bodies of all requests need too much memory, and
        `ClientDisconnected`.
        """
        body = await self._whole_body(max_bytes)
        if self.signed_digest is not None and await _hash(body) != self.signed_digest:
            raise HttpError(
                "unauthorized", "The body is not the one that was signed.", "Send the call again."
            )
        return body

    async def _whole_body(self, max_bytes: int) -> bytes | bytearray:
        if self.content_length > max_bytes:
            raise _too_large(max_bytes)
        if (encoding := self.headers.get(b"content-encoding", b"identity").lower()) != b"identity":
            return await self._inflated(encoding, max_bytes)
        if self.connection is not None and self.connection.has_whole_body:
            chunk = await self._receive_body()
            if len(chunk) > max_bytes:
                raise _too_large(max_bytes)
            return chunk
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            if len(body) > _UNCOUNTED and self.connection is not None:
                self.connection.table.hold_body(self.connection, len(body) - self.connection.held_bytes)
        return body

    async def _inflated(self, encoding: bytes, max_bytes: int) -> bytearray:
        """Return a body that came compressed. It is inflated in slices, and never to more than `max_bytes`.

        Raises `HttpError` (415) for another encoding than gzip, and `BadRequest` for a body that is no gzip.
        """
        if encoding not in (b"gzip", b"x-gzip"):
            text = f"Content-Encoding {quoted(encoding.decode('latin-1'))} is not known here."
            raise HttpError("unsupported_media_type", text, "Send gzip, or the body as it is.")
        body, inflater, sent = bytearray(), zlib.decompressobj(_GZIP), 0
        async for chunk in self.chunks():
            sent += len(chunk)
            while chunk:
                if inflater.eof:  # what follows the stream is not consumed
                    raise _not_one_gzip()
                try:
                    body += inflater.decompress(chunk, _PIECE)
                except zlib.error:
                    raise BadRequest("The body is not valid gzip.", "Compress it again.") from None
                if len(body) > max_bytes or sent > max_bytes:
                    raise _too_large(max_bytes)
                if len(body) > _UNCOUNTED and self.connection is not None:
                    self.connection.table.hold_body(self.connection, len(body) - self.connection.held_bytes)
                chunk = inflater.unconsumed_tail  # noqa: PLW2901
                await asyncio.sleep(0)
        if not inflater.eof or inflater.unused_data:
            raise _not_one_gzip()
        return body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield a body of any length as it comes. Raises `HttpError` (408) and `ClientDisconnected`."""
        deadline = asyncio.get_running_loop().time() + self._body_seconds()
        while True:
            chunk = await self._next_chunk(deadline)
            deadline += len(chunk) / _BODY_RATE
            yield chunk
            if self.is_read:
                return

    def _body_seconds(self) -> float:
        seconds = self.limits.now.request_body.total_seconds()
        return seconds if self.is_trusted else min(seconds, _STRANGER_SECONDS)

    async def discard_body(self) -> None:
        """Read and drop the rest of the body for a moment. Closing a connection with unread data resets it,
        and the client might never see the response."""
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not self.is_read:
                    await self._receive_body()
        except (TimeoutError, ClientDisconnected):
            pass

    async def _next_chunk(self, deadline: float) -> bytes:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._receive_body()
        except TimeoutError:
            self.is_overdue = True
            raise HttpError(
                "timeout",
                f"The body did not come within {self._body_seconds():g} seconds, "
                f"and a second more for each {format_size(_BODY_RATE)}.",
                self.limits.refuse("request_body") if self.is_trusted else "Send it with the head.",
            ) from None

    async def _receive_body(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self.is_read = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    # -- the response ---------------------------------------------------------------------------------------

    async def start_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send status and headers. No other response can be sent afterwards."""
        self.has_started = True
        headers.append((b"x-request-id", self.id))
        if self.has_anthropic_id:
            headers.append((b"request-id", self.id))
        headers += self.more_headers
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, is_last: bool) -> None:
        """Send a piece of the response's body. Waits while the client reads more slowly than this writes.

        A client that reads nothing for `limits.slow_reader` is cut off, as is one whose response takes up too
        much memory; then this returns, and `wait_disconnect` tells.
        """
        connection = self.connection
        if connection is not None:
            if len(data) > _PIECE:
                data = await self._write_slowly(connection, data)
            connection.written_bytes += len(data)
        watcher = self.watcher if is_last else None
        is_there = watcher is not None and not self.has_left()
        await self.send({"type": "http.response.body", "body": data, "more_body": not is_last})
        if watcher is not None and is_there and (connection is None or connection.watch_reading(watcher)):
            watcher.written()

    def hold(self, size: int) -> None:
        """Count memory that is kept for the response until it is sent. The client may be cut off for it."""
        if self.connection is not None and size > _PIECE:
            self.connection.table.hold_response(self.connection, size)

    async def _write_slowly(self, connection: ClientConnection, data: bytes) -> bytes:
        """Write all but the last piece, which is returned. The transport never buffers more than a piece."""
        last = (len(data) - 1) // _PIECE * _PIECE
        view = memoryview(data)
        self.hold(len(data))
        try:
            for start in range(0, last, _PIECE):
                connection.written_bytes += _PIECE
                piece = view[start : start + _PIECE]
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
                connection.table.note_read(connection)
        finally:
            connection.table.release(connection, len(data))
        return bytes(view[last:])

    @property
    def can_write(self) -> bool:
        """Whether a short piece can be written without waiting for the client."""
        return self.connection is None or not self.connection.flow.write_paused

    @property
    def is_gone(self) -> bool:
        """Whether the connection is closed or about to be, so that nothing more can be written."""
        return self.connection is not None and self.connection.transport.is_closing()

    def has_left(self) -> bool:
        """Return whether the client has closed its connection."""
        return self.connection is not None and self.connection.has_left()

    def forget_head(self) -> None:
        """Free what was sent with the request, for a response that may take hours."""
        self.headers = {}
        self.scope["headers"].clear()
        self.scope.pop("state", None)

    def leaving(self) -> asyncio.Future[None]:
        """Return what is done when the client has left, if the caller has not set it before. It takes a tenth
        of the memory of a task with `wait_disconnect`."""
        if self.connection is None:
            return asyncio.get_running_loop().create_future()
        return self.connection.leaving()

    async def wait_disconnect(self) -> None:
        """Return when the client has left. Must not be called before the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


async def _hash(body: bytes | bytearray) -> bytes:
    is_long = len(body) > _HASHED
    made = await asyncio.to_thread(hashlib.sha256, body) if is_long else hashlib.sha256(body)
    return made.digest()


def _not_one_gzip() -> BadRequest:
    return BadRequest("The body is not one whole gzip stream.", "Compress it again.")


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    return _decoders.get(kind) or _decoders.setdefault(kind, msgspec.json.Decoder(kind))


def _lenient(kind: Any) -> Any:
    """Return the same struct, which ignores unknown fields."""
    if kind not in _lenients:
        name = f"Lenient{kind.__name__}"
        _lenients[kind] = msgspec.defstruct(name, [], bases=(kind,), forbid_unknown_fields=False)
    return _lenients[kind]


def _decode(kind: type[T], body: bytes | bytearray) -> T:
    if not body:
        raise BadRequest("The request has no body.", "Send a JSON object.")
    try:
        decoded: T = _decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error)) from None
    except msgspec.DecodeError as error:
        where = str(error).removeprefix("JSON is malformed: ")
        where = "it ends too early" if "truncated" in where else where
        raise BadRequest(f"The body is not valid JSON: {where}.", "Check it with a JSON linter.") from None
    except UnicodeDecodeError as error:
        raise invalid_utf8(error) from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", "Send a flatter JSON object.") from None
    return decoded


def invalid_utf8(error: UnicodeDecodeError) -> BadRequest:
    return BadRequest(f"The body is not valid UTF-8: {error.reason}.", "Encode the JSON as UTF-8.")


def invalid_field(complaint: str, root: str = "", whole: str = "body") -> BadRequest:
    """Put the field first in a complaint of msgspec (``Expected `int`, got `str` - at `$.a` ``). `whole` is
    what has the fields."""
    what, _, place = complaint.partition(" - at `")
    field = root + place.rstrip("`").removeprefix("$").removeprefix("." if not root else "")
    what, code = (
        what[:1].lower() + what[1:],
        "invalid_type" if what.startswith("Expected") else "invalid_value",
    )
    if found := _NAMED_FIELD.fullmatch(what):
        field = f"{field}.{found[2]}" if field else found[2]
        what, code = _FIELD_COMPLAINTS[found[1]]
    return BadRequest(
        f"In the field `{field}`: {what}." if field else f"The {whole} does not fit: {what}.",
        "docs/http-api.md names the fields and their types.",
        code=code,
        param=field,
    )


def _too_large(max_bytes: int) -> HttpError:
    is_fixed = max_bytes <= SMALL_BODY
    return HttpError(
        "too_large",
        f"The body is larger than {format_size(max_bytes)}.",
        "No body of this call is so large."
        if is_fixed
        else "Send less, or raise http.max_body in config.toml.",
    )
