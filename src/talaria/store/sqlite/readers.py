"""The reader threads: each has a read-only connection, and a read is one short transaction in one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from talaria.core.errors import StoreError, TalariaError
from talaria.store.sqlite.answers import Answer, Taken, post
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.faults import storage_failure

P = TypeVar("P")
T = TypeVar("T")


class _Job(NamedTuple):
    query: Callable[[driver.Connection, Any], Any]
    question: Any
    answer: asyncio.Future[Any]


class Readers:
    """Reads go in by `submit`. A cancelled caller goes at once; its read is skipped or its result dropped."""

    def __init__(
        self,
        connect: Callable[[], driver.Connection],
        count: int = 2,
        on_failure: Callable[[StoreError], None] = lambda failure: None,
    ) -> None:
        """`on_failure` hears, in a reader's thread, of what the file itself did wrong."""
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._on_failure = on_failure
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._stopped: list[Taken[None]] = [Taken(loop=self._loop) for _ in range(count)]
        self._threads = [
            Thread(target=self._run, args=(stopped,), name=f"talaria-store-reader-{i}", daemon=False)
            for i, stopped in enumerate(self._stopped, 1)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, query: Callable[[driver.Connection, P], T], question: P) -> asyncio.Future[T]:
        answer: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Job(query, question, answer))
        return answer

    async def stop(self) -> None:
        """Answer what was asked, then close. Nothing may be submitted after it."""
        for _ in self._threads:
            self._queue.put(None)
        for stopped in self._stopped:
            await stopped
        for thread in self._threads:
            thread.join()

    # -- in the threads

    def _run(self, stopped: Taken[None]) -> None:
        # Opened at the first read: a program that only writes pays for none.
        connection: driver.Connection | None = None
        try:
            while (job := self._queue.get()) is not None:
                if job.answer.cancelled():
                    continue
                try:
                    connection = connection or self._connect()
                    post(self._loop, [_read(connection, job)])
                except Exception as error:  # the thread's boundary: it goes to whoever asked
                    failure = storage_failure(error)
                    self._on_failure(failure)
                    post(self._loop, [(job.answer, None, failure)])
                # Not kept until the next job comes: results can be large.
                del job
        finally:
            if connection is not None:
                connection.close()
            post(self._loop, [(stopped, None, None)])


def _read(connection: driver.Connection, job: _Job) -> Answer:
    connection.execute("BEGIN")
    try:
        return job.answer, job.query(connection, job.question), None
    except TalariaError as refusal:
        return job.answer, None, refusal
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
