"""The threads of a store on a file: one writer, and readers beside it.

Each reader has a read-only connection, and a query is one short transaction in one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from talaria.core.clock import Clock
from talaria.core.errors import StoreError, TalariaError
from talaria.core.tasks import Uncancellable, call_from_thread
from talaria.store.sql.executor import Executor, Outcome, Transaction, deliver
from talaria.store.sqlite.driver import driver, engine
from talaria.store.sqlite.faults import storage_failure
from talaria.store.sqlite.schema import latest_version
from talaria.store.sqlite.writer import Writer

T = TypeVar("T")


class Threads(Executor):
    """An `Executor` on one file."""

    def __init__(self, clock: Clock, writer: Writer, readers: Readers) -> None:
        super().__init__(engine, latest_version(), clock)
        self.writer = writer
        self._readers = readers

    def write(self, order: Callable[[Transaction], T], *, is_durable: bool = False) -> Uncancellable[T]:
        self.check_open()
        self.writer.check_writable()
        return self.writer.submit(order, is_durable)

    def write_from_thread(
        self, order: Callable[[Transaction], T], timeout: float, *, is_durable: bool = False
    ) -> T:
        self.check_open()
        result = self.writer.submit_from_thread(order, is_durable)
        try:
            return result.result(timeout)
        except TimeoutError:
            raise StoreError(
                f"The database did not answer within {timeout:g} s.", "Look at the disk of the home."
            ) from None

    def read(self, query: Callable[[driver.Connection], T]) -> asyncio.Future[T]:
        self.check_open()
        return self._readers.submit(query)

    async def _close(self) -> None:
        # Readers first: an open read would keep the writer's last checkpoint from emptying the WAL.
        await self._readers.stop()
        await self.writer.stop()


class _Read(NamedTuple):
    query: Callable[[driver.Connection], Any]
    result: asyncio.Future[Any]


class Readers:
    """Queries go in by `submit`. A cancelled caller leaves at once; its query is skipped or its result
    dropped."""

    def __init__(
        self,
        connect: Callable[[], driver.Connection],
        count: int = 2,
        on_failure: Callable[[StoreError], None] = lambda failure: None,
    ) -> None:
        """`on_failure` is called in a reader's thread when the file itself fails."""
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._on_failure = on_failure
        self._queue: SimpleQueue[_Read | None] = SimpleQueue()
        self._stopped: list[Uncancellable[None]] = [Uncancellable(loop=self._loop) for _ in range(count)]
        self._threads = [
            Thread(target=self._run, args=(stopped,), name=f"talaria-store-reader-{i}", daemon=False)
            for i, stopped in enumerate(self._stopped, 1)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, query: Callable[[driver.Connection], T]) -> asyncio.Future[T]:
        result: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Read(query, result))
        return result

    async def stop(self) -> None:
        """Run what was submitted, then close. Nothing may be submitted afterwards."""
        for _ in self._threads:
            self._queue.put(None)
        for stopped in self._stopped:
            await stopped
        for thread in self._threads:
            thread.join()

    # -- in the threads

    def _run(self, stopped: Uncancellable[None]) -> None:
        # Opened at the first read: a program that only writes pays for none.
        connection: driver.Connection | None = None
        try:
            while (read := self._queue.get()) is not None:
                if read.result.cancelled():
                    continue
                try:
                    connection = connection or self._connect()
                    call_from_thread(self._loop, deliver, [_run_query(connection, read)])
                except Exception as error:  # the thread's boundary: the caller gets it
                    failure = storage_failure(error)
                    self._on_failure(failure)
                    call_from_thread(self._loop, deliver, [(read.result, None, failure)])
                # Not kept until the next query comes: results can be large.
                del read
        finally:
            if connection is not None:
                connection.close()
            call_from_thread(self._loop, deliver, [(stopped, None, None)])


def _run_query(connection: driver.Connection, read: _Read) -> Outcome:
    connection.execute("BEGIN")
    try:
        return read.result, read.query(connection), None
    except TalariaError as refusal:
        return read.result, None, refusal
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")
