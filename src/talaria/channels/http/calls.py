"""One HTTP call: reading what was asked, within limits, and knowing whether the caller is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from talaria.channels.http.errors import ClientGone, Refused
from talaria.core.errors import BadRequest
from talaria.core.units import format_size

T = TypeVar("T")

_SILENCE: Final = 30.0  # seconds without a byte of a body that was announced
_LINGER: Final = 2.0  # seconds in which the rest of a refused upload is read and thrown away
_LONGEST_KEY: Final = 255


class Call:
    """What an endpoint gets. Bodies are read only when an endpoint asks for them."""

    __slots__ = ("has_started", "headers", "is_read", "receive", "scope", "send")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.has_started = False
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.is_read = not (
            self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers
        )

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return value.decode("latin-1").strip() if value is not None else None

    def path(self, name: str) -> str:
        """A part of the path, by its name in the route's pattern."""
        return str(self.scope["path_params"][name])

    def query(self) -> dict[str, str]:
        raw: bytes = self.scope["query_string"]
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True)) if raw else {}

    def idempotency_key(self) -> str | None:
        key = self.header(b"idempotency-key")
        if key is not None and not 0 < len(key) <= _LONGEST_KEY:
            raise BadRequest(
                f"The header Idempotency-Key has {len(key)} characters.",
                f"Send 1 to {_LONGEST_KEY} of them, for example a UUID.",
            )
        return key

    # -- the body -------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """As announced; 0 when it was not."""
        return int(self.headers.get(b"content-length", b"0"))

    async def json(self, decoder: msgspec.json.Decoder[T], max_bytes: int) -> T:
        """The body as the decoder's type. Raises `BadRequest` that says where and what is wrong."""
        return decode(decoder, await self.body(max_bytes))

    async def body(self, max_bytes: int) -> bytes | bytearray:
        """Never holds more than `max_bytes` and one piece. Raises `Refused` (413, 408) and `ClientGone`."""
        if self.length > max_bytes:
            raise _too_large(max_bytes)
        piece, is_last = await self._piece()
        if is_last and len(piece) <= max_bytes:
            return piece
        body = bytearray(piece)
        while len(body) <= max_bytes:
            if is_last:
                return body
            piece, is_last = await self._next()
            body += piece
        raise _too_large(max_bytes)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, of any length. Raises `Refused` (408) and `ClientGone`."""
        is_last = False
        while not is_last:
            piece, is_last = await self._next()
            yield piece

    async def _next(self) -> tuple[bytes, bool]:
        try:
            async with asyncio.timeout(_SILENCE):
                return await self._piece()
        except TimeoutError:
            raise Refused(
                408,
                "timeout",
                f"The rest of the body did not come within {_SILENCE:g} seconds.",
                "Send it again.",
            ) from None

    async def _piece(self) -> tuple[bytes, bool]:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.is_read = not message.get("more_body", False)
        return message.get("body", b""), self.is_read

    async def discard(self) -> None:
        """Read and drop what still comes, for a moment: closing on unread data would reset the connection,
        and the caller might never see the answer."""
        try:
            async with asyncio.timeout(_LINGER):
                while not self.is_read:
                    await self._piece()
        except (TimeoutError, ClientGone):
            pass

    # -- the answer -----------------------------------------------------------------------------------------

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and headers; from here on no other answer can be given."""
        self.has_started = True
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, is_last: bool) -> None:
        """Waits while the caller reads slower than this writes."""
        await self.send({"type": "http.response.body", "body": data, "more_body": not is_last})

    # -- presence -------------------------------------------------------------------------------------------

    async def until_gone(self) -> None:
        """Returns when the caller has left. Only after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def decode(decoder: msgspec.json.Decoder[T], body: bytes | bytearray) -> T:
    if not body:
        raise BadRequest("The request has no body.", "Send a JSON object.")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    except msgspec.DecodeError as error:
        where = (
            "it ends too early"
            if "truncated" in str(error)
            else str(error).removeprefix("JSON is malformed: ")
        )
        raise BadRequest(f"The body is not valid JSON: {where}.", "Check it with a JSON linter.") from None
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"The body is not valid UTF-8: {error.reason}.", "Encode the JSON as UTF-8."
        ) from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", "Send a flatter JSON object.") from None


def invalid(complaint: str, root: str = "") -> BadRequest:
    """A complaint of msgspec (``Expected `int`, got `str` - at `$.a` ``) with the field first."""
    what, _, place = complaint.partition(" - at `")
    field = root + place.rstrip("`").removeprefix("$").removeprefix("." if not root else "")
    what = what[:1].lower() + what[1:]
    return BadRequest(
        f"In the field `{field}`: {what}." if field else f"The body does not fit: {what}.",
        "docs/http-api.md names the fields and their types.",
    )


def _too_large(max_bytes: int) -> Refused:
    return Refused(
        413,
        "too_large",
        f"The body is larger than {format_size(max_bytes)}.",
        "Send less, or raise http.max_body in config.toml.",
    )
