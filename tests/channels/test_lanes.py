"""Events wait for the earlier events of their chat, and are repeated only if the platform does not do so."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from talaria.channels.channel_loop import ChannelLoop
from talaria.channels.lanes import EventLanes
from talaria.core.errors import StoreError
from talaria.testing.clock import FakeClock
from talaria.turns.intake import Draining


class Lanes:
    """Lanes of a channel, with the words that its work has noted."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.lanes = EventLanes(QuietLoop(self.clock), lambda: None, self._drain)
        self.noted: list[str] = []
        self.failures = 0

    async def note(self, word: str) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreError("The disk is full.")
        self.noted.append(word)

    async def _drain(self) -> None: ...


class QuietLoop(ChannelLoop):
    name = "test"
    title = "Test"

    async def serve(self) -> NoReturn:
        raise NotImplementedError


async def test_work_that_is_done_once_raises_and_holds_up_nothing() -> None:
    case = Lanes()
    case.failures = 1
    with pytest.raises(StoreError):
        await case.lanes.do_once("chat", lambda: case.note("one"))
    await case.lanes.do_once("chat", lambda: case.note("two"))
    assert case.noted == ["two"]


async def test_work_that_is_done_once_waits_for_earlier_work() -> None:
    case = Lanes()
    case.failures = 2  # the second attempt follows at once
    case.lanes.put("chat", lambda: case.note("one"))
    later = asyncio.create_task(case.lanes.do_once("chat", lambda: case.note("two")))
    await case.clock.settle()
    assert case.noted == [] and not later.done()
    case.clock.advance(1)
    await later
    assert case.noted == ["one", "two"]


async def test_closed_lanes_refuse_the_work_that_waits() -> None:
    case = Lanes()
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(case.lanes.do_once("chat", hang))
    waiting = asyncio.create_task(case.lanes.do_once("chat", lambda: case.note("two")))
    await started.wait()
    await case.lanes.close()
    for each in (running, waiting):
        with pytest.raises(Draining):
            await each
    assert case.noted == []
