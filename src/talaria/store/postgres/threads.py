"""The threads of a store on PostgreSQL: each has a connection, and all take from two queues.

A thread is started when something waits and no thread is free, so a gateway at rest has few connections. An
order that waited too long for a connection is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import psycopg

from talaria.core.clock import Clock
from talaria.core.errors import StoreError, TalariaError
from talaria.core.tasks import Uncancellable, call_from_thread
from talaria.store.postgres.connections import Connect
from talaria.store.postgres.faults import PoolFull, ServerFull, failed, hanging, no_connection
from talaria.store.postgres.link import PostgresLink
from talaria.store.postgres.pipeline import ConnectionCut
from talaria.store.sql.executor import Connection, Executor, Transaction, deliver

QUEUE_SECONDS = 10.0
SLOW_SECONDS = 3.0
_FULL_PAUSE = 0.1  # of a thread for which the server has no connection

T = TypeVar("T")


class _Task(NamedTuple):
    run: Callable[[PostgresLink], Any]
    result: asyncio.Future[Any]
    at: float


class Crew:
    """Threads that run tasks of one kind."""

    def __init__(
        self, name: str, most: int, make: Callable[[], PostgresLink], on_end: Callable[[Any], None]
    ) -> None:
        """`make` gives each thread its link. `on_end` is called there with each task's error, or None."""
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._make = make
        self._on_end = on_end
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._links: list[PostgresLink] = []
        self._unfinished = 0  # tasks that wait or are run
        self._is_stopping = False
        self._busy: dict[int, float] = {}  # since when each thread runs a task
        self._ended: list[Uncancellable[None]] = []
        self._lock = Lock()
        self.most = most
        self.queue_seconds = QUEUE_SECONDS

    @property
    def links(self) -> Sequence[PostgresLink]:
        return tuple(self._links)

    def oldest(self) -> float | None:
        """Return since when the oldest task is run, by `monotonic`."""
        return min(self._busy.copy().values(), default=None)

    def submit(self, run: Callable[[PostgresLink], Any], result: asyncio.Future[Any]) -> None:
        self._queue.put(_Task(run, result, monotonic()))
        if self._count(1) > len(self._threads) and len(self._threads) < self.most:
            self._start()

    def refuse_old(self) -> None:
        """Refuse what has waited for too long, also while all threads wait for the database to come back."""
        for _ in range(self._queue.qsize()):
            try:
                task = self._queue.get_nowait()
            except Empty:
                return
            if task is None or monotonic() - task.at <= self.queue_seconds:
                self._queue.put(task)
            else:
                self._count(-1)
                failure = no_connection(monotonic() - task.at, self.most)
                self._on_end(failure)
                deliver([(task.result, None, failure)])

    def _count(self, by: int) -> int:
        with self._lock:
            self._unfinished += by
            return self._unfinished

    async def stop(self) -> None:
        """Run what was submitted, then close. Nothing may be submitted afterwards."""
        self._is_stopping = True
        for _ in self._threads:
            self._queue.put(None)
        for ended in self._ended:
            await ended
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        ended: Uncancellable[None] = Uncancellable(loop=self._loop)
        name = f"talaria-store-{self._name}-{len(self._threads) + 1}"
        thread = Thread(target=self._run, args=(ended,), name=name, daemon=False)
        thread.start()
        self._ended.append(ended)
        self._threads.append(thread)

    # -- in the threads

    def _run(self, ended: Uncancellable[None]) -> None:
        link, me = self._make(), id(ended)
        self._links.append(link)
        try:
            while (task := self._queue.get()) is not None:
                self._busy[me] = monotonic()
                if not self._carry_out(link, task):
                    self._queue.put(task)
                    time.sleep(_FULL_PAUSE)
                del self._busy[me]
                del task  # not kept until the next one comes: results can be large
        finally:
            link.leave()
            call_from_thread(self._loop, deliver, [(ended, None, None)])

    def _carry_out(self, link: PostgresLink, task: _Task) -> bool:
        """Return False for a task that found the server full. Threads with a connection get it for a time."""
        result: Any = None
        failure: TalariaError | None = None
        waited = monotonic() - task.at
        try:
            if task.result.cancelled():
                pass
            elif waited > self.queue_seconds:
                failure = no_connection(waited, self.most)
            else:
                result = task.run(link)
        except TalariaError as error:
            if isinstance(error, ServerFull) and not self._is_stopping:
                return False
            failure = error
        except BaseException as error:  # the thread's boundary: the caller gets it
            failure = failed(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        self._on_end(failure)
        self._count(-1)
        call_from_thread(self._loop, deliver, [(task.result, result, failure)])
        return True


class PostgresThreads(Executor):
    """An `Executor` on a database of PostgreSQL. Belongs to the event loop that made it."""

    def __init__(
        self, connect: Connect, connect_reader: Connect, clock: Clock, *, engine: str, schema: int, most: int
    ) -> None:
        super().__init__(engine, schema, clock)
        self._loop = asyncio.get_running_loop()
        self._is_over = False
        self._trouble: StoreError | None = None

        def link(connect: Connect = connect) -> PostgresLink:
            return PostgresLink(connect, clock, is_closing=lambda: self._is_over)

        self.writers = Crew("writer", most, link, self._note_write)
        self.readers = Crew("reader", max(2, most // 2), lambda: link(connect_reader), self._note_failure)
        self._side = link()
        self._side_lock = Lock()

    @property
    def links(self) -> Sequence[PostgresLink]:
        return (*self.writers.links, *self.readers.links, self._side)

    @property
    def trouble(self) -> StoreError | None:
        """Why the last write failed, or that one hangs; None once a write has succeeded."""
        if self._trouble is not None:
            return self._trouble
        since = self.writers.oldest()
        if since is not None and (seconds := monotonic() - since) > SLOW_SECONDS:
            return hanging(seconds)
        return None

    def write(self, order: Callable[[Transaction], T], *, is_durable: bool = False) -> Uncancellable[T]:
        """Every commit is durable: the database may die while this process, which knows of it, lives on."""
        self.check_open()
        result: Uncancellable[T] = Uncancellable(loop=self._loop)
        self.writers.submit(lambda link: link.write(order), result)
        return result

    def read(self, query: Callable[[Connection], T]) -> asyncio.Future[T]:
        self.check_open()
        result: asyncio.Future[T] = self._loop.create_future()
        self.readers.submit(lambda link: link.read(query), result)
        return result

    def write_from_thread(
        self, order: Callable[[Transaction], T], timeout: float, *, is_durable: bool = False
    ) -> T:
        """Run an order in the calling thread, by a connection of its own: it does not wait behind others."""
        self.check_open()
        until = monotonic() + timeout
        if not self._side_lock.acquire(timeout=timeout):
            raise hanging(timeout)
        try:
            return self._side.write(order, until)
        finally:
            self._side_lock.release()

    def reserve_side(self) -> None:
        """Connect for `write_from_thread` before the server may be full. Raises `StoreError`."""
        self._side.write(lambda tx: None)

    def abandon(self) -> None:
        """Let writes whose commit was cut off raise, in place of waiting for the database to come back."""
        self._is_over = True

    async def _close(self) -> None:
        self.abandon()
        await self.readers.stop()
        await self.writers.stop()
        await asyncio.to_thread(self._leave_side)

    # -- in the threads

    def _leave_side(self) -> None:
        with self._side_lock:
            self._side.leave()

    def _note_write(self, error: TalariaError | None) -> None:
        if error is None:
            self._trouble = None
        else:
            self._note_failure(error)

    def _note_failure(self, error: TalariaError | None) -> None:
        """A failure of the database has a cause; a refusal, or an order that is wrong in itself, has none."""
        if isinstance(error, PoolFull) or (
            isinstance(error, StoreError)
            and isinstance(error.__cause__, ConnectionCut | psycopg.OperationalError)
        ):
            self._trouble = error
