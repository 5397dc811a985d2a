"""When sessions end by themselves: a table of the rule, a year of days, and what a message meets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from support.rig import chat, start
from talaria.core.clock import SystemClock
from talaria.core.ids import SessionId
from talaria.store.store import Store
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.turns.lifecycle import SessionLifecycle, reset_cutoff
from talaria.turns.settings import SessionSettings

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("reset", "daily_at", "now", "cutoff"),
    [
        ("none", "04:00", "2026-06-10T12:00", 0.0),
        ("idle", "04:00", "2026-06-10T12:00", at("2026-06-10T10:00")),
        ("daily", "04:00", "2026-06-10T12:00", at("2026-06-10T04:00")),
        ("daily", "04:00", "2026-06-10T03:59", at("2026-06-09T04:00")),
        ("daily", "04:00", "2026-06-10T04:00", at("2026-06-10T04:00")),
        ("both", "04:00", "2026-06-10T12:00", at("2026-06-10T10:00")),
        ("both", "11:00", "2026-06-10T12:00", at("2026-06-10T11:00")),
        ("daily", "02:30", "2026-03-29T12:00", at("2026-03-29T03:30")),
        ("daily", "02:30", "2026-10-25T12:00", datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()),
    ],
    ids=["never", "idle", "daily", "before it", "at it", "idle first", "daily first", "the gap", "twice"],
)
def test_the_cutoff(reset: str, daily_at: str, now: str, cutoff: float) -> None:
    settings = SessionSettings(reset, timedelta(hours=2), daily_at)  # type: ignore[arg-type]
    assert reset_cutoff(settings, at(now), BERLIN) == cutoff


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"])
@pytest.mark.parametrize("daily_at", ["00:00", "01:30", "02:30", "04:00", "23:59"])
def test_every_day_of_a_year_has_one_reset(zone: str, daily_at: str) -> None:
    settings = SessionSettings("daily", daily_at=daily_at)
    first = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
    cutoffs = [reset_cutoff(settings, first + hour * 1800, ZoneInfo(zone)) for hour in range(365 * 48)]
    assert cutoffs == sorted(cutoffs)
    assert len(set(cutoffs)) in (365, 366)
    assert all(moment <= first + hour * 1800 for hour, moment in enumerate(cutoffs))


def test_without_a_zone_it_is_the_machines() -> None:
    settings = SessionSettings("daily", daily_at="04:00")
    now = datetime(2026, 6, 10, 12).timestamp()
    assert reset_cutoff(settings, now, None) == datetime(2026, 6, 10, 4).timestamp()


async def test_an_expired_session_is_left_and_can_be_returned_to(store: Store, tmp_path: Path) -> None:
    expires = [0.0]
    async with start(store, tmp_path, cutoff=lambda now: expires[0] and now) as rig:
        first = await rig.say("remember me")
        assert (await rig.say("still the same")).session_id == first.session_id
        expires[0] = 1.0
        second = await rig.say("a new day")
        assert second.session_id != first.session_id
        expires[0] = 0.0
        assert [agent.session_id for agent in rig.pool.stats().agents] == [second.session_id]
        ended = await store.session(first.session_id)
        assert ended is not None and ended.ended_at is not None
        assert (await rig.say("/resume 1")).session_id == first.session_id
        assert (await rig.say("[[history]]")).reply == "6"


async def test_the_sweep_ends_what_nobody_uses_and_tells_once(store: Store, tmp_path: Path) -> None:
    told: list[SessionId] = []
    clock = SystemClock()
    workspaces = FakeWorkspaces(lambda key: tmp_path)
    sessions = SessionLifecycle(store, clock, workspaces, told.append, lambda: clock.now() + 1)
    async with start(store, tmp_path) as rig:
        done = await rig.say("hello", "one")
        running = await rig.submit("[[hang]]", "two")
        assert await sessions.sweep() == 1
        assert told == [done.session_id]
        await rig.turns.cancel(running)
        assert await sessions.sweep() == 1
        assert told == [done.session_id, running.turn.session_id]
        assert await sessions.sweep() == 0
    assert await SessionLifecycle(store, clock, workspaces, told.append, lambda: 0.0).sweep() == 0
    await sessions.drain()
    assert workspaces.ended == told
    assert (await store.current_session(chat("one"))) is not None
