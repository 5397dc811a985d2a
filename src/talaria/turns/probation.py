"""Finding the turn that takes the process down, without blaming those that ran beside it.

Turns that two crashes in a row have met begin one at a time. Whoever is still alive a moment later is
cleared: its count begins anew, and the next may begin. So a third crash meets the one that caused it, and
those behind it have not begun.
"""

from __future__ import annotations

import asyncio
import logging

from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.core.ports import Store
from talaria.turns.live import LiveTurn

_log = logging.getLogger("talaria.turns")
SUSPECT_AFTER = 2
WATCHED_SECONDS = 3.0


def is_suspect(live: LiveTurn) -> bool:
    return live.turn.attempts - live.turn.forgiven >= SUSPECT_AFTER


class Probation:
    """Suspects enter it before they begin; `drain` lets go of those that are watched."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turnstile = asyncio.Lock()
        self._watches: set[asyncio.Task[None]] = set()

    async def enter(self, live: LiveTurn) -> None:
        """Waits while another suspect is watched. Cancelled, it holds nothing."""
        if not is_suspect(live):
            return
        await self._turnstile.acquire()
        _log.warning("turn %s was met by crashes and begins alone", live.turn.id)
        watch = asyncio.create_task(self._watch(live), name=f"probation {live.turn.id}")
        self._watches.add(watch)
        watch.add_done_callback(self._let_next_in)

    def drain(self) -> None:
        for watch in list(self._watches):
            watch.cancel()

    def _let_next_in(self, watch: asyncio.Task[None]) -> None:
        self._watches.discard(watch)
        self._turnstile.release()

    async def _watch(self, live: LiveTurn) -> None:
        timer = asyncio.ensure_future(self._clock.sleep(WATCHED_SECONDS))
        try:
            await asyncio.wait((timer, live.settled), return_when=asyncio.FIRST_COMPLETED)
            if not live.settled.done():
                await self._store.forgive(live.turn.id)
        except StoreError as error:
            _log.error("turn %s could not be cleared: %s", live.turn.id, error)
        finally:
            timer.cancel()
