"""A clock whose hands the test turns."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count


class FakeClock:
    """The `Clock` port without time: `sleep` ends when `advance` has passed its moment, never by itself.

    Sleepers wake in the order of their moments, and of their calls where those are equal.
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
        """How many sleep now; cancelled ones do not count."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    def advance(self, seconds: float) -> None:
        """Turn the hands at once. Those who are due run when the caller next yields."""
        self._elapsed += seconds
        self._wake()

    async def play(self, seconds: float) -> None:
        """Let `seconds` pass moment by moment, so that who wakes may sleep again within them."""
        end = self._elapsed + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self._elapsed = max(self._elapsed, self._sleepers[0][0])
            self._wake()
            await self.settle()
        self._elapsed = end

    async def settle(self, rounds: int = 20) -> None:
        """Let every task run until it waits for something outside this loop's ready queue."""
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def until_sleepers(self, wanted: int) -> None:
        """Yield until at least `wanted` tasks sleep on this clock; the test's own timeout is the limit."""
        while self.sleepers < wanted:  # noqa: ASYNC110 - it takes the loop's rounds one by one
            await asyncio.sleep(0)

    def _wake(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            _, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)


class HastyClock(FakeClock):
    """Who sleeps turns the hands and goes on at once: for one thing after the other over real sockets.

    `slept` are the seconds of each sleep, oldest first.
    """

    def __init__(self, now: float = 1_750_000_000.0) -> None:
        super().__init__(now)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)
