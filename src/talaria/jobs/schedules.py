"""The instants of schedules, and the checks of schedules. Pure, but for the rules of time zones.

A cron expression means local time. At the edges of summer time it follows Debian's cron: a job at a fixed
time that does not exist on a day runs at the first minute that does; a fixed time that exists twice counts
once, the first time; a job whose minute or hour is a wildcard runs by elapsed time, so through both hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, pairwise
from typing import assert_never

from talaria.core.errors import BadRequest
from talaria.core.jobs import AfterProcess, At, Cron, Every, Schedule
from talaria.core.units import format_duration

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
