"""A role has one holder at a time, and moves when its holder leaves, drains, dies or is cut off."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from talaria.cluster.roles import Roles, SoughtRole, Tenure
from talaria.core.cluster import LeasedRole
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock

LEASE = 30.0
ROLE = "channel:test"


class Line:
    """The way of one member to the database. It can be cut, or hold up requests for roles, or their answers,
    until an event."""

    def __init__(self, store: MemoryStore) -> None:
        self._cluster = store.cluster
        self.is_cut = self.is_broken = False
        self.block: asyncio.Event | None = None
        self.delay: asyncio.Event | None = None

    async def take_role(self, name: str, owner: OwnerId, lease_seconds: float) -> LeasedRole:
        if self.block is not None:
            await self.block.wait()
        self._check()
        role = await self._cluster.take_role(name, owner, lease_seconds)
        if self.delay is not None:
            await self.delay.wait()
        return role

    async def give_role(self, name: str, owner: OwnerId) -> None:
        self._check()
        await self._cluster.give_role(name, owner)

    def _check(self) -> None:
        if self.is_cut:
            raise StoreError("The database cannot be reached.")
        if self.is_broken:
            raise RuntimeError("nobody thought of this")


class TwoMembers:
    """Members `a` and `b` on one database, both of which want the role. `a` asks first."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.lines = {name: Line(self.store) for name in "ab"}
        self.members = {
            name: Roles(line, self.clock, OwnerId(name), LEASE)  # type: ignore[arg-type]
            for name, line in self.lines.items()
        }
        self.roles: dict[str, SoughtRole] = {}
        self._scopes = {name: AsyncExitStack() for name in "ab"}

    async def __aenter__(self) -> TwoMembers:
        for name, member in self.members.items():
            self.roles[name] = await self._scopes[name].enter_async_context(member.seek(ROLE))
            await self.clock.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in "ab":
            await self.leave(name)
        await self.store.close()

    async def leave(self, name: str) -> None:
        await self._scopes[name].aclose()

    @property
    def holders(self) -> str:
        return "".join(name for name, role in self.roles.items() if role.is_held)

    async def pass_time(self, seconds: float) -> None:
        """At no moment do both have the role."""
        for _ in range(int(seconds)):
            await self.clock.play(1.0)
            assert len(self.holders) < 2


async def test_the_first_has_the_role_and_keeps_it() -> None:
    async with TwoMembers() as world:
        assert world.holders == "a"
        await world.pass_time(5 * LEASE)
        assert world.holders == "a"
        assert world.roles["b"].holder == "a"
        assert world.members["a"].held == (ROLE,)
        assert not world.members["b"].has(ROLE)


async def test_a_member_that_leaves_gives_the_role_back() -> None:
    async with TwoMembers() as world:
        await world.leave("a")
        world.members["b"].look()
        await world.clock.settle()
        assert world.holders == "b"


async def test_a_holder_without_the_database_stops_before_another_can_begin() -> None:
    async with TwoMembers() as world:
        tenure = await world.roles["a"].taken()
        world.lines["a"].is_cut = True
        await world.pass_time(LEASE * 2 / 3 - 1)
        assert not tenure.ended.is_set()
        await world.pass_time(1)
        assert tenure.ended.is_set()
        assert world.holders == ""
        await world.pass_time(LEASE / 2)
        assert world.holders == "b"
        world.lines["a"].is_cut = False
        await world.pass_time(2 * LEASE)
        assert world.holders == "b", "it does not come back by itself"


async def test_a_renewal_that_hangs_holds_up_no_stop() -> None:
    async with TwoMembers() as world:
        world.lines["a"].block = asyncio.Event()
        await world.pass_time(LEASE)
        assert world.holders != "a"
        world.lines["a"].block.set()
        await world.pass_time(LEASE)
        assert world.holders == "b"


async def test_an_answer_that_comes_late_counts_from_its_request() -> None:
    world = TwoMembers()
    delay = world.lines["a"].delay = asyncio.Event()
    async with world:
        await world.pass_time(LEASE - 5)
        world.lines["a"].delay = None
        delay.set()
        await world.clock.settle()
        assert world.holders == "", "the role was taken long ago, and others are about to take it"
        await world.pass_time(LEASE)
        assert len(world.holders) == 1


async def test_work_does_not_begin_after_an_answer_that_comes_too_late() -> None:
    world = TwoMembers()
    delay = world.lines["a"].delay = asyncio.Event()
    async with world.members["a"].seek(ROLE) as role:
        work = asyncio.create_task(role.taken())
        await world.clock.play(LEASE)
        delay.set()
        await world.clock.settle()
        assert not work.done()
        work.cancel()
    await world.store.close()


async def test_a_member_that_drains_gives_the_role_when_its_work_has_stopped() -> None:
    async with TwoMembers() as world:
        tenure = await world.roles["a"].taken()
        draining = asyncio.create_task(world.members["a"].drain(60.0))
        await world.clock.settle()
        assert tenure.ended.is_set()
        world.members["b"].look()
        await world.pass_time(2 * LEASE)
        assert world.holders == "", "its work has not stopped, so it is renewed"
        await world.roles["a"].give()
        await draining
        world.members["b"].look()
        await world.clock.settle()
        assert world.holders == "b"
        await world.leave("b")
        await world.pass_time(2 * LEASE)
        assert world.holders == "", "a member that drains takes nothing"


async def test_a_role_that_nobody_works_for_is_given_at_once_by_a_drain() -> None:
    async with TwoMembers() as world:
        await world.members["a"].drain(60.0)
        world.members["b"].look()
        await world.clock.settle()
        assert world.holders == "b"


async def test_a_request_under_way_takes_back_nothing_that_is_given() -> None:
    async with TwoMembers() as world:
        block = world.lines["a"].block = asyncio.Event()
        await world.pass_time(LEASE / 3 + 1)  # a renewal waits
        draining = asyncio.create_task(world.members["a"].drain(60.0))
        await world.clock.settle()
        world.lines["a"].block = None
        block.set()
        await draining
        world.members["b"].look()
        await world.clock.settle()
        assert world.holders == "b"


async def test_each_tenure_is_waited_for_anew() -> None:
    async with TwoMembers() as world:
        first = await world.roles["a"].taken()
        world.lines["a"].is_cut = world.lines["b"].is_cut = True
        await world.pass_time(LEASE)
        waiting: asyncio.Task[Tenure] = asyncio.create_task(world.roles["a"].taken())
        await world.clock.settle()
        assert not waiting.done()
        world.lines["a"].is_cut = False
        await world.pass_time(LEASE)
        assert (await waiting) is not first


async def test_an_error_that_nobody_thought_of_ends_no_role_for_ever() -> None:
    async with TwoMembers() as world:
        world.lines["b"].is_broken = True
        await world.pass_time(LEASE)
        world.lines["b"].is_broken = False
        await world.leave("a")
        await world.pass_time(LEASE)
        assert world.holders == "b"
