"""The bytes of an answer as they come in: events of a stream, or one JSON object from a server that does not
stream."""

from __future__ import annotations

from talaria.models.faults import Faults
from talaria.net.sse import SseEvent, SseOverflow, SseParser

MAX_ANSWER_BYTES = 64 << 20


class Inflow:
    """Which of the two it is shows at the first byte. One that never ends is malformed."""

    __slots__ = ("_faults", "_has_begun", "_plain", "_received", "_sse")

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._sse = SseParser()
        self._plain: list[bytes] | None = None
        self._received = 0
        self._has_begun = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that are whole by now; none of an answer that is no stream."""
        self._received += len(data)
        if self._received > MAX_ANSWER_BYTES:
            raise self._faults.malformed(f"it is longer than {MAX_ANSWER_BYTES} bytes")
        if not self._has_begun:
            if not (data := data.lstrip(b" \t\r\n")):
                return []
            self._has_begun = True
            if data.startswith(b"{"):
                self._plain = []
        if self._plain is not None:
            self._plain.append(data)
            return []
        try:
            return self._sse.feed(data)
        except SseOverflow as error:
            raise self._faults.malformed(str(error)) from None

    def flush(self) -> list[SseEvent]:
        """What a stream that has ended still holds."""
        return self._sse.flush()

    def whole(self) -> bytes | None:
        """All of an answer that is no stream, once; None for a stream."""
        if self._plain is None:
            return None
        body = b"".join(self._plain)
        self._plain.clear()
        return body
