"""Instants of schedules, at both edges of summer time, against a second computation of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from talaria.core.errors import BadRequest
from talaria.core.jobs import At, Cron, Every
from talaria.jobs.schedules import (
    check_schedule,
    find_zone,
    instants,
    local_instant,
    machine_zone,
    next_instant,
    next_shown,
    rules_version,
)

BERLIN, NEW_YORK, LORD_HOWE = map(ZoneInfo, ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"))
SHORTEST = timedelta(minutes=5)


def at(zone: ZoneInfo, *moment: int, fold: int = 0) -> float:
    return datetime(*moment, tzinfo=zone, fold=fold).timestamp()  # type: ignore[misc,arg-type]


def by_minutes(zone: ZoneInfo, hour: int, minute: int, start: float, days: int) -> list[float]:
    """A fixed time of day, found by looking at every minute: the first minute of each day that shows it, or
    the first one after the gap that swallowed it."""
    found: dict[object, float] = {}
    instant = start - start % 60
    before = datetime.fromtimestamp(instant, zone)
    for _ in range(days * 1440):
        instant += 60
        local = datetime.fromtimestamp(instant, zone)
        wanted = local.replace(hour=hour, minute=minute, fold=0)
        is_behind_gap = (
            before.replace(tzinfo=None) < wanted.replace(tzinfo=None) <= local.replace(tzinfo=None)
            and before.date() == local.date()
        )
        is_it = (local.hour, local.minute) == (hour, minute)
        if (is_it or is_behind_gap) and local.date() not in found and instant > start:
            found[local.date()] = instant
        before = local
    return list(found.values())


EDGES = [
    (BERLIN, (2026, 3, 28)),
    (BERLIN, (2026, 10, 24)),
    (NEW_YORK, (2026, 3, 7)),
    (NEW_YORK, (2026, 10, 31)),
    (LORD_HOWE, (2026, 4, 4)),
    (LORD_HOWE, (2026, 10, 3)),
]


@pytest.mark.parametrize(("zone", "start"), EDGES, ids=str)
@pytest.mark.parametrize(("hour", "minute"), [(2, 30), (2, 0), (1, 45)])
def test_a_fixed_time_comes_once_a_day_over_summer_time(
    zone: ZoneInfo, start: tuple[int, int, int], hour: int, minute: int
) -> None:
    begin = at(zone, *start, 12)
    expected = by_minutes(zone, hour, minute, begin, 2)
    found = list(islice(instants(Cron(f"{minute} {hour} * * *"), zone, begin), len(expected)))
    assert found == expected


def test_a_time_that_does_not_exist_is_the_first_minute_that_does() -> None:
    shown = next_shown(Cron("30 2 * * *"), BERLIN, at(BERLIN, 2026, 3, 28, 12), 2)
    assert shown == ("Sun 2026-03-29 03:00 CEST", "Mon 2026-03-30 02:30 CEST")


def test_a_time_that_exists_twice_counts_once() -> None:
    first = at(BERLIN, 2026, 10, 25, 2, 30)
    assert next_instant(Cron("30 2 * * *"), BERLIN, at(BERLIN, 2026, 10, 24, 12)) == first
    assert next_instant(Cron("30 2 * * *"), BERLIN, first) == at(BERLIN, 2026, 10, 26, 2, 30)
    between = at(BERLIN, 2026, 10, 25, 2, 15, fold=1)
    assert next_instant(Cron("30 2 * * *"), BERLIN, between) == at(BERLIN, 2026, 10, 26, 2, 30)


def test_a_wildcard_runs_through_both_hours_and_over_the_gap() -> None:
    for day in (29, 25):
        start = at(BERLIN, 2026, 3 if day == 29 else 10, day, 0, 59)
        found = list(islice(instants(Cron("*/20 * * * *"), BERLIN, start), 15))
        assert {later - earlier for earlier, later in pairwise(found)} == {1200.0}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["0 9 * * 1-5", "30 2 * * *", "*/15 * * * *", "0 8 * * 1#1", "0 0 29 2 *", "15 1,2,3 L * *"]
    ),
    st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE]),
    st.floats(1_700_000_000, 2_000_000_000),
)
@example("30 2 * * *", BERLIN, at(BERLIN, 2026, 10, 25, 2, 30, fold=1))
def test_instants_follow_each_other_from_any_start(expression: str, zone: ZoneInfo, start: float) -> None:
    schedule = Cron(expression)
    found = list(islice(instants(schedule, zone, start), 5))
    assert found[0] > start
    assert found == sorted(set(found))
    assert [next_instant(schedule, zone, one) for one in found[:-1]] == found[1:]
    assert next_instant(schedule, zone, found[0] - 0.5) == found[0]


def test_an_interval_is_counted_from_its_beginning() -> None:
    every = Every(600, 1000.0)
    assert list(islice(instants(every, BERLIN, 0.0), 2)) == [1600.0, 2200.0]
    assert next_instant(every, BERLIN, 1600.0) == 2200.0
    assert next_instant(every, BERLIN, 2199.9) == 2200.0


def test_an_instant_comes_once() -> None:
    assert next_instant(At(50.0), BERLIN, 49.0) == 50.0
    assert next_instant(At(50.0), BERLIN, 50.0) is None


def test_a_local_time_is_the_first_of_two_and_never_in_a_gap() -> None:
    twice, never = datetime(2026, 10, 25, 2, 30), datetime(2026, 3, 29, 2, 30)
    assert local_instant(twice, BERLIN) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()
    assert local_instant(never, BERLIN) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (Cron("0 9 31 2 *"), "a day that no month of it has"),
        (Cron("0 9 30 2 *"), "a day that no month of it has"),
        (Cron("0 9 31 4,6 *"), "a day that no month of it has"),
        (Cron("61 9 * * *"), "The minute of '61 9"),
        (Cron("0 24 * * *"), "The hour of"),
        (Cron("0 9 * 13 *"), "The month of"),
        (Cron("0 9 * * FUNDAY"), "The day-of-week of"),
        (Cron("9 * *"), "has 5 fields, and '9 . .' has 3"),
        (Cron(""), "has 0"),
        (Cron("0 0 9 * * *"), "has 6"),
        (Cron("* * * * *"), "after 1m, and 5m is the shortest"),
        (Cron("0,2 9 * * *"), "after 2m, and 5m is the shortest"),
        (Cron("*/7 * * * *"), "after 4m, and 5m is the shortest"),
        (Every(60, 0.0), "after 1m, and 5m is the shortest"),
        (Every(0, 0.0), "after 0s, and 5m is the shortest"),
        (At(0.0), "has passed already"),
        (At(9e9), "more than five years away"),
    ],
)
def test_a_schedule_that_cannot_be_is_told(schedule: Cron | Every | At, told: str) -> None:
    with pytest.raises(BadRequest, match=told) as caught:
        check_schedule(schedule, BERLIN, at(BERLIN, 2026, 11, 17), SHORTEST)
    assert caught.value.hint


def test_a_leap_day_is_no_mistake() -> None:
    check_schedule(Cron("0 9 29 2 *"), BERLIN, at(BERLIN, 2026, 11, 17), SHORTEST)


def test_an_unknown_zone_is_told_with_the_nearest_name() -> None:
    with pytest.raises(BadRequest, match="no time zone 'Europe/Belin'") as caught:
        find_zone("Europe/Belin")
    assert caught.value.hint == "Did you mean Europe/Berlin?"
    for name in ("../etc/passwd", "/etc/localtime", ""):
        with pytest.raises(BadRequest):
            find_zone(name)


def test_the_machine_has_a_zone_and_a_version_of_the_rules() -> None:
    assert datetime.fromtimestamp(0, machine_zone()).utcoffset() is not None
    assert rules_version()
