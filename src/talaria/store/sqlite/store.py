"""`SqliteStore`: the store's port on one SQLite file."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.core.ledger import StoreStats
from talaria.store.sqlite.connection import open_reader, open_writer
from talaria.store.sqlite.copying import copy_database
from talaria.store.sqlite.faults import damaged
from talaria.store.sqlite.integrity import LOOK_FIRST_BYTES, Integrity, find_damage
from talaria.store.sqlite.port import SqlStore
from talaria.store.sqlite.reach import Threads
from talaria.store.sqlite.readers import Readers
from talaria.store.sqlite.writer import Transaction, Writer


class SqliteStore(SqlStore):
    """See `core.ports.Store` for what each method promises.

    Belongs to the event loop that opened it. A caller that is cancelled while its write is under way gets
    the cancellation once the write is done; one that reads gets it at once. Disk errors come out as
    `StoreError`, and then nothing of the order was done.
    """

    def __init__(self, path: Path, clock: Clock, writer: Writer, readers: Readers) -> None:
        self._path = path
        self._threads = Threads(writer, readers)
        self._integrity = Integrity.CLEAN_END
        super().__init__(self._threads, clock)

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        is_suspect: bool = False,
        look_first_bytes: int = LOOK_FIRST_BYTES,
    ) -> SqliteStore:
        """Open the database, made or migrated if need be. The caller holds the home's lock.

        `is_suspect`: the last owner did not close it. A file up to `look_first_bytes` is then looked at
        first; a larger one waits for `verify`. Raises `StoreError` for a shared file system, an unusable
        folder, a file that is no Talaria database, a damaged one, and one newer than this program.
        """
        look_first = is_suspect and _size(path) <= look_first_bytes
        writer = await Writer.start(partial(open_writer, path, look_first=look_first), clock)
        store = cls(path, clock, writer, Readers(partial(open_reader, path), on_failure=writer.note_damage))
        if is_suspect:
            store._integrity = Integrity.WHOLE if look_first else Integrity.CHECKING
        return store

    async def __aenter__(self) -> SqliteStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._threads.close()

    @property
    def integrity(self) -> Integrity:
        return self._integrity

    @property
    def trouble(self) -> StoreError | None:
        """Why nothing can be written now: what the last write met. `probe` finds out whether it is over."""
        return self._threads.writer.trouble

    async def probe(self) -> None:
        """Write to the disk, changing nothing. Raises `StoreError` while that fails."""
        await self._reach.write(_write_version, None, is_durable=True)

    async def verify(self) -> str | None:
        """Look whether the file is whole, beside its other readers; from the first damage on nothing is
        written. Answers with what was found. Raises `StoreError` when the store closed meanwhile."""
        finding = await self._reach.read(find_damage, lambda: self._threads.is_closing)
        self._integrity = Integrity.WHOLE if finding is None else Integrity.DAMAGED
        if finding is not None:
            self._threads.writer.note_damage(damaged(finding))
        return finding

    async def snapshot(self, path: Path) -> None:
        """Write a whole, compact copy of the database to a new file, 0600, beside all other work.

        Raises `StoreError`; then there is no file.
        """
        self._threads.check_open()
        await asyncio.to_thread(copy_database, self._path, path, lambda: self._threads.is_closing)

    async def stats(self) -> StoreStats:
        counted = await super().stats()
        return msgspec.structs.replace(
            counted,
            size_bytes=_size(self._path),
            wal_bytes=_size(self._path.with_name(self._path.name + "-wal")),
            integrity=self._integrity.value,
            trouble="" if self.trouble is None else self.trouble.user_text,
        )


def _write_version(tx: Transaction, _: None) -> None:
    """Write the page that has the schema's version, as it is."""
    (version,) = tx.execute("PRAGMA user_version").fetchone()
    tx.execute(f"PRAGMA user_version = {version}")


def _size(path: Path) -> int:
    """By name: the live file must not be opened."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
