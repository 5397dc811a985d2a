"""How long to wait before something is tried again."""

from __future__ import annotations

from collections.abc import Iterator

_FIRST = 0.1


def pauses(longest: float) -> Iterator[float]:
    """Seconds: at once, then a moment, then each twice the one before, up to `longest`."""
    yield 0.0
    seconds = min(_FIRST, longest)
    while True:
        yield seconds
        seconds = min(2 * seconds, longest)
