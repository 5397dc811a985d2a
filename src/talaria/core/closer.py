"""The closer: closes things beside the turns, within a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from talaria.core.clock import Clock
from talaria.core.tasks import Tasks

_GRACE_SECONDS = 1.0  # for one that was cancelled to go


class Closer:
    """Closes things in tasks of their own. Callers do not wait, and failures are only logged.

    A close that takes longer than `seconds` is cancelled and dropped. If it ignores the cancellation, it is
    left running. `what` names in the log what is closed.
    """

    def __init__(self, clock: Clock, seconds: float, what: str, log: logging.Logger) -> None:
        self._clock = clock
        self._seconds = seconds
        self._what = what
        self._log = log
        self._watches = Tasks()
        self.dropped = 0
        self.failed = 0

    def __len__(self) -> int:
        """Return how many things are being closed now."""
        return sum(not watch.done() for watch in self._watches)

    def close(self, name: str, begin: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        """Call `begin`. If it returns a coroutine, run that in a task; otherwise the thing is closed."""
        try:
            rest = begin()
        except Exception as error:
            self._note_failure(name, error)
            return
        if rest is not None:
            self._watches.start(self._watch(name, rest), f"closer of {name}")

    async def drain(self) -> None:
        """Wait until everything that is being closed now is closed or dropped."""
        if self._watches:
            await asyncio.wait(self._watches)

    async def _watch(self, name: str, rest: Coroutine[Any, Any, None]) -> None:
        closing = asyncio.create_task(rest, name=f"closing {name}")
        if not await self._ends_within(closing, self._seconds):
            self.dropped += 1
            self._log.error("closing %s of %s took over %g s: dropped", self._what, name, self._seconds)
            closing.cancel()
            if not await self._ends_within(closing, _GRACE_SECONDS):
                return
        if not closing.cancelled() and (error := closing.exception()) is not None:
            self._note_failure(name, error)

    async def _ends_within(self, closing: asyncio.Task[None], seconds: float) -> bool:
        timer = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait((closing, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.wait((timer,))
        return closing.done()

    def _note_failure(self, name: str, error: BaseException) -> None:
        self.failed += 1
        self._log.error("closing %s of %s failed", self._what, name, exc_info=error)
