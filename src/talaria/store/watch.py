"""Watches over the database beside the gateway's work: after a crash, and while it cannot be written."""

from __future__ import annotations

import asyncio
import logging

from talaria.core.clock import Clock
from talaria.core.errors import StoreDamaged, StoreError
from talaria.core.ledger import Integrity
from talaria.core.tasks import every
from talaria.store.home_lock import HomeLock
from talaria.store.store import Store

_log = logging.getLogger("talaria.store")
TELL_SECONDS = 0.25
LOOK_SECONDS = 1.0
PROBE_SECONDS = 2.0


class StoreWatch:
    """Checks a suspect database once, looks every second whether its files are there, tries a write every few
    seconds while writes fail, and logs when trouble begins, changes and ends.

    The health check must turn good again by itself: while it is bad, no client may write.
    """

    def __init__(self, store: Store, lock: HomeLock, clock: Clock) -> None:
        self._store = store
        self._lock = lock
        self._clock = clock
        self._told = ""

    def trouble(self) -> str | None:
        """Return why the store cannot be written, for `Health`; None when it can."""
        trouble = self._store.trouble
        return None if trouble is None else trouble.user_text

    async def run(self) -> None:
        """Watch until cancelled. A disk that hangs holds up the look and the probe, but not the telling."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(every(self._clock, TELL_SECONDS, self._tell), name="store-trouble")
            tasks.create_task(every(self._clock, LOOK_SECONDS, self._store.look), name="store-files")
            await self._verify()
            tasks.create_task(every(self._clock, PROBE_SECONDS, self._probe), name="store-probe")

    async def _verify(self) -> None:
        if self._store.integrity is Integrity.CHECKING:
            _log.warning("the last process ended without closing the database, which is looked at now")
            if (finding := await self._store.verify()) is not None:
                _log.error("the database is damaged and only read from now on; restore a backup: %s", finding)
        if self._store.integrity is Integrity.WHOLE:
            if self._lock.follows_crash:
                _log.info("the last process ended without closing the database; it is whole")
            self._lock.mark_checked()

    async def _tell(self) -> None:
        """Log trouble that begins, changes its kind, or ends. Its number of seconds is no change."""
        trouble = self._store.trouble
        kind = "" if trouble is None else trouble.user_text.partition(":")[0]
        if kind == self._told:
            return
        self._told = kind
        if trouble is None:
            _log.info("the store can be written again")
        else:
            _log.error("the store has trouble: %s", trouble)

    async def _probe(self) -> None:
        trouble = self._store.trouble
        if trouble is None or isinstance(trouble, StoreDamaged):
            return
        try:
            await self._store.probe()
        except StoreError as error:
            _log.debug("the store still cannot be written: %s", error)
