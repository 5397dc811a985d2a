"""Events of turns as members pass them on to each other: lines of JSON over HTTP.

A stream begins with a head, which a new head replaces. An empty line keeps a silent stream alive. The last
line of a whole stream is an end: the reader finds the turn's row in the store, so a long reply is not sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec

from talaria.core.events import Event
from talaria.core.turns import TurnState

LINES: Final = b"application/x-ndjson"
KEEP_ALIVE: Final = b"\n"
MOST_BYTES: Final = 16 << 20  # of one line
ROLE_HEADER: Final = "x-talaria-role"  # the role of the caller for whom a member calls


class StreamHead(msgspec.Struct, frozen=True, tag="head"):
    """The turn beside its events. Numbers of events count within one `stream`. `model`
    (provider/name) is empty until it is known."""

    stream: str
    state: TurnState
    model: str = ""


class PassedEvent(msgspec.Struct, frozen=True, tag="event"):
    number: int
    event: msgspec.Raw

    def decode(self) -> Event | None:
        """Return the event, or None for a kind that this version does not know."""
        try:
            return _events.decode(self.event)
        except msgspec.ValidationError:
            return None


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    """The turn is over. Its row has the result."""


StreamLine = StreamHead | PassedEvent | StreamEnd
_encode = msgspec.json.Encoder().encode
_lines: msgspec.json.Decoder[StreamLine] = msgspec.json.Decoder(StreamLine)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_line(line: StreamHead | StreamEnd) -> bytes:
    return _encode(line) + b"\n"


def encode_event(number: int, event: Event) -> bytes:
    return b'{"type":"event","number":%d,"event":%b}\n' % (number, _encode(event))


class BrokenStream(ValueError):
    """The bytes are no stream of events."""


async def read_lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the whole lines of a stream, without empty ones. Raises `BrokenStream` for one that is longer
    than `MOST_BYTES`."""
    rest = bytearray()
    async for piece in pieces:
        start = len(rest)
        rest += piece
        if (end := rest.rfind(b"\n", start)) >= 0:
            lines = bytes(rest[:end])
            del rest[: end + 1]
            for line in lines.split(b"\n"):
                if line:
                    yield line
        if len(rest) > MOST_BYTES:
            raise BrokenStream(f"a line has more than {MOST_BYTES} bytes")


def decode_line(line: bytes) -> StreamLine:
    """Raises `BrokenStream`."""
    try:
        return _lines.decode(line)
    except msgspec.MsgspecError as error:
        raise BrokenStream(str(error)) from None
