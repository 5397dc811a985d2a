"""`SqliteStore`: the store on one SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from talaria.core.clock import Clock
from talaria.core.errors import StoreError, TalariaError
from talaria.core.ledger import Integrity
from talaria.core.tasks import Uncancellable, call_from_thread
from talaria.store.sql.executor import Executor, Outcome, Transaction, deliver
from talaria.store.sqlite.database import (
    LOOK_FIRST_BYTES,
    copy_database,
    find_damage,
    open_reader,
    open_writer,
)
from talaria.store.sqlite.faults import damaged, driver, engine, storage_failure
from talaria.store.sqlite.schema import latest_version
from talaria.store.sqlite.writer import Writer
from talaria.store.store import ThreadedStore

# -- the threads of a store on a file: one writer, and readers beside it ----------------------------------
# Each reader has a read-only connection, and a query is one short transaction in one of them.


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


# -- `SqliteStore`: the store on one SQLite file ----------------------------------------------------------


class SqliteStore(ThreadedStore):
    """Belongs to the event loop that opened it. A disk error raises `StoreError`; the order then did
    nothing."""

    def __init__(self, path: Path, clock: Clock, writer: Writer, readers: Readers) -> None:
        self._path = path
        self._threads = Threads(clock, writer, readers)
        self._wal = path.with_name(path.name + "-wal")
        self._integrity = Integrity.CLEAN_END
        super().__init__(self._threads)

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        is_suspect: bool = False,
        look_first_bytes: int = LOOK_FIRST_BYTES,
        on_create: str = "",
    ) -> SqliteStore:
        """Open the database; see `store.engines.open_store`. `on_create` is a statement for the transaction
        that creates its tables.

        With `is_suspect` the last owner did not close the file. A file up to `look_first_bytes` is checked
        for damage before the first write. A larger file is checked by `verify`, beside other work.
        """
        look_first = is_suspect and _size(path) <= look_first_bytes
        opening = partial(open_writer, path, look_first=look_first, on_create=on_create)
        writer = await Writer.start(opening, clock, path)
        readers = Readers(lambda: open_reader(writer.find_readable(path)), on_failure=writer.note_damage)
        store = cls(path, clock, writer, readers)
        if is_suspect:
            store._integrity = Integrity.WHOLE if look_first else Integrity.CHECKING
        return store

    @property
    def threads(self) -> Threads:
        return self._threads

    @property
    def integrity(self) -> Integrity:
        return self._integrity

    @property
    def trouble(self) -> StoreError | None:
        return self._threads.writer.trouble

    async def probe(self) -> None:
        # Also when nothing is written any more: the writer then tries again to save a lost file's content.
        self._threads.check_open()
        await self._threads.writer.submit(_write_version, is_durable=True)

    async def look(self) -> None:
        await asyncio.to_thread(self._threads.writer.look)

    async def verify(self) -> str | None:
        finding = await self._threads.read(lambda db: find_damage(db, lambda: self._threads.is_closing))
        self._integrity = Integrity.WHOLE if finding is None else Integrity.DAMAGED
        if finding is not None:
            self._threads.writer.note_damage(damaged(finding))
        return finding

    async def snapshot(self, path: Path) -> None:
        self._threads.check_open()
        await asyncio.to_thread(copy_database, self._path, path, lambda: self._threads.is_closing)

    async def _sizes(self) -> tuple[int, int]:
        return await self._threads.read(lambda db: (_size(self._path), _size(self._wal)))


def _write_version(tx: Transaction) -> None:
    """Write the page that has the schema's version, as it is."""
    (version,) = tx.execute("PRAGMA user_version").fetchone()
    tx.execute(f"PRAGMA user_version = {version}")


def _size(path: Path) -> int:
    """Asked by name: the live file must not be opened."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
