"""The fake clock moves only when it is told to."""

from __future__ import annotations

import asyncio

import pytest

from talaria.core.clock import Clock
from talaria.testing.clock import FakeClock


async def test_sleepers_wake_in_the_order_of_their_moments() -> None:
    clock = FakeClock()
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("b2", 2.0)):
            group.create_task(sleeper(name, seconds))
        await clock.until_sleepers(4)
        clock.advance(0.5)
        await clock.settle()
        assert woken == []
        clock.advance(10)
    assert woken == ["a", "b", "b2", "c"]
    assert clock.sleepers == 0


async def test_both_clocks_move() -> None:
    clock: FakeClock = FakeClock(now=1000.0)
    port: Clock = clock
    clock.advance(5)
    assert (port.now(), port.elapsed()) == (1005.0, 5.0)


async def test_playing_lets_a_loop_go_round() -> None:
    clock = FakeClock()
    moments: list[float] = []

    async def ticker() -> None:
        while True:
            await clock.sleep(10)
            moments.append(clock.elapsed())

    task = asyncio.create_task(ticker())
    await clock.play(35)
    assert moments == [10, 20, 30]
    assert clock.elapsed() == 35
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock.sleepers == 0


async def test_no_time_is_only_a_yield() -> None:
    clock = FakeClock()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert clock.elapsed() == 0
