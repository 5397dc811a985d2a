"""`SqliteStore`: the store on one SQLite file."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.core.ledger import Integrity, StoreStats
from talaria.core.turns import TurnState
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
from talaria.store.store import Store

_STATS_SECONDS, _STATS_ROUNDS = 0.25, 8  # the wait for counts from a disk that hangs


class SqliteStore(Store):
    """Belongs to the event loop that opened it. A disk error raises `StoreError`; the order then did
    nothing."""

    def __init__(self, path: Path, clock: Clock, writer: Writer, readers: Readers) -> None:
        self._path = path
        self._threads = Threads(writer, readers)
        self._wal = path.with_name(path.name + "-wal")
        self._integrity = Integrity.CLEAN_END
        no_turns = {str(state): 0 for state in TurnState}
        self._counted = StoreStats(self._threads.engine, self._threads.schema, 0, 0, 0, no_turns, 0, 0)
        super().__init__(self._threads, clock)

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

    async def __aenter__(self) -> SqliteStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

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

    async def stats(self) -> StoreStats:
        """See `Store.stats`. The counts are those of the last time if the database does not answer now."""
        self._threads.check_open()
        counting = asyncio.create_task(self._count(), name="store-stats")
        try:
            for _ in range(_STATS_ROUNDS):
                await asyncio.wait((counting,), timeout=_STATS_SECONDS)
                if counting.done() or self.trouble is not None:
                    break
        finally:
            counting.cancel()
        if counting.done():
            self._counted = counting.result()
        trouble, kind = ("", "") if self.trouble is None else (self.trouble.user_text, self.trouble.type)
        return msgspec.structs.replace(
            self._counted, integrity=self._integrity.value, trouble=trouble, trouble_type=kind
        )

    async def _count(self) -> StoreStats:
        try:
            sizes = await self._threads.read(lambda db: (_size(self._path), _size(self._wal)))
            counted = await super().stats()
        except StoreError:
            if self.trouble is None:
                raise
            return self._counted
        return msgspec.structs.replace(counted, size_bytes=sizes[0], wal_bytes=sizes[1])


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
