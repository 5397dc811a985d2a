"""Slots that owners share fairly, and threads that are given out by such slots."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import TypeVar, TypeVarTuple

from talaria.core.tasks import call_from_thread

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MOST_THREADS = 1024


class FairWaiters:
    """Waiters by owner. Owners take turns, and the waiters of one owner are served in their order. Belongs to
    one event loop."""

    def __init__(self) -> None:
        self.owners: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self.owners.values()))

    def has(self, owner: Hashable) -> bool:
        # A waiter that is done was cancelled and has not withdrawn yet.
        return any(not waiter.done() for waiter in self.owners.get(owner, ()))

    async def wait(self, owner: Hashable, give_back: Callable[[], None]) -> None:
        """Wait until `wake` chooses this waiter. If the caller is cancelled, it leaves nothing behind:
        `give_back` is called if it was chosen in the same round."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.owners.setdefault(owner, deque()).append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                give_back()
            else:
                self._withdraw(owner, waiter)
            raise

    def wake(self, may: Callable[[Hashable], bool]) -> Hashable | None:
        """Let the first waiter of the first owner that `may` go on, and return that owner, which goes behind
        the others. None if there is no such waiter."""
        for owner, queue in self.owners.items():
            waiter = next((each for each in queue if not each.done()), None)
            if waiter is not None and may(owner):
                waiter.set_result(None)
                self._withdraw(owner, waiter)
                if owner in self.owners:
                    self.owners.move_to_end(owner)
                return owner
        return None

    def _withdraw(self, owner: Hashable, waiter: asyncio.Future[None]) -> None:
        queue = self.owners[owner]
        queue.remove(waiter)
        if not queue:
            del self.owners[owner]


class FairSlots:
    """At most `most()` slots in use at a time, and at most `share()` by one owner.

    Waiting owners take turns, so an owner with a hundred waiters delays another owner's only waiter by one
    slot. The waiters of one owner are served in their order. Those that give way are served when nobody else
    can be, and a quarter of the slots is not for them, so that others seldom wait until one of theirs is
    free; with a single slot they do. Belongs to one event loop.
    """

    def __init__(self, most: Callable[[], int], share: Callable[[], int] | None = None) -> None:
        self._most = most
        self._share = share
        self._used: dict[Hashable, int] = {}
        self._giving_way = 0
        self._waiters = FairWaiters()
        self._behind = FairWaiters()  # those that give way
        self.in_use = 0

    @property
    def waiting(self) -> int:
        return len(self._waiters) + len(self._behind)

    @asynccontextmanager
    async def slot(self, owner: Hashable, *, gives_way: bool = False) -> AsyncIterator[None]:
        """Hold a slot inside the block. Entering waits for it; a cancelled wait leaves nothing behind."""
        await self.acquire(owner, gives_way=gives_way)
        try:
            yield
        finally:
            self.release(owner, gave_way=gives_way)

    async def acquire(self, owner: Hashable, *, gives_way: bool = False) -> None:
        """Wait for a slot. A caller that is cancelled has none. Call `release` once for each slot."""
        if self._waiters.owners or self._behind.owners:
            self._grant()  # the limits may have been raised since
        queue, most = self._behind if gives_way else self._waiters, self._most()
        is_first = owner not in queue.owners or not queue.has(owner)
        if (
            is_first
            and self.in_use < most
            and (self._share is None or self._has_share(owner))
            and not (gives_way and self._giving_way >= _most_giving_way(most))
        ):
            self._take(owner, gives_way)
        else:
            await queue.wait(owner, partial(self.release, owner, gave_way=gives_way))

    def release(self, owner: Hashable, *, gave_way: bool = False) -> None:
        self.in_use -= 1
        self._giving_way -= gave_way
        self._used[owner] -= 1
        if not self._used[owner]:
            del self._used[owner]
        if self._waiters.owners or self._behind.owners:
            self._grant()

    def _has_share(self, owner: Hashable) -> bool:
        return self._share is None or self._used.get(owner, 0) < self._share()

    def _take(self, owner: Hashable, gives_way: bool) -> None:
        self.in_use += 1
        self._giving_way += gives_way
        self._used[owner] = self._used.get(owner, 0) + 1

    def _grant(self) -> None:
        most = self._most()
        while self.in_use < most:
            if (owner := self._waiters.wake(self._has_share)) is not None:
                self._take(owner, gives_way=False)
            elif self._giving_way >= _most_giving_way(most):
                return
            elif (owner := self._behind.wake(self._has_share)) is not None:
                self._take(owner, gives_way=True)
            else:
                return


def _most_giving_way(most: int) -> int:
    return max(1, most - max(1, most // 4))


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
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        copied = copy_context()
        try:
            work = self._executor.submit(lambda: copied.run(function, *args))
        except BaseException:
            self._slots.release(owner)
            raise
        # A single call on the loop for both, unlike `asyncio.wrap_future`: each call wakes the loop.
        work.add_done_callback(lambda work: call_from_thread(loop, self._end, owner, work, ended))
        try:
            await ended
        except asyncio.CancelledError:
            work.cancel()
            raise
        return work.result()

    def close(self) -> None:
        """Take no more work. Functions that run go on to their end."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _end(self, owner: Hashable, work: Future[T], ended: asyncio.Future[None]) -> None:
        self._slots.release(owner)
        if work.cancelled():
            ended.cancel()
        elif not ended.done():
            ended.set_result(None)


# -- leaving the event loop to others ---------------------------------------------------------------------


SLICE_SECONDS = 0.002


class LoopShare:
    """Lets long work of all tasks together take half of the event loop at most.

    A task works inside `async with share:` for up to `SLICE_SECONDS` and awaits nothing there. The tasks work
    one at a time, in the order of asking. After every `SLICE_SECONDS` of their work the loop is free for as
    long; work that cannot be cut takes longer, and so does its pause. Otherwise fifty tasks with short slices
    would make each round of the loop fifty slices long, and a turn takes many rounds.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._began = 0.0
        self._used = 0.0

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        self._began = perf_counter()

    async def __aexit__(self, *error: object) -> None:
        self._used += perf_counter() - self._began
        try:
            if (used := self._used) >= SLICE_SECONDS:
                self._used = 0.0
                await asyncio.sleep(used)
        finally:
            self._turn.release()


_SLICE_SECONDS = 0.001
_PAUSE_SECONDS = 0.001


class Pace:
    """Pauses long work after each slice of computing, and says when it has to stop.

    A thread that computes without a pause holds the interpreter for 5 ms at a time, and the event loop waits
    as long for each of its steps. Use one object in one thread.
    """

    def __init__(self, cpu_seconds: float, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self._is_cancelled = is_cancelled
        self._slice_end = time.thread_time()
        self._end = self._slice_end + cpu_seconds

    def may_go_on(self) -> bool:
        """Return whether there is computing time left and the work is still wanted. Call it in each round."""
        now = time.thread_time()
        if now < self._slice_end:
            return True
        if now >= self._end or self._is_cancelled():
            return False
        time.sleep(_PAUSE_SECONDS)
        self._slice_end = now + _SLICE_SECONDS
        return True
