"""The scheduler on a fake clock: it claims before it runs, and sleeps until the next instant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest

from talaria.core.errors import ToolError
from talaria.core.ids import ChatKey, OwnerId, new_job_id, new_session_id, new_turn_id
from talaria.core.jobs import (
    AddJob,
    ClaimedSlot,
    Cron,
    EditJob,
    Every,
    Job,
    JobOrigin,
    JobPlan,
    JobState,
    Missed,
    Schedule,
)
from talaria.core.ledger import Accept, Binding, Fresh, Page, TurnEnd
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.jobs.scheduler import TICK_SECONDS, Scheduler, replan_all
from talaria.jobs.schedules import next_instant
from talaria.jobs.settings import JobSettings
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock

BERLIN = ZoneInfo("Europe/Berlin")
NINE = datetime(2026, 11, 16, 9, tzinfo=BERLIN).timestamp()
CHAT = ChatKey("agent:main:http:api:home")
HOUR = 3600.0


class LedgerRunner:
    """Runs a slot as a turn that is accepted and settled at once."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.ran: list[float] = []
        self.before_accept: Callable[[ClaimedSlot], None] = lambda claimed: None
        self.hold: asyncio.Event | None = None

    async def start(self, claimed: ClaimedSlot) -> None:
        self.before_accept(claimed)
        if self.hold is not None:
            await self.hold.wait()
        slot = claimed.slot
        inbound = Inbound(CHAT, Sender("job"), (Text(claimed.job.plan.text),), is_unattended=True)
        order = Accept(
            new_turn_id(), inbound, Fresh(new_session_id(), None), binding=Binding.NEW, claim=slot.claim
        )
        accepted = await self._store.accept(order)
        self.ran.append(slot.instant)
        await self._store.settle(accepted.turn.id, TurnEnd(TurnState.DONE))
        self._store.jobs.bell.ring()


class SchedulerRig:
    def __init__(self, now: float) -> None:
        self.clock = FakeClock(now)
        self.store = MemoryStore(self.clock)
        self.runner = LedgerRunner(self.store)
        self.settings = JobSettings()
        self.batch_seconds = 0.0  # that pass while a batch of slots is planned
        self.sheds = False

    def scheduler(self) -> Scheduler:
        return Scheduler(
            self.store.jobs,
            self.runner.start,
            self.clock,
            OwnerId("own_me"),
            settings=self._read_settings,
            zone=BERLIN,
            sheds=lambda: self.sheds,
        )

    def _read_settings(self) -> JobSettings:
        self.clock.advance(self.batch_seconds)
        return self.settings

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.scheduler().run())
        await self.clock.settle()
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def add(self, schedule: Schedule | None = None, **plan: object) -> Job:
        made = msgspec.structs.replace(JobPlan("water", schedule or Cron("0 * * * *"), ""), **plan)
        next_at = next_instant(made.schedule, BERLIN, self.clock.now())
        return await self.store.jobs.add(
            AddJob(new_job_id(), JobOrigin("ada", CHAT, Sender("u1")), made, next_at, 1000)
        )

    async def states(self, job: Job) -> list[tuple[float, str]]:
        page = await self.store.jobs.slots(job.id, Page(100))
        return [((slot.instant - NINE) / HOUR, slot.state.value) for slot in page.items[::-1]]


@pytest.fixture
def world() -> SchedulerRig:
    return SchedulerRig(NINE - 1800)


async def test_a_job_runs_at_its_instants(world: SchedulerRig) -> None:
    async with world.running():
        job = await world.add()
        await world.clock.play(3 * HOUR)
    assert world.runner.ran == [NINE, NINE + HOUR, NINE + 2 * HOUR]
    assert await world.states(job) == [(0, "done"), (1, "done"), (2, "done")]


async def test_a_slot_is_claimed_before_it_is_dispatched(world: SchedulerRig) -> None:
    seen: list[str] = []
    world.runner.before_accept = lambda claimed: seen.append(claimed.slot.state.value)
    async with world.running():
        await world.add()
        await world.clock.play(HOUR)
    assert seen == ["running"]


async def test_what_was_missed_is_caught_up_at_start(world: SchedulerRig) -> None:
    job = await world.add()
    world.clock.advance(4 * HOUR)
    async with world.running():
        await world.clock.settle()
    assert world.runner.ran == [NINE + 3 * HOUR]
    assert await world.states(job) == [(0, "skipped"), (1, "skipped"), (2, "skipped"), (3, "done")]


async def test_missed_slots_that_are_planned_in_several_batches_all_run(world: SchedulerRig) -> None:
    await world.add(Every(20, NINE), missed=Missed.ALL)
    world.clock.advance(7 * HOUR)
    world.batch_seconds = 1.0
    async with world.running():
        while (await world.store.jobs.counts()).slots:
            await world.clock.play(2)
    assert world.runner.ran[:1170] == [NINE + 20 * number for number in range(1, 1171)]


async def test_all_missed_slots_run_in_their_order(world: SchedulerRig) -> None:
    await world.add(missed=Missed.ALL)
    world.clock.advance(3 * HOUR)
    async with world.running():
        await world.clock.play(60)
    assert world.runner.ran == [NINE, NINE + HOUR, NINE + 2 * HOUR]


async def test_a_clock_that_jumps_forward_is_noticed(world: SchedulerRig) -> None:
    async with world.running():
        await world.add()
        await world.clock.settle()
        world.clock.set_wall(2 * HOUR)
        await world.clock.play(TICK_SECONDS)
    assert world.runner.ran == [NINE + HOUR]


