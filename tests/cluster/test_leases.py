"""The keeper renews in time, gives up in time, and says what it lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from talaria.cluster.leases import LeaseKeeper
from talaria.core.errors import StoreError
from talaria.core.ids import Fence, OwnerId, SessionId
from talaria.core.ledger import Renewal
from talaria.store.memory import MemoryStore
from talaria.testing.clock import FakeClock

ME = OwnerId("own_me")
A, B = SessionId("ses_a"), SessionId("ses_b")


class Leases(MemoryStore):
    """A store that can be told what to answer to renewals."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.lost: frozenset[SessionId] = frozenset()
        self.is_down = False
        self.hangs: asyncio.Event | None = None
        self.renewed: list[list[SessionId]] = []

    async def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
    ) -> frozenset[SessionId]:
        if self.hangs is not None:
            await self.hangs.wait()
        if self.is_down:
            raise StoreError("The disk is gone.")
        self.renewed.append([renewal.session_id for renewal in renewals])
        return self.lost


class Case:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = Leases(self.clock)
        self.keeper = LeaseKeeper(self.store, self.clock, ME, 30.0)
        self.told: list[SessionId] = []
        for number, session in enumerate((A, B), 1):
            self.hold(session, number)

    def hold(self, session: SessionId, fence: int) -> None:
        self.keeper.hold(session, Fence(fence), self.keeper.now(), lambda: self.told.append(session))


async def test_held_leases_are_renewed_and_dropped_ones_are_not() -> None:
    case = Case()
    case.keeper.drop(B, Fence(2))
    await case.keeper.renew()
    assert case.store.renewed == [[A]]
    case.keeper.drop(A, Fence(99))
    assert len(case.keeper) == 1, "a drop under an old fence leaves the newer hold"


async def test_a_lease_that_another_owner_has_is_lost_at_once() -> None:
    case = Case()
    case.store.lost = frozenset({A})
    await case.keeper.renew()
    assert case.told == [A]
    assert len(case.keeper) == 1


async def test_what_cannot_be_renewed_is_given_up_after_two_thirds() -> None:
    case = Case()
    case.store.is_down = True
    case.clock.advance(19)
    await case.keeper.renew()
    await case.keeper.expire()
    assert case.told == []
    case.clock.advance(1)
    await case.keeper.expire()
    assert case.told == [A, B]


async def test_the_watch_does_not_wait_for_a_renewal_that_hangs() -> None:
    case = Case()
    case.store.hangs = asyncio.Event()
    running = asyncio.create_task(case.keeper.run())
    for _ in range(12):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        case.clock.advance(2.5)
    for _ in range(5):
        await asyncio.sleep(0)
    assert case.told == [A, B]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_renewal_counts_from_when_it_began() -> None:
    case = Case()
    case.store.hangs = asyncio.Event()
    renewal = asyncio.create_task(case.keeper.renew())
    await asyncio.sleep(0)
    case.clock.advance(15)
    case.store.hangs.set()
    await renewal
    case.clock.advance(5)
    await case.keeper.expire()
    assert case.told == [A, B], "20 of 30 seconds have passed since the renewal began"
