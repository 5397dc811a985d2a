"""The store's contract for a cluster: every `core.cluster_port.ClusterStore` passes these."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    RIVAL,
    START,
    HandClock,
    accepting,
    ending,
    said,
)
from talaria.core.cluster import Here, Member, MemberFigures, Wake
from talaria.core.errors import TurnElsewhere
from talaria.core.ids import OwnerId, PlaceId, new_turn_id
from talaria.core.ledger import Accept, Begin
from talaria.core.store_ports import StoreEngine

HOME, AWAY = PlaceId("place_home"), PlaceId("place_away")
HERE, THERE = Here(ME, HOME, 900.0, 600.0), Here(RIVAL, AWAY, 900.0, 600.0)


def member(owner: OwnerId = ME, place: PlaceId = HOME) -> Member:
    return Member(owner, place, "boot", f"host-{place}", "http://10.0.0.5:8765", "1.0", 22, START)


def at(here: Here, text: str = "hello", **more: Any) -> Accept:
    """A message that this member accepts, and whose turn it would begin."""
    busy = more.pop("busy", "")
    begins = more.pop("begins", said(text))
    return replace(accepting(text, owner=here.owner, begins=begins, **more), here=here, busy=busy)


async def both_join(store: StoreEngine) -> None:
    for here in (HERE, THERE):
        await store.cluster.join(member(here.owner, here.place), LEASE)


class StoreClusterSuite:
    # -- members

    async def test_members_are_alive_until_their_time_is_over(
        self, store: StoreEngine, clock: HandClock
    ) -> None:
        assert [each.owner for each in await store.cluster.join(member(), LEASE)] == [ME]
        joined = await store.cluster.join(member(RIVAL, AWAY), 2 * LEASE)
        assert [each.owner for each in joined] == [ME, RIVAL]
        assert joined[0] == replace(member(), expires_at=START + LEASE)
        clock.forward(LEASE)
        assert [each.is_alive(clock.now()) for each in await store.cluster.members()] == [False, True]

    async def test_renewal_extends_a_living_member_only(self, store: StoreEngine, clock: HandClock) -> None:
        await store.cluster.join(member(), LEASE)
        clock.forward(LEASE - 1)
        assert await store.cluster.renew_member(ME, MemberFigures(turns=3), LEASE)
        (found,) = await store.cluster.members()
        assert (found.expires_at, found.figures.turns) == (START + 2 * LEASE - 1, 3)
        clock.forward(LEASE)
        assert not await store.cluster.renew_member(ME, MemberFigures(), LEASE)
        assert not await store.cluster.renew_member(RIVAL, MemberFigures(), LEASE)
        await store.cluster.join(member(), LEASE)
        assert await store.cluster.renew_member(ME, MemberFigures(), LEASE)

    # -- accepting

    async def test_a_chat_stays_with_the_member_that_took_it(self, store: StoreEngine) -> None:
        await both_join(store)
        first = await store.accept(at(HERE))
        assert first.began is not None and first.elsewhere is None
        second = await store.accept(at(THERE, "second"))
        assert second.began is None and second.elsewhere == ME
        with pytest.raises(TurnElsewhere):
            await store.begin(Begin(second.turn.id, RIVAL, LEASE, said("second")))
        await store.commit(ending(first, first.began))
        assert [each.turn.id for each in await store.cluster.waiting_here(ME)] == [second.turn.id]
        assert not await store.cluster.waiting_here(RIVAL)
        assert (await store.begin(Begin(second.turn.id, ME, LEASE, said("second")))).attempts == 1
        found = await store.cluster.member_of(CHAT)
        assert found is not None and found.owner == ME
        for turn in (first.turn, second.turn):
            found = await store.cluster.member_of_turn(turn.id)
            assert found is not None and found.owner == ME

    async def test_a_turn_is_of_the_member_that_runs_it_as_long_as_that_is_alive(
        self, store: StoreEngine, clock: HandClock
    ) -> None:
        await both_join(store)
        alone = await store.accept(replace(at(HERE), here=None))  # as a call that brings its whole context
        found = await store.cluster.member_of_turn(alone.turn.id)
        assert found is not None and found.owner == ME
        assert await store.cluster.member_of_turn(new_turn_id()) is None
        clock.forward(LEASE)
        assert await store.cluster.member_of_turn(alone.turn.id) is None

    async def test_a_message_joins_or_stops_the_turn_that_runs_elsewhere(self, store: StoreEngine) -> None:
        await both_join(store)
        host = await store.accept(at(HERE))
        steer = await store.accept(at(THERE, "more", busy="steer"))
        assert steer.turn.merged_into == host.turn.id
        await store.accept(at(THERE, "queued", busy="queue"))
        behind = await store.accept(at(THERE, "behind", busy="steer"))
        assert behind.turn.merged_into is None, "another message waits before it"
        passing = await store.accept(replace(at(THERE, "now", busy="steer"), passes=True))
        assert passing.turn.merged_into == host.turn.id
        assert not any(each.stop_asked for each in await store.cluster.waiting_here(ME))
        await store.accept(at(THERE, "instead", busy="interrupt"))
        asked = [each.turn.id for each in await store.cluster.waiting_here(ME) if each.stop_asked]
        assert asked == [host.turn.id]

    # -- wake-ups

    async def test_a_wake_up_reaches_its_member_or_all(self, store: StoreEngine) -> None:
        mine, theirs = asyncio.Queue[Wake](), asyncio.Queue[Wake]()
        async with (
            store.cluster.listen(ME, mine.put_nowait),
            store.cluster.listen(RIVAL, theirs.put_nowait),
        ):
            await store.cluster.wake(Wake.TURNS, RIVAL)
            assert await theirs.get() is Wake.TURNS
            await store.cluster.wake(Wake.MEMBERS)
            assert (await mine.get(), await theirs.get()) == (Wake.MEMBERS, Wake.MEMBERS)
        await store.cluster.wake(Wake.TURNS, ME)
        assert mine.empty() and theirs.empty()
