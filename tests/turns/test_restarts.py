"""The guard against restart loops."""

from __future__ import annotations

import asyncio
import logging

import pytest

from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.turns.crashes import RestartGuard, pause_before


@pytest.mark.parametrize(
    ("ages", "seconds"),
    [
        ([], 0),
        ([5, 3], 0),
        ([9, 6, 3], 1),
        ([12, 9, 6, 3], 2),
        ([15, 12, 9, 6, 3], 4),
        ([1] * 20, 60),
        ([700, 650, 601, 9, 3], 0),
        ([600, 600, 600], 0),
        ([599, 599, 599], 1),
        ([0, 0, 0], 1),
        ([-5, -5, -5], 0),
    ],
)
def test_pause_grows_with_bad_starts_in_the_last_ten_minutes(ages: list[float], seconds: float) -> None:
    assert pause_before([10_000.0 - age for age in ages], 10_000.0, 60) == seconds


async def test_fourth_start_in_a_row_waits_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    for _ in range(3):
        assert await RestartGuard(store, clock, 60).seconds() == 0
        await RestartGuard(store, clock, 60).enter()
    guard = RestartGuard(store, clock, 60)
    assert guard.trouble() is None
    with caplog.at_level(logging.WARNING, "talaria.restarts"):
        waiting = asyncio.create_task(guard.wait(await guard.seconds()))
        await clock.until_sleepers(1)
        assert "the last 3 starts within ten minutes did not end cleanly" in caplog.text
        assert "messages are accepted" in (guard.trouble() or "")
        clock.advance(1)
        await waiting
    assert guard.trouble() is None


async def test_a_start_that_ends_in_its_pause_does_not_count() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    for _ in range(3):
        await RestartGuard(store, clock, 60).enter()
    for _ in range(10):
        guard = RestartGuard(store, clock, 60)
        assert await guard.seconds() == 1
        killed = asyncio.create_task(guard.wait(1))
        await clock.until_sleepers(1)
        killed.cancel()
        await asyncio.wait([killed])


async def test_clean_end_forgets() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    for _ in range(10):
        guard = RestartGuard(store, clock, 60)
        assert await guard.seconds() == 0
        await guard.enter()
        await guard.leave()


async def test_unreadable_note_is_no_obstacle() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    await store.set_cursor("restarts", "nonsense")
    assert await RestartGuard(store, clock, 60).seconds() == 0
    await RestartGuard(store, clock, 60).enter()


async def test_no_pause_is_made_where_none_is_wanted() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    for _ in range(10):
        assert await RestartGuard(store, clock, 0).seconds() == 0
        await RestartGuard(store, clock, 0).enter()
