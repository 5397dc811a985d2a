"""Background tasks, work that is finished although its caller is cancelled, and loops beside the turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from talaria.core.clock import Clock

_log = logging.getLogger("talaria.app")
_PAUSE_SECONDS = 5.0

T = TypeVar("T")


class Uncancellable(asyncio.Future[T]):
    """The result of work that is carried out even if its caller is cancelled, such as a store's write.

    It refuses to be cancelled. A task that is cancelled while it awaits this future gets its cancellation
    when the result arrives, so that it ends knowing that the work is done.
    """

    def cancel(self, msg: object = None) -> bool:
        return False


def call_from_thread(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object
) -> None:
    """Call on the loop from another thread. Does nothing if the loop is closed: then no caller waits."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


async def wait_future(future: asyncio.Future[Any], seconds: float) -> None:
    """Wait until the future is done, at most so long. The future itself is never cancelled.

    Like `asyncio.wait` for one future, at a third of the cost.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(seconds, wake)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)


class finish(Generic[T]):  # noqa: N801 - reads as a verb: `await finish(work)`
    """Run `work` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    It runs in the caller's own task, at the price of a condition: whatever `work` awaits refuses to be
    cancelled, as the store's writes do. Then a cancellation reaches the task only when the awaited thing is
    done; it is kept here while `work` goes on, and raised when it has ended.
    """

    __slots__ = ("_work",)

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, T]:
        steps = self._work.__await__()
        cancelled: asyncio.CancelledError | None = None
        failure: BaseException | None = None
        while True:
            try:
                awaited = steps.send(None) if failure is None else steps.throw(failure)
            except StopIteration as end:
                if cancelled is not None:
                    raise cancelled from None
                return end.value  # type: ignore[no-any-return]
            except BaseException:
                if cancelled is not None:
                    raise cancelled from None
                raise
            failure = None
            try:
                yield awaited
            except asyncio.CancelledError as error:
                cancelled = error
            except BaseException as error:  # what was awaited failed: that is for `work` to see
                failure = error


async def finish_in_task(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end in a task even if the caller is cancelled meanwhile; the cancellation is raised
    afterwards. A second cancellation cancels the work. For work that awaits more than the store's writes."""
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        raise


class Tasks(set["asyncio.Task[Any]"]):
    """The running background tasks of one owner."""

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run the work in a task, which leaves the set when it ends."""
        task = asyncio.create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


async def stop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until they have ended. Their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def running(*work: Coroutine[Any, Any, T], name: str) -> AsyncIterator[list[asyncio.Task[T]]]:
    """Run the work in tasks while the block runs. Leaving the block stops them."""
    tasks = [asyncio.create_task(each, name=name) for each in work]
    try:
        yield tasks
    finally:
        await stop(*tasks)


async def wait_first(*work: Coroutine[Any, Any, object]) -> None:
    """Run the work until one piece of it has ended, and stop the others. Results and errors are dropped."""
    async with running(*work, name="first-of") as tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def sleep_until_woken(clock: Clock, seconds: float, woken: asyncio.Event) -> None:
    """Sleep for so long, or until `woken` is set."""
    await wait_first(clock.sleep(seconds), woken.wait())


async def every(clock: Clock, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
    """Call `action` after each pause of so many seconds, until cancelled."""
    while True:
        await clock.sleep(seconds)
        await action()


@asynccontextmanager
async def run_loops(clock: Clock, loops: Mapping[str, Callable[[], Awaitable[None]]]) -> AsyncIterator[None]:
    """Run the named loops; leaving cancels them. A loop that fails is logged and started again."""

    async def supervise(name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
            except Exception:
                _log.exception("the %s loop failed and is started again", name)
            await clock.sleep(_PAUSE_SECONDS)

    tasks = [asyncio.create_task(supervise(name, run), name=name) for name, run in loops.items()]
    try:
        yield
    finally:
        await stop(*tasks)


# -- the closer: closes things beside the turns, within a deadline ----------------------------------------


_GRACE_SECONDS = 1.0  # for one that was cancelled to go


class Closer:
    """Closes things in tasks of their own. Callers do not wait, and failures are only logged.

    A close that takes longer than `seconds` is cancelled and dropped. If it ignores the cancellation, it is
    left running. `what` names in the log what is closed.
    """

    def __init__(self, clock: Clock, seconds: float, what: str, log: logging.Logger) -> None:
        self._clock = clock
        self._seconds = seconds
        self._what = what
        self._log = log
        self._watches = Tasks()
        self.dropped = 0
        self.failed = 0

    def __len__(self) -> int:
        """Return how many things are being closed now."""
        return sum(not watch.done() for watch in self._watches)

    def close(self, name: str, begin: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        """Call `begin`. If it returns a coroutine, run that in a task; otherwise the thing is closed."""
        try:
            rest = begin()
        except Exception as error:
            self._note_failure(name, error)
            return
        if rest is not None:
            self._watches.start(self._watch(name, rest), f"closer of {name}")

    async def drain(self) -> None:
        """Wait until everything that is being closed now is closed or dropped."""
        if self._watches:
            await asyncio.wait(self._watches)

    async def _watch(self, name: str, rest: Coroutine[Any, Any, None]) -> None:
        closing = asyncio.create_task(rest, name=f"closing {name}")
        if not await self._ends_within(closing, self._seconds):
            self.dropped += 1
            self._log.error("closing %s of %s took over %g s: dropped", self._what, name, self._seconds)
            closing.cancel()
            if not await self._ends_within(closing, _GRACE_SECONDS):
                return
        if not closing.cancelled() and (error := closing.exception()) is not None:
            self._note_failure(name, error)

    async def _ends_within(self, closing: asyncio.Task[None], seconds: float) -> bool:
        timer = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait((closing, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.wait((timer,))
        return closing.done()

    def _note_failure(self, name: str, error: BaseException) -> None:
        self.failed += 1
        self._log.error("closing %s of %s failed", self._what, name, exc_info=error)
