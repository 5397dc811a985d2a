"""A home that was copied to a second machine: its gateway does not end the one that it is a copy of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.membership import ClusterSettings, join_cluster
from talaria.cluster.places import find_place
from talaria.core.cluster import Member, MemberFigures
from talaria.core.errors import ConfigError
from talaria.core.ids import OwnerId
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock

ME, RIVAL, LEASE = OwnerId("own_me"), OwnerId("own_rival"), 30.0


class Case:
    """A gateway that starts on a home whose place another member has, from another machine."""

    def __init__(self, home: Path) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.home = home
        self.rival = Member(
            RIVAL, find_place(home), "far/1", "web-2", "http://10.0.0.2", "1.0", 1, self.clock.now()
        )

    async def start(self) -> None:
        keeper = LeaseKeeper(self.store, self.clock, ME, LEASE)
        store: Any = self.store
        environ = {"TALARIA_CLUSTER_TOKEN": "one-token-for-all-gateways"}
        async with join_cluster(store, self.clock, keeper, ClusterSettings(), self.home, environ=environ):
            pass

    async def step(self, seconds: float) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        self.clock.advance(seconds)
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_copy_of_a_home_that_is_served_is_refused(tmp_path: Path) -> None:
    case = Case(tmp_path)
    await case.store.cluster.join(case.rival, LEASE)
    starting = asyncio.create_task(case.start())
    for _ in range(4):
        await case.step(LEASE / 3)
        assert await case.store.cluster.renew_member(RIVAL, MemberFigures(), LEASE), "it was ended"
    with pytest.raises(ConfigError, match=r"web-2.*is a copy") as refused:
        await starting
    assert str(tmp_path / "place") in refused.value.hint
    assert [each.owner for each in await case.store.cluster.members()] == [RIVAL]


async def test_a_home_that_came_from_a_machine_that_died_is_served_when_its_time_is_over(
    tmp_path: Path,
) -> None:
    case = Case(tmp_path)
    await case.store.cluster.join(case.rival, LEASE)
    starting = asyncio.create_task(case.start())
    await case.step(LEASE / 2)
    assert [each.owner for each in await case.store.cluster.members()] == [RIVAL]
    for _ in range(6):
        await case.step(LEASE / 6)
    await asyncio.wait_for(starting, 10)
    assert [each.owner for each in await case.store.cluster.members()] == [ME]
