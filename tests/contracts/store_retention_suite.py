"""The part of the store's contract that forgets. What is owed stays, whatever its age."""

from __future__ import annotations

from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    OTHER_CHAT,
    START,
    accepting,
    answered,
    begun,
    ending,
    parked,
    pinned,
    said,
    step,
)
from talaria.core.delivery import DeliveryResult, OutboxState
from talaria.core.entries import SpecSet
from talaria.core.ids import SessionId
from talaria.core.ledger import Begin, Binding, Commit, TurnEnd
from talaria.core.turns import StepState, TurnState
from talaria.store.sql.rules import FORGET_BATCH
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

LATER = START + 1000.0


async def forget(store: Store, before: float = LATER) -> int:
    total, position = 0, 0
    while True:
        forgotten = await store.retention.forget_turns(position, before)
        total += forgotten.turns
        if forgotten.position is None:
            return total
        assert forgotten.position > position
        position = forgotten.position


async def end(store: Store, session_id: SessionId) -> None:
    await store.end_session(session_id, await store.hold(session_id, ME, LEASE))


class StoreRetentionSuite:
    async def test_settled_turns_are_forgotten_and_their_log_stays(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        steps = (step(1, StepState.PENDING),)
        await store.commit(Commit(session_id, lease.fence, turn.turn.id, steps=steps))
        done = TurnEnd(TurnState.DONE, "hi")
        await store.commit(Commit(session_id, lease.fence, turn.turn.id, end=done))
        before = await store.log(session_id, 0), await store.summary(session_id)
        assert await forget(store) == 1
        assert await store.turn_record(turn.turn.id) is None
        assert (await store.log(session_id, 0), await store.summary(session_id)) == before
        assert await forget(store) == 0

    async def test_turns_settled_later_are_kept(self, store: Store, clock: FakeClock) -> None:
        old = await answered(store)
        slow, lease = await begun(store, accepting(chat=OTHER_CHAT))
        clock.advance(2000)
        done = TurnEnd(TurnState.DONE, "hi")
        await store.commit(Commit(slow.turn.session_id, lease.fence, slow.turn.id, end=done))
        young = await answered(store)
        assert await forget(store) == 1
        assert await store.turn_record(old.turn.id) is None
        for kept in (slow, young):
            assert await store.turn_record(kept.turn.id) is not None

    async def test_questions_are_forgotten_with_their_turn(self, store: Store) -> None:
        turn, _, _ = await parked(store)
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        await store.commit(ending(turn, lease))
        assert await forget(store) == 1
        assert tuple(await store.questions(turn.turn.id)) == ()

    async def test_what_is_unsettled_is_never_forgotten(self, store: Store) -> None:
        running, _ = await begun(store)
        waiting = await store.accept(accepting())
        asks, _, questions = await parked(store, accepting(chat=OTHER_CHAT))
        assert await forget(store) == 0
        owed = [running.turn.id, waiting.turn.id, asks.turn.id]
        assert [turn.id for turn in await store.reclaim(ME)] == owed
        assert tuple(await store.questions(asks.turn.id)) == questions
        assert (await store.begin(Begin(waiting.turn.id, ME, LEASE, said("hello")))).entry is not None

    async def test_what_is_unsent_is_never_forgotten(self, store: Store) -> None:
        turn, lease = await begun(store, accepting(address="room"))
        session_id = turn.turn.session_id
        await store.commit(ending(turn, lease, reply="hi"))
        await end(store, session_id)
        (row,) = await store.outbox.due("http", 9)
        for state in (OutboxState.PENDING, OutboxState.SENDING):
            assert (await forget(store), await store.retention.prune_ended(LATER)) == (0, 0), state
            if state is OutboxState.PENDING:
                assert await store.outbox.claim(row, LATER) is not None
        await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.SENT, platform_id="m1"))
        assert await forget(store) == 1
        assert await store.retention.prune_ended(LATER) == 1

    async def test_many_turns_are_forgotten_in_small_orders(self, store: Store) -> None:
        for _ in range(FORGET_BATCH + 10):
            accepted = await store.accept(accepting())
            await store.settle(accepted.turn.id, TurnEnd(TurnState.CANCELLED))
        assert await forget(store) == FORGET_BATCH + 10

    async def test_the_key_of_a_forgotten_turn_is_free(self, store: Store, clock: FakeClock) -> None:
        await answered(store, accepting(key="k", digest="a"))
        await forget(store)
        again = await store.accept(accepting(key="k", digest="b"))
        assert not again.is_duplicate

    async def test_ended_sessions_go_with_all_they_had(self, store: Store, clock: FakeClock) -> None:
        gone = await answered(store)
        await end(store, gone.turn.session_id)
        kept = await answered(store, accepting(chat=OTHER_CHAT))
        assert await store.retention.prune_ended(LATER) == 1
        assert await store.session(gone.turn.session_id) is None
        assert await store.current_session(CHAT) is None
        assert await store.turn_record(gone.turn.id) is None
        assert await store.log(gone.turn.session_id, 0) == ()
        assert await store.session(kept.turn.session_id) is not None
        assert (await store.accept(accepting())).is_new_session

    async def test_sessions_that_ended_later_stay(self, store: Store, clock: FakeClock) -> None:
        turn = await answered(store)
        clock.advance(2000)
        await end(store, turn.turn.session_id)
        assert await store.retention.prune_ended(LATER) == 0

    async def test_an_ended_session_with_an_unsettled_turn_stays(self, store: Store) -> None:
        first = await answered(store)
        await end(store, first.turn.session_id)
        owed = await store.accept(accepting(binding=Binding.RESUME, resume=first.turn.session_id))
        await end(store, first.turn.session_id)
        assert await store.retention.prune_ended(LATER) == 0
        await store.settle(owed.turn.id, TurnEnd(TurnState.CANCELLED))
        await end(store, first.turn.session_id)
        assert await store.retention.prune_ended(LATER) == 1

    async def test_specs_that_no_session_has_go(self, store: Store, clock: FakeClock) -> None:
        used, old, stateless = pinned("used"), pinned("old"), pinned("stateless")
        turn, lease = await begun(store, accepting(spec=old))
        await store.commit(
            Commit(turn.turn.session_id, lease.fence, turn.turn.id, (SpecSet(used.id),), specs=(used,))
        )
        call = await store.accept(accepting(chat=OTHER_CHAT, spec=stateless, ephemeral=True))
        assert await store.retention.prune_specs() == 1
        assert await store.spec(old.id) is None
        assert await store.spec(used.id) == used
        assert await store.spec(stateless.id) == stateless
        await store.settle(call.turn.id, TurnEnd(TurnState.CANCELLED))
        clock.advance(2000)
        assert await store.prune_ephemeral(LATER) == 1
        assert await store.retention.prune_specs() == 1
        assert await store.spec(stateless.id) is None
        await store.accept(accepting(spec=stateless, binding=Binding.NEW))
        assert await store.spec(stateless.id) == stateless
