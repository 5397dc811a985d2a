"""`SqliteStore`: the store on one SQLite file."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.core.ledger import Integrity
from talaria.store.sql.executor import Transaction
from talaria.store.sqlite.database import (
    LOOK_FIRST_BYTES,
    copy_database,
    find_damage,
    open_reader,
    open_writer,
)
from talaria.store.sqlite.faults import damaged
from talaria.store.sqlite.threads import Readers, Threads
from talaria.store.sqlite.writer import Writer
from talaria.store.store import ThreadedStore


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
