"""The contract of `store.store.JobStore`. A test class gives `store` and `clock`."""

from __future__ import annotations

import asyncio
from itertools import count

import msgspec
import pytest

from contracts.store_orders import ME, RIVAL, START, accepting, begun, ending
from talaria.core.errors import HeadMoved, LimitReached, NotFound, StaleFence
from talaria.core.ids import ChatKey, JobId, SessionId
from talaria.core.jobs import (
    CLAIM_SECONDS,
    MAX_FAILURES,
    AddJob,
    AdvanceJob,
    AfterProcess,
    ClaimedSlot,
    ClaimSlots,
    Cron,
    EditJob,
    Job,
    JobOrigin,
    JobPlan,
    JobState,
    Missed,
    NewSlot,
    Overlap,
    RewindJob,
    Schedule,
    SettleSlot,
    Slot,
    SlotClaim,
    SlotState,
)
from talaria.core.ledger import Accepted, Binding, Commit, Page, TurnEnd
from talaria.core.turns import Sender, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

CHAT = ChatKey("agent:main:http:api:home")
_numbers = count(1)


async def add(
    store: Store, *, owner: str = "ada", schedule: Schedule | None = None, most: int = 10, **plan: object
) -> Job:
    made = msgspec.structs.replace(JobPlan("water", schedule or Cron("0 9 * * *"), "UTC"), **plan)
    origin = JobOrigin(owner, CHAT, Sender("u1"))
    next_at = None if isinstance(schedule, AfterProcess) else START
    return await store.jobs.add(AddJob(JobId(f"job_{next(_numbers)}"), origin, made, next_at, most))


async def write(store: Store, job: Job, *instants: float, then: float | None = None) -> int:
    """Write due slots of a job that is at its first instant."""
    assert job.next_at is not None
    slots = tuple(NewSlot(instant, instant) for instant in instants)
    return await store.jobs.advance([AdvanceJob(job.id, job.version, job.next_at, then, slots)])


async def claim(store: Store, most: int = 10, owner: object = ME) -> list[ClaimedSlot]:
    return list(await store.jobs.claim(ClaimSlots(ME if owner is ME else RIVAL, most)))


async def states(store: Store, job: Job) -> list[tuple[float, str, str]]:
    """Instants behind the start, states and reasons, the first slot first."""
    page = await store.jobs.slots(job.id, Page())
    return [(slot.instant - START, slot.state.value, slot.reason) for slot in page.items[::-1]]


async def only_slot(store: Store, job: Job) -> Slot:
    (slot,) = (await store.jobs.slots(job.id, Page())).items
    return slot


async def accept(store: Store, held: SlotClaim) -> Accepted:
    return await store.accept(msgspec.structs.replace(accepting(binding=Binding.NEW), claim=held))


async def end(store: Store, held: SlotClaim, state: TurnState = TurnState.DONE) -> Accepted:
    turn, lease = await begun(store, msgspec.structs.replace(accepting(binding=Binding.NEW), claim=held))
    if state is TurnState.DONE:
        await store.commit(ending(turn, lease))
    else:
        await store.commit(
            Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=TurnEnd(state, "no such file"))
        )
    return turn


