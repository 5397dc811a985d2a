"""An event loop that runs ready callbacks in random order, reproducibly for each seed, in virtual time.

The stock loop runs callbacks first in, first out, so a test sees one interleaving of many. Here each step
draws one of all ready callbacks, so a hundred seeds give a hundred interleavings, and a seed always gives the
same one. Nothing waits: when nothing is ready, the clock jumps to the next timer. Without a timer all tasks
wait for each other: `Stuck` names them and their places. With a `tick`, timers are rounded up to it, so that
events close together happen at the same moment, and the seed decides their order.

Threads, sockets and signals do not exist here; asking for one raises an error.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import Executor
from contextvars import Context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_STEPS = 1_000_000


class SimulationError(Exception):
    """A run on the seeded loop failed, other than by an exception of its own."""


class Stuck(SimulationError):
    """Nothing is ready and no timer runs, or the run took too many steps."""


class LeftBehind(SimulationError):
    """The main coroutine ended before some of its tasks, or an exception was never retrieved."""


class _Task(asyncio.Task[Any]):
    """Hashed by a number, so that sets of tasks have the same order in each run of a seed."""

    def __init__(self, number: int, coroutine: Any, **more: Any) -> None:
        self._number = number
        super().__init__(coroutine, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimLoop(asyncio.BaseEventLoop):
    """Virtual time begins at 0. `steps` counts the callbacks that were run."""

    def __init__(self, seed: int, *, max_steps: int = MAX_STEPS, tick: float = 0.0) -> None:
        super().__init__()
        self._tick = tick
        self.random = random.Random(seed)
        self.steps = 0
        self.complaints: list[str] = []
        self._home = threading.get_ident()
        self._max_steps = max_steps
        self._now = 0.0
        self._runnable: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()
        self._numbers = count(1)
        self.set_task_factory(self._make_task)

    # -- the methods that asyncio calls

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._runnable.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Used for generators that were not closed. Raises `SimulationError` in another thread."""
        if threading.get_ident() != self._home:
            raise SimulationError("threads do not exist under the seeded loop")
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._tick:
            when = math.ceil(when / self._tick) * self._tick
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        raise SimulationError(f"{func!r} wants a thread; threads do not exist under the seeded loop")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(f"{context.get('message')} {context.get('exception')!r}")

    def _run_once(self) -> None:
        self._make_ready()
        if self.steps == self._max_steps:
            self._max_steps *= 2  # the tasks are cancelled next, and that takes steps too
            raise Stuck(f"still busy after {self.steps} steps:\n" + describe(asyncio.all_tasks(self)))
        runnable = self._runnable
        drawn = self.random.randrange(len(runnable)) if len(runnable) > 1 else 0
        runnable[drawn], runnable[-1] = runnable[-1], runnable[drawn]
        handle = runnable.pop()
        if not handle.cancelled():
            self.steps += 1
            handle._run()

    def _make_ready(self) -> None:
        """Make due timers ready. If nothing is ready, first move the time to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not self._runnable:
            if not timers:
                raise Stuck("all tasks wait and no timer runs:\n" + describe(asyncio.all_tasks(self)))
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._runnable.append(heapq.heappop(timers)[2])

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **more: Any,
    ) -> _Task:
        return _Task(next(self._numbers), coroutine, loop=loop, **more)


class SimClock:
    """The port `Clock` on the time of `loop` or of the running loop. Two readings are never equal."""

    def __init__(self, loop: SimLoop | None = None, *, now: float = 1_750_000_000.0) -> None:
        self._loop = loop
        self._start = now
        self._readings = count()

    def now(self) -> float:
        return self._start + self.elapsed()

    def elapsed(self) -> float:
        loop = self._loop or asyncio.get_running_loop()
        return loop.time() + next(self._readings) * 1e-6

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


def run(
    seed: int, main: Callable[[], Coroutine[Any, Any, T]], *, max_steps: int = MAX_STEPS, tick: float = 0.0
) -> T:
    """Run `main` to its end in the interleaving of `seed`.

    Raises what `main` raises, `Stuck`, or `LeftBehind`. Tasks that are left are cancelled and awaited.
    """
    loop = SimLoop(seed, max_steps=max_steps, tick=tick)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main())
        left = asyncio.all_tasks(loop)
        if left:
            raise LeftBehind("tasks were left behind:\n" + describe(left))
    if loop.complaints:
        raise LeftBehind("exceptions were never retrieved:\n" + "\n".join(loop.complaints))
    return result


def describe(tasks: Iterable[asyncio.Task[Any]]) -> str:
    """Return one line for each task: its name and the places where it waits, the innermost last."""
    return "\n".join(sorted(f"  {task.get_name()}: {_where(task)}" for task in tasks if not task.done()))


def _where(task: asyncio.Task[Any]) -> str:
    places = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        places.append(f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return " > ".join(places) or "not begun"
