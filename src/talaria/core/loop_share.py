"""Leaving the event loop to others: its part for one kind of work, and the pace of long work in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from time import perf_counter

SLICE_SECONDS = 0.002


class LoopShare:
    """Lets long work of all tasks together take half of the event loop at most.

    A task works inside `async with share:` for up to `SLICE_SECONDS` and awaits nothing there. The tasks work
    one at a time, in the order of asking. After every `SLICE_SECONDS` of their work the loop is free for as
    long; work that cannot be cut takes longer, and so does its pause. Otherwise fifty tasks with short slices
    would make each round of the loop fifty slices long, and a turn takes many rounds.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._began = 0.0
        self._used = 0.0

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        self._began = perf_counter()

    async def __aexit__(self, *error: object) -> None:
        self._used += perf_counter() - self._began
        try:
            if (used := self._used) >= SLICE_SECONDS:
                self._used = 0.0
                await asyncio.sleep(used)
        finally:
            self._turn.release()


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
