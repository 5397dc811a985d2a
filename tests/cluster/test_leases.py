"""The keeper renews in time, gives up in time, and says what it lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from threading import enumerate as enumerate_threads
from threading import get_ident

from talaria.cluster.leases import LeaseKeeper
from talaria.core.clock import SystemClock
from talaria.core.errors import StoreError
from talaria.core.ids import ChatAddress, Fence, OwnerId, SessionId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Fresh, Renewal
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender
from talaria.store.in_memory import InlineExecutor, MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import ThreadOrders
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


async def test_a_lease_that_is_too_old_is_not_renewed_any_more() -> None:
    """A process that was stopped for so long must not bring its leases back before it notices."""
    case = Case()
    case.clock.advance(20)
    await case.keeper.renew()
    assert case.store.renewed == []
    await case.keeper.expire()
    assert case.told == [A, B]


async def test_a_lease_that_another_owner_took_is_told_on_the_loop(tmp_path: Path) -> None:
    clock = SystemClock()
    async with await SqliteStore.open(tmp_path / "talaria.db", clock) as store:
        inbound = Inbound(ChatAddress("main", "test", "dm", "one").key(), Sender("tester"), (Text("hi"),))
        accepted = await store.accept(Accept(new_turn_id(), inbound, Fresh(new_session_id(), None)))
        session_id = accepted.turn.session_id
        keeper = LeaseKeeper(store, clock, ME, 0.3)
        lost = asyncio.get_running_loop().create_future()
        fence = await store.hold(session_id, ME, 30)
        keeper.hold(session_id, fence, keeper.now(), lambda: lost.set_result(get_ident()))
        await store.reclaim(OwnerId("own_other"))
        running = asyncio.create_task(keeper.run_beside(store.from_thread, lambda: True))
        assert await lost == get_ident()
        assert len(keeper) == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not [thread for thread in enumerate_threads() if thread.name == "talaria-leases"]


async def test_leases_are_renewed_each_third_for_as_long_as_they_are_held() -> None:
    case = Case()
    running = asyncio.create_task(case.keeper.run())
    for _ in range(24):
        for _ in range(5):
            await asyncio.sleep(0)
        case.clock.advance(2.5)
    for _ in range(5):
        await asyncio.sleep(0)
    assert case.store.renewed == [[A, B]] * 6, "in a minute"
    assert case.told == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_lease_that_was_not_given_back_after_all_is_renewed_again() -> None:
    case = Case()
    undo = case.keeper.drop(A, Fence(1))
    assert len(case.keeper) == 1
    undo()
    case.keeper.drop(B, Fence(7))()
    await case.keeper.renew()
    assert case.store.renewed == [[B, A]]


class FromThread(ThreadOrders):
    """What the thread renews with. The answers are taken in turn; an error is raised."""

    def __init__(self, *answers: frozenset[SessionId] | Exception) -> None:
        super().__init__(InlineExecutor(SystemClock()))
        self.answers = list(answers)

    def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float, timeout: float
    ) -> frozenset[SessionId]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def run_beside(keeper: LeaseKeeper, store: FromThread, rounds: int) -> list[float]:
    """Let the thread renew so often. Return how long it waited before each round."""
    times = [time.monotonic()]
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def is_alive() -> bool:
        times.append(time.monotonic())
        if len(times) <= rounds + 1:
            return True
        loop.call_soon_threadsafe(ended.set)
        return False

    running = asyncio.create_task(keeper.run_beside(store, is_alive))
    await ended.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return [later - earlier for earlier, later in pairwise(times)]


async def test_the_thread_waits_a_third_of_a_lease_before_it_renews_again() -> None:
    keeper = LeaseKeeper(MemoryStore(FakeClock()), FakeClock(), ME, 0.3)
    waits = await run_beside(keeper, FromThread(), 1)
    assert min(waits) > 0.09, "without a lease"
    keeper.hold(A, Fence(1), keeper.now(), lambda: None)
    waits = await run_beside(keeper, FromThread(frozenset(), frozenset()), 2)
    assert min(waits) > 0.09
    assert len(keeper) == 1


async def test_the_thread_goes_on_after_a_failure_of_any_kind() -> None:
    clock = FakeClock()
    keeper = LeaseKeeper(MemoryStore(clock), clock, ME, 0.3)
    told: list[SessionId] = []
    keeper.hold(A, Fence(1), keeper.now(), lambda: told.append(A))
    store = FromThread(StoreError("The disk is gone."), ValueError("odd"), frozenset({A}))
    await run_beside(keeper, store, 3)
    assert store.answers == []
    assert told == [A]
