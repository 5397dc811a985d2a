"""The closer: nobody waits for it, it never raises, and nothing stays in it for ever."""

from __future__ import annotations

import asyncio
import logging

import pytest

from talaria.core.tasks import Closer
from talaria.testing.clock import FakeClock

_log = logging.getLogger("talaria.test")


class Door:
    """Something to close: slowly, never, badly, or deaf to being cancelled."""

    def __init__(self) -> None:
        self.is_shut = asyncio.Event()
        self.was_cancelled = False

    async def shut(self) -> None:
        try:
            await self.is_shut.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    async def shut_deaf(self) -> None:
        while not self.is_shut.is_set():
            try:
                await self.is_shut.wait()
            except asyncio.CancelledError:
                self.was_cancelled = True

    async def break_down(self) -> None:
        raise OSError("the hinge broke")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def closer(clock: FakeClock) -> Closer:
    return Closer(clock, 5.0, "the door", _log)


async def test_with_nothing_to_wait_for_there_is_no_task(closer: Closer) -> None:
    before = asyncio.all_tasks()
    closer.close("a", lambda: None)
    assert asyncio.all_tasks() == before
    assert len(closer) == 0


async def test_a_slow_one_is_closed_beside_everybody(closer: Closer, clock: FakeClock) -> None:
    door = Door()
    closer.close("a", door.shut)
    assert len(closer) == 1
    await clock.play(4.9)
    door.is_shut.set()
    await closer.drain()
    assert (len(closer), closer.dropped, closer.failed, clock.sleepers) == (0, 0, 0, 0)


async def test_one_that_hangs_is_named_and_dropped_and_the_others_are_not(
    closer: Closer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, later = Door(), Door()
    closer.close("ses_hanging", hanging.shut)
    await clock.play(3)
    closer.close("ses_later", later.shut)
    await clock.play(2.1)
    assert (hanging.was_cancelled, later.was_cancelled) == (True, False)
    assert (closer.dropped, len(closer)) == (1, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "closing the door of ses_hanging took over 5 s: dropped"
    ]
    later.is_shut.set()
    await closer.drain()
    assert (closer.dropped, clock.sleepers) == (1, 0)


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_one_that_fails_is_named_and_nobody_else_hears(
    closer: Closer, caplog: pytest.LogCaptureFixture, is_at_once: bool
) -> None:
    def fail() -> None:
        raise OSError("the hinge broke")

    closer.close("ses_broken", fail if is_at_once else Door().break_down)
    await closer.drain()
    (record,) = caplog.records
    assert record.getMessage() == "closing the door of ses_broken failed"
    assert record.exc_info is not None and "hinge" in str(record.exc_info[1])
    assert (closer.failed, closer.dropped, len(closer)) == (1, 0, 0)


async def test_one_that_is_deaf_to_cancelling_holds_up_nobody(closer: Closer, clock: FakeClock) -> None:
    door = Door()
    closer.close("a", door.shut_deaf)
    draining = asyncio.create_task(closer.drain())
    await clock.play(6.1)
    assert draining.done()
    assert (door.was_cancelled, closer.dropped, len(closer)) == (True, 1, 0)
    door.is_shut.set()
    await clock.settle()


async def test_a_cancelled_drain_leaves_what_is_closed_alone(closer: Closer, clock: FakeClock) -> None:
    door = Door()
    closer.close("a", door.shut)
    draining = asyncio.create_task(closer.drain())
    await clock.settle()
    draining.cancel()
    await clock.settle()
    assert (draining.cancelled(), door.was_cancelled, len(closer)) == (True, False, 1)
    door.is_shut.set()
    await closer.drain()
