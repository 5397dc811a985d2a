"""Gateways on one database learn which identities `/link` has joined."""

from __future__ import annotations

from contextlib import AsyncExitStack

from talaria.access.authorizer import hash_code, new_code
from talaria.access.people import People
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.membership import Membership
from talaria.core.access import CreateLinkCode, PairingLimits, RedeemLinkCode
from talaria.core.cluster import Here, Member
from talaria.core.ids import OwnerId, PlaceId
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.turns.joined_identities import JoinedIdentities


class TwoGateways:
    """The joined identities of members `a` and `b` on one store. That of `b` runs."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.people = {name: People() for name in "ab"}
        self._scopes = AsyncExitStack()
        self.joined: dict[str, JoinedIdentities] = {}

    async def __aenter__(self) -> TwoGateways:
        for name, people in self.people.items():
            owner = OwnerId(name)
            me = Member(owner, PlaceId(name), "boot", "host", "", "1.0", 1, self.clock.now())
            keeper = LeaseKeeper(self.store, self.clock, owner, 30.0)
            member = Membership(self.store.cluster, self.clock, keeper, me, Here(owner, me.place))
            await self._scopes.enter_async_context(member.open())
            self.joined[name] = JoinedIdentities(people, self.store, member)
        await self._scopes.enter_async_context(self.joined["b"].open())
        await self.clock.settle()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._scopes.aclose()
        await self.store.close()

    async def link(self) -> None:
        code = hash_code(new_code())
        await self.store.pairings.create_link(CreateLinkCode("telegram:7", code, 600))
        await self.store.pairings.redeem_link(RedeemLinkCode("discord:9", code, PairingLimits()))

    def is_joined(self, name: str) -> bool:
        people = self.people[name]
        return people.of_identity("telegram", "7") == people.of_identity("discord", "9")


async def test_a_wake_up_tells_the_other_gateways_of_joined_identities() -> None:
    async with TwoGateways() as two:
        await two.link()
        await two.joined["a"].share()
        assert two.is_joined("a")
        await two.clock.settle()
        assert two.is_joined("b"), "without any time passing"


async def test_a_lost_wake_up_delays_joined_identities_by_seconds() -> None:
    async with TwoGateways() as two:
        await two.link()
        await two.clock.settle()
        assert not two.is_joined("b")
        two.clock.advance(10)
        await two.clock.settle()
        assert two.is_joined("b")
