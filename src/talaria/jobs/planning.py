"""Which slots a job owes: those that are due, those that were missed, and the next instant. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from hashlib import blake2b
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import msgspec

from talaria.core.ids import JobId
from talaria.core.jobs import JITTER, AdvanceJob, At, EditJob, Job, JobPlan, Missed, NewSlot
from talaria.core.units import format_duration
from talaria.jobs.schedules import instants, local_instant, next_instant
from talaria.jobs.zones import is_zone

GRACE = 120.0  # seconds; a slot that is no older has not been missed
_MOST_AT_ONCE = 500  # slots of one job that are written in one order

TOGETHER = ", and so were the runs after it"
_REPLACED = "it was missed, and a later run stands for it"
_NOT_WANTED = "it was missed, and missed runs of this job are skipped"


def zone_of(plan: JobPlan, agent_zone: tzinfo) -> tzinfo:
    """Return the time zone of a job: its own, or the agent's if it has none or this machine lacks its own."""
    return ZoneInfo(plan.zone) if plan.zone and not is_lost(plan) else agent_zone


def is_lost(plan: JobPlan) -> bool:
    """Return whether this machine does not know the time zone of the job."""
    return bool(plan.zone) and not is_zone(plan.zone)


def plan_slots(jobs: Sequence[Job], now: float, late: timedelta, agent_zone: tzinfo) -> list[AdvanceJob]:
    """Return the slots of jobs whose next instant has come. Jobs that come together are spread a little."""
    together = Counter(job.next_at for job in jobs)
    plans = []
    for job in jobs:
        is_alone = together[job.next_at] == 1 or job.plan.is_reminder
        put_off = 0.0 if is_alone else jitter(job.id)
        plans.append(plan_job(job, zone_of(job.plan, agent_zone), now, late, put_off))
    return plans


def jitter(job_id: JobId) -> float:
    """Return by how many seconds the slots of this job are put off, always the same for a job."""
    share = int.from_bytes(blake2b(job_id.encode(), digest_size=4).digest(), "big") / 2**32
    return round(share * JITTER, 3)


def plan_job(job: Job, zone: tzinfo, now: float, late: timedelta, put_off: float = 0.0) -> AdvanceJob:
    """Return the slots of one job up to now, and its next instant.

    If very many were missed, only the first of them are returned, and the next instant has passed already.
    Instants that are older than `late` by then are told in one row.
    """
    assert job.next_at is not None
    first, schedule = job.next_at, job.plan.schedule
    coming = takewhile(lambda instant: instant <= now, instants(schedule, zone, first))
    passed = [first, *islice(coming, _MOST_AT_ONCE)]
    then_at = next_instant(schedule, zone, passed[-1])
    if then_at is not None and then_at <= now:
        oldest = now - late.total_seconds()
        if then_at < oldest:
            # They are all too old, and so are those behind them up to the limit.
            then_at = next_instant(schedule, zone, oldest - 1)
            reason = f"{_too_old(late)}{TOGETHER}"
            return AdvanceJob(job.id, job.version, first, then_at, (NewSlot(first, first, reason),))
        slots = [_missed(job, instant, now, late, is_last=False) for instant in passed]
        return AdvanceJob(job.id, job.version, first, then_at, tuple(slots))
    slots = [_missed(job, instant, now, late, is_last=False) for instant in passed[:-1]]
    slots.append(_last(job, passed[-1], now, late, put_off if len(passed) == 1 else now - passed[-1]))
    return AdvanceJob(job.id, job.version, first, then_at, tuple(slots))


def _missed(job: Job, instant: float, now: float, late: timedelta, *, is_last: bool) -> NewSlot:
    """Return a slot of the past. Those that run together are due at the same time, now."""
    if now - instant > late.total_seconds():
        return NewSlot(instant, now, _too_old(late))
    match job.plan.missed:
        case Missed.ALL:
            return NewSlot(instant, now)
        case Missed.SKIP:
            return NewSlot(instant, now, _NOT_WANTED)
        case Missed.ONCE:
            return NewSlot(instant, now, "" if is_last else _REPLACED)


def _last(job: Job, instant: float, now: float, late: timedelta, put_off: float) -> NewSlot:
    if now - instant <= GRACE:
        return NewSlot(instant, instant + put_off)
    if job.plan.is_reminder:
        return NewSlot(instant, now)
    return _missed(job, instant, now, late, is_last=True)


def _too_old(late: timedelta) -> str:
    return f"it was missed by more than {format_duration(late)} (jobs.late)"


def replan(job: Job, agent_zone: tzinfo, now: float) -> EditJob | None:
    """Return the job with its instants by the rules of today; None if they are the same.

    The rules of a time zone change, and so does the agent's zone.
    """
    zone, schedule = zone_of(job.plan, agent_zone), job.plan.schedule
    if job.next_at is None or job.next_at <= now or is_lost(job.plan):
        return None
    if isinstance(schedule, At) and schedule.local:
        moment = local_instant(datetime.fromisoformat(schedule.local), zone)
        schedule = At(max(moment, now + 1), schedule.local)
    next_at = next_instant(schedule, zone, now)
    if next_at == job.next_at or next_at is None:
        return None
    plan = msgspec.structs.replace(job.plan, schedule=schedule)
    return EditJob(job.id, job.version, plan, job.state, next_at)
