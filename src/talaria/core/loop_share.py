"""The share of the event loop that long work may take."""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import TracebackType

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._used += perf_counter() - self._began
        try:
            if (used := self._used) >= SLICE_SECONDS:
                self._used = 0.0
                await asyncio.sleep(used)
        finally:
            self._turn.release()
