"""Measures how the CPU time of a function grows with the size of its input."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SMALL, LARGE = 1 << 20, 10 << 20
MOST = 12.0
"""Ten times the input may cost at most this many times the CPU time."""
_TINY = 0.02  # below this many seconds for the large input, noise is larger than growth


def growth(make: Callable[[int], T], work: Callable[[T], object]) -> float:
    """Return the CPU time for 10 MB divided by that for 1 MB; 1.0 if both are too short to compare.

    `make` builds an input of about so many bytes, and `work` handles it. Doubling sizes come first: a
    quadratic function is found at a fraction of the size, long before it would take minutes.
    """
    sizes = [SMALL >> shift for shift in (6, 4, 2)]
    early = [_seconds(make(size), work) for size in sizes]
    if early[-1] > _TINY and early[-1] > 8 * max(early[-2], 1e-4):  # four times the size
        return 10 * early[-1] / early[-2]
    small = _seconds(make(SMALL), work)
    large = _seconds(make(LARGE), work)
    if large < _TINY:
        return 1.0
    return large / max(small, _TINY / 10)


def assert_linear(make: Callable[[int], T], work: Callable[[T], object]) -> None:
    """Fail if ten times the input costs more than `MOST` times the CPU time, in the best of three trials."""
    seen = []
    for _ in range(3):
        seen.append(growth(make, work))
        if seen[-1] <= MOST:
            return
    raise AssertionError(f"ten times the input costs {min(seen):.0f} times the CPU time")


def _seconds(value: T, work: Callable[[T], object]) -> float:
    gc.collect()
    gc.disable()
    try:
        begin = time.thread_time()
        work(value)
        return time.thread_time() - begin
    finally:
        gc.enable()
