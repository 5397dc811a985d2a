"""Permits: so many calls at once, and sessions that wait take turns."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from talaria.models.permits import Permits
from talaria.testing import sim


class Desk:
    """Calls that hold a permit until they are told to end."""

    def __init__(self, permits: Permits) -> None:
        self.permits = permits
        self.served: list[str] = []
        self.calls: list[asyncio.Task[None]] = []
        self._ends: list[asyncio.Event] = []

    async def _hold(self, session: str) -> None:
        async with self.permits.held(session):
            self.served.append(session)
            end = asyncio.Event()
            self._ends.append(end)
            await end.wait()

    async def call(self, session: str, times: int = 1) -> None:
        for _ in range(times):
            self.calls.append(asyncio.create_task(self._hold(session)))
        await settle()

    async def end_one(self) -> None:
        self._ends.pop(0).set()
        await settle()

    async def end_all(self) -> None:
        while self._ends:
            await self.end_one()
        await asyncio.gather(*self.calls, return_exceptions=True)
        assert (self.permits.busy, self.permits.waiting) == (0, 0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_session_with_a_hundred_calls_does_not_starve_another() -> None:
    desk = Desk(Permits(1))
    await desk.call("greedy", 100)
    await desk.call("modest", 2)
    await desk.call("third")
    for _ in range(6):
        await desk.end_one()
    assert desk.served == ["greedy", "greedy", "modest", "third", "greedy", "modest", "greedy"]
    assert (desk.permits.busy, desk.permits.waiting) == (1, 103 - 7)
    await desk.end_all()
    assert len(desk.served) == 103


async def test_calls_of_one_session_keep_their_order() -> None:
    permits, order = Permits(1), list[int]()

    async def work(n: int) -> None:
        async with permits.held("one"):
            order.append(n)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(n) for n in range(20)))
    assert order == list(range(20))


async def test_who_leaves_the_queue_leaves_no_trace() -> None:
    desk = Desk(Permits(1))
    await desk.call("a")
    await desk.call("b", 2)
    await desk.call("c")
    desk.calls[1].cancel()
    await settle()
    assert desk.permits.waiting == 2
    await desk.end_one()
    await desk.end_one()
    assert desk.served == ["a", "b", "c"]
    await desk.end_all()


async def test_a_permit_given_to_someone_who_is_just_leaving_goes_to_the_next() -> None:
    desk = Desk(Permits(1))
    async with desk.permits.held("a"):
        await desk.call("b")
        await desk.call("c")
    desk.calls[0].cancel()  # it has its permit and has not woken yet
    await settle()
    assert (desk.served, desk.permits.busy) == (["c"], 1)
    await desk.end_all()


@pytest.mark.parametrize("seed", range(40))
def test_no_interleaving_loses_a_permit_or_gives_one_too_many(seed: int) -> None:
    async def main() -> None:
        random, permits, running = Random(seed), Permits(3), 0

        async def work(session: str) -> None:
            nonlocal running
            async with permits.held(session):
                running += 1
                assert running <= 3
                try:
                    await asyncio.sleep(random.uniform(0, 0.1))
                finally:
                    running -= 1

        tasks = [asyncio.create_task(work(str(random.randrange(4)))) for _ in range(30)]
        for task in random.sample(tasks, 10):
            await asyncio.sleep(random.uniform(0, 0.05))
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (permits.busy, permits.waiting, running) == (0, 0, 0)

    sim.run(seed, main)
