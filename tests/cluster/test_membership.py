"""A member counts itself out in time, says so, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import get_ident

import pytest
from msgspec.structs import replace

from cluster.test_leases import FromThread, run_beside
from talaria.cluster.following import PeerClient
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.member_checks import ClusterToken
from talaria.cluster.membership import Membership
from talaria.cluster.overview import Overview
from talaria.cluster.roles import Roles
from talaria.core.cluster import Here, Member, MemberFigures, Wake
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId, PlaceId
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock

ME, LEASE = OwnerId("own_me"), 30.0


class Case:
    def __init__(self, lease: float = LEASE) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.keeper = LeaseKeeper(self.store, self.clock, ME, lease)
        me = Member(ME, PlaceId("here"), "boot", "host", "", "1.0", 1, self.clock.now())
        here = Here(ME, me.place)
        self.member = Membership(self.store.cluster, self.clock, self.keeper, me, here)
        self.told: list[str] = []
        self.member.on_in(lambda: self.told.append("in"))

    async def watch(self) -> None:
        await self.keeper._look()
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_member_is_out_after_two_thirds_and_in_after_a_renewal() -> None:
    case = Case()
    await case.member.join()
    case.clock.advance(LEASE * 2 / 3 - 1)
    await case.watch()
    assert not case.member.is_out
    case.clock.advance(1)
    await case.watch()
    await case.watch()
    assert case.told == []
    await case.keeper._renew_all()
    await case.watch()
    assert case.told == ["in"]


async def test_a_member_whose_time_had_run_out_joins_again() -> None:
    case = Case()
    await case.member.join()
    case.clock.advance(LEASE + 1)
    await case.keeper._renew_all()
    assert case.member.is_out
    waiting = asyncio.create_task(case.member.wait_until_in())
    await case.watch()
    await asyncio.wait_for(waiting, 10)
    assert case.told == ["in"]
    (found,) = await case.store.cluster.members()
    assert found.is_alive(case.clock.now())


async def test_a_member_that_left_stays_away() -> None:
    case = Case()
    await case.member.join()
    await case.member.leave()
    case.clock.advance(LEASE + 1)
    await case.keeper._renew_all()
    await case.watch()
    assert case.told == []
    assert not any(each.is_alive(case.clock.now()) for each in await case.store.cluster.members())


async def test_a_member_that_drains_gives_its_roles_to_others_if_there_are_any() -> None:
    case = Case()
    roles = Roles(case.store.cluster, case.clock, ME, LEASE)
    peers, token = PeerClient("", now=case.clock.now), ClusterToken("TALARIA_CLUSTER_TOKEN", is_set=False)
    overview = Overview(case.member, roles, case.clock, token, measure=MemberFigures, peers=peers)
    await case.member.join()
    async with roles.seek("channel:test"):
        await case.clock.settle()
        await overview.drain(5.0)
        assert roles.held == ("channel:test",)
        other = replace(case.member.me, owner=OwnerId("own_other"), place=PlaceId("there"))
        await case.store.cluster.join(other, LEASE)
        await overview.drain(5.0)
        assert not roles.held


async def test_a_wake_up_reaches_those_who_asked_for_it() -> None:
    case = Case()
    heard: list[str] = []
    case.member.on_wake(Wake.TURNS, lambda: heard.append("turns"))
    async with case.member.open():
        case.member.wake(Wake.TURNS, ME)
        assert heard == ["turns"]
        await case.store.cluster.wake(Wake.TURNS, ME)
        await case.store.cluster.wake(Wake.JOBS, ME)
        await case.store.cluster.wake(Wake.TURNS, OwnerId("own_other"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert heard == ["turns", "turns"]


class MemberThread(FromThread):
    """What the thread renews the member with. The answers are taken in turn; an error is raised."""

    def __init__(self, *answers: bool | Exception) -> None:
        super().__init__()
        self.of_member: list[bool | Exception] = list(answers)
        self.threads: set[int] = set()

    def renew_member(
        self, owner: OwnerId, figures: MemberFigures, lease_seconds: float, timeout: float
    ) -> bool:
        self.threads.add(get_ident())
        answer = self.of_member.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_the_thread_that_renews_leases_renews_the_member_over_failures() -> None:
    case = Case(0.3)
    await case.member.join()
    answers: Sequence[bool | Exception] = (StoreError("gone"), ValueError("odd"), True, False)
    store = MemberThread(*answers)
    await run_beside(case.keeper, store, len(answers))
    assert store.of_member == []
    assert get_ident() not in store.threads
    assert case.member.is_out, "the last answer says that its time had run out"


async def test_a_database_that_is_gone_for_long_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    await case.member.join()
    gone, slow = StoreError("gone"), StoreError("slow")
    store = MemberThread(gone, gone, gone, slow, True, gone)
    for _ in range(6):
        case.member.renew_from_thread(store, 1.0)
    told = [record.args for record in caplog.records if "was not renewed" in record.msg]
    assert told == [(gone,), (slow,), (gone,)]