async def test_a_clock_that_is_set_back_neither_repeats_nor_loses_a_slot(world: SchedulerRig) -> None:
    async with world.running():
        job = await world.add()
        await world.clock.play(HOUR)
        world.clock.set_wall(-HOUR)  # half past eight again
        await world.clock.play(3 * HOUR)
    assert world.runner.ran == [NINE, NINE + HOUR, NINE + 2 * HOUR]
    assert [state for _, state in await world.states(job)] == ["done"] * 3


async def test_slots_that_a_wrong_clock_skipped_run_when_they_come(world: SchedulerRig) -> None:
    async with world.running():
        job = await world.add(Cron("0 9 * * *"))
        await world.clock.settle()
        world.clock.set_wall(50 * HOUR)
        await world.clock.play(TICK_SECONDS)
        assert world.runner.ran == [NINE + 48 * HOUR], "by that clock it is the last of three"
        world.clock.set_wall(-50 * HOUR)
        for day in range(4):
            await world.clock.play(60)
            world.clock.advance(NINE + day * 24 * HOUR - world.clock.now())
            await world.clock.play(60)
    assert sorted(world.runner.ran) == [NINE + day * 24 * HOUR for day in range(4)]
    assert len(await world.states(job)) == 4


async def test_two_schedulers_run_a_slot_once(world: SchedulerRig) -> None:
    async with world.running(), world.running():
        await world.add()
        await world.clock.play(3 * HOUR)
    assert world.runner.ran == [NINE, NINE + HOUR, NINE + 2 * HOUR]


async def test_a_run_that_takes_long_to_begin_keeps_its_claim(world: SchedulerRig) -> None:
    world.runner.hold = asyncio.Event()
    async with world.running(), world.running():
        job = await world.add()
        await world.clock.play(HOUR)
        assert await world.states(job) == [(0, "running")]
        world.runner.hold.set()
        await world.clock.play(60)
    assert world.runner.ran == [NINE]


async def test_a_run_that_has_not_begun_is_given_back_at_shutdown(world: SchedulerRig) -> None:
    world.runner.hold = asyncio.Event()
    job = await world.add()
    async with world.running():
        await world.clock.play(HOUR)
    assert await world.states(job) == [(0, "due")]
    world.runner.hold = None
    async with world.running():
        await world.clock.settle()
    assert world.runner.ran == [NINE]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ToolError("The chat is gone."), "The chat is gone."),
        (RuntimeError("a bug"), "an error of the gateway, see its log"),
    ],
)
async def test_a_run_that_cannot_begin_fails_with_the_reason(
    world: SchedulerRig, error: Exception, reason: str
) -> None:
    def refuse(claimed: ClaimedSlot) -> None:
        raise error

    world.runner.before_accept = refuse
    job = await world.add()
    async with world.running():
        await world.clock.play(HOUR)
    (slot,) = (await world.store.jobs.slots(job.id, Page())).items
    assert (slot.state, slot.reason) == ("failed", reason)


async def test_work_that_can_wait_waits_while_the_loop_lags(world: SchedulerRig) -> None:
    world.sheds = True
    async with world.running():
        await world.add()
        world.clock.advance(1790)
        await world.clock.play(20)
        assert world.runner.ran == []
        world.sheds = False
        await world.clock.play(10)
        assert world.runner.ran == [NINE]


async def test_idle_jobs_are_not_looked_at(world: SchedulerRig) -> None:
    """A scheduler with hundreds of jobs for next year asks the store a few times an hour, for one time."""
    year = next_instant(Cron("0 0 1 1 *"), BERLIN, NINE)
    assert year is not None
    for _ in range(300):
        await world.add(Cron("0 0 1 1 *"))
    asked: list[str] = []
    jobs = world.store.jobs

    class Counting:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            return getattr(jobs, name)

    scheduler = world.scheduler()
    scheduler._jobs = Counting()  # type: ignore[assignment]
    task = asyncio.create_task(scheduler.run())
    await world.clock.play(HOUR)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asked.count("next_due") <= 14
    assert asked.count("advance") == 0


async def test_all_jobs_follow_when_the_rules_of_zones_change(world: SchedulerRig) -> None:
    world.store.jobs.bell.ring()
    job = await world.add(Cron("0 12 * * *"))
    await world.add(Every(3600, NINE))
    utc = ZoneInfo("UTC")
    assert await replan_all(world.store.jobs, world.clock, utc) == 1
    moved = await world.store.jobs.find(job.id)
    assert moved is not None
    assert moved.next_at == NINE + 4 * HOUR
    assert await replan_all(world.store.jobs, world.clock, utc) == 0


async def test_a_job_that_is_edited_while_the_rules_change_keeps_the_edit(world: SchedulerRig) -> None:
    jobs, utc = world.store.jobs, ZoneInfo("UTC")
    edited = await world.add(Cron("0 12 * * *"))
    other = await world.add(Cron("0 12 * * *"))

    class EditedMeanwhile:
        listing = jobs.listing

        async def edit(self, edit: EditJob) -> Job:
            if edit.id == edited.id:
                await jobs.edit(msgspec.structs.replace(edit, next_at=NINE + HOUR))
            return await jobs.edit(edit)

    assert await replan_all(EditedMeanwhile(), world.clock, utc) == 1  # type: ignore[arg-type]
    found = [await jobs.find(job.id) for job in (edited, other)]
    assert [job and job.next_at for job in found] == [NINE + HOUR, NINE + 4 * HOUR]


async def test_a_job_whose_zone_this_machine_lacks_is_paused_and_holds_up_no_other(
    world: SchedulerRig,
) -> None:
    lost = await world.add(zone="Mars/Olympus")
    async with world.running():
        job = await world.add()
        await world.clock.play(HOUR)
    assert await world.states(job) == [(0, "done")]
    paused = await world.store.jobs.find(lost.id)
    assert paused is not None
    assert (paused.state, paused.reason) == (JobState.PAUSED, "this machine has no time zone 'Mars/Olympus'")
