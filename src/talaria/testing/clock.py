"""Clocks that a test controls."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class FakeClock:
    """The port `Clock` without real time. A `sleep` ends when `advance` or `play` passes its end.

    Sleepers wake in the order of their ends; those with equal ends wake in the order of their calls.
    """

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        self._now = now
        self._elapsed = 0.0
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now + self._elapsed

    def elapsed(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), waiter))
        await waiter

    @property
    def sleepers(self) -> int:
        """The number of tasks that sleep now, without cancelled ones."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Move the time forward at once. Due sleepers run when the caller next yields."""
        self._elapsed += seconds
        self._wake()

    def set_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back with negative seconds. Sleepers do not notice."""
        self._now += seconds

    async def play(self, seconds: float) -> None:
        """Let `seconds` pass step by step, so that a task that wakes can sleep again within them."""
        end = self._elapsed + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._elapsed = max(self._elapsed, self._sleepers[0][0])
            self._wake()
            await self.settle()
        self._elapsed = end

    async def settle(self, rounds: int = 20) -> None:
        """Let every task run until it waits for something outside the ready queue of the loop."""
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def until_sleepers(self, wanted: int) -> None:
        """Yield until at least `wanted` tasks sleep on this clock. Only the test's timeout limits it."""
        while self.sleepers < wanted:  # noqa: ASYNC110 - one round of the loop at a time
            await asyncio.sleep(0)

    def _wake(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)


class HastyClock(FakeClock):
    """A clock whose `sleep` moves the time forward and returns at once. For tests with real sockets.

    `slept` lists the seconds of each sleep, oldest first.
    """

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        super().__init__(now)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)
