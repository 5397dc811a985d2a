"""How many values a JSON text has, without decoding it: decoding takes time for each value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_COUNTED: Final = 1 << 20  # bytes that are looked at in one go
_CLOSELY_COUNTED: Final = 32 << 10
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)


def count_marks(body: bytes | bytearray) -> Iterator[int]:
    """Yield the number of commas and opening brackets in each slice of a body."""
    for start in range(0, len(body), _COUNTED):
        part = body[start : start + _COUNTED]
        yield part.count(b",") + part.count(b"[") + part.count(b"{")


def count_values(body: bytes | bytearray) -> Iterator[int]:
    """Yield the number of commas and opening brackets outside texts, for each slice of a body."""
    start, is_text = 0, False
    while start < len(body):
        part = body[start : start + _CLOSELY_COUNTED]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # the slice ends within an escape
            part = body[start : start + _CLOSELY_COUNTED + 1]
        start += len(part)
        pieces = _ESCAPE.sub(b"", part).split(b'"')
        outside = b"".join(pieces[is_text::2])
        is_text ^= len(pieces) % 2 == 0
        yield outside.count(b",") + outside.count(b"[") + outside.count(b"{")


def has_more_values(body: bytes, most: int) -> bool:
    """Return whether a JSON text has more than `most` values. Stops counting there."""
    if len(body) <= most:
        return False
    for count in (count_marks, count_values):
        seen = 0
        for more in count(body):
            seen += more
            if seen > most:
                break
        else:
            return False
    return True
