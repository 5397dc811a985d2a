"""Server-sent events: incremental parsers whose events do not depend on how the bytes were split.

Their work is linear in the bytes: an unfinished line is kept in pieces and joined once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import msgspec

MAX_EVENT_BYTES = 16 << 20
_LINE_BYTES = (
    64  # what a further line of an event needs beside its text, so that the number of lines is bounded
)

T = TypeVar("T")


class SseOverflow(Exception):
    """A line or an event is longer than the limit. The parser cannot continue."""


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """`data` is bytes, because its readers decode JSON; several lines are joined by LF.

    `id` is the last id of the stream, from this event or an earlier one.
    """

    name: str
    data: bytes
    id: str = ""


class LineParser(ABC, Generic[T]):
    """Turns bytes into lines, and lines into events.

    Lines end in LF, CR or CRLF. A leading byte order mark, comments and events without data are skipped. At
    the end of the stream, `flush` returns an event that only lacks its blank line.
    """

    __slots__ = ("_after_cr", "_data", "_held", "_max", "_size", "_start", "_tail", "lines")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._tail: list[bytes] = []  # pieces of the line that has not ended yet
        self._held = 0  # bytes in `_tail`
        self._after_cr = False  # the last byte was CR: a following LF belongs to it
        self._start = True  # no byte has come behind the byte order mark
        self._data: list[bytes] = []
        self._size = 0  # bytes in `_data`
        self.lines = 0  # whole lines so far

    @property
    def unread(self) -> int:
        """The bytes that wait for the end of their event."""
        return self._held + self._size

    def feed(self, data: bytes) -> list[T]:
        """Return the events that these bytes complete. Raises `SseOverflow`; the parser is unusable then."""
        if self._start and not (data := self._without_mark(data)):
            return []
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:
                data = data[1:]
        if b"\r" in data:
            self._after_cr = data[-1] == 0x0D
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._tail:
            self._tail.append(lines[0])
            lines[0] = b"".join(self._tail)
            self._tail.clear()
            self._held = 0
        self.lines += len(lines)
        events = self._take(lines) if lines else []
        if rest:
            self._tail.append(rest)
            self._held += len(rest)
            if self._held > self._max:
                raise SseOverflow(f"a line is longer than {self._max} bytes")
        return events

    def flush(self) -> list[T]:
        """Return the last event, as if a blank line had followed."""
        rest = b"".join(self._tail)
        self._tail.clear()
        self._held = 0
        return self._take([rest, b""] if rest else [b""])

    @abstractmethod
    def _take(self, lines: list[bytes]) -> list[T]:
        """Return the events that these whole lines complete."""

    def _add(self, line: bytes) -> None:
        """Add a line of data to the event."""
        if self._data:
            self._size += _LINE_BYTES
        self._size += len(line)
        if self._size > self._max:
            raise SseOverflow(f"an event is longer than {self._max} bytes")
        self._data.append(line[6:] if line[5:6] == b" " else line[5:])

    def _without_mark(self, data: bytes) -> bytes:
        """Hold the first bytes back until it is clear whether they are a byte order mark."""
        head = b"".join(self._tail) + data
        if len(head) < 3 and b"\xef\xbb\xbf".startswith(head):
            self._tail = [head]
            return b""
        self._start = False
        self._tail.clear()
        return head.removeprefix(b"\xef\xbb\xbf")


class SseParser(LineParser[SseEvent]):
    """Returns whole events."""

    __slots__ = ("_id", "_name")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(max_event_bytes)
        self._name = ""
        self._id = ""

    def _take(self, lines: list[bytes]) -> list[SseEvent]:
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(SseEvent(self._name, b"\n".join(self._data), self._id))
                    self._data.clear()
                    self._size = 0
                self._name = ""
            elif line.startswith(b"data:") or line == b"data":
                self._add(line)
            elif len(line) > self._max:
                raise SseOverflow(f"a line is longer than {self._max} bytes")
            else:
                self._take_field(line)
        return events

    def _take_field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")


class SseDataParser(LineParser[bytes]):
    """Returns the data of events alone, for streams whose data says everything."""

    __slots__ = ()

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events = []
        kept = self._data
        for line in lines:
            if not line:
                if kept:
                    events.append(kept[0] if len(kept) == 1 else b"\n".join(kept))
                    kept.clear()
                    self._size = 0
            elif not kept and line.startswith(b"data: ") and (size := len(line)) <= self._max:
                self._size = size
                kept.append(line[6:])
            elif line.startswith(b"data:") or line == b"data":
                self._add(line)
            elif len(line) > self._max:
                raise SseOverflow(f"a line is longer than {self._max} bytes")
        return events
