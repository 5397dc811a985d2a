"""What every store promises about the runs of jobs: what their chats are told, their grants, their sessions.

A test class gives `store`, a store engine, and `clock`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from contracts.job_suite import add, claim, write
from contracts.store_orders import ME, RIVAL, START, accepting, answered, begun, ending, step
from talaria.core.delivery import OutboxRow
from talaria.core.entries import Announcement
from talaria.core.errors import OverBudget, StaleFence
from talaria.core.ids import ChatKey, JobId, QuestionId, job_chat, new_session_id, new_turn_id
from talaria.core.jobs import (
    CLAIM_SECONDS,
    Job,
    JobPlan,
    Overlap,
    SessionMode,
    SettleSlot,
    SlotClaim,
    SlotState,
)
from talaria.core.ledger import (
    Accept,
    Accepted,
    Began,
    Binding,
    Commit,
    Fresh,
    Page,
    SendMessage,
    TurnEnd,
    UsageWrite,
)
from talaria.core.messages import TokenUsage
from talaria.core.questions import APPROVE, DENY, Decision, Question, QuestionKind
from talaria.core.turns import ReplyPlace, RunOrder, Sender, StepState, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

ROOM = ChatKey("agent:main:fake:group:room")
ASKED = ChatKey("agent:main:fake:dm:me")
HERE = ReplyPlace(ASKED, "here")
PLAN = "plan 1"


async def job_with_slots(store: Store, *instants: float, **plan: object) -> Job:
    job = await add(store, **plan)  # type: ignore[arg-type]
    await write(store, job, *instants, then=START + 1e6)
    return job


def running(job: Job, held: SlotClaim, chat: ChatKey | None = None, **order: object) -> Accept:
    """An order to accept the run of a job, whose results go to the room."""
    run = RunOrder(
        job_id=job.id, job_name="water", reply_to=ReplyPlace(ROOM, "room"), asked_in=HERE, plan=PLAN
    )
    run = msgspec.structs.replace(run, **order)
    accept = accepting(chat=chat or job_chat("main", job.id, ASKED), binding=Binding.NEW)
    inbound = msgspec.structs.replace(accept.inbound, run=run, is_unattended=True)
    assert accept.fresh is not None
    fresh = msgspec.structs.replace(accept.fresh, job_id=job.id)
    return msgspec.structs.replace(accept, inbound=inbound, fresh=fresh, claim=held)


async def begin(store: Store, job: Job, **order: object) -> tuple[Accepted, Began]:
    (claimed,) = await claim(store)
    return await begun(store, running(job, claimed.slot.claim, **order))  # type: ignore[arg-type]


def reminding(held: SlotClaim) -> SendMessage:
    """An order to send a reminder to the chat that asked for it."""
    fresh = Fresh(new_session_id(), None)
    return SendMessage(
        new_turn_id(), ASKED, Sender("job:1"), Announcement("stretch"), fresh, "here", claim=held
    )


async def owed(store: Store) -> Sequence[OutboxRow]:
    return await store.outbox.due("fake", 50)


async def fail(store: Store, turn: Accepted, lease: Began, error: Exception | None = None) -> None:
    assert error is None or isinstance(error, OverBudget)
    end = TurnEnd(TurnState.FAILED, "It broke.") if error is None else TurnEnd.failed(error)
    await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=end))


class RunSuite:
    async def test_result_goes_to_the_named_chat_with_its_cost_when_the_run_ends(self, store: Store) -> None:
        await answered(store, accepting(chat=ROOM))
        job = await job_with_slots(store, START)
        turn, lease = await begin(store, job)
        usage = UsageWrite(1, "p", "m", TokenUsage(1), 2_500_000, "u")
        await store.commit(msgspec.structs.replace(ending(turn, lease, reply="done"), usage=(usage,)))
        (row,) = await owed(store)
        assert (row.channel, row.address, row.body) == ("fake", "room", "done\n\n(job water, $0.0025)")
        session = await store.current_session(ROOM)
        assert session is not None
        last = (await store.log(session.id, 0))[-1].body
        assert isinstance(last, Announcement)
        assert last.text == row.body

    async def test_claims_of_dead_owners_are_void_at_once(self, store: Store) -> None:
        mine = await job_with_slots(store, START)
        await claim(store)
        job = await job_with_slots(store, START)
        (dead,) = await claim(store, owner=RIVAL)
        assert dead.job.id == job.id
        await store.reclaim(ME)
        found = {each: await store.jobs.slot(each, START) for each in (mine.id, job.id)}
        states = {each: slot.state for each, slot in found.items() if slot is not None}
        assert states == {mine.id: SlotState.RUNNING, job.id: SlotState.DUE}

    async def test_failure_is_told_to_the_chat_that_asked_once_all_tries_failed(
        self, store: Store, clock: FakeClock
    ) -> None:
        job = await job_with_slots(store, START, retries=1)
        await fail(store, *await begin(store, job))
        assert await owed(store) == (), "there is another try"
        clock.advance(3600)
        await fail(store, *await begin(store, job))
        (row,) = await owed(store)
        assert (row.address, row.body) == ("here", "The job water failed: It broke.")

    async def test_run_that_its_cap_stopped_is_not_tried_again(self, store: Store) -> None:
        job = await job_with_slots(store, START, retries=5)
        await fail(store, *await begin(store, job), OverBudget("The model was not called."))
        slot = await store.jobs.slot(job.id, START)
        assert slot is not None
        assert slot.state is SlotState.FAILED

    async def test_slot_that_fails_without_a_turn_is_told_as_well(self, store: Store) -> None:
        await answered(store, accepting(chat=ASKED))
        job = await job_with_slots(store, START)
        (claimed,) = await claim(store)
        order = SettleSlot(claimed.slot.claim, SlotState.FAILED, "its check failed.", HERE)
        assert (await store.jobs.settle(order)).state is SlotState.FAILED
        (row,) = await owed(store)
        assert row.body == "The job water failed: its check failed."
        assert row.turn_id, "`talaria why` knows it"
        assert (await store.jobs.find(job.id)) is not None

    async def test_reminder_is_sent_and_settled_in_one_order(self, store: Store) -> None:
        job = await job_with_slots(store, START, is_reminder=True)
        (claimed,) = await claim(store)
        sent = await store.send(reminding(claimed.slot.claim))
        slot = await store.jobs.slot(job.id, START)
        assert slot is not None
        assert (slot.state, slot.turn_id, slot.ended_at) == (SlotState.DONE, sent.turn.id, START)
        assert [row.body for row in await owed(store)] == ["stretch"]
        with pytest.raises(StaleFence):
            await store.send(reminding(claimed.slot.claim))
        assert len(await owed(store)) == 1, "an order that is refused sends nothing"
        log = await store.log(sent.turn.session_id, 0)
        assert [entry.body.text for entry in log if isinstance(entry.body, Announcement)] == ["stretch"]

    async def test_reminder_under_a_lost_claim_sends_nothing(self, store: Store, clock: FakeClock) -> None:
        await job_with_slots(store, START, is_reminder=True)
        (lost,) = await claim(store)
        clock.advance(CLAIM_SECONDS + 1)
        (held,) = await claim(store, owner=RIVAL)
        with pytest.raises(StaleFence):
            await store.send(reminding(lost.slot.claim))
        assert list(await owed(store)) == []
        await store.send(reminding(held.slot.claim))
        assert len(await owed(store)) == 1

    async def test_reminder_is_claimed_while_as_many_runs_go_on_as_may(self, store: Store) -> None:
        for number in range(60):
            await job_with_slots(store, START, owner=f"{number}")
        assert len(await claim(store, 1)) == 1
        reminder = await job_with_slots(store, START, is_reminder=True)
        assert [one.job.id for one in await claim(store, 1)] == [reminder.id]

    async def test_reminder_of_an_earlier_version_loses_the_settings_of_runs(self, store: Store) -> None:
        old = {"is_reminder": True, "session": SessionMode.CHAT, "tools": ("terminal",), "deadline": 9.0}
        job = await store.jobs.find((await add(store, **old)).id)  # type: ignore[arg-type]
        assert job is not None
        assert job.plan == msgspec.structs.replace(
            JobPlan("water", job.plan.schedule, "UTC"), is_reminder=True, quiet=False
        )
        checked = await store.jobs.find((await add(store, is_reminder=True, check="true")).id)
        assert checked is not None
        assert (checked.plan.is_reminder, checked.plan.check) == (False, "true"), "its check still decides"

    async def test_run_in_the_chat_s_own_session_replies_there_without_a_second_entry(
        self, store: Store
    ) -> None:
        await answered(store, accepting(chat=ASKED))
        job = await job_with_slots(store, START)
        (claimed,) = await claim(store)
        order = running(job, claimed.slot.claim, ASKED, reply_to=HERE)
        order = msgspec.structs.replace(order, binding=Binding.CURRENT)
        turn, lease = await begun(store, order)
        await store.commit(ending(turn, lease, reply="done"))
        (row,) = await owed(store)
        assert (row.chat_key, row.address) == (ASKED, "here")
        bodies = [entry.body for entry in await store.log(turn.turn.session_id, 0)]
        assert not any(isinstance(body, Announcement) for body in bodies)

    # -- grants ---------------------------------------------------------------------------------------------

    async def test_grant_of_a_run_stays_with_the_plan_of_its_job(
        self, store: Store, clock: FakeClock
    ) -> None:
        job = await job_with_slots(store, START)
        turn, lease = await begin(store, job)
        turn_id, now = turn.turn.id, clock.now()
        commit = Commit(turn.turn.session_id, lease.fence, turn_id, steps=(step(1, StepState.PENDING),))
        await store.commit(commit)
        assert not await store.has_job_asked(job.id, PLAN)
        question = Question(
            QuestionId("q_1"), turn_id, 1, "call_1", QuestionKind.APPROVAL, "?", now, now + 60, digest="bytes"
        )
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn_id, ask=(question,)))
        assert await store.has_job_asked(job.id, PLAN)
        assert not await store.has_job_asked(job.id, "plan 2")
        assert not await store.is_granted_to_job(job.id, PLAN, "bytes")
        await store.decide(question.id, Decision(APPROVE, "u1", now))
        assert await store.is_granted_to_job(job.id, PLAN, "bytes")
        assert not await store.is_granted_to_job(job.id, "plan 2", "bytes"), "the job was edited"
        assert not await store.is_granted_to_job(JobId("job_other"), PLAN, "bytes")
        await store.jobs.remove(job.id)
        assert not await store.is_granted_to_job(job.id, PLAN, "bytes")

    async def test_denial_grants_nothing_to_a_job(self, store: Store, clock: FakeClock) -> None:
        job = await job_with_slots(store, START)
        turn, _ = await begin(store, job)
        now = clock.now()
        host = Question(
            QuestionId("q_2"), turn.turn.id, 0, "", QuestionKind.HOST, "?", now, now + 60, digest="host:a:443"
        )
        await store.ask(host)
        assert await store.has_job_asked(job.id, PLAN)
        await store.decide(host.id, Decision(DENY, "u1", now))
        assert not await store.is_granted_to_job(job.id, PLAN, "host:a:443")

    # -- sessions -------------------------------------------------------------------------------------------

    async def test_sessions_of_jobs_are_listed_apart_and_kept_for_their_time(
        self, store: Store, clock: FakeClock
    ) -> None:
        mine = await answered(store, accepting(chat=ASKED))
        job = await job_with_slots(store, START, START + 1, overlap=Overlap.QUEUE)
        clock.advance(2)
        sessions = []
        for _ in range(2):
            turn, lease = await begin(store, job, reply_to=HERE)
            await store.commit(ending(turn, lease))
            sessions.append(turn.turn.session_id)
        assert [each.id for each in (await store.sessions(Page())).items] == [mine.turn.session_id]
        within = job_chat("main", job.id, ASKED)
        assert {each.id for each in (await store.sessions(Page(), within)).items} == set(sessions)
        clock.advance(3600)
        assert mine.turn.session_id in await store.end_unused(clock.now())
        kept = [await store.session(session_id) for session_id in sessions]
        assert all(session is not None and session.ended_at is None for session in kept), "no rule ends them"
        for row in await owed(store):
            await store.outbox.expire(clock.now() + 1, row.body)
        assert await store.retention.prune_runs(clock.now()) == 1, "the last one stays with its job"
        assert [await store.session(session_id) is None for session_id in sessions] == [True, False]
        await store.jobs.remove(job.id)
        assert await store.retention.prune_runs(clock.now()) == 1
        assert await store.session(sessions[-1]) is None
        assert await store.session(mine.turn.session_id) is not None

    async def test_rule_for_ended_sessions_leaves_those_of_jobs(self, store: Store, clock: FakeClock) -> None:
        job = await job_with_slots(store, START)
        turn, lease = await begin(store, job, reply_to=None)
        await store.commit(ending(turn, lease))
        fence = await store.hold(turn.turn.session_id, ME, 30.0)
        await store.end_session(turn.turn.session_id, fence)
        clock.advance(3600)
        assert await store.retention.prune_ended(clock.now()) == 0
        assert await store.session(turn.turn.session_id) is not None
