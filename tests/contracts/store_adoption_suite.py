"""What every store promises about turns that move from one member of a cluster to another."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from contracts.cluster_orders import AWAY, HERE, HOME, THERE, THIRD, at, both_join, member
from contracts.store_orders import CHAT, LEASE, ME, OTHER_CHAT, RIVAL, START, accepting, ending
from talaria.core.cluster import AbsentPlace, Here, MemberFigures
from talaria.core.errors import LeaseHeld, TurnElsewhere
from talaria.core.ids import OwnerId
from talaria.core.ledger import Begin, Renewal, TurnEnd
from talaria.core.turns import TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock


class StoreAdoptionSuite:
    # -- dead and leaving members

    async def test_turns_of_a_dead_member_go_to_another(self, store: Store, clock: FakeClock) -> None:
        await both_join(store)
        running = await store.accept(at(HERE))
        queued = await store.accept(at(THERE))
        assert not (await store.cluster.adopt(THERE)).turns
        clock.advance(LEASE)
        assert await store.cluster.member_of(CHAT) is None
        assert not (await store.cluster.adopt(THERE)).turns  # it is dead itself
        await store.cluster.join(member(RIVAL, AWAY), LEASE)
        adopted = await store.cluster.adopt(THERE)
        assert [turn.id for turn in adopted.turns] == [running.turn.id, queued.turn.id]
        assert not adopted.lost and not (await store.cluster.adopt(THERE)).turns
        assert (await store.begin(Begin(running.turn.id, RIVAL, LEASE))).attempts == 2
        with pytest.raises(TurnElsewhere):
            await store.begin(Begin(queued.turn.id, ME, LEASE))

    async def test_a_lease_that_has_not_expired_keeps_its_chat(self, store: Store, clock: FakeClock) -> None:
        await store.cluster.join(member(), LEASE / 2)
        await store.cluster.join(member(RIVAL, AWAY), 2 * LEASE)
        await store.accept(at(HERE))
        clock.advance(LEASE / 2)
        assert not (await store.cluster.adopt(THERE)).turns
        clock.advance(LEASE / 2)
        assert len((await store.cluster.adopt(THERE)).turns) == 1

    async def test_a_message_takes_the_chat_of_a_dead_member_with_its_turns(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        running = await store.accept(at(HERE))
        clock.advance(LEASE)
        new = await store.accept(at(THERE))
        assert new.elsewhere is None and new.began is None
        waiting = [each.turn.id for each in await store.cluster.waiting_here(RIVAL)]
        assert waiting == [running.turn.id, new.turn.id]

    async def test_a_message_behind_a_turn_that_a_dead_member_left_under_a_lease_moves_with_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        await store.cluster.join(member(RIVAL, AWAY), 9 * LEASE)
        first = await store.accept(at(HERE))
        assert first.began is not None
        clock.advance(LEASE - 1)
        assert not await store.renew(ME, [Renewal(first.turn.session_id, first.began.fence)], LEASE)
        clock.advance(2)
        command = await store.accept(replace(at(THERE, "/title x", begins=None), command="title"))
        second = await store.accept(at(THERE, "second"))
        assert not await store.cluster.waiting_here(RIVAL), "a command would run before the first turn"
        assert not (await store.cluster.adopt(THERE)).turns
        clock.advance(LEASE)
        expected = [first.turn.id, command.turn.id, second.turn.id]
        assert [turn.id for turn in (await store.cluster.adopt(THERE)).turns] == expected
        assert [each.turn.id for each in await store.cluster.waiting_here(RIVAL)] == expected

    async def test_a_draining_member_keeps_what_runs_and_gives_up_the_rest(self, store: Store) -> None:
        await both_join(store)
        running = await store.accept(at(HERE))
        assert running.began is not None
        queued = await store.accept(at(HERE))
        await store.cluster.drain_member(ME)
        new = await store.accept(at(THERE))
        assert new.elsewhere is None and new.began is None
        with pytest.raises(TurnElsewhere):
            await store.begin(Begin(queued.turn.id, ME, LEASE))
        with pytest.raises(LeaseHeld):
            await store.begin(Begin(queued.turn.id, RIVAL, LEASE))
        assert [each.turn.id for each in await store.cluster.waiting_here(ME)] == [running.turn.id]
        waiting = await store.cluster.waiting_here(RIVAL)
        assert [each.turn.id for each in waiting] == [queued.turn.id, new.turn.id]
        assert (await store.cluster.ask_stop(running.turn.id, "u1")).owner == ME
        await store.commit(ending(running, running.began))
        assert (await store.begin(Begin(queued.turn.id, RIVAL, LEASE))).attempts == 1

    async def test_what_ran_at_a_member_that_drained_and_died_follows_its_chat(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        running = await store.accept(at(HERE))
        await store.cluster.drain_member(ME)
        await store.accept(at(THERE))
        clock.advance(LEASE)
        for here in (THERE, THIRD):
            await store.cluster.join(member(here.owner, here.place), LEASE)
        assert not (await store.cluster.adopt(THIRD)).turns  # the chat is for a living member
        assert [turn.id for turn in (await store.cluster.adopt(THERE)).turns] == [running.turn.id]

    async def test_a_turn_that_was_cut_off_goes_on_before_later_ones_of_its_session(
        self, store: Store
    ) -> None:
        await both_join(store)
        cut_off = await store.accept(at(HERE))
        await store.cluster.drain_member(ME)
        command = await store.accept(replace(at(THERE, "/status", begins=None), command="status"))
        await store.settle(command.turn.id, TurnEnd(TurnState.DONE, reply="fine"))
        await store.yield_turns(ME)
        later = await store.accept(at(THERE, "later"))
        assert later.began is None
        for _ in range(2):
            with pytest.raises(LeaseHeld):
                await store.begin(Begin(later.turn.id, RIVAL, LEASE))
            await store.cluster.adopt(THERE)
        began = await store.begin(Begin(cut_off.turn.id, RIVAL, LEASE))
        await store.commit(ending(cut_off, began))
        assert (await store.begin(Begin(later.turn.id, RIVAL, LEASE))).attempts == 1

    async def test_a_member_that_left_is_dead_at_once_with_its_roles(self, store: Store) -> None:
        await both_join(store)
        await store.accept(at(HERE, begins=None))
        await store.cluster.take_role("upkeep", ME, LEASE)
        await store.cluster.leave(ME)
        assert (await store.cluster.take_role("upkeep", RIVAL, LEASE)).owner == RIVAL
        assert len((await store.cluster.adopt(THERE)).turns) == 1
        assert not await store.cluster.renew_member(ME, MemberFigures(), LEASE)

    async def test_the_next_process_of_a_place_goes_on_at_once(self, store: Store) -> None:
        await both_join(store)
        running = await store.accept(at(HERE))
        await store.cluster.take_role("upkeep", ME, LEASE)
        await store.cluster.place_chat(CHAT, HOME)
        after = Here(OwnerId("own_after"), HOME)
        joined = await store.cluster.join(member(after.owner), LEASE)
        assert {each.owner for each in joined} == {"own_after", RIVAL}
        assert [each.turn.id for each in await store.cluster.waiting_here(after.owner)] == [running.turn.id]
        again = await store.begin(Begin(running.turn.id, after.owner, LEASE))
        assert (again.attempts, again.crashes) == (2, 1), "it counts as a crash"
        assert (await store.accept(at(THERE))).elsewhere == after.owner
        assert (await store.cluster.take_role("upkeep", after.owner, LEASE)).fence == 2

    async def test_turns_from_before_the_cluster_are_taken_up(self, store: Store) -> None:
        old = await store.accept(accepting())
        await store.cluster.join(member(), LEASE)
        await store.cluster.join(member(RIVAL, AWAY), LEASE)
        assert [each.turn.id for each in await store.cluster.waiting_here(ME)] == [old.turn.id]
        assert not await store.cluster.waiting_here(RIVAL)
        assert (await store.accept(at(THERE))).elsewhere == ME

    async def test_a_gateway_that_is_alone_again_begins_every_turn(self, store: Store) -> None:
        await store.cluster.join(member(), LEASE)
        turn = (await store.accept(at(HERE, begins=None))).turn
        assert [each.id for each in await store.reclaim(RIVAL)] == [turn.id]
        assert (await store.begin(Begin(turn.id, RIVAL, LEASE))).attempts == 1

    async def test_the_row_of_a_dead_member_stays_while_it_owes_turns(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        turn = await store.accept(at(HERE))
        clock.advance(31 * 86_400)
        await store.cluster.join(member(THIRD.owner, THIRD.place), LEASE)
        assert [each.id for each in (await store.cluster.adopt(THIRD)).turns] == [turn.turn.id]
        assert [each.owner for each in await store.cluster.members()] == [THIRD.owner]

    # -- places

    async def test_a_chat_with_files_waits_for_its_place_and_is_taken_over_when_that_is_gone(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        first = await store.accept(at(HERE))
        assert first.began is not None
        assert await store.cluster.place_chat(CHAT, HOME) == HOME
        assert await store.cluster.place_chat(CHAT, AWAY) == HOME
        await store.commit(ending(first, first.began))
        clock.advance(LEASE)
        await store.cluster.join(member(RIVAL, AWAY), 10 * THERE.takeover_seconds)
        waits = await store.accept(at(THERE))
        assert waits.elsewhere is None and waits.began is None
        until = START + LEASE + THERE.takeover_seconds
        assert waits.waits_for_place == AbsentPlace(HOME, f"host-{HOME}", until)
        assert not (await store.cluster.adopt(THERE)).turns
        clock.advance(until - clock.now())
        adopted = await store.cluster.adopt(THERE)
        assert (adopted.turns[0].id, adopted.lost) == (waits.turn.id, (CHAT,))
        assert await store.cluster.place_chat(CHAT, AWAY) == AWAY

    async def test_a_place_outlives_the_session_that_used_it(self, store: Store) -> None:
        await both_join(store)
        first = await store.accept(at(HERE))
        assert first.began is not None
        await store.cluster.place_chat(CHAT, HOME)
        await store.commit(ending(first, first.began))
        await store.delete_session(first.turn.session_id, START)
        assert (await store.accept(at(THERE))).elsewhere == ME

    async def test_a_chat_with_a_new_id_stays_with_its_member(self, store: Store) -> None:
        await both_join(store)
        await store.accept(at(HERE))
        assert await store.move_chat(CHAT, OTHER_CHAT)
        assert (await store.accept(at(THERE, chat=OTHER_CHAT))).elsewhere == ME
        assert len(await store.cluster.waiting_here(ME)) == 2
