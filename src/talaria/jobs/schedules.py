"""The instants of schedules, and the checks of schedules. Pure, but for the rules of time zones.

A cron expression means local time. At the edges of summer time it follows Debian's cron: a job at a fixed
time that does not exist on a day runs at the first minute that does; a fixed time that exists twice counts
once, the first time; a job whose minute or hour is a wildcard runs by elapsed time, so through both hours.
"""

from __future__ import annotations

import os
import zoneinfo
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from hashlib import blake2b
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import assert_never
from zoneinfo import ZoneInfo

import msgspec

from talaria.core.errors import BadRequest
from talaria.core.ids import JobId
from talaria.core.jobs import (
    JITTER,
    AdvanceJob,
    AfterProcess,
    At,
    Cron,
    EditJob,
    Every,
    Job,
    JobPlan,
    Missed,
    NewSlot,
    Schedule,
)
from talaria.core.text import did_you_mean
from talaria.core.units import format_duration

# -- time zones: by name, the machine's own, and the version of their rules -------------------------------


_LOCALTIME = Path("/etc/localtime")


def find_zone(name: str) -> ZoneInfo:
    """Raise `BadRequest`, with the nearest name, for a zone that does not exist."""
    if is_zone(name):
        return ZoneInfo(name)
    hint = did_you_mean(name, zoneinfo.available_timezones(), 'Name one such as "Europe/Berlin" or "UTC".')
    raise BadRequest(f"There is no time zone {name!r}.", hint)


def is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def agent_zone(name: str) -> tzinfo:
    """Return the zone of `agent.timezone`: the machine's if it is empty."""
    return ZoneInfo(name) if name else machine_zone()


@lru_cache(maxsize=1)
def machine_zone() -> tzinfo:
    """Return the machine's time zone with its rules for the whole year: UTC if it has none."""
    for name in (os.environ.get("TZ", "").lstrip(":"), _name_of(_LOCALTIME)):
        if name and is_zone(name):
            return ZoneInfo(name)
    try:
        with _LOCALTIME.open("rb") as file:
            return ZoneInfo.from_file(file, "local")
    except (OSError, ValueError):
        return ZoneInfo("UTC")


def _name_of(path: Path) -> str:
    """Return the name of the zone that a link leads to, or an empty text."""
    try:
        return str(path.resolve()).partition("zoneinfo/")[2] if path.is_symlink() else ""
    except OSError:
        return ""


def zone_name(zone: tzinfo) -> str:
    return getattr(zone, "key", None) or str(zone)


def rules_version() -> str:
    """Return a text that changes when the machine's rules of time zones do. They are read once by each
    process."""
    for folder in zoneinfo.TZPATH:
        try:
            with Path(folder, "tzdata.zi").open() as file:
                return file.readline().strip()
        except OSError:
            continue
    from importlib import metadata  # noqa: PLC0415 - only where the system has no rules

    try:
        return metadata.version("tzdata")
    except metadata.PackageNotFoundError:
        return "unknown"


# -- the instants of schedules, and the checks of schedules -----------------------------------------------


_FAR = timedelta(days=366 * 5)  # a one-time job is at most so far away
_LOOKED_AT = 100  # instants of a cron expression are compared to find its shortest interval
_FIELDS = 5
_EXAMPLE = 'An example: "0 9 * * 1-5" is nine o\'clock on weekdays (minute, hour, day, month, weekday).'


