"""Slots that owners share fairly, and threads that are given out by such slots."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MOST_THREADS = 1024


class FairSlots:
    """At most `most()` slots in use at a time, and at most `share()` by one owner.

    Waiting owners take turns, so an owner with a hundred waiters delays another owner's only waiter by one
    slot. The waiters of one owner are served in their order. Belongs to one event loop.
    """

    def __init__(self, most: Callable[[], int], share: Callable[[], int]) -> None:
        self._most = most
        self._share = share
        self._used: dict[Hashable, int] = {}
        self._waiters: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self.in_use = 0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiters.values()))

    @asynccontextmanager
    async def slot(self, owner: Hashable) -> AsyncIterator[None]:
        """Hold a slot inside the block. Entering waits for it; a cancelled wait leaves nothing behind."""
        await self.acquire(owner)
        try:
            yield
        finally:
            self.release(owner)

    async def acquire(self, owner: Hashable) -> None:
        """Wait for a slot. A caller that is cancelled has none. Call `release` once for each slot."""
        if self._waiters:
            self._grant()  # the limits may have been raised since
        if owner not in self._waiters and self.in_use < self._most() and self._has_share(owner):
            self._take(owner)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(owner, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._drop(owner, waiter)
            else:  # the slot was granted in the same round
                self.release(owner)
            raise

    def release(self, owner: Hashable) -> None:
        self.in_use -= 1
        self._used[owner] -= 1
        if not self._used[owner]:
            del self._used[owner]
        if self._waiters:
            self._grant()

    def _has_share(self, owner: Hashable) -> bool:
        return self._used.get(owner, 0) < self._share()

    def _take(self, owner: Hashable) -> None:
        self.in_use += 1
        self._used[owner] = self._used.get(owner, 0) + 1

    def _grant(self) -> None:
        while self.in_use < self._most():
            owner = next(filter(self._has_share, self._waiters), None)
            if owner is None:
                return
            waiter = self._waiters[owner][0]
            self._drop(owner, waiter)
            if owner in self._waiters:
                self._waiters.move_to_end(owner)
            if not waiter.done():
                self._take(owner)
                waiter.set_result(None)

    def _drop(self, owner: Hashable, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(owner)
        if waiters is None or waiter not in waiters:
            return
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[owner]


class FairThreads:
    """Threads for blocking functions, apart from the event loop's default executor.

    A function that is not awaited any more goes on to its end, and its thread counts until then. Half of the
    threads is the most that one owner gets.
    """

    def __init__(self, name: str, most: Callable[[], int]) -> None:
        self._slots = FairSlots(most, lambda: max(1, most() // 2))
        # The slots bound the number of threads, so that a change of the limit counts at once.
        self._executor = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix=name)

    @property
    def in_use(self) -> int:
        return self._slots.in_use

    async def run(self, owner: Hashable, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run the function in a thread and return its result. Raises what it raises.

        Cancelled while it waits for a thread, the function is not run.
        """
        await self._slots.acquire(owner)
        copied = copy_context()
        try:
            work = self._executor.submit(lambda: copied.run(function, *args))
        except BaseException:
            self._slots.release(owner)
            raise
        work.add_done_callback(partial(self._ended, asyncio.get_running_loop(), owner))
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """Take no more work. Functions that run go on to their end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _ended(self, loop: asyncio.AbstractEventLoop, owner: Hashable, work: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._slots.release, owner)
