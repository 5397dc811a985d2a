"""The store's contract: every engine of `store.store.Store` passes these.

A subclass gives two fixtures: `clock`, a `FakeClock`, and `store`, an empty store that runs by it.
This file holds the life of a turn; `store_upkeep_suite` holds leases, recovery, delivery and reading.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    OTHER_CHAT,
    RIVAL,
    START,
    accepting,
    answered,
    begun,
    bodies,
    ending,
    pinned,
    record_of,
    said,
    session_of,
    step,
)
from contracts.store_upkeep_suite import StoreUpkeepSuite
from talaria.core.entries import Hidden, Revision, SpecSet, TitleSet
from talaria.core.errors import (
    ErrorInfo,
    IdempotencyConflict,
    IllegalMove,
    LeaseHeld,
    NoSession,
    NotFound,
    StaleFence,
    StoreError,
)
from talaria.core.ids import Fence, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    Begin,
    Binding,
    Commit,
    StepWrite,
    TurnEnd,
    UsageWrite,
)
from talaria.core.messages import (
    AssistantMessage,
    SystemMessage,
    TokenUsage,
    ToolOutcome,
    ToolResult,
    ToolResults,
)
from talaria.core.spending import Spent
from talaria.core.turns import StepKind, StepState, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock


class StoreSuite(StoreUpkeepSuite):
    # -- accept

    async def test_first_message_of_a_chat_makes_its_session(self, store: Store) -> None:
        accepted = await store.accept(accepting("hello", session="ses_a"))
        assert accepted.is_new_session and not accepted.is_duplicate
        assert accepted.turn.state is TurnState.ACCEPTED
        assert accepted.turn.session_id == "ses_a"
        assert accepted.turn.accepted_at == START
        assert await store.current_session(CHAT) == await store.session(SessionId("ses_a"))

    async def test_message_without_a_fresh_session_needs_one_that_is_open(
        self, store: Store, clock: FakeClock
    ) -> None:
        order = replace(accepting("hello"), fresh=None)
        with pytest.raises(NoSession):
            await store.accept(order)
        assert await store.turn_record(order.turn_id) is None
        assert await store.current_session(CHAT) is None
        known = await answered(store)
        joined = await store.accept(order)
        assert (joined.turn.session_id, joined.is_new_session) == (known.turn.session_id, False)
        await store.settle(joined.turn.id, TurnEnd(TurnState.CANCELLED))
        clock.advance(1)
        with pytest.raises(NoSession):
            await store.accept(replace(accepting(expire_before=clock.now()), fresh=None))
        assert (await session_of(store, known.turn.session_id)).ended_at is None

    async def test_accepting_may_begin_the_turn_as_well(self, store: Store) -> None:
        await store.accept(accepting(spec=pinned()))
        order = accepting("second", begins=said("second"))
        accepted = await store.accept(order)
        assert accepted.began is not None
        assert (accepted.turn.state, accepted.turn.attempts) == (TurnState.RUNNING, 1)
        assert accepted.began.entry is not None and accepted.began.entry.body == said("second")
        assert accepted.began.entry.seq == accepted.began.before.seq + 1
        record = await record_of(store, order.turn_id)
        assert record.turn == accepted.turn
        end = TurnEnd(TurnState.DONE, reply="ok")
        session_id = accepted.turn.session_id
        await store.commit(Commit(session_id, accepted.began.fence, order.turn_id, end=end))

    async def test_accepting_only_accepts_while_another_owner_has_the_session(self, store: Store) -> None:
        first = await store.accept(accepting())
        await store.begin(Begin(first.turn.id, RIVAL, LEASE, said("first")))
        accepted = await store.accept(accepting(begins=said("second")))
        assert accepted.began is None
        assert accepted.turn.state is TurnState.ACCEPTED
        assert len(await store.log(first.turn.session_id, 0)) == 1

    async def test_a_beginning_may_hide_what_it_takes_the_place_of(self, store: Store) -> None:
        first = await answered(store, accepting(spec=pinned()))
        session_id = first.turn.session_id
        head = len(await store.log(session_id, 0))
        second = await store.accept(accepting())
        hide = Hidden(2, head)
        began = await store.begin(Begin(second.turn.id, ME, LEASE, said("again"), hide))
        log = await store.log(session_id, 0)
        assert [entry.body for entry in log[head:]] == [hide, said("again")]
        assert (log[head].epoch, log[head].turn_id) == (1, second.turn.id)
        assert began.before == Revision(1, head + 1)
        assert began.session.revision == Revision(1, head + 2)
        assert began.entry == log[-1]

    async def test_a_known_key_begins_nothing(self, store: Store) -> None:
        first = await store.accept(accepting(key="k"))
        again = await store.accept(accepting(key="k", begins=said("again")))
        assert again.is_duplicate and again.began is None
        assert again.turn == first.turn

    async def test_next_message_joins_the_current_session(self, store: Store) -> None:
        first = await store.accept(accepting())
        second = await store.accept(accepting())
        assert not second.is_new_session
        assert second.turn.session_id == first.turn.session_id

    async def test_chats_do_not_share_sessions(self, store: Store) -> None:
        here = await store.accept(accepting(chat=CHAT))
        there = await store.accept(accepting(chat=OTHER_CHAT))
        assert here.turn.session_id != there.turn.session_id

    async def test_accepted_turn_is_read_back_as_it_was_answered(self, store: Store) -> None:
        order = accepting("grüße\n日本", key="k1")
        accepted = await store.accept(order)
        record = await record_of(store, order.turn_id)
        assert record.turn == accepted.turn
        assert record.turn.inbound == order.inbound
        assert record.steps == ()

    async def test_fresh_log_starts_with_the_spec_and_then_the_context(self, store: Store) -> None:
        spec = pinned()
        context = (SystemMessage("be brief"), said("earlier"))
        accepted = await store.accept(accepting(spec=spec, context=context))
        log = await store.log(accepted.turn.session_id, 0)
        assert [entry.body for entry in log] == [SpecSet(spec.id), *context]
        assert [entry.seq for entry in log] == [1, 2, 3]
        assert all(entry.turn_id is None and entry.epoch == 0 for entry in log)
        session = await session_of(store, accepted.turn.session_id)
        assert session.revision == Revision(0, 3)
        assert session.spec_id == spec.id
        assert await store.spec(spec.id) == spec

    async def test_fresh_session_without_a_spec_is_empty(self, store: Store) -> None:
        accepted = await store.accept(accepting())
        session = await session_of(store, accepted.turn.session_id)
        assert session.revision == Revision(0, 0)
        assert session.spec_id is None

    async def test_new_binding_moves_the_chat_to_a_fresh_session(self, store: Store) -> None:
        old = await store.accept(accepting())
        new = await store.accept(accepting(binding=Binding.NEW))
        later = await store.accept(accepting())
        assert new.is_new_session
        assert new.turn.session_id != old.turn.session_id
        assert later.turn.session_id == new.turn.session_id

    async def test_resume_moves_the_chat_back(self, store: Store) -> None:
        old = await store.accept(accepting())
        await store.accept(accepting(binding=Binding.NEW))
        resumed = await store.accept(accepting(binding=Binding.RESUME, resume=old.turn.session_id))
        later = await store.accept(accepting())
        assert not resumed.is_new_session
        assert resumed.turn.session_id == later.turn.session_id == old.turn.session_id

    async def test_resume_reopens_an_ended_session(self, store: Store, clock: FakeClock) -> None:
        old = await answered(store)
        session_id = old.turn.session_id
        await store.end_session(session_id, await store.hold(session_id, ME, LEASE))
        clock.advance(5)
        await store.accept(accepting(binding=Binding.RESUME, resume=session_id))
        session = await session_of(store, session_id)
        assert session.ended_at is None
        assert session.updated_at == START + 5

    @pytest.mark.parametrize("resume", [None, SessionId("ses_nowhere")])
    async def test_resume_of_an_unknown_session_changes_nothing(
        self, store: Store, resume: SessionId | None
    ) -> None:
        current = await store.accept(accepting())
        order = accepting(binding=Binding.RESUME, resume=resume)
        with pytest.raises(NotFound):
            await store.accept(order)
        assert await store.turn_record(order.turn_id) is None
        assert (await store.accept(accepting())).turn.session_id == current.turn.session_id

    async def test_resume_of_another_chats_session_is_refused(self, store: Store) -> None:
        theirs = await store.accept(accepting(chat=OTHER_CHAT))
        with pytest.raises(NotFound):
            await store.accept(accepting(binding=Binding.RESUME, resume=theirs.turn.session_id))

    async def test_message_to_a_chat_whose_session_ended_makes_a_fresh_one(self, store: Store) -> None:
        old = (await answered(store)).turn.session_id
        await store.end_session(old, await store.hold(old, ME, LEASE))
        new = await store.accept(accepting())
        assert new.is_new_session
        assert new.turn.session_id != old

    async def test_ephemeral_session_never_becomes_its_chats(self, store: Store) -> None:
        ephemeral = await store.accept(accepting(ephemeral=True))
        assert await store.current_session(CHAT) is None
        lasting = await store.accept(accepting())
        assert lasting.is_new_session
        another = await store.accept(accepting(ephemeral=True, binding=Binding.NEW))
        current = await store.current_session(CHAT)
        assert current is not None
        assert current.id == lasting.turn.session_id
        with pytest.raises(NotFound):
            await store.accept(accepting(binding=Binding.RESUME, resume=ephemeral.turn.session_id))
        assert another.turn.session_id not in {ephemeral.turn.session_id, lasting.turn.session_id}

    async def test_known_key_answers_with_the_turn_it_made(self, store: Store) -> None:
        first = await answered(store, accepting(key="k1", digest="d1"))
        again = await store.accept(accepting(key="k1", digest="d1"))
        assert again.is_duplicate and not again.is_new_session
        assert again.turn.id == first.turn.id
        assert again.turn.state is TurnState.DONE
        assert again.turn.reply == "hi"
        assert (await store.stats()).turns["done"] == 1

    async def test_known_key_with_another_digest_is_a_conflict(self, store: Store) -> None:
        await store.accept(accepting(key="k1", digest="d1"))
        order = accepting(key="k1", digest="d2")
        with pytest.raises(IdempotencyConflict):
            await store.accept(order)
        assert await store.turn_record(order.turn_id) is None

    async def test_keys_are_apart_by_scope(self, store: Store) -> None:
        one = await store.accept(accepting(key="k1", scope="a"))
        two = await store.accept(accepting(key="k1", scope="b"))
        assert one.turn.id != two.turn.id

    async def test_messages_without_a_key_are_never_duplicates(self, store: Store) -> None:
        one = await store.accept(accepting("same"))
        two = await store.accept(accepting("same"))
        assert one.turn.id != two.turn.id

    async def test_key_is_free_again_after_its_time(self, store: Store, clock: FakeClock) -> None:
        first = await store.accept(accepting(key="k1", digest="d1", key_ttl=60))
        clock.advance(59)
        assert (await store.accept(accepting(key="k1", digest="d1", key_ttl=60))).is_duplicate
        clock.advance(1)
        second = await store.accept(accepting(key="k1", digest="d2", key_ttl=60))
        assert not second.is_duplicate
        third = await store.accept(accepting(key="k1", digest="d2", key_ttl=60))
        assert third.turn.id == second.turn.id != first.turn.id
        assert await store.turn_record(first.turn.id) is not None

    async def test_known_key_wins_over_a_wish_for_a_new_session(self, store: Store) -> None:
        first = await store.accept(accepting(key="k1"))
        again = await store.accept(accepting(key="k1", binding=Binding.NEW))
        assert again.is_duplicate
        current = await store.current_session(CHAT)
        assert current is not None
        assert current.id == first.turn.session_id

    async def test_ids_that_exist_are_refused_and_nothing_changes(self, store: Store) -> None:
        first = accepting()
        await store.accept(first)
        with pytest.raises(StoreError):
            await store.accept(first)
        assert first.fresh is not None
        taken = accepting(session=first.fresh.session_id, chat=OTHER_CHAT)
        with pytest.raises(StoreError):
            await store.accept(taken)
        assert await store.current_session(OTHER_CHAT) is None
        assert (await store.stats()).owed == 1

    # -- begin

    async def test_begin_sets_the_turn_running_and_appends_the_message(
        self, store: Store, clock: FakeClock
    ) -> None:
        accepted = await store.accept(accepting(spec=pinned()))
        clock.advance(3)
        began = await store.begin(Begin(accepted.turn.id, ME, LEASE, said("hello")))
        assert began.before == Revision(0, 1)
        assert began.session.revision == Revision(0, 2)
        assert began.session.updated_at == START + 3
        assert began.attempts == 1
        assert began.entry is not None
        assert (began.entry.seq, began.entry.body) == (2, said("hello"))
        assert began.entry.turn_id == accepted.turn.id
        assert list(await store.log(began.session.id, 1)) == [began.entry]
        assert await store.session(began.session.id) == began.session
        record = await record_of(store, accepted.turn.id)
        assert (record.turn.state, record.turn.attempts) == (TurnState.RUNNING, 1)
        assert record.turn.started_at == START + 3

    async def test_begin_without_a_message_appends_nothing(self, store: Store) -> None:
        accepted = await store.accept(accepting())
        began = await store.begin(Begin(accepted.turn.id, ME, LEASE))
        assert began.entry is None
        assert began.before == began.session.revision == Revision(0, 0)

    async def test_begin_again_does_not_append_again(self, store: Store, clock: FakeClock) -> None:
        turn, first = await begun(store)
        clock.advance(LEASE)
        second = await store.begin(Begin(turn.turn.id, RIVAL, LEASE, said("hello")))
        assert second.entry is None
        assert second.attempts == 2
        assert second.before == first.session.revision
        assert await bodies(store, turn.turn.session_id) == [said("hello")]
        record = await record_of(store, turn.turn.id)
        assert record.turn.started_at == START

    async def test_every_lease_has_a_higher_fence(self, store: Store, clock: FakeClock) -> None:
        turn, first = await begun(store)
        second = await store.begin(Begin(turn.turn.id, ME, LEASE))
        await store.commit(ending(turn, second))
        held = await store.hold(turn.turn.session_id, RIVAL, LEASE)
        clock.advance(LEASE)
        taken = await store.hold(turn.turn.session_id, ME, LEASE)
        assert first.fence < second.fence < held < taken

    async def test_begin_is_refused_while_another_holds_the_lease(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn, _ = await begun(store)
        clock.advance(LEASE - 1)
        with pytest.raises(LeaseHeld):
            await store.begin(Begin(turn.turn.id, RIVAL, LEASE))
        record = await record_of(store, turn.turn.id)
        assert record.turn.attempts == 1
        clock.advance(1)
        assert (await store.begin(Begin(turn.turn.id, RIVAL, LEASE))).attempts == 2

    async def test_begin_of_a_turn_that_is_over_is_illegal(self, store: Store) -> None:
        turn = await answered(store)
        with pytest.raises(IllegalMove):
            await store.begin(Begin(turn.turn.id, ME, LEASE))
        assert await store.hold(turn.turn.session_id, RIVAL, LEASE)

    async def test_begin_of_an_unknown_turn_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.begin(Begin(TurnId("turn_nowhere"), ME, LEASE))

    # -- commit

    async def test_commit_appends_after_the_head(self, store: Store, clock: FakeClock) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        clock.advance(2)
        entries = (AssistantMessage("one"), said("two"))
        committed = await store.commit(Commit(session_id, lease.fence, turn.turn.id, entries))
        assert committed.revision == Revision(0, 3)
        assert [(entry.seq, entry.at) for entry in committed.entries] == [(2, START + 2), (3, START + 2)]
        assert tuple(await store.log(session_id, 1)) == committed.entries
        session = await session_of(store, session_id)
        assert (session.revision, session.updated_at) == (committed.revision, START + 2)

    async def test_spoken_are_the_newest_messages_and_what_hides_them(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        entries = (AssistantMessage("one"), ToolResults(()), TitleSet("A talk"), Hidden(2, 2), said("two"))
        committed = await store.commit(Commit(session_id, lease.fence, turn.turn.id, entries))
        one, _, _, hidden, two = committed.entries
        assert (await store.spoken(session_id, 9))[-3:] == (one, hidden, two)
        assert (await store.spoken(session_id, 9))[0].body == said("hello")
        assert await store.spoken(session_id, 2) == (hidden, two)
        assert await store.spoken(SessionId("ses_none"), 9) == ()

    async def test_commit_of_nothing_leaves_the_head(self, store: Store) -> None:
        turn, lease = await begun(store)
        committed = await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id))
        assert committed.revision == lease.session.revision
        assert committed.entries == ()

    async def test_new_spec_moves_the_epoch_and_a_title_does_not(self, store: Store) -> None:
        turn, lease = await begun(store, accepting(spec=pinned("one")))
        spec = pinned("two")
        entries = (SpecSet(spec.id), TitleSet("A talk"))
        committed = await store.commit(
            Commit(turn.turn.session_id, lease.fence, turn.turn.id, entries, specs=(spec,))
        )
        assert committed.revision == Revision(1, 4)
        session = await session_of(store, turn.turn.session_id)
        assert (session.spec_id, session.title) == (spec.id, "A talk")
        assert await store.spec(spec.id) == spec

    async def test_a_session_is_titled_by_its_first_words_until_it_gets_another(self, store: Store) -> None:
        turn, lease = await begun(store, accepting())
        session_id = turn.turn.session_id
        assert lease.session.title == (await session_of(store, session_id)).title == "hello"
        assert await store.retitle(session_id, "hello", "A greeting")
        assert not await store.retitle(session_id, "hello", "Too late")
        assert not await store.retitle(SessionId("ses_none"), "", "Nobody's")
        assert (await session_of(store, session_id)).title == "A greeting"
        await store.commit(Commit(session_id, lease.fence, turn.turn.id, (TitleSet("Mine"),)))
        assert not await store.retitle(session_id, "A greeting", "Not mine")
        assert (await session_of(store, session_id)).title == "Mine"

    async def test_entry_that_names_an_unknown_spec_is_refused(self, store: Store) -> None:
        turn, lease = await begun(store)
        entries = (TitleSet("lost"), SpecSet(SpecId("spec_nowhere")))
        with pytest.raises(NotFound):
            await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, entries))
        assert await store.session(turn.turn.session_id) == lease.session
        assert await bodies(store, turn.turn.session_id) == [said("hello")]

    async def test_stale_fence_changes_nothing(self, store: Store, clock: FakeClock) -> None:
        turn, stale = await begun(store)
        clock.advance(LEASE)
        fresh = await store.begin(Begin(turn.turn.id, RIVAL, LEASE))
        spec = pinned("late")
        late = Commit(
            turn.turn.session_id,
            stale.fence,
            turn.turn.id,
            (SpecSet(spec.id), AssistantMessage("too late")),
            specs=(spec,),
            steps=(step(1, StepState.PENDING),),
            usage=(UsageWrite(1, "p", "m", TokenUsage(1)),),
            end=TurnEnd(TurnState.DONE, "too late"),
        )
        with pytest.raises(StaleFence):
            await store.commit(late)
        record = await record_of(store, turn.turn.id)
        assert (record.turn.state, record.steps) == (TurnState.RUNNING, ())
        assert await bodies(store, turn.turn.session_id) == [said("hello")]
        assert await store.session(turn.turn.session_id) == fresh.session
        assert await store.spec(spec.id) is None
        assert await store.outbox.due("fake", 10) == ()
        assert record.spent == Spent()
        await store.commit(ending(turn, fresh))

    async def test_expired_lease_that_nobody_took_still_commits(self, store: Store, clock: FakeClock) -> None:
        turn, lease = await begun(store)
        clock.advance(LEASE * 10)
        assert (await store.commit(ending(turn, lease))).revision == lease.session.revision

    async def test_lease_given_back_commits_no_more(self, store: Store) -> None:
        turn, lease = await begun(store)
        await store.commit(ending(turn, lease))
        with pytest.raises(StaleFence):
            await store.commit(Commit(turn.turn.session_id, lease.fence, None, (TitleSet("late"),)))

    async def test_fence_that_was_never_given_is_stale(self, store: Store) -> None:
        accepted = await store.accept(accepting())
        for fence in (Fence(0), Fence(1)):
            with pytest.raises(StaleFence):
                await store.commit(Commit(accepted.turn.session_id, fence, None, (TitleSet("x"),)))

    async def test_commit_to_an_unknown_session_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.commit(Commit(SessionId("ses_nowhere"), Fence(1), None))

    async def test_commit_for_a_turn_of_another_session_is_not_found(self, store: Store) -> None:
        _, lease = await begun(store)
        theirs = await store.accept(accepting(chat=OTHER_CHAT))
        with pytest.raises(NotFound):
            await store.commit(Commit(lease.session.id, lease.fence, theirs.turn.id))

    async def test_end_settles_the_turn_and_gives_the_lease_back(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn, lease = await begun(store)
        clock.advance(4)
        error = ErrorInfo("model", "It broke.", "Try again.")
        end = TurnEnd(TurnState.FAILED, "It broke. Try again.", error, TokenUsage(5, 1, 2, 0))
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=end))
        record = await record_of(store, turn.turn.id)
        assert record.turn.state is TurnState.FAILED
        assert record.turn.ended_at == START + 4
        assert (record.turn.reply, record.turn.error, record.turn.usage) == (end.reply, error, end.usage)
        assert await store.hold(turn.turn.session_id, RIVAL, LEASE) > lease.fence

    async def test_append_outside_a_turn_gives_the_lease_back_when_asked(self, store: Store) -> None:
        session_id = (await answered(store)).turn.session_id
        fence = await store.hold(session_id, ME, LEASE)
        await store.commit(Commit(session_id, fence, None, (TitleSet("kept"),)))
        with pytest.raises(LeaseHeld):
            await store.hold(session_id, RIVAL, LEASE)
        await store.commit(Commit(session_id, fence, None, release=True))
        assert await store.hold(session_id, RIVAL, LEASE)

    @pytest.mark.parametrize("state", [TurnState.ACCEPTED, TurnState.RUNNING, TurnState.WAITING])
    async def test_end_that_is_not_final_is_illegal(self, store: Store, state: TurnState) -> None:
        turn, lease = await begun(store)
        with pytest.raises(IllegalMove):
            await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=TurnEnd(state)))
        with pytest.raises(LeaseHeld):
            await store.hold(turn.turn.session_id, RIVAL, LEASE)

    async def test_turn_that_is_over_takes_no_more_commits(self, store: Store) -> None:
        turn = await answered(store)
        fence = await store.hold(turn.turn.session_id, ME, LEASE)
        for end in (None, TurnEnd(TurnState.DONE, "again")):
            with pytest.raises(IllegalMove):
                await store.commit(Commit(turn.turn.session_id, fence, turn.turn.id, end=end))

    async def test_what_belongs_to_a_turn_needs_one(self, store: Store) -> None:
        session_id = (await answered(store)).turn.session_id
        fence = await store.hold(session_id, ME, LEASE)
        for order in (
            Commit(session_id, fence, None, steps=(step(1, StepState.PENDING),)),
            Commit(session_id, fence, None, usage=(UsageWrite(1, "p", "m", TokenUsage()),)),
            Commit(session_id, fence, None, steers=(TurnId("turn_x"),)),
            Commit(session_id, fence, None, end=TurnEnd(TurnState.DONE)),
        ):
            with pytest.raises(StoreError):
                await store.commit(order)

    # -- steps

    async def test_step_goes_pending_started_ended(self, store: Store, clock: FakeClock) -> None:
        turn, lease = await begun(store)
        result = ToolResult("call_1", "shell", "done", ToolOutcome.OK)

        async def write(*steps: StepWrite) -> None:
            await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=steps))

        await write(step(1, StepState.PENDING), step(2, StepState.PENDING))
        clock.advance(1)
        await write(step(1, StepState.STARTED))
        clock.advance(1)
        await write(StepWrite(1, StepKind.TOOL, "shell", StepState.ENDED, "call_1", result))
        record = await record_of(store, turn.turn.id)
        first, second = record.steps
        assert (first.state, first.result, first.call_id) == (StepState.ENDED, result, "call_1")
        assert (first.started_at, first.ended_at) == (START + 1, START + 2)
        assert (second.state, second.result) == (StepState.PENDING, None)
        assert (second.started_at, second.ended_at) == (None, None)

    async def test_result_that_went_to_the_log_is_shortened_in_its_step(self, store: Store) -> None:
        turn, lease = await begun(store)
        whole, short = (ToolResult("call_1", "shell", text) for text in ("all of it", "all"))

        async def commit(**more: Any) -> None:
            await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, **more))

        await commit(steps=(step(1, StepState.PENDING), step(2, StepState.PENDING)))
        await commit(steps=(StepWrite(1, StepKind.TOOL, "shell", StepState.ENDED, "call_1", whole),))
        before = (await record_of(store, turn.turn.id)).steps[0]
        await commit(entries=(ToolResults((whole,)),), shortened=((1, short), (2, short)))
        first, second = (await record_of(store, turn.turn.id)).steps
        assert (before.result, first) == (whole, replace(before, result=short))
        assert (second.state, second.result) == (StepState.PENDING, None)
        assert (await bodies(store, turn.turn.session_id))[-1] == ToolResults((whole,))

    async def test_call_that_never_ran_goes_from_pending_to_ended(self, store: Store) -> None:
        turn, lease = await begun(store)
        steps = (step(1, StepState.PENDING), step(1, StepState.ENDED))
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=steps))
        record = await record_of(store, turn.turn.id)
        assert record.steps[0].state is StepState.ENDED
        assert record.steps[0].started_at is None

    async def test_model_step_may_be_inserted_as_ended(self, store: Store) -> None:
        turn, lease = await begun(store)
        steps = (step(1, StepState.ENDED, StepKind.MODEL),)
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=steps))
        record = await record_of(store, turn.turn.id)
        assert (record.steps[0].kind, record.steps[0].ended_at) == (StepKind.MODEL, START)

    @pytest.mark.parametrize(
        "moves",
        [
            (step(1, StepState.STARTED),),
            (step(1, StepState.ENDED),),
            (step(1, StepState.STARTED, StepKind.MODEL),),
            (step(1, StepState.PENDING), step(1, StepState.PENDING)),
            (step(1, StepState.PENDING), step(1, StepState.STARTED), step(1, StepState.PENDING)),
            (step(1, StepState.PENDING), step(1, StepState.STARTED), step(1, StepState.STARTED)),
            (step(1, StepState.PENDING), step(1, StepState.ENDED), step(1, StepState.STARTED)),
            (step(1, StepState.ENDED, StepKind.MODEL), step(1, StepState.ENDED, StepKind.MODEL)),
        ],
    )
    async def test_illegal_step_move_changes_nothing(
        self, store: Store, moves: tuple[StepWrite, ...]
    ) -> None:
        turn, lease = await begun(store)
        order = Commit(turn.turn.session_id, lease.fence, turn.turn.id, (AssistantMessage("x"),), steps=moves)
        with pytest.raises(IllegalMove):
            await store.commit(order)
        record = await record_of(store, turn.turn.id)
        assert record.steps == ()
        assert await store.session(turn.turn.session_id) == lease.session
        assert await bodies(store, turn.turn.session_id) == [said("hello")]

    # -- settle

    @pytest.mark.parametrize("state", [TurnState.DONE, TurnState.CANCELLED, TurnState.FAILED])
    async def test_turn_that_never_began_can_be_settled(
        self, store: Store, clock: FakeClock, state: TurnState
    ) -> None:
        accepted = await store.accept(accepting())
        clock.advance(1)
        turn = await store.settle(accepted.turn.id, TurnEnd(state, "Stopped."))
        assert (turn.state, turn.reply, turn.ended_at) == (state, "Stopped.", START + 1)
        record = await record_of(store, turn.id)
        assert record.turn == turn
        assert (await store.stats()).owed == 0

    @pytest.mark.parametrize("state", [TurnState.ACCEPTED, TurnState.RUNNING, TurnState.WAITING])
    async def test_settle_as_what_is_not_final_is_illegal(self, store: Store, state: TurnState) -> None:
        accepted = await store.accept(accepting())
        with pytest.raises(IllegalMove):
            await store.settle(accepted.turn.id, TurnEnd(state))

    async def test_settle_of_a_turn_that_began_is_illegal(self, store: Store) -> None:
        running, _ = await begun(store)
        done = await answered(store, accepting(chat=OTHER_CHAT))
        for turn in (running, done):
            with pytest.raises(IllegalMove):
                await store.settle(turn.turn.id, TurnEnd(TurnState.CANCELLED))

    async def test_settle_of_an_unknown_turn_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.settle(TurnId("turn_nowhere"), TurnEnd(TurnState.CANCELLED))
