"""Snapshots of a database on PostgreSQL: all rows of one moment, copied to a SQLite file.

One read-only transaction in the isolation level REPEATABLE READ reads everything, so the tables fit together
while gateways write. It takes no lock that writers wait for. The server keeps old row versions until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import psycopg

from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.store.copying import FIND_SCHEMA, SET_MARK, StoreCopy, Tell, check_schema
from talaria.store.postgres.connections import Connect
from talaria.store.postgres.faults import text_of
from talaria.store.postgres.pipeline import ConnectionCut, Pipe
from talaria.store.postgres.schema import latest_version
from talaria.store.sql.executor import Connection, Reader
from talaria.store.sqlite.database import make_single_file
from talaria.store.sqlite.faults import driver, storage_failure
from talaria.store.sqlite.store import SqliteStore

T = TypeVar("T")


async def copy_snapshot(
    connect: Connect,
    path: Path,
    clock: Clock,
    *,
    check_open: Callable[[], None] = lambda: None,
    tell: Tell = lambda table, rows: None,
) -> None:
    """Copy the rows of this moment to the new file `path`, and compare each of them.

    `check_open` is called before each page and may raise. Raises `StoreError`. If the copy fails or is
    cancelled, the file is deleted.
    """
    try:
        async with open_snapshot(connect, check_open) as source:
            await _copy(source, path, clock, tell)
    except BaseException as error:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        if isinstance(error.__cause__, driver.Error | OSError):  # of the file, not of the server
            raise StoreError(
                f"The copy of the database could not be written to {path.parent}: {error.__cause__}.",
                "Free space on that disk, then try again.",
            ) from error
        raise


async def _copy(source: Reader, path: Path, clock: Clock, tell: Tell) -> None:
    async with await SqliteStore.open(path, clock, on_create=SET_MARK) as target:
        await StoreCopy(source, target.threads, tell, is_snapshot=True).run(clock.now())
    try:
        await asyncio.to_thread(make_single_file, path)
    except driver.Error as error:
        raise storage_failure(error, path.parent) from error


class SnapshotReader:
    """A `Reader` of one transaction, which has its own connection and thread."""

    def __init__(self, connect: Connect, check_open: Callable[[], None]) -> None:
        self._connect = connect
        self._check_open = check_open
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="talaria-store-snapshot")
        self._pipe: Pipe | None = None

    def read(self, query: Callable[[Connection], T]) -> Awaitable[T]:
        self._check_open()
        return asyncio.get_running_loop().run_in_executor(self._thread, self._run, query)

    async def close(self) -> None:
        """End the transaction, after a read whose caller was cancelled."""
        self._thread.submit(self._end)
        await asyncio.to_thread(self._thread.shutdown)

    # -- in the thread

    def _run(self, query: Callable[[Connection], T]) -> T:
        try:
            if self._pipe is None:
                self._pipe = self._connect()
                self._pipe.begin()
            self._pipe.extend()
            return query(self._pipe)
        except (ConnectionCut, psycopg.Error) as error:
            raise StoreError(
                f"The copy of the database stopped: {text_of(error)}.",
                "Check that PostgreSQL runs (`talaria doctor`), then try again.",
            ) from error

    def _end(self) -> None:
        if self._pipe is not None:
            self._pipe.close()


@asynccontextmanager
async def open_snapshot(connect: Connect, check_open: Callable[[], None]) -> AsyncIterator[SnapshotReader]:
    """Begin the transaction, and end it with the block. Raises `StoreError`."""
    reader = SnapshotReader(connect, check_open)
    try:
        check_schema(await reader.read(lambda db: db.execute(FIND_SCHEMA).fetchone()[0]), latest_version())
        yield reader
    finally:
        await reader.close()
