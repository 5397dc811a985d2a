"""Keeps the session leases of this process alive, and tells their holders when one is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING

import msgspec

from talaria.core.clock import Clock, held_until
from talaria.core.errors import StoreError
from talaria.core.ids import Fence, OwnerId, SessionId
from talaria.core.ledger import Renewal
from talaria.core.tasks import call_from_thread, every
from talaria.store.store import Store, ThreadOrders

if TYPE_CHECKING:
    from talaria.cluster.membership import Membership

_log = logging.getLogger("talaria.leases")
_JOIN_SECONDS = 1.0


class LeaseTiming(msgspec.Struct, frozen=True):
    """`lease_seconds`: how long a lease lasts without renewal. `wedged_seconds`: after so long without a tick
    of the event loop, leases are no longer renewed and the process leaves."""

    lease_seconds: float = 30.0
    wedged_seconds: float = 60.0


class _Held(msgspec.Struct):
    fence: Fence
    fresh_at: float  # `Clock.elapsed` when its last successful renewal *began*
    on_lost: Callable[[], None]


class LeaseKeeper:
    """Renews every held lease each third of its length.

    A lease that could not be renewed in time (`held_until`) counts as lost and is not renewed any more. So
    its holder stops before another owner can take it.

    `run` renews on the event loop, `run_beside` in a thread that a held loop cannot stop. Only the loop
    changes which leases are held, and only the loop calls `on_lost`.
    """

    def __init__(self, store: Store, clock: Clock, owner: OwnerId, lease_seconds: float) -> None:
        self._store = store
        self._clock = clock
        self._held: dict[SessionId, _Held] = {}
        self._member: Membership | None = None
        self.owner = owner
        self.lease_seconds = lease_seconds

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_out(self) -> bool:
        """Whether this process is a member of a cluster whose time could not be renewed. It must begin
        nothing then."""
        return self._member is not None and self._member.is_out

    async def wait_until_in(self) -> None:
        """Wait while `is_out`."""
        if self._member is not None:
            await self._member.wait_until_in()

    def now(self) -> float:
        """Return the time at which a request for a lease begins, to pass to `hold`."""
        return self._clock.elapsed()

    def accompany(self, member: Membership) -> None:
        """Renew this too, from now on."""
        self._member = member

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

    # -- on the loop ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew and watch until cancelled. The watch does not wait for a renewal that hangs."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                every(self._clock, self.lease_seconds / 3, self._renew_all), name="lease-renewal"
            )
            tasks.create_task(self._watch(), name="lease-watch")

    async def run_beside(self, store: ThreadOrders, is_alive: Callable[[], bool]) -> None:
        """Renew in a thread and watch on the loop, until cancelled.

        Renewal ends for good when `is_alive`, which the thread calls, returns False: then the leases expire.
        """
        loop, stop, ended = asyncio.get_running_loop(), Event(), asyncio.Event()

        def renew_until_stopped() -> None:
            pause = self.lease_seconds / 3
            while not stop.wait(pause) and is_alive():
                is_done = self._renew_member(store)
                is_done = self._renew_from_thread(store, loop) and is_done
                pause = self.lease_seconds / (3 if is_done else 12)
            call_from_thread(loop, ended.set)

        Thread(target=renew_until_stopped, name="talaria-leases", daemon=True).start()
        try:
            await self._watch()
        finally:
            stop.set()
            try:
                async with asyncio.timeout(_JOIN_SECONDS):
                    await ended.wait()
            except TimeoutError:
                _log.warning("the last renewal of the leases still waits for the database")

    async def _watch(self) -> None:
        await every(self._clock, self.lease_seconds / 12, self._look)

    async def _look(self) -> None:
        await self.expire()
        if self._member is not None:
            self._member.watch()

    async def _renew_all(self) -> None:
        await self.renew()
        if self._member is not None:
            await self._member.renew()

    async def renew(self) -> None:
        began, renewals = self._plan()
        if not renewals:
            return
        try:
            lost = await self._store.renew(self.owner, renewals, self.lease_seconds)
        except StoreError as error:
            _log.warning("leases were not renewed: %s", error)
        else:
            self._note(renewals, lost, began)
            self._lose(renewals, lost)

    async def expire(self) -> None:
        """Give up leases that could not be renewed in time."""
        now = self._clock.elapsed()
        for session_id in [key for key, held in self._held.items() if not self._can_renew(held, now)]:
            self._give_up(session_id, "it could not be renewed in time")

    def _lose(self, renewals: Sequence[Renewal], lost: frozenset[SessionId]) -> None:
        for renewal in renewals:
            held = self._held.get(renewal.session_id)
            if renewal.session_id in lost and held is not None and held.fence == renewal.fence:
                self._give_up(renewal.session_id, "another owner has it")

    def _give_up(self, session_id: SessionId, why: str) -> None:
        held = self._held.pop(session_id)
        _log.warning("lost the lease of %s: %s", session_id, why)
        held.on_lost()

    # -- in any thread --------------------------------------------------------------------------------------

    def _renew_from_thread(self, store: ThreadOrders, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the database carried the renewal out."""
        began, renewals = self._plan()
        if not renewals:
            return True
        try:
            lost = store.renew(self.owner, renewals, self.lease_seconds, self._timeout)
        except StoreError as error:
            _log.warning("leases were not renewed: %s", error)
            return False
        except Exception:  # the thread's boundary: without it no lease would be renewed any more
            _log.exception("leases were not renewed")
            return False
        self._note(renewals, lost, began)
        if lost:
            call_from_thread(loop, self._lose, renewals, lost)
        return True

    def _renew_member(self, store: ThreadOrders) -> bool:
        """Return whether the database carried the renewal out."""
        try:
            return self._member is None or self._member.renew_from_thread(store, self._timeout)
        except Exception:  # the thread's boundary, as above
            _log.exception("the time of this member was not renewed")
            return False

    @property
    def _timeout(self) -> float:
        """The seconds for a renewal in the thread. In a cluster there are two."""
        return self.lease_seconds / (3 if self._member is None else 6)

    def _plan(self) -> tuple[float, list[Renewal]]:
        """Return the present time, and the leases that can still be renewed."""
        began = self._clock.elapsed()
        held_now = list(self._held.items())  # one step of the interpreter, so the loop cannot interfere
        return began, [Renewal(key, held.fence) for key, held in held_now if self._can_renew(held, began)]

    def _note(self, renewals: Sequence[Renewal], lost: frozenset[SessionId], began: float) -> None:
        for renewal in renewals:
            held = self._held.get(renewal.session_id)
            if held is not None and held.fence == renewal.fence and renewal.session_id not in lost:
                held.fresh_at = began

    def _can_renew(self, held: _Held, now: float) -> bool:
        return now < held_until(held.fresh_at, self.lease_seconds)
