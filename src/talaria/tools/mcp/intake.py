"""Bounds on what servers send: the bytes and values of a message, and the rate of messages.

A message that is too long is not held in memory. The request that it answers, if its id can be found, gets an
error instead. A server that sends faster than the rate has to wait, as its pipe or its connection is not read
meanwhile: that costs its own calls only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from talaria.core.limits import has_more_values

MAX_MESSAGE_BYTES = 8 << 20
MAX_VALUES = 100_000
MESSAGES_PER_SECOND = 200.0
BYTES_PER_SECOND = float(8 << 20)
_BURST_MESSAGES = 1000.0
_BURST_BYTES = float(32 << 20)
_DROPPED_SHARE = 1 / 8  # of the bytes that are not kept, which cost less
_ENDS = 4096  # bytes at both ends of a long message, where its id is looked for
_ID = re.compile(rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")')


class Throttle:
    """A bucket of messages and bytes that refills with time."""

    def __init__(self, messages: float = MESSAGES_PER_SECOND, size: float = BYTES_PER_SECOND) -> None:
        self._rates = (messages, size)
        self._bursts = (max(messages, _BURST_MESSAGES), max(size, _BURST_BYTES))
        self._left = list(self._bursts)
        self._at = asyncio.get_running_loop().time()

    async def take(self, messages: float, size: float) -> None:
        """Take so much, and wait until the bucket is not empty."""
        now = asyncio.get_running_loop().time()
        passed, self._at = now - self._at, now
        wait = 0.0
        for index, taken in enumerate((messages, size)):
            rate = self._rates[index]
            self._left[index] = min(self._bursts[index], self._left[index] + passed * rate) - taken
            wait = max(wait, -self._left[index] / rate)
        if wait > 0:
            await asyncio.sleep(wait)


class TooLong:
    """A message that was dropped. `request_id` is the id of the request that it answers; None if that was not
    to be found."""

    def __init__(self, ends: bytes, why: str) -> None:
        self.why = why
        found = _ID.search(ends[:_ENDS]) or _ID.search(ends[-_ENDS:])
        told = found[1].decode() if found else None
        self.request_id = None if told is None else told.strip('"') if told[0] == '"' else int(told)


async def split_lines(
    pieces: AsyncIterator[bytes], throttle: Throttle, max_bytes: int = MAX_MESSAGE_BYTES
) -> AsyncIterator[bytes | TooLong]:
    """Yield the lines of a stream that comes in pieces. Of a line that is too long only its ends are held."""
    line = bytearray()
    tail = b""
    dropped = 0
    async for piece in pieces:
        start = 0
        lines = 0
        while True:
            end = piece.find(b"\n", start)
            part = piece[start : len(piece) if end < 0 else end]
            if dropped or len(line) + len(part) > max_bytes:
                del line[_ENDS:]
                dropped += len(part)
                tail = (tail + part)[-_ENDS:]
            else:
                line += part
            if end < 0:
                break
            start, lines = end + 1, lines + 1
            if dropped:
                yield TooLong(bytes(line) + tail, f"it has more than {max_bytes >> 20} MiB")
            elif line.strip():
                yield checked(bytes(line))
            line, tail, dropped = bytearray(), b"", 0
            await throttle.take(1, 0)
        await throttle.take(0, len(piece) * (_DROPPED_SHARE if dropped else 1))


def checked(message: bytes) -> bytes | TooLong:
    """Return the message, unless decoding it would take too long."""
    if has_more_values(message, MAX_VALUES):
        return TooLong(message, f"it has more than {MAX_VALUES} values")
    return message
