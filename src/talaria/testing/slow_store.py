"""A `Store` whose answers take time, in the order and with the promises of one that has a disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from talaria.core.errors import StoreError
from talaria.store.sqlite.answers import Taken

if TYPE_CHECKING:
    from talaria.store.memory import MemoryStore
else:
    MemoryStore = object

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

READS = {
    "session",
    "current_session",
    "sessions",
    "entries",
    "log",
    "spec",
    "turn_record",
    "summary",
    "spending",
}
READS |= {"orphans", "cursor", "stats", "due", "questions", "open_questions"}
MOST_SECONDS = 0.01


class SlowStore(MemoryStore):
    """A `MemoryStore` behind random delays: each method may be interrupted by others before and after it.

    Writes are carried out one by one in the order they were asked for, and refuse to be cancelled. Reads may
    be cancelled; a share of them, `failing`, raises `StoreError` as a sick disk would. It has the methods of
    the store within, and so the type checker may take it for one.
    """

    def __init__(self, inner: MemoryStore, random: Random) -> None:
        self.inner = inner
        self.failing = 0.0
        self._random = random
        self._queue: deque[Callable[[], None]] = deque()

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = self.slowed(self.inner, name)
        return found

    def slowed(self, inner: object, name: str) -> Any:
        """What `inner` has by that name: a method behind the delays, or a part whose methods are."""
        found = getattr(inner, name)
        if not iscoroutinefunction(found):
            return _Part(self, found)

        async def act(*arguments: Any, **more: Any) -> Any:
            work = found(*arguments, **more)
            return await (self._read(work) if name in READS else self._write(work))

        return act

    def _delay(self) -> float:
        """Now and then none at all, as when a page is in memory."""
        return max(0.0, self._random.uniform(-MOST_SECONDS / 4, MOST_SECONDS))

    async def _read(self, work: Work[T]) -> T:
        try:
            await asyncio.sleep(self._delay())
            if self._random.random() < self.failing:
                raise StoreError("The disk is sick.")
            answer = await work
        finally:
            work.close()
        await asyncio.sleep(self._delay())
        return answer

    def _write(self, work: Work[T]) -> Taken[T]:
        loop = asyncio.get_running_loop()
        answer: Taken[T] = Taken(loop=loop)

        def carry_out() -> None:
            try:
                work.send(None)
            except StopIteration as end:
                loop.call_later(self._delay(), answer.set_result, end.value)
            except Exception as error:
                loop.call_later(self._delay(), answer.set_exception, error)
            else:
                raise AssertionError("the store within must not wait")

        self._queue.append(carry_out)
        loop.call_later(self._delay(), self._work_off)
        return answer

    def _work_off(self) -> None:
        self._queue.popleft()()


class _Part:
    """The outbox, or another part of the store, behind the same delays."""

    def __init__(self, store: SlowStore, inner: object) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return self._store.slowed(self._inner, name)