class JobSuite:
    # -- jobs

    async def test_a_job_is_found_listed_and_removed(self, store: Store) -> None:
        first, second = await add(store), await add(store, owner="bob")
        assert await store.jobs.find(first.id) == first
        assert first.state is JobState.ACTIVE
        assert (first.created_at, first.next_at) == (START, START)
        page = await store.jobs.listing(Page(1))
        assert page.items == (first,)
        assert (await store.jobs.listing(Page(1, page.next))).items == (second,)
        assert (await store.jobs.listing(Page(), "bob")).items == (second,)
        done = await store.jobs.edit(EditJob(second.id, second.version, second.plan, JobState.DONE, None))
        assert (await store.jobs.listing(Page())).items == (first, done)
        assert (await store.jobs.listing(Page(), is_unfinished=True)).items == (first,)
        assert (await store.jobs.listing(Page(), "bob", is_unfinished=True)).items == ()
        assert await store.jobs.remove(first.id) == first
        assert await store.jobs.find(first.id) is None
        with pytest.raises(NotFound, match="There is no job"):
            await store.jobs.remove(first.id)

    async def test_finished_jobs_are_listed_the_last_to_finish_first(
        self, store: Store, clock: FakeClock
    ) -> None:
        first, second, bobs, _ = [await add(store, owner=owner) for owner in ("ada", "ada", "bob", "ada")]
        for job in (second, bobs, first):
            clock.advance(1)
            await store.jobs.edit(EditJob(job.id, job.version, job.plan, JobState.DONE, None))
        assert [job.id for job in await store.jobs.finished(9)] == [first.id, bobs.id, second.id]
        assert [job.id for job in await store.jobs.finished(1, "ada")] == [first.id]
        assert [job.id for job in await store.jobs.finished(9, "ada")] == [first.id, second.id]

    async def test_a_job_that_is_added_again_stays_as_it_is(self, store: Store) -> None:
        job = await add(store)
        again = AddJob(job.id, job.origin, msgspec.structs.replace(job.plan, text="other"), START, 1)
        assert await store.jobs.add(again) == job

    async def test_an_owner_has_a_limited_number_of_unfinished_jobs(self, store: Store) -> None:
        jobs = [await add(store, most=2) for _ in range(2)]
        with pytest.raises(LimitReached, match="2 is the most"):
            await add(store, most=2)
        await add(store, owner="bob", most=2)
        assert await write(store, jobs[0], START)  # the last instant: the job is done
        await add(store, most=2)

    async def test_an_edit_replaces_the_plan_and_skips_what_was_due(self, store: Store) -> None:
        job = await add(store)
        await write(store, job, START, then=START + 60)
        plan = msgspec.structs.replace(job.plan, text="feed")
        edited = await store.jobs.edit(EditJob(job.id, 1, plan, JobState.PAUSED, None, "the job was paused"))
        assert (edited.plan, edited.state, edited.next_at) == (plan, JobState.PAUSED, None)
        assert (edited.version, edited.reason) == (2, "the job was paused")
        assert await states(store, job) == [(0, "skipped", "the job was paused")]
        with pytest.raises(HeadMoved):
            await store.jobs.edit(EditJob(job.id, 1, plan, JobState.ACTIVE, START))
        resumed = await store.jobs.edit(EditJob(job.id, 2, plan, JobState.ACTIVE, START + 60))
        assert (resumed.state, resumed.next_at, resumed.reason) == (JobState.ACTIVE, START + 60, "")

    # -- slots

    async def test_a_slot_is_written_once_by_whoever_is_first(self, store: Store) -> None:
        job = await add(store)
        order = AdvanceJob(job.id, 1, START, START + 60, (NewSlot(START, START + 5),))
        assert sum(await asyncio.gather(*(store.jobs.advance([order]) for _ in range(5)))) == 1
        assert await states(store, job) == [(0, "due", "")]
        found = await store.jobs.find(job.id)
        assert found is not None
        assert found.next_at == START + 60
        stale = AdvanceJob(job.id, 1, START, START + 90, (NewSlot(START + 1, START),))
        assert await store.jobs.advance([stale]) == 0
        assert len(await states(store, job)) == 1

    async def test_a_slot_that_exists_stays_as_it_is(self, store: Store) -> None:
        job = await add(store)
        await write(store, job, START, then=START + 60)
        (claimed,) = await claim(store)
        await end(store, claimed.slot.claim)
        again = AdvanceJob(job.id, 1, START + 60, START + 120, (NewSlot(START, START),))
        assert await store.jobs.advance([again]) == 1
        assert await states(store, job) == [(0, "done", "")], (
            "the unique row keeps the slot from running twice"
        )

    async def test_a_skipped_slot_is_a_row_with_its_reason(self, store: Store) -> None:
        job = await add(store)
        slots = (NewSlot(START, START, "the gateway was not running"), NewSlot(START + 1, START + 1))
        await store.jobs.advance([AdvanceJob(job.id, 1, START, None, slots)])
        skipped = await store.jobs.slot(job.id, START)
        assert skipped is not None
        assert (skipped.state, skipped.ended_at) == (SlotState.SKIPPED, START)
        assert (await store.jobs.counts()).slots == {"due": 1}
        found = await store.jobs.find(job.id)
        assert found is not None
        assert found.state is JobState.DONE

    async def test_due_jobs_and_the_next_time_are_found(self, store: Store, clock: FakeClock) -> None:
        assert await store.jobs.next_due(START) is None
        late, soon = await add(store), await add(store)
        await store.jobs.edit(EditJob(late.id, 1, late.plan, JobState.ACTIVE, START + 50))
        assert [job.id for job in await store.jobs.due(START, 10)] == [soon.id]
        assert await store.jobs.next_due(START) == START
        await write(store, soon, START, START + 20)
        assert await store.jobs.next_due(START) == START + 20, "a slot that is put off"
        await claim(store)
        assert await store.jobs.next_due(START + 30) == START + 50
        await store.jobs.edit(EditJob(late.id, 2, late.plan, JobState.PAUSED, None))
        assert await store.jobs.next_due(START + 30) == START + CLAIM_SECONDS, "a claim may become void"

    async def test_a_job_that_ran_ahead_of_a_clock_is_set_back(self, store: Store, clock: FakeClock) -> None:
        job = await add(store)
        slots = (NewSlot(START, START), NewSlot(START + 60, START, "missed"), NewSlot(START + 120, START))
        await store.jobs.advance([AdvanceJob(job.id, 1, START, START + 180, slots)])
        for _ in range(2):
            (claimed,) = await claim(store)
            await end(store, claimed.slot.claim)
        assert await store.jobs.ahead_of(START + 150, 9) == [], "no slot lies in the future"
        clock.advance(-30)
        assert [one.id for one in await store.jobs.ahead_of(START - 30, 9)] == [job.id]
        assert await store.jobs.rewind([RewindJob(job.id, 1, START)]) == 1
        assert await store.jobs.ahead_of(START - 30, 9) == []
        again = tuple(NewSlot(slot.instant, slot.instant) for slot in slots)
        await store.jobs.advance([AdvanceJob(job.id, 1, START, START + 180, again)])
        assert [state for _, state, _ in await states(store, job)] == ["done", "due", "done"]

    # -- claims

    async def test_of_many_claimers_one_gets_a_slot(self, store: Store) -> None:
        job = await add(store)
        await write(store, job, START)
        claimed = await asyncio.gather(*(claim(store, owner=who) for who in (ME, RIVAL) * 3))
        assert sum(map(len, claimed)) == 1
        slot = await only_slot(store, job)
        assert (slot.state, slot.attempts, slot.fence) == (SlotState.RUNNING, 1, 1)

    async def test_a_slot_is_not_claimed_before_its_time(self, store: Store, clock: FakeClock) -> None:
        job = await add(store)
        await write(store, job, START + 20)
        assert await claim(store) == []
        clock.advance(20)
        assert len(await claim(store)) == 1

    async def test_no_more_slots_run_than_allowed(self, store: Store) -> None:
        for _ in range(5):
            await write(store, await add(store), START)
        first = await claim(store, 3)
        assert len(first) == 3
        assert await claim(store, 3) == []
        await end(store, first[0].slot.claim)
        assert len(await claim(store, 3)) == 1

    async def test_a_claim_without_a_turn_is_void_after_a_while(self, store: Store, clock: FakeClock) -> None:
        job = await add(store)
        await write(store, job, START)
        (first,) = await claim(store)
        clock.advance(CLAIM_SECONDS - 1)
        assert await claim(store, owner=RIVAL) == []
        clock.advance(1)
        (second,) = await claim(store, owner=RIVAL)
        assert (second.slot.fence, second.slot.attempts) == (2, 2)
        with pytest.raises(StaleFence):
            await accept(store, first.slot.claim)
        turn = await accept(store, second.slot.claim)
        assert (await only_slot(store, job)).turn_id == turn.turn.id

    async def test_a_claim_that_is_renewed_stays(self, store: Store, clock: FakeClock) -> None:
        await write(store, await add(store), START)
        (first,) = await claim(store)
        clock.advance(CLAIM_SECONDS - 1)
        await store.jobs.renew([first.slot.claim])
        clock.advance(CLAIM_SECONDS - 1)
        assert await claim(store, owner=RIVAL) == []
        await accept(store, first.slot.claim)
        clock.advance(10 * CLAIM_SECONDS)
        assert await claim(store, owner=RIVAL) == [], "the turn is resumed by the ordinary recovery"

    async def test_a_clock_that_was_set_back_does_not_keep_a_dead_claim(
        self, store: Store, clock: FakeClock
    ) -> None:
        await write(store, await add(store), START - 7200)
        await claim(store)
        clock.advance(-3600)
        assert len(await claim(store, owner=RIVAL)) == 1

    async def test_a_claim_can_be_given_back(self, store: Store) -> None:
        job = await add(store)
        await write(store, job, START)
        (first,) = await claim(store)
        slot = await store.jobs.settle(SettleSlot(first.slot.claim, SlotState.DUE))
        assert (slot.state, slot.attempts) == (SlotState.DUE, 0)
        with pytest.raises(StaleFence):
            await accept(store, first.slot.claim)
        assert len(await claim(store)) == 1

    # -- turns

    async def test_a_claim_that_is_used_twice_makes_one_turn(self, store: Store) -> None:
        job = await add(store)
        await write(store, job, START)
        (claimed,) = await claim(store)
        first = await accept(store, claimed.slot.claim)
        again = await accept(store, claimed.slot.claim)
        assert again.is_duplicate
        assert again.turn.id == first.turn.id
        slot = await only_slot(store, job)
        assert (slot.turn_id, slot.started_at) == (first.turn.id, START)

    async def test_the_end_of_the_turn_settles_the_slot(self, store: Store, clock: FakeClock) -> None:
        job = await add(store)
        await write(store, job, START)
        (claimed,) = await claim(store)
        clock.advance(5)
        turn = await end(store, claimed.slot.claim)
        slot = await only_slot(store, job)
        assert (slot.state, slot.turn_id, slot.ended_at) == (SlotState.DONE, turn.turn.id, START + 5)
        with pytest.raises(StaleFence):
            await accept(store, claimed.slot.claim)

    async def test_a_slot_with_a_turn_is_settled_by_the_turn_only(self, store: Store) -> None:
        job = await add(store)
        await write(store, job, START)
        (claimed,) = await claim(store)
        await accept(store, claimed.slot.claim)
        for state in (SlotState.DUE, SlotState.FAILED):
            with pytest.raises(StaleFence, match="has a turn"):
                await store.jobs.settle(SettleSlot(claimed.slot.claim, state))
        assert (await only_slot(store, job)).state is SlotState.RUNNING

    async def test_a_turn_that_is_stopped_before_it_begins_fails_its_slot(self, store: Store) -> None:
        job = await add(store, retries=3)
        await write(store, job, START)
        (claimed,) = await claim(store)
        turn = await accept(store, claimed.slot.claim)
        await store.settle(turn.turn.id, TurnEnd(TurnState.CANCELLED))
        slot = await only_slot(store, job)
        assert (slot.state, slot.reason) == (SlotState.FAILED, "it was stopped")
        found = await store.jobs.find(job.id)
        assert found is not None
        assert found.failures == 0, "a person stopped it"

    async def test_a_failed_slot_is_tried_again_as_planned(self, store: Store, clock: FakeClock) -> None:
        job = await add(store, retries=1)
        await write(store, job, START)
        (first,) = await claim(store)
        await end(store, first.slot.claim, TurnState.FAILED)
        slot = await only_slot(store, job)
        assert (slot.state, slot.due_at) == (SlotState.DUE, START + 60)
        clock.advance(60)
        (second,) = await claim(store)
        turn = await end(store, second.slot.claim, TurnState.FAILED)
        slot = await only_slot(store, job)
        assert (slot.state, slot.attempts, slot.turn_id) == (SlotState.FAILED, 2, turn.turn.id)

    async def test_a_job_that_fails_again_and_again_is_paused(self, store: Store) -> None:
        job = await add(store, overlap=Overlap.QUEUE)
        instants = [START - n for n in range(MAX_FAILURES + 1)]
        await write(store, job, *instants, then=START + 60)
        for _ in range(MAX_FAILURES):
            (claimed,) = await claim(store)
            await end(store, claimed.slot.claim, TurnState.FAILED)
        found = await store.jobs.find(job.id)
        assert found is not None
        assert (found.state, found.next_at, found.failures) == (JobState.PAUSED, None, MAX_FAILURES)
        assert "10 times in a row" in found.reason
        assert await claim(store) == []
        assert [state for _, state, _ in await states(store, job)].count("skipped") == 1

    async def test_a_success_ends_a_row_of_failures(self, store: Store) -> None:
        job = await add(store, overlap=Overlap.QUEUE)
        await write(store, job, START - 1, START)
        (claimed,) = await claim(store)
        await end(store, claimed.slot.claim, TurnState.FAILED)
        (claimed,) = await claim(store)
        await end(store, claimed.slot.claim)
        found = await store.jobs.find(job.id)
        assert found is not None
        assert found.failures == 0

    async def test_a_slot_without_a_turn_is_settled_under_its_claim(self, store: Store) -> None:
        job = await add(store)
        await write(store, job, START)
        (claimed,) = await claim(store)
        settled = await store.jobs.settle(
            SettleSlot(claimed.slot.claim, SlotState.DONE, "the check found nothing")
        )
        assert (settled.state, settled.reason) == (SlotState.DONE, "the check found nothing")
        with pytest.raises(StaleFence):
            await store.jobs.settle(SettleSlot(claimed.slot.claim, SlotState.DONE))

    async def test_a_turn_outlives_its_removed_job(self, store: Store) -> None:
        job = await add(store)
        await write(store, job, START)
        (claimed,) = await claim(store)
        turn, lease = await begun(
            store, msgspec.structs.replace(accepting(binding=Binding.NEW), claim=claimed.slot.claim)
        )
        await store.jobs.remove(job.id)
        await store.commit(ending(turn, lease))
        record = await store.turn_record(turn.turn.id)
        assert record is not None
        assert (record.turn.state, record.turn.reply) == (TurnState.DONE, "hi")
        assert await store.jobs.find(job.id) is None
        assert await states(store, job) == []

    # -- overlap

    @pytest.mark.parametrize(
        ("overlap", "left"), [(Overlap.SKIP, "skipped"), (Overlap.QUEUE, "due"), (Overlap.REPLACE, "running")]
    )
    async def test_a_slot_that_comes_while_one_runs_follows_its_plan(
        self, store: Store, clock: FakeClock, overlap: Overlap, left: str
    ) -> None:
        job = await add(store, overlap=overlap)
        await write(store, job, START, START + 60)
        (first,) = await claim(store)
        await accept(store, first.slot.claim)
        clock.advance(60)
        claimed = await claim(store)
        assert [state for _, state, _ in await states(store, job)] == ["running", left]
        replaced = [slot.instant for one in claimed for slot in one.replaces]
        assert replaced == ([START] if overlap is Overlap.REPLACE else [])

    async def test_a_slot_that_comes_while_one_waits_to_begin_is_skipped(
        self, store: Store, clock: FakeClock
    ) -> None:
        job = await add(store)
        await write(store, job, START, START + 60)
        clock.advance(60)
        assert await claim(store, 0) == []
        assert (await states(store, job))[1] == (60, "skipped", "an earlier run still waited to begin")

    async def test_slots_that_were_missed_together_run_one_after_the_other(self, store: Store) -> None:
        job = await add(store)
        slots = tuple(NewSlot(START - n, START) for n in (3, 2, 1))
        await store.jobs.advance([AdvanceJob(job.id, 1, START, START + 60, slots)])
        ran = []
        for _ in slots:
            (claimed,) = await claim(store)
            ran.append(claimed.slot.instant - START)
            await end(store, claimed.slot.claim)
        assert ran == [-3, -2, -1]

    @pytest.mark.parametrize("missed", [Missed.ALL, Missed.ONCE])
    async def test_slots_that_a_killed_gateway_left_to_the_next_are_not_skipped(
        self, store: Store, clock: FakeClock, missed: Missed
    ) -> None:
        job = await add(store, missed=missed)
        for number, instant in enumerate((START, START + 60)):
            clock.advance(300)
            slots = (NewSlot(instant, START + 300 * (number + 1)),)
            await store.jobs.advance([AdvanceJob(job.id, 1, instant, instant + 60, slots)])
        assert len(await claim(store)) == 1
        left = (await states(store, job))[1][1]
        assert left == ("due" if missed is Missed.ALL else "skipped")

    # -- runs on request, waits for processes

    async def test_a_person_can_run_a_job_now(self, store: Store) -> None:
        job = await add(store)
        slot = await store.jobs.fire(job.id, START + 0.5, is_manual=True)
        assert slot is not None
        assert (slot.state, slot.is_manual) == (SlotState.DUE, True)
        assert await store.jobs.fire(job.id, START + 0.5, is_manual=True) == slot
        assert len(await claim(store)) == 1
        with pytest.raises(NotFound):
            await store.jobs.fire(JobId("job_none"), START, is_manual=True)

    async def test_a_job_that_waits_for_a_process_fires_once(self, store: Store) -> None:
        job = await add(store, schedule=AfterProcess(SessionId("ses_1"), "p1"))
        assert [one.id for one in await store.jobs.awaiting(10)] == [job.id]
        assert await store.jobs.fire(job.id, START) is not None
        assert await store.jobs.fire(job.id, START + 1) is None
        assert await store.jobs.awaiting(10) == []
        assert len(await claim(store)) == 1

    # -- forgetting

    async def test_old_slots_are_forgotten_but_for_the_last_one(self, store: Store, clock: FakeClock) -> None:
        job, done = await add(store), await add(store)
        slots = tuple(NewSlot(START + n, START, "missed") for n in range(3))
        await store.jobs.advance([AdvanceJob(job.id, 1, START, START + 60, slots)])
        await write(store, done, START)
        (claimed,) = await claim(store)
        await end(store, claimed.slot.claim)
        assert await store.jobs.prune(START) == 0
        clock.advance(100)
        assert await store.jobs.prune(START + 1) == 2
        assert [instant for instant, _, _ in await states(store, job)] == [2]
        assert await store.jobs.find(done.id) is None, "a job that is done goes with its slots"
        assert await store.jobs.find(job.id) is not None

    async def test_the_bell_rings_when_the_scheduler_should_look(self, store: Store) -> None:
        heard: list[int] = []
        stop = store.jobs.bell.watch(lambda: heard.append(1))
        job = await add(store)
        await store.jobs.fire(job.id, START, is_manual=True)
        assert len(heard) == 2
        stop()
        await store.jobs.edit(EditJob(job.id, 1, job.plan, JobState.PAUSED, None))
        assert len(heard) == 2
