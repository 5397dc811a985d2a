"""Which slots a job owes: due, missed, and spread when jobs come together."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest

from talaria.core.ids import ChatKey, JobId
from talaria.core.jobs import (
    JITTER,
    AdvanceJob,
    At,
    Cron,
    Every,
    Job,
    JobOrigin,
    JobPlan,
    JobState,
    Missed,
    Schedule,
)
from talaria.core.turns import Sender
from talaria.jobs.schedules import jitter, plan_job, plan_slots, replan

BERLIN = ZoneInfo("Europe/Berlin")
LATE = timedelta(hours=12)
HOUR = 3600.0
NINE = datetime(2026, 11, 16, 9, tzinfo=BERLIN).timestamp()


def job_of(
    schedule: Schedule, next_at: float, missed: Missed = Missed.ONCE, *, name: str = "1", **plan: object
) -> Job:
    made = msgspec.structs.replace(JobPlan("water", schedule, "", missed=missed), **plan)
    origin = JobOrigin("ada", ChatKey("agent:main:http:api:home"), Sender("u1"))
    return Job(JobId(f"job_{name}"), origin, made, JobState.ACTIVE, 0.0, next_at)


def hourly(missed: Missed = Missed.ONCE) -> Job:
    return job_of(Cron("0 * * * *"), NINE, missed)


def told(plan: AdvanceJob) -> list[tuple[float, str]]:
    """Hours behind nine, and the first words of the reason; an empty one for a slot that runs."""
    return [((slot.instant - NINE) / HOUR, " ".join(slot.skipped.split()[:4])) for slot in plan.slots]


def test_a_slot_in_time_is_due_at_its_instant() -> None:
    plan = plan_job(hourly(), BERLIN, NINE + 1, LATE)
    assert [(slot.instant, slot.due_at, slot.skipped) for slot in plan.slots] == [(NINE, NINE, "")]
    assert plan.then_at == NINE + HOUR


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        (Missed.ONCE, [(0, "it was missed, and"), (1, "it was missed, and"), (2, "")]),
        (Missed.SKIP, [(0, "it was missed, and"), (1, "it was missed, and"), (2, "it was missed, and")]),
        (Missed.ALL, [(0, ""), (1, ""), (2, "")]),
    ],
)
def test_slots_that_were_missed_follow_the_plan(missed: Missed, expected: list[tuple[float, str]]) -> None:
    assert told(plan_job(hourly(missed), BERLIN, NINE + 2.5 * HOUR, LATE)) == expected


@pytest.mark.parametrize("missed", Missed)
def test_a_slot_that_has_just_come_runs_whatever_was_missed(missed: Missed) -> None:
    slots = told(plan_job(hourly(missed), BERLIN, NINE + 2 * HOUR + 60, LATE))
    assert slots[-1] == (2, "")


@pytest.mark.parametrize("missed", Missed)
def test_a_slot_that_is_too_old_is_skipped_and_says_so(missed: Missed) -> None:
    daily = job_of(Cron("0 9 * * *"), NINE, missed)
    plan = plan_job(daily, BERLIN, NINE + 13 * HOUR, LATE)
    assert [slot.skipped for slot in plan.slots] == ["it was missed by more than 12h (jobs.late)"]
    assert plan.then_at == NINE + 24 * HOUR


def test_a_reminder_comes_however_late() -> None:
    reminder = job_of(At(NINE), NINE, is_reminder=True)
    plan = plan_job(reminder, BERLIN, NINE + 100 * HOUR, LATE)
    assert (told(plan), plan.then_at) == ([(0, "")], None)


def test_missed_slots_that_run_together_are_due_together() -> None:
    plan = plan_job(hourly(Missed.ALL), BERLIN, NINE + 2 * HOUR + 30, LATE, put_off=20)
    assert {slot.due_at for slot in plan.slots} == {NINE + 2 * HOUR + 30}


def test_very_many_missed_slots_are_told_in_few_rows() -> None:
    job = job_of(Every(60, NINE), NINE)
    now, rows, runs = NINE + 300 * 24 * HOUR, 0, []
    for _ in range(10):
        plan = plan_job(job, BERLIN, now, LATE)
        rows += len(plan.slots)
        runs += [slot for slot in plan.slots if not slot.skipped]
        assert plan.then_at is not None
        job = msgspec.structs.replace(job, next_at=plan.then_at)
        if plan.then_at > now:
            break
    assert plan.then_at == now + 60
    assert [slot.instant for slot in runs] == [now]
    assert rows < 1000


def test_jobs_that_come_together_are_spread_and_each_keeps_its_place() -> None:
    jobs = [job_of(Cron("0 9 * * *"), NINE, name=str(n)) for n in range(100)]
    put_off = [round(plan.slots[0].due_at - NINE, 3) for plan in plan_slots(jobs, NINE, LATE, BERLIN)]
    assert put_off == [jitter(job.id) for job in jobs]
    assert 0 <= min(put_off) < 5
    assert JITTER - 5 < max(put_off) <= JITTER
    (alone,) = plan_slots(jobs[:1], NINE, LATE, BERLIN)
    assert alone.slots[0].due_at == NINE


def test_a_job_follows_new_rules_of_its_zone() -> None:
    """The stored instants are those of rules by which Berlin is an hour off."""
    daily = job_of(Cron("0 9 * * *"), NINE + HOUR)
    edit = replan(daily, BERLIN, NINE - HOUR)
    assert edit is not None
    assert edit.next_at == NINE
    once = job_of(At(NINE + HOUR, "2026-11-16T09:00:00"), NINE + HOUR)
    edit = replan(once, BERLIN, NINE - HOUR)
    assert edit is not None
    assert (edit.next_at, edit.plan.schedule) == (NINE, At(NINE, "2026-11-16T09:00:00"))
    assert replan(job_of(Cron("0 9 * * *"), NINE), BERLIN, NINE - HOUR) is None
    assert replan(job_of(Every(600, NINE - 600), NINE), BERLIN, NINE - 60) is None
