"""A `Store` with random delays, which keeps the order and the guarantees of a store on a disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from talaria.core.errors import StoreError
from talaria.core.tasks import Uncancellable

if TYPE_CHECKING:
    from talaria.store.in_memory import MemoryStore
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
    "shown_log",
    "turn_log",
    "notes",
    "last_input",
    "spec",
    "turn_record",
    "summary",
    "spending",
}
READS |= {"orphans", "cursor", "stats", "due", "next_due"}
READS |= {"questions", "open_questions", "closed_questions", "find_question", "is_granted"}
READS |= {"is_granted_to_job", "has_job_asked"}
MOST_SECONDS = 0.01


class SlowStore(MemoryStore):
    """A `MemoryStore` behind random delays. Other tasks run before and after each method's work.

    Writes run one by one in the order of their calls, and cannot be cancelled. Reads can be cancelled; a
    share of them, `failing`, raises `StoreError` like a broken disk. All methods of the inner store are
    available; the base class is for the type checker only.
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
        """Return a method of `inner` behind delays, or an object whose methods are."""
        found = getattr(inner, name)
        if not iscoroutinefunction(found):
            return _Part(self, found)

        async def act(*arguments: Any, **more: Any) -> Any:
            work = found(*arguments, **more)
            return await (self._read(work) if name in READS else self._write(work))

        return act

    def _delay(self) -> float:
        """Return a random delay. Now and then it is zero, as for a cached page."""
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

    def _write(self, work: Work[T]) -> Uncancellable[T]:
        loop = asyncio.get_running_loop()
        answer: Uncancellable[T] = Uncancellable(loop=loop)

        def carry_out() -> None:
            try:
                work.send(None)
            except StopIteration as end:
                loop.call_later(self._delay(), answer.set_result, end.value)
            except Exception as error:
                loop.call_later(self._delay(), answer.set_exception, error)
            else:
                raise AssertionError("the inner store must not wait")

        self._queue.append(carry_out)
        loop.call_later(self._delay(), self._work_off)
        return answer

    def _work_off(self) -> None:
        self._queue.popleft()()


class _Part:
    """The outbox or another part of the store behind the same delays."""

    def __init__(self, store: SlowStore, inner: object) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return self._store.slowed(self._inner, name)
