"""The pace of long Python work in a thread, so that it leaves the interpreter to the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable

_SLICE_SECONDS = 0.001
_PAUSE_SECONDS = 0.001


class Pace:
    """Pauses long work after each slice of computing, and says when it has to stop.

    A thread that computes without a pause holds the interpreter for 5 ms at a time, and the event loop waits
    as long for each of its steps. Use one object in one thread.
    """

    def __init__(self, cpu_seconds: float, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self._is_cancelled = is_cancelled
        self._slice_end = time.thread_time()
        self._end = self._slice_end + cpu_seconds

    def may_go_on(self) -> bool:
        """Return whether there is computing time left and the work is still wanted. Call it in each round."""
        now = time.thread_time()
        if now < self._slice_end:
            return True
        if now >= self._end or self._is_cancelled():
            return False
        time.sleep(_PAUSE_SECONDS)
        self._slice_end = now + _SLICE_SECONDS
        return True
