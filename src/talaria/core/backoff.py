"""Exponential backoff: how long to wait before the next attempt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_LARGEST_EXPONENT = 64  # beyond any pause that is not capped by `longest`


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from `first` seconds up to `longest` seconds."""

    first: float
    longest: float

    def pause(self, failures: int, draw: float = 1.0) -> float:
        """Return the seconds to wait after `failures` failed attempts in a row: `first` after one.

        Returns 0 while nothing has failed. `draw`, between 0 and 1, is a random factor ("full jitter") for
        callers that must not retry in step with each other.
        """
        if failures <= 0:
            return 0.0
        return draw * min(self.longest, self.first * 2.0 ** min(failures - 1, _LARGEST_EXPONENT))

    def pauses(self) -> Iterator[float]:
        """Yield the pauses before every attempt without end: 0 before the first, then `first`, and so on."""
        failures = 0
        while True:
            yield self.pause(failures)
            failures += 1
