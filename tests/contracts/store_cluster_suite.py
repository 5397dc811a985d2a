"""The store's contract for a cluster: every engine of `store.store.ClusterStore` passes these.

This file holds members, and which of them a turn is for; `store_adoption_suite` holds turns that move.
"""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from contracts.cluster_orders import AWAY, HERE, THERE, at, both_join, member
from contracts.store_adoption_suite import StoreAdoptionSuite
from contracts.store_delivery_suite import owed
from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    OTHER_CHAT,
    RIVAL,
    START,
    accepting,
    approved,
    ending,
    parked,
    said,
)
from talaria.core.cluster import MemberFigures, Wake
from talaria.core.errors import LimitReached, NotFound, TurnElsewhere
from talaria.core.ids import TurnId, new_turn_id
from talaria.core.ledger import Begin, Binding, TurnEnd
from talaria.core.turns import TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock


class StoreClusterSuite(StoreAdoptionSuite):
    # -- members

    async def test_texts_of_a_member_are_safe_to_show(self, store: Store) -> None:
        """Anybody who can write the table could send control characters to the terminals of others."""
        bad = "a\x1b[2J\x9b\u202e\r\nb" + "x" * 1000
        figures = MemberFigures(trouble=bad, channels=(bad,) * 100)
        hostile = replace(member(), host=bad, url=bad, version=bad, figures=figures)
        found = (await store.cluster.join(hostile, LEASE))[0]
        shown = (found.host, found.url, found.version, found.figures.trouble, *found.figures.channels)
        assert all(text.startswith("a[2J b") and len(text) <= 300 for text in shown)
        assert all(text.isprintable() for text in shown)
        assert len(found.figures.channels) == 20

    async def test_members_are_alive_until_their_time_is_over(self, store: Store, clock: FakeClock) -> None:
        assert [each.owner for each in await store.cluster.join(member(), LEASE)] == [ME]
        joined = await store.cluster.join(member(RIVAL, AWAY), 2 * LEASE)
        assert [each.owner for each in joined] == [ME, RIVAL]
        assert joined[0] == replace(member(), expires_at=START + LEASE)
        clock.advance(LEASE)
        assert [each.is_alive(clock.now()) for each in await store.cluster.members()] == [False, True]

    async def test_renewal_extends_a_living_member_only(self, store: Store, clock: FakeClock) -> None:
        await store.cluster.join(member(), LEASE)
        clock.advance(LEASE - 1)
        assert await store.cluster.renew_member(ME, MemberFigures(turns=3), LEASE)
        (found,) = await store.cluster.members()
        assert (found.expires_at, found.figures.turns) == (START + 2 * LEASE - 1, 3)
        clock.advance(LEASE)
        assert not await store.cluster.renew_member(ME, MemberFigures(), LEASE)
        assert not await store.cluster.renew_member(RIVAL, MemberFigures(), LEASE)
        await store.cluster.join(member(), LEASE)
        assert await store.cluster.renew_member(ME, MemberFigures(), LEASE)

    async def test_a_renewal_that_began_before_the_member_left_does_not_revive_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        """It may wait in the database while the member leaves, with the time at which it began."""
        await store.cluster.join(member(), LEASE)
        clock.advance(5)
        await store.cluster.leave(ME)
        clock.set_wall(-2)
        assert not await store.cluster.renew_member(ME, MemberFigures(), LEASE)
        assert (await store.cluster.members())[0].expires_at == START + 5
        await store.cluster.join(member(), LEASE)
        assert await store.cluster.renew_member(ME, MemberFigures(), LEASE)

    # -- accepting

    async def test_a_chat_stays_with_the_member_that_took_it(self, store: Store) -> None:
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

    async def test_an_idle_chat_goes_to_whoever_accepts_its_next_message(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        first = await store.accept(at(HERE))
        assert first.began is not None
        await store.commit(ending(first, first.began))
        hasty = replace(THERE, warm_seconds=1.0)
        asked = await store.accept(at(hasty))
        assert asked.elsewhere == ME  # the session was used just now
        await store.settle(asked.turn.id, TurnEnd(TurnState.CANCELLED))
        clock.advance(2)
        taken = await store.accept(at(hasty))
        assert taken.began is not None and taken.elsewhere is None
        assert (await store.accept(at(HERE))).elsewhere == RIVAL

    async def test_a_turn_that_waits_for_a_person_keeps_its_chat(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        turn, _, (question,) = await parked(store, replace(accepting(), here=HERE))
        clock.advance(20)
        assert (await store.accept(at(replace(THERE, warm_seconds=1.0)))).elsewhere == ME
        await store.decide(question.id, approved(clock.now()))
        assert (await store.cluster.waiting_here(ME))[0].decided == 1
        with pytest.raises(TurnElsewhere):
            await store.begin(Begin(turn.turn.id, RIVAL, LEASE))

    async def test_a_message_that_another_member_accepted_comes_first(self, store: Store) -> None:
        """A member does not begin a turn before one that is for it and that it has not seen yet."""
        await both_join(store)
        first = await store.accept(at(HERE))
        assert first.began is not None
        theirs = await store.accept(at(THERE, "second"))
        await store.commit(ending(first, first.began))
        third = await store.accept(at(HERE, "third"))
        assert third.began is None and third.elsewhere is None
        seen = [waiting.turn.id for waiting in await store.cluster.waiting_here(ME)]
        assert seen == [theirs.turn.id, third.turn.id]

    async def test_a_call_without_a_chat_runs_where_it_was_accepted(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        for here in (HERE, THERE):
            call = await store.accept(at(here, ephemeral=True, binding=Binding.NEW))
            assert call.began is not None
            assert [each.turn.id for each in await store.cluster.waiting_here(here.owner)] == [call.turn.id]
            found = await store.cluster.member_of_turn(call.turn.id)
            assert found is not None and found.owner == here.owner
        clock.advance(LEASE)
        await store.cluster.join(member(), LEASE)
        assert [turn.id for turn in (await store.cluster.adopt(HERE)).turns] == [call.turn.id]
        assert len(await store.cluster.waiting_here(ME)) == 2

    @pytest.mark.parametrize("binding", [Binding.NEW, Binding.RESUME])
    async def test_another_session_of_a_chat_is_for_its_member_too(
        self, store: Store, binding: Binding
    ) -> None:
        await both_join(store)
        first = await store.accept(at(HERE))
        order = at(THERE, binding=binding, resume=first.turn.session_id)
        assert (await store.accept(order)).elsewhere == ME
        new = await store.accept(at(THERE, chat=OTHER_CHAT, binding=Binding.NEW))
        assert new.began is not None
        assert (await store.accept(at(HERE, chat=OTHER_CHAT))).elsewhere == RIVAL

    async def test_a_turn_is_of_the_member_that_runs_it_as_long_as_that_is_alive(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        alone = await store.accept(replace(at(HERE), here=None))  # as a call that brings its whole context
        found = await store.cluster.member_of_turn(alone.turn.id)
        assert found is not None and found.owner == ME
        assert await store.cluster.member_of_turn(new_turn_id()) is None
        clock.advance(LEASE)
        assert await store.cluster.member_of_turn(alone.turn.id) is None

    async def test_a_message_joins_or_stops_the_turn_that_runs_elsewhere(self, store: Store) -> None:
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

    # -- stops and roles

    async def test_a_stop_is_never_asked_of_a_turn_that_is_over(self, store: Store, clock: FakeClock) -> None:
        await both_join(store)
        running = await store.accept(at(HERE))
        assert running.began is not None
        assert (await store.cluster.ask_stop(running.turn.id, "u1")).owner == ME
        assert (await store.cluster.waiting_here(ME))[0].stop_asked
        await store.commit(ending(running, running.began))
        assert (await store.cluster.ask_stop(running.turn.id, "u1")).owner == ""
        with pytest.raises(NotFound):
            await store.cluster.ask_stop(TurnId("turn_none"), "u1")
        queued = await store.accept(at(HERE, begins=None))
        clock.advance(LEASE)
        assert (await store.cluster.ask_stop(queued.turn.id, "u1")).owner == ""

    async def test_a_role_has_one_holder_and_a_fence_that_grows(self, store: Store, clock: FakeClock) -> None:
        first = await store.cluster.take_role("channel:telegram", ME, LEASE)
        assert (first.owner, first.fence, first.expires_at) == (ME, 1, START + LEASE)
        assert await store.cluster.take_role("channel:telegram", RIVAL, LEASE) == first
        clock.advance(LEASE - 1)
        assert (await store.cluster.take_role("channel:telegram", ME, LEASE)).fence == 1
        clock.advance(LEASE)
        taken = await store.cluster.take_role("channel:telegram", RIVAL, LEASE)
        assert (taken.owner, taken.fence) == (RIVAL, 2)
        await store.cluster.give_role("channel:telegram", ME)
        assert await store.cluster.roles() == (taken,)
        await store.cluster.give_role("channel:telegram", RIVAL)
        assert (await store.cluster.take_role("channel:telegram", RIVAL, LEASE)).fence == 3

    async def test_what_the_last_holder_was_sending_is_due_for_the_next_one(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.cluster.take_role("channel:fake", ME, LEASE)
        row = await owed(store)
        claimed = await store.outbox.claim(row, clock.now() + 10 * LEASE)
        await store.cluster.take_role("channel:fake", ME, LEASE)
        await store.cluster.take_role("channel:other", RIVAL, LEASE)
        clock.advance(LEASE)
        await store.cluster.take_role("channel:other", ME, LEASE)
        assert tuple(await store.outbox.due("fake", 9)) == ()
        await store.cluster.take_role("channel:fake", RIVAL, LEASE)
        assert [each.attempts for each in await store.outbox.due("fake", 9)] == [1]
        assert claimed is not None

    async def test_a_chat_elsewhere_takes_so_many_messages(self, store: Store) -> None:
        await both_join(store)
        await store.accept(at(HERE))
        for _ in range(2):
            await store.accept(replace(at(THERE, "more"), most_waiting=2))
        with pytest.raises(LimitReached, match="2 messages"):
            await store.accept(replace(at(THERE, "too many"), most_waiting=2))
        assert len(await store.cluster.waiting_here(ME)) == 3
        assert (await store.accept(at(THERE, "/stop"))).elsewhere == ME

    # -- wake-ups

    async def test_a_wake_up_reaches_its_member_or_all(self, store: Store) -> None:
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
