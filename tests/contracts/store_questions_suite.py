"""The part of the store's contract about turns that wait for a person."""

from __future__ import annotations

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
    approved,
    asking,
    begun,
    bodies,
    ending,
    parked,
    record_of,
    said,
    session_of,
    step,
)
from talaria.core.entries import TitleSet
from talaria.core.errors import BadRequest, IllegalMove, LeaseHeld, NotFound, StaleFence, StoreError
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId
from talaria.core.ledger import Begin, Binding, Commit, Page, Renewal, TurnEnd
from talaria.core.messages import AssistantMessage
from talaria.core.questions import DENY, Decision, Question, QuestionKind, Span
from talaria.core.spending import Reserve, SpendingQuery
from talaria.core.turns import StepState, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock


async def open_ids(store: Store) -> list[QuestionId]:
    return [question.id for question in (await store.open_questions(Page())).questions]


class StoreQuestionsSuite:
    # -- asking

    async def test_turn_that_asks_waits_and_gives_its_lease_back(self, store: Store) -> None:
        turn, lease, (question,) = await parked(store)
        record = await record_of(store, turn.turn.id)
        assert record.turn.state is TurnState.WAITING
        assert record.questions == (question,)
        assert tuple(await store.questions(turn.turn.id)) == (question,)
        assert (record.turn.attempts, record.turn.ended_at) == (1, None)
        lost = await store.renew(ME, [Renewal(turn.turn.session_id, lease.fence)], LEASE)
        assert lost == {turn.turn.session_id}
        with pytest.raises(StaleFence):
            await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id))
        with pytest.raises(StaleFence):
            await store.end_session(turn.turn.session_id, lease.fence)
        stats = await store.stats()
        assert (stats.turns["waiting"], stats.turns["running"], stats.owed) == (1, 0, 1)

    async def test_questions_are_kept_whole(self, store: Store) -> None:
        turn, lease = await begun(store)
        steps = (step(1, StepState.PENDING), step(2, StepState.PENDING))
        asked = (
            asking(turn, 2, kind=QuestionKind.ANSWER, text="Welche Stadt? 🏙", choices=("Köln", "Bonn")),
            asking(turn, 1, asked_at=START + 0.25, expires_at=START + 9.5),
        )
        entries = (AssistantMessage("May I?"),)
        done = await store.commit(
            Commit(turn.turn.session_id, lease.fence, turn.turn.id, entries, steps=steps, ask=asked)
        )
        assert [entry.body for entry in done.entries] == list(entries)
        assert (await record_of(store, turn.turn.id)).questions == asked
        assert (await store.open_questions(Page())).questions == asked

    async def test_turn_that_asks_frees_what_was_reserved_for_it(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        await store.reserve(Reserve(session_id, lease.fence, turn.turn.id, 7, "u1", 500, START, ()))
        pending = (step(1, StepState.PENDING),)
        await store.commit(Commit(session_id, lease.fence, turn.turn.id, steps=pending, ask=(asking(turn),)))
        assert (await store.spending(SpendingQuery(session_id, "u1", START))).reserved == 0

    @pytest.mark.parametrize("state", [None, StepState.STARTED, StepState.ENDED])
    async def test_question_about_a_step_that_is_not_pending_changes_nothing(
        self, store: Store, state: StepState | None
    ) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        moves = [] if state is None else [StepState.PENDING, *({state} - {StepState.PENDING})]
        steps = tuple(step(1, move) for move in moves)
        order = Commit(
            session_id, lease.fence, turn.turn.id, (AssistantMessage("x"),), steps=steps, ask=(asking(turn),)
        )
        with pytest.raises(IllegalMove):
            await store.commit(order)
        record = await record_of(store, turn.turn.id)
        assert (record.turn.state, record.steps, record.questions) == (TurnState.RUNNING, (), ())
        assert await bodies(store, session_id) == [said("hello")]
        await store.commit(ending(turn, lease))

    async def test_questions_need_their_own_running_turn_and_no_end(self, store: Store) -> None:
        turn, lease = await begun(store)
        other = await store.accept(accepting())
        session_id, steps = turn.turn.session_id, (step(1, StepState.PENDING),)
        mine, theirs = asking(turn), asking(other)
        decided = asking(turn, decision=approved())
        for order in (
            Commit(session_id, lease.fence, None, ask=(mine,)),
            Commit(session_id, lease.fence, turn.turn.id, steps=steps, ask=(theirs,)),
            Commit(session_id, lease.fence, turn.turn.id, steps=steps, ask=(decided,)),
            Commit(
                session_id,
                lease.fence,
                turn.turn.id,
                steps=steps,
                ask=(mine,),
                end=TurnEnd(TurnState.DONE, "hi"),
            ),
            Commit(session_id, lease.fence, other.turn.id, steps=steps, ask=(theirs,)),
        ):
            with pytest.raises(StoreError):
                await store.commit(order)
        assert await open_ids(store) == []
        await store.commit(ending(turn, lease))

    # -- the session meanwhile

    async def test_session_with_a_waiting_turn_is_nobody_elses(self, store: Store) -> None:
        turn, _, _ = await parked(store)
        session_id = turn.turn.session_id
        queued = await store.accept(accepting(begins=said("now")))
        assert queued.turn.session_id == session_id
        assert (queued.began, queued.turn.state) == (None, TurnState.ACCEPTED)
        for owner in (ME, RIVAL):
            with pytest.raises(LeaseHeld, match="waits for a person"):
                await store.hold(session_id, owner, LEASE)
            with pytest.raises(LeaseHeld, match="waits for a person"):
                await store.begin(Begin(queued.turn.id, owner, LEASE, said("now")))
        assert await bodies(store, session_id) == [said("hello")]
        assert (await record_of(store, turn.turn.id)).turn.state is TurnState.WAITING

    async def test_session_with_a_waiting_turn_does_not_expire(self, store: Store, clock: FakeClock) -> None:
        turn, _, _ = await parked(store)
        passing, _, _ = await parked(store, accepting(chat=OTHER_CHAT, ephemeral=True, binding=Binding.NEW))
        clock.advance(1_000_000)
        assert list(await store.end_unused(clock.now())) == []
        assert await store.prune_ephemeral(clock.now()) == 0
        late = await store.accept(accepting(expire_before=clock.now()))
        assert (late.ended, late.turn.session_id) == (None, turn.turn.session_id)
        for each in (turn, passing):
            record = await record_of(store, each.turn.id)
            assert (record.turn.state, len(record.questions)) == (TurnState.WAITING, 1)
            assert (await session_of(store, each.turn.session_id)).ended_at is None

    async def test_waiting_turn_is_not_steered(self, store: Store) -> None:
        turn, _, _ = await parked(store)
        steer = await store.accept(accepting(steers=turn.turn.id))
        assert (steer.turn.merged_into, steer.turn.state) == (None, TurnState.ACCEPTED)

    async def test_message_that_steered_before_waits_with_its_turn(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        taken = await store.accept(accepting(steers=turn.turn.id))
        waits = await store.accept(accepting(steers=turn.turn.id))
        await store.commit(
            Commit(
                session_id,
                lease.fence,
                turn.turn.id,
                (said("first"),),
                steps=(step(1, StepState.PENDING),),
                steers=(taken.turn.id,),
                ask=(asking(turn),),
            )
        )
        again = await store.begin(Begin(turn.turn.id, ME, LEASE))
        with pytest.raises(StoreError):
            await store.commit(ending(turn, again))
        await store.commit(
            Commit(
                session_id,
                again.fence,
                turn.turn.id,
                (said("second"),),
                steers=(waits.turn.id,),
                end=TurnEnd(TurnState.DONE, "hi"),
            )
        )
        for each in (taken, waits):
            assert (await record_of(store, each.turn.id)).turn.state is TurnState.DONE

    async def test_chat_with_a_waiting_turn_can_turn_to_a_new_session_and_back(self, store: Store) -> None:
        turn, _, (question,) = await parked(store)
        fresh = await answered(store, accepting(binding=Binding.NEW))
        assert fresh.turn.session_id != turn.turn.session_id
        back = await store.accept(accepting(binding=Binding.RESUME, resume=turn.turn.session_id))
        with pytest.raises(LeaseHeld):
            await store.begin(Begin(back.turn.id, ME, LEASE, said("now")))
        assert await open_ids(store) == [question.id]

    async def test_waiting_turn_cannot_be_settled(self, store: Store) -> None:
        turn, _, _ = await parked(store)
        with pytest.raises(IllegalMove):
            await store.settle(turn.turn.id, TurnEnd(TurnState.CANCELLED))

    # -- deciding

    async def test_decision_is_recorded_once_and_moves_nothing(self, store: Store, clock: FakeClock) -> None:
        turn, _, (question,) = await parked(store)
        clock.advance(60)
        decision = Decision("approve", "u1", clock.now())
        decided = await store.decide(question.id, decision)
        record = await record_of(store, turn.turn.id)
        assert decided == record.turn
        assert decided.state is TurnState.WAITING
        assert [each.decision for each in record.questions] == [decision]
        assert await open_ids(store) == []
        with pytest.raises(IllegalMove):
            await store.decide(question.id, Decision(DENY, "u2", clock.now()))
        assert tuple(await store.questions(turn.turn.id)) == record.questions

    async def test_question_that_has_expired_is_not_decided(self, store: Store) -> None:
        turn, _, (question,) = await parked(store)
        for late in (0.0, 1.0):
            with pytest.raises(IllegalMove, match="expired"):
                await store.decide(question.id, approved(question.expires_at + late))
        assert (await record_of(store, turn.turn.id)).questions == (question,)
        await store.decide(question.id, approved(question.expires_at - 0.5))

    async def test_each_question_of_a_turn_is_decided_by_itself(self, store: Store) -> None:
        turn, _, (first, second) = await parked(store, count=2)
        await store.decide(second.id, approved())
        assert await open_ids(store) == [first.id]
        decisions = [each.decision for each in await store.questions(turn.turn.id)]
        assert decisions == [None, approved()]

    async def test_question_that_is_not_there_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.decide(QuestionId("q_nowhere"), approved())
        assert tuple(await store.questions(TurnId("turn_nowhere"))) == ()

    async def test_question_of_a_turn_that_waits_no_more_takes_no_decision(self, store: Store) -> None:
        turn, _, (question,) = await parked(store)
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        with pytest.raises(IllegalMove):
            await store.decide(question.id, approved())
        await store.commit(ending(turn, lease))
        with pytest.raises(IllegalMove):
            await store.decide(question.id, approved())
        (kept,) = await store.questions(turn.turn.id)
        assert kept.decision is None

    # -- going on

    @pytest.mark.parametrize("is_forgiven", [False, True])
    async def test_resumed_turn_goes_on_with_its_attempt(
        self, store: Store, clock: FakeClock, is_forgiven: bool
    ) -> None:
        turn, lease, (question,) = await parked(store)
        await store.decide(question.id, approved())
        clock.advance(LEASE * 100)
        order = Begin(turn.turn.id, RIVAL, LEASE, said("hello"), is_forgiven=is_forgiven)
        again = await store.begin(order)
        assert (again.attempts, again.crashes, again.entry) == (1, 0, None)
        assert again.fence > lease.fence
        assert again.before == again.session.revision == lease.session.revision
        assert await bodies(store, turn.turn.session_id) == [said("hello")]
        record = await record_of(store, turn.turn.id)
        assert (record.turn.state, record.turn.attempts, record.turn.forgiven) == (TurnState.RUNNING, 1, 0)
        assert record.turn.started_at == START
        with pytest.raises(LeaseHeld, match="in use"):
            await store.hold(turn.turn.session_id, ME, LEASE)
        await store.commit(ending(turn, again))
        assert await store.hold(turn.turn.session_id, ME, LEASE) > again.fence

    async def test_waiting_counts_neither_as_an_attempt_nor_as_a_crash(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn, _ = await begun(store)
        clock.advance(LEASE)
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        assert (lease.attempts, lease.crashes) == (2, 1)
        for n in (1, 2, 3):
            pending, question = (step(n, StepState.PENDING),), asking(turn, n)
            await store.commit(
                Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=pending, ask=(question,))
            )
            await store.decide(question.id, approved())
            lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
            assert (lease.attempts, lease.crashes) == (2, 1)
        clock.advance(LEASE)
        crashed = await store.begin(Begin(turn.turn.id, RIVAL, LEASE))
        assert (crashed.attempts, crashed.crashes) == (3, 2)

    async def test_forgiven_turn_that_waited_has_no_crashes(self, store: Store) -> None:
        turn, _, _ = await parked(store)
        await store.forgive(turn.turn.id)
        assert (await store.begin(Begin(turn.turn.id, ME, LEASE))).crashes == 0

    async def test_one_of_two_that_resume_a_turn_is_refused(self, store: Store) -> None:
        turn, _, (question,) = await parked(store)
        await store.decide(question.id, approved())
        await store.begin(Begin(turn.turn.id, ME, LEASE))
        with pytest.raises(LeaseHeld):
            await store.begin(Begin(turn.turn.id, RIVAL, LEASE))

    async def test_turn_can_ask_again(self, store: Store) -> None:
        turn, _, (first,) = await parked(store)
        await store.decide(first.id, approved())
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        second = asking(turn, 2)
        steps = (step(1, StepState.STARTED), step(1, StepState.ENDED), step(2, StepState.PENDING))
        await store.commit(
            Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=steps, ask=(second,))
        )
        assert await open_ids(store) == [second.id]
        assert [each.id for each in await store.questions(turn.turn.id)] == [first.id, second.id]

    async def test_questions_that_were_left_undecided_are_replaced(self, store: Store) -> None:
        turn, _, (first, second) = await parked(store, count=2)
        await store.decide(first.id, approved())
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        anew = asking(turn, 2)
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, ask=(anew,)))
        assert await open_ids(store) == [anew.id]
        kept = await store.questions(turn.turn.id)
        assert [each.id for each in kept] == [first.id, second.id, anew.id]
        assert kept[1].expires_at < second.expires_at, "it expired when it was replaced"
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, ask=(anew,)))
        assert await open_ids(store) == [anew.id], "the same question can be put again"
        with pytest.raises(IllegalMove):
            await store.decide(second.id, approved())

    async def test_closed_questions_are_those_that_were_open_since_a_time(self, store: Store) -> None:
        turn, _, (first, second) = await parked(store, count=2)
        key, now = turn.turn.chat_key, first.asked_at

        async def closed(since: float, within: str = key) -> list[str]:
            return sorted(each.question.id for each in await store.closed_questions(since, within))

        assert await closed(0) == []
        decision = approved()
        await store.decide(first.id, decision)
        assert await closed(decision.decided_at) == [first.id]
        assert await closed(decision.decided_at + 1) == [] == await closed(0, "agent:none")
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        end = TurnEnd(TurnState.CANCELLED, "over")
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=end))
        assert await closed(now) == sorted((first.id, second.id)), "the end of the turn closes its questions"
        ended = (await record_of(store, turn.turn.id)).turn.ended_at
        assert ended is not None and await closed(ended + 1) == []

    @pytest.mark.parametrize("state", [TurnState.DONE, TurnState.FAILED, TurnState.CANCELLED])
    async def test_end_of_a_waiting_turn_closes_its_questions(self, store: Store, state: TurnState) -> None:
        turn, _, (question,) = await parked(store)
        queued = await store.accept(accepting())
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        end = TurnEnd(state, "over")
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=end))
        assert await open_ids(store) == []
        record = await record_of(store, turn.turn.id)
        assert (record.turn.state, record.questions) == (state, (question,))
        assert (await store.begin(Begin(queued.turn.id, ME, LEASE, said("now")))).attempts == 1

    # -- recovery

    async def test_reclaim_returns_waiting_turns_and_leaves_them_waiting(self, store: Store) -> None:
        theirs, _, (question,) = await parked(store, owner=RIVAL)
        queued = await store.accept(accepting())
        mine, _, _ = await parked(store, accepting(chat=OTHER_CHAT))
        owed = await store.reclaim(ME)
        assert [(turn.id, turn.state) for turn in owed] == [
            (theirs.turn.id, TurnState.WAITING),
            (queued.turn.id, TurnState.ACCEPTED),
            (mine.turn.id, TurnState.WAITING),
        ]
        await store.decide(question.id, approved())
        assert (await store.begin(Begin(theirs.turn.id, ME, LEASE))).crashes == 0

    async def test_yielding_leaves_waiting_turns_as_they_are(self, store: Store) -> None:
        turn, _, (question,) = await parked(store)
        await store.yield_turns(ME)
        record = await record_of(store, turn.turn.id)
        assert (record.turn.state, record.turn.forgiven) == (TurnState.WAITING, 0)
        assert await open_ids(store) == [question.id]

    async def test_waiting_turn_is_an_orphan_once_its_decisions_are_left_alone(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn, _, (first, second) = await parked(store, owner=RIVAL, count=2)
        clock.advance(100)
        queued = await store.accept(accepting())
        clock.advance(100)

        async def orphans(before: float) -> list[TurnId]:
            return [each.id for each in await store.orphans(ME, before)]

        assert await orphans(clock.now()) == []
        await store.decide(first.id, approved(clock.now()))
        clock.advance(10)
        assert await orphans(clock.now()) == [], "one question is open"
        await store.decide(second.id, approved(clock.now()))
        assert await orphans(clock.now()) == [], "just decided"
        assert await orphans(clock.now() + 1) == [turn.turn.id]
        again = await store.begin(Begin(turn.turn.id, ME, LEASE))
        assert await orphans(clock.now() + 1) == []
        await store.commit(ending(turn, again))
        assert await orphans(clock.now() + 1) == [queued.turn.id]

    async def test_waiting_turn_is_an_orphan_once_its_question_expired(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn, lease = await begun(store, owner=RIVAL)
        steer = await store.accept(accepting(steers=turn.turn.id))
        order = Commit(
            turn.turn.session_id,
            lease.fence,
            turn.turn.id,
            steps=(step(1, StepState.PENDING),),
            ask=(asking(turn),),
        )
        await store.commit(order)
        assert tuple(await store.orphans(ME, START + 3600)) == ()
        found = await store.orphans(ME, START + 3601)
        assert [each.id for each in found] == [turn.turn.id, steer.turn.id]

    # -- listing and forgetting

    async def test_open_questions_are_paged_oldest_first(self, store: Store) -> None:
        asked: list[Question] = []
        for i in range(5):
            _, _, questions = await parked(store, accepting(chat=ChatKey(f"agent:main:http:api:{i}")))
            asked += questions
        first = await store.open_questions(Page(limit=2))
        second = await store.open_questions(Page(limit=2, after=first.next))
        last = await store.open_questions(Page(limit=2, after=second.next))
        assert [*first.questions, *second.questions, *last.questions] == asked
        assert last.next is None
        with pytest.raises(BadRequest):
            await store.open_questions(Page(after="nonsense"))

    async def test_pruned_session_takes_its_questions_with_it(self, store: Store, clock: FakeClock) -> None:
        turn, _, (question,) = await parked(store, accepting(ephemeral=True, binding=Binding.NEW))
        await store.decide(question.id, approved())
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        await store.commit(ending(turn, lease))
        clock.advance(1)
        assert await store.prune_ephemeral(clock.now()) == 1
        assert tuple(await store.questions(turn.turn.id)) == ()
        with pytest.raises(NotFound):
            await store.decide(question.id, approved())

    async def test_lease_outside_a_turn_is_free_again_after_waiting(self, store: Store) -> None:
        turn, _, _ = await parked(store)
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        await store.commit(ending(turn, lease))
        fence = await store.hold(turn.turn.session_id, ME, LEASE)
        await store.commit(Commit(turn.turn.session_id, fence, None, (TitleSet("kept"),), release=True))
        assert (await session_of(store, turn.turn.session_id)).title == "kept"
        assert (await store.current_session(CHAT)) is not None

    # -- hosts and grants

    async def test_a_question_about_a_host_needs_no_waiting_turn(self, store: Store) -> None:
        turn, lease = await begun(store)
        host = asking(turn, 0, kind=QuestionKind.HOST, name="network", digest="host:a.example:443")
        await store.ask(host)
        assert (await store.open_questions(Page())).questions == (host,)
        found = await store.find_question(host.id)
        assert found is not None and (found.question, found.turn.id) == (host, turn.turn.id)
        assert await store.find_question(QuestionId("q_none")) is None
        await store.commit(ending(turn, lease))
        assert (await store.open_questions(Page())).questions == (host,), "it stays open for the session"
        with pytest.raises(NotFound):
            await store.ask(asking(turn, 0, turn_id=TurnId("turn_none"), id=QuestionId("q_2")))

    async def test_a_question_about_a_host_stays_open_when_its_turn_is_parked(self, store: Store) -> None:
        turn, lease = await begun(store)
        host = asking(turn, 0, id=QuestionId("q_host"), kind=QuestionKind.HOST, digest="host:a.example:443")
        await store.ask(host)
        call = asking(turn, 1)
        steps = (step(1, StepState.PENDING),)
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=steps, ask=(call,)))
        assert set(await open_ids(store)) == {host.id, call.id}

    async def test_an_approval_for_the_session_is_a_grant_until_its_end(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        for n, span in enumerate(Span):
            host = asking(turn, 0, id=QuestionId(f"q_{n}"), kind=QuestionKind.HOST, digest=span.value)
            await store.ask(host)
            await store.decide(host.id, replace(approved(), span=span))
            assert await store.is_granted(session_id, span.value) is (span is not Span.ONCE)
        assert not await store.is_granted(SessionId("ses_other"), "session")
        denied = asking(turn, 0, id=QuestionId("q_d"), kind=QuestionKind.HOST, digest="denied")
        await store.ask(denied)
        await store.decide(denied.id, Decision(DENY, "person", START, Span.SESSION))
        assert not await store.is_granted(session_id, "denied")
        late = asking(turn, 0, id=QuestionId("q_late"), kind=QuestionKind.HOST, digest="late")
        await store.ask(late)
        await store.commit(ending(turn, lease))
        fence = await store.hold(session_id, ME, LEASE)
        await store.end_session(session_id, fence)
        assert not await store.is_granted(session_id, "session"), "no grant outlasts its session"
        assert (await store.open_questions(Page())).questions == ()
        with pytest.raises(IllegalMove):
            await store.decide(late.id, approved())

    async def test_a_decision_that_the_store_gets_too_late_does_not_count(
        self, store: Store, clock: FakeClock
    ) -> None:
        _, _, (question,) = await parked(store)
        clock.advance(question.expires_at - clock.now() + 1)
        with pytest.raises(IllegalMove):
            await store.decide(question.id, approved(START))
        assert await open_ids(store) == []

    async def test_open_questions_are_listed_by_the_beginning_of_the_chats_key(self, store: Store) -> None:
        mine, _, (question,) = await parked(store)
        await parked(store, accepting(chat=OTHER_CHAT))
        assert len((await store.open_questions(Page())).items) == 2
        assert (await store.open_questions(Page(), mine.turn.chat_key)).questions == (question,)

    async def test_the_message_that_shows_a_question_is_kept(self, store: Store) -> None:
        turn, _, (question,) = await parked(store)
        await store.show_question(question.id, "m7")
        assert (await store.questions(turn.turn.id))[0].shown_id == "m7"
        with pytest.raises(NotFound):
            await store.show_question(QuestionId("q_none"), "m8")