def instants(schedule: Schedule, zone: tzinfo, after: float) -> Iterator[float]:
    """Yield the instants later than `after`, in order. A cron expression must have been checked."""
    match schedule:
        case Cron():
            yield from _cron_instants(schedule.expression, zone, after)
        case Every():
            passed = max(1, int((after - schedule.since) // schedule.seconds) + 1)
            while True:
                instant = schedule.since + passed * schedule.seconds
                passed += 1
                if instant > after:
                    yield instant
        case At():
            if schedule.instant > after:
                yield schedule.instant
        case AfterProcess():
            return
        case _:
            assert_never(schedule)


def _cron_instants(expression: str, zone: tzinfo, after: float) -> Iterator[float]:
    from cronsim import CronSim  # noqa: PLC0415 - with the first job

    try:
        for moment in CronSim(expression, datetime.fromtimestamp(after, zone)):
            # A gap can bring two local times to the same instant, or to one that has passed.
            instant = moment.timestamp()
            if instant > after:
                yield instant
                after = instant
    except OverflowError:  # the last year that the calendar has
        return


def next_instant(schedule: Schedule, zone: tzinfo, after: float) -> float | None:
    return next(instants(schedule, zone, after), None)


def local_instant(moment: datetime, zone: tzinfo) -> float:
    """Return the instant of a local time. For one that does not exist it is the first minute that does, for
    one that exists twice it is the first of the two."""
    while True:
        instant = moment.replace(tzinfo=zone, fold=0).timestamp()
        if datetime.fromtimestamp(instant, zone).replace(tzinfo=None) == moment:
            return instant
        moment = (moment + timedelta(minutes=1)).replace(second=0, microsecond=0)


def check_schedule(schedule: Schedule, zone: tzinfo, now: float, shortest: timedelta) -> None:
    """Raise `BadRequest` for a schedule that is wrong, never comes, or comes too often."""
    match schedule:
        case Cron():
            _check_cron(schedule, zone, now, shortest)
        case Every():
            _check_interval(schedule.seconds, shortest)
        case At():
            if schedule.instant <= now:
                when = show_instant(schedule.instant, zone)
                raise BadRequest(f"{when} has passed already.", "Name a time that is still to come.")
            if schedule.instant > now + _FAR.total_seconds():
                raise BadRequest("That is more than five years away.", "Name a nearer time.")
        case AfterProcess():
            pass
        case _:
            assert_never(schedule)


def _check_cron(schedule: Cron, zone: tzinfo, now: float, shortest: timedelta) -> None:
    from cronsim import CronSim, CronSimError  # noqa: PLC0415

    expression = schedule.expression
    fields = len(expression.split())
    if fields != _FIELDS:
        raise BadRequest(f"A cron expression has 5 fields, and {expression!r} has {fields}.", _EXAMPLE)
    try:
        CronSim(expression, datetime.fromtimestamp(now, zone))
    except CronSimError as error:
        if _is_impossible_day(expression):
            raise BadRequest(
                f"{expression!r} names a day that no month of it has, such as 31 February.",
                "For the last day of a month, write L as the day.",
            ) from None
        what = str(error).removeprefix("Bad ")
        raise BadRequest(f"The {what} of {expression!r} is not one that cron knows.", _EXAMPLE) from None
    coming = list(islice(instants(schedule, zone, now), _LOOKED_AT))
    if not coming:
        raise BadRequest(f"{expression!r} never comes.", "Look at the day and the month: no date has both.")
    gaps = [later - earlier for earlier, later in pairwise(coming)]
    if gaps:
        _check_interval(min(gaps), shortest)


def _is_impossible_day(expression: str) -> bool:
    """Return whether the expression is right but for a day that no month of it has."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415

    minute, hour, _, *rest = expression.split()
    day = expression.split()[2]
    try:
        CronSim(" ".join((minute, hour, "1", *rest)), datetime.now(UTC))
        CronSim(" ".join((minute, hour, day, "*", rest[1])), datetime.now(UTC))
    except CronSimError:
        return False
    return True


def _check_interval(seconds: float, shortest: timedelta) -> None:
    if seconds < shortest.total_seconds():
        found = format_duration(timedelta(seconds=seconds))
        raise BadRequest(
            f"Runs would follow each other after {found}, and {format_duration(shortest)} is the shortest.",
            "Let it run less often. With a check (a command that decides whether there is anything to do) a "
            "job may run each minute; jobs.min_interval changes the limit.",
        )


# -- for people -------------------------------------------------------------------------------------------


def show_instant(instant: float, zone: tzinfo) -> str:
    """Return an instant for people to read, such as `Mon 2026-11-16 09:00 CET`."""
    moment = datetime.fromtimestamp(instant, zone)
    return moment.strftime("%a %Y-%m-%d %H:%M:%S %Z" if moment.second else "%a %Y-%m-%d %H:%M %Z")


def next_shown(schedule: Schedule, zone: tzinfo, now: float, count: int = 3) -> tuple[str, ...]:
    """Return the next instants for people to read, in the zone."""
    return tuple(show_instant(instant, zone) for instant in islice(instants(schedule, zone, now), count))


def describe_schedule(schedule: Schedule, zone: tzinfo) -> str:
    match schedule:
        case Cron():
            return f"cron {schedule.expression}"
        case Every():
            return f"every {format_duration(timedelta(seconds=schedule.seconds))}"
        case At():
            return f"at {show_instant(schedule.instant, zone)}"
        case AfterProcess():
            return f"when process {schedule.process} has ended"
        case _:
            assert_never(schedule)


# -- which slots a job owes: those that are due, those that were missed, and the next instant -------------
# Pure.


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
