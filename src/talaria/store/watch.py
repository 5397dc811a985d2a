"""Watches over the database beside the gateway's work: after a crash, and while it cannot be written."""

from __future__ import annotations

import logging

from talaria.core.clock import Clock
from talaria.core.errors import StoreDamaged, StoreError
from talaria.core.ledger import Integrity
from talaria.core.store_ports import StoreEngine
from talaria.store.home_lock import HomeLock

_log = logging.getLogger("talaria.store")
PROBE_SECONDS = 5.0


class StoreWatch:
    """Looks at a suspect database once, and tries a write every few seconds while writes fail.

    The health check must turn good again by itself: while it is bad, no client may write.
    """

    def __init__(self, store: StoreEngine, lock: HomeLock, clock: Clock) -> None:
        self._store = store
        self._lock = lock
        self._clock = clock

    def trouble(self) -> str | None:
        """Return why the store cannot be written, for `Health`; None when it can."""
        trouble = self._store.trouble
        return None if trouble is None else trouble.user_text

    async def run(self) -> None:
        await self._look()
        while True:
            await self._probe()
            await self._clock.sleep(PROBE_SECONDS)

    async def _look(self) -> None:
        if self._store.integrity is Integrity.CHECKING:
            _log.warning("the last process ended without closing the database, which is looked at now")
            if (finding := await self._store.verify()) is not None:
                _log.error("the database is damaged and only read from now on; restore a backup: %s", finding)
        if self._store.integrity is Integrity.WHOLE:
            if self._lock.follows_crash:
                _log.info("the last process ended without closing the database; it is whole")
            self._lock.mark_checked()

    async def _probe(self) -> None:
        trouble = self._store.trouble
        if trouble is None or isinstance(trouble, StoreDamaged):
            return
        try:
            await self._store.probe()
        except StoreError as error:
            _log.warning("the store still cannot be written: %s", error)
        else:
            _log.info("the store can be written again")
