"""Keeps the session leases of this process alive, and tells their holders when one is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.core.ids import Fence, OwnerId, SessionId
from talaria.core.ledger import Renewal
from talaria.core.store_ports import Store

_log = logging.getLogger("talaria.leases")


class _Held(msgspec.Struct):
    fence: Fence
    fresh_at: float  # `Clock.elapsed` when its last successful renewal *began*
    on_lost: Callable[[], None]


class LeaseKeeper:
    """Renews every held lease each third of its length.

    A lease that could not be renewed for two thirds of its length, counted from when the last successful
    renewal began, counts as lost. So its holder stops before another owner can take it.
    """

    def __init__(self, store: Store, clock: Clock, owner: OwnerId, lease_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._held: dict[SessionId, _Held] = {}
        self.owner = owner
        self.lease_seconds = lease_seconds

    def __len__(self) -> int:
        return len(self._held)

    def now(self) -> float:
        """Return the time at which a request for a lease begins, to pass to `hold`."""
        return self._clock.elapsed()

    def hold(self, session_id: SessionId, fence: Fence, asked_at: float, on_lost: Callable[[], None]) -> None:
        self._held[session_id] = _Held(fence, asked_at, on_lost)

    def drop(self, session_id: SessionId, fence: Fence) -> Callable[[], None]:
        """Stop renewing a lease; a newer hold of the same session stays. Return a function that undoes this,
        for a lease that was not given back after all."""
        held = self._held.get(session_id)
        if held is None or held.fence != fence:
            return lambda: None
        del self._held[session_id]
        return lambda: self._held.update({session_id: held})

    async def run(self) -> None:
        """Renew and watch until cancelled. The watch does not wait for a renewal that hangs."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._every(self.lease_seconds / 3, self.renew), name="lease-renewal")
            tasks.create_task(self._every(self.lease_seconds / 12, self.expire), name="lease-watch")

    async def _every(self, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(seconds)
            await action()

    async def renew(self) -> None:
        renewals = [Renewal(session_id, held.fence) for session_id, held in self._held.items()]
        if not renewals:
            return
        began = self._clock.elapsed()
        try:
            lost = await self._store.renew(self.owner, renewals, self.lease_seconds)
        except StoreError as error:
            _log.warning("leases were not renewed: %s", error)
            return
        for renewal in renewals:
            held = self._held.get(renewal.session_id)
            if held is None or held.fence != renewal.fence:
                continue
            if renewal.session_id in lost:
                self._lose(renewal.session_id, "another owner has it")
            else:
                held.fresh_at = began

    async def expire(self) -> None:
        """Give up leases that could not be renewed in time."""
        limit = self._clock.elapsed() - self.lease_seconds * 2 / 3
        for session_id in [key for key, held in self._held.items() if held.fresh_at <= limit]:
            self._lose(session_id, "it could not be renewed in time")

    def _lose(self, session_id: SessionId, why: str) -> None:
        held = self._held.pop(session_id)
        _log.warning("lost the lease of %s: %s", session_id, why)
        held.on_lost()
