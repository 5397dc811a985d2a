"""Measures how the CPU time of a function grows with the size of its input."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from talaria.core.errors import TalariaError

T = TypeVar("T")

SIZES = {"short": (1 << 16, 20.0), "long": (1 << 20, 12.0)}
"""The size of the small input, and the most that ten times of it may cost. `--long` chooses the long form.
Below a megabyte, caches help the small input. A quadratic function still costs a hundred times."""
FORM = "short"
_TINY = 0.01  # seconds for the large input below which noise is larger than growth


@contextmanager
def refused(text: str) -> Iterator[None]:
    """Accept that the work is refused with a text that matches. Any other refusal fails the test: a limit
    that ends the work early would hide how it grows. Pass `largest` to stay below such a limit."""
    try:
        yield
    except TalariaError as error:
        if re.search(text, str(error)) is None:
            raise


def growth(make: Callable[[int], T], work: Callable[[T], object], largest: int = 1 << 40) -> float:
    """Return the CPU time for ten times the input divided by that for the input; 1.0 if both are too short.

    `make` builds an input of about so many bytes, at most `largest`, and `work` handles it. Smaller sizes
    come first: a quadratic function is found at a fraction of the size, long before it would take minutes.
    """
    size = min(SIZES[FORM][0], largest // 10)
    early = [_seconds(make(size >> shift), work) for shift in (6, 4, 2)]
    if early[-1] > _TINY and early[-1] > 8 * max(early[-2], 1e-4):  # four times the size
        return 10 * early[-1] / early[-2]
    small = min(_seconds(make(size), work) for _ in range(2))
    large = _seconds(make(10 * size), work)
    return 1.0 if large < _TINY else large / max(small, _TINY / 10)


def assert_linear(make: Callable[[int], T], work: Callable[[T], object], *, largest: int = 1 << 40) -> None:
    """Fail if ten times the input costs too many times the CPU time, in the best of five trials."""
    most = SIZES[FORM][1]
    seen = []
    for _ in range(5):
        seen.append(growth(make, work, largest))
        if seen[-1] <= most:
            return
    raise AssertionError(f"ten times the input costs {min(seen):.0f} times the CPU time")


def _seconds(value: T, work: Callable[[T], object]) -> float:
    gc.disable()  # without a collection before: one takes 150 ms once thousands of tests have run
    try:
        begin = time.thread_time()
        work(value)
        return time.thread_time() - begin
    finally:
        gc.enable()
