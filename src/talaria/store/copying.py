"""Copies of a store from one engine to another, row by row.

Both sides are read in the order of each table's key, page by page. Rows that the target lacks, or has
otherwise, are written; rows that only the target has are deleted. So a copy that was interrupted is simply
begun again. At the end both sides are read once more and compared. The target must be empty, or the copy that
was begun: it has a mark until the comparison was good, and no gateway starts on it before. The transaction
that creates the tables of a new target sets the mark. Zero characters, which PostgreSQL's text cannot hold,
become U+FFFD there, as in all that is stored.
"""

# ruff: noqa: S608 (statements are put together from the names of tables and columns only)

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from talaria.core.clock import SystemClock
from talaria.core.errors import StoreError
from talaria.core.installation import check_extra
from talaria.store.settings import UNFINISHED_COPY, find_database, is_postgres
from talaria.store.sql.executor import Connection, Executor, Reader, Transaction
from talaria.store.sqlite.database import open_memory
from talaria.store.sqlite.store import SqliteStore

PAGE = 200
_IS_LEASED = """
SELECT 1 FROM sessions WHERE lease_expires > ? UNION ALL SELECT 1 FROM members WHERE expires_at > ? LIMIT 1
"""
_FIND_MARK = f"SELECT 1 FROM cursors WHERE name = '{UNFINISHED_COPY}'"
SET_MARK = f"INSERT INTO cursors (name, value) VALUES ('{UNFINISHED_COPY}', '') ON CONFLICT (name) DO NOTHING"
_NO_MARK = f"name <> '{UNFINISHED_COPY}'"
_DROP_MARK = f"DELETE FROM cursors WHERE name = '{UNFINISHED_COPY}'"
_SUM_COUNTS = "SELECT name, CAST(coalesce(sum(n), 0) AS BIGINT) FROM counts GROUP BY name ORDER BY name"
FIND_SCHEMA = "SELECT version FROM talaria_schema"
_DROP_COUNTS = "DELETE FROM counts"

# The counts are added up; the others tell which gateways are there now.
_NOT_COPIED = {"counts", "members", "roles"}

Tell = Callable[[str, int], None]


class CopyResult(NamedTuple):
    """The rows that were copied, and in how many of them zero characters were replaced."""

    rows: int
    replaced: int


class CopiedTable(msgspec.Struct, frozen=True):
    """A table of the schema, with its columns and its key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[int, ...]  # places of the key's columns

    def key_of(self, row: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(row[place] for place in self.key)

    @property
    def _key(self) -> str:
        return ", ".join(self.columns[place] for place in self.key)

    def _where(self, comparison: str) -> str:
        return f"({self._key}) {comparison} ({', '.join('?' for _ in self.key)})"

    def read(
        self, db: Connection | Transaction, after: tuple[Any, ...] | None, limit: int = PAGE
    ) -> list[tuple[Any, ...]]:
        conditions = [self._where(">")] * (after is not None) + [_NO_MARK] * (self.name == "cursors")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = f"SELECT {', '.join(self.columns)} FROM {self.name} {where} ORDER BY {self._key} LIMIT {limit}"
        return [tuple(row) for row in db.execute(sql, after or ()).fetchall()]

    def delete(self, tx: Transaction, row: Sequence[Any]) -> None:
        tx.execute(f"DELETE FROM {self.name} WHERE {self._where('=')}", self.key_of(row))

    def insert(self, tx: Transaction, row: Sequence[Any]) -> None:
        places = ", ".join("?" for _ in self.columns)
        tx.execute(f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({places})", row)


def copied_tables() -> list[CopiedTable]:
    """Return the tables of the schema whose rows are copied as they are."""
    db, found = open_memory(), []
    for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall():
        if name.startswith("sqlite_") or name in _NOT_COPIED:
            continue
        rows = db.execute(f"PRAGMA table_info({name})").fetchall()
        key = sorted((row for row in rows if row[5]), key=lambda row: row[5])
        places = tuple(next(i for i, row in enumerate(rows) if row[1] == part[1]) for part in key)
        found.append(CopiedTable(name, tuple(row[1] for row in rows), places))
    db.close()
    return found


class StoreCopy:
    """Copies from one executor to another. The caller knows that no gateway works on either.

    A source that `is_snapshot` cannot change any more. It may have been taken while a gateway had leases.
    """

    def __init__(
        self,
        source: Reader,
        target: Executor,
        tell: Tell = lambda table, rows: None,
        *,
        is_snapshot: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._tell = tell
        self._is_snapshot = is_snapshot
        self._tables = copied_tables()
        self._is_server = target.engine.startswith("postgresql")
        self._replaced = 0

    async def run(self, now: float, on_compared: Callable[[], None] = lambda: None) -> CopyResult:
        """Copy and compare. `on_compared` is called before the target can be used. If it raises, or this
        method raises `StoreError`, begin again."""
        is_begun = await self._check(now)
        await self._target.write(partial(_run, sql=SET_MARK), is_durable=True)
        for table in self._tables:
            if is_begun:  # old rows go first: one of them may have a unique value that another has by now
                await self._copy(table, drops_only=True)
            await self._copy(table)
        counts = await self._source.read(lambda db: db.execute(_SUM_COUNTS).fetchall())
        await self._target.write(lambda tx: _finish(tx, counts, is_server=self._is_server), is_durable=True)
        total = sum([await self._compare(table) for table in self._tables])
        if await self._target.read(lambda db: db.execute(_SUM_COUNTS).fetchall()) != counts:
            raise _differs("counts")
        on_compared()
        await self._target.write(partial(_run, sql=_DROP_MARK), is_durable=True)
        return CopyResult(total, self._replaced)

    async def _check(self, now: float) -> bool:
        """Return whether the target is a copy that was begun."""
        sides: list[tuple[Reader, str]] = [(self._target, "target")]
        if not self._is_snapshot:
            sides.insert(0, (self._source, "database"))
        for side, name in sides:
            if await side.read(lambda db: db.execute(_IS_LEASED, (now, now)).fetchone()) is not None:
                raise StoreError(
                    f"A gateway works on the {name}: it has leases.",
                    "Stop it, wait half a minute, then try again.",
                )
        is_begun = await self._target.read(lambda db: db.execute(_FIND_MARK).fetchone()) is not None
        if not is_begun and (held := await self._target.read(self._find_rows)) is not None:
            raise StoreError(f"The target has rows in {held} already.", "Name an empty database.")
        return is_begun

    def _find_rows(self, db: Connection) -> str | None:
        return next((table.name for table in self._tables if table.read(db, None, 1)), None)

    async def _copy(self, table: CopiedTable, *, drops_only: bool = False) -> None:
        after: tuple[Any, ...] | None = None
        copied = 0
        while True:
            rows = await self._source.read(partial(table.read, after=after))
            sync = partial(_sync, table=table, after=after, rows=self._storable(rows), drops_only=drops_only)
            await self._target.write(sync)  # `_finish` makes all of them durable
            copied += len(rows)
            self._tell(table.name, copied)
            if not rows:
                return
            after = table.key_of(rows[-1])

    def _storable(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the rows as the target holds them."""
        return [_without_zeros(row) for row in rows] if self._is_server else rows

    async def _compare(self, table: CopiedTable) -> int:
        after: tuple[Any, ...] | None = None
        compared = 0
        while True:
            ours = await self._source.read(partial(table.read, after=after))
            storable = self._storable(ours)
            if storable != await self._target.read(partial(table.read, after=after)):
                raise _differs(table.name)
            self._replaced += sum(map(operator.ne, ours, storable))
            if not ours:
                return compared
            compared += len(ours)
            after = table.key_of(ours[-1])


def _run(tx: Transaction, sql: str) -> None:
    tx.execute(sql)


def _without_zeros(row: tuple[Any, ...]) -> tuple[Any, ...]:
    if not any("\0" in value for value in row if isinstance(value, str)):
        return row
    return tuple(value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in row)


def _differs(table: str) -> StoreError:
    return StoreError(f"The copy of the table {table} differs from its source.", "Copy again.")


def _sync(
    tx: Transaction,
    table: CopiedTable,
    after: tuple[Any, ...] | None,
    rows: Sequence[tuple[Any, ...]],
    *,
    drops_only: bool,
) -> None:
    """Make the target have these rows behind `after`, and no others up to the last of them. With `drops_only`
    missing rows stay missing."""
    last = table.key_of(rows[-1]) if rows else None
    wanted, there, at = {table.key_of(row): row for row in rows}, dict[Any, Any](), after
    while page := table.read(tx, at):
        there |= {table.key_of(row): row for row in page}
        at = table.key_of(page[-1])
        if last is not None and at >= last:
            break
    for key, row in there.items():
        if (last is None or key <= last) and wanted.get(key) != row:
            table.delete(tx, row)
    for key, row in () if drops_only else wanted.items():
        if there.get(key) != row:
            table.insert(tx, row)


def _finish(tx: Transaction, counts: Sequence[Any], *, is_server: bool) -> None:
    """Set what the rows do not have: the counts, and the next numbers of a server's tables."""
    tx.execute(_DROP_COUNTS)
    for name, n in counts:
        if is_server:
            tx.execute("INSERT INTO counts (name, part, n) VALUES (?, 0, ?)", (name, n))
        else:
            tx.execute("INSERT INTO counts (name, n) VALUES (?, ?)", (name, n))
    if is_server:
        for table, column in _NUMBERED:
            tx.execute(
                f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'),"
                f" (SELECT coalesce(max({column}), 0) + 1 FROM {table}), false)"
            )


_NUMBERED = (
    ("turns", "position"),
    ("outbox", "id"),
    ("questions", "position"),
    ("jobs", "position"),
    ("removals", "id"),
)


def check_schema(version: int, known: int) -> None:
    """Refuse to copy a database that a newer program has migrated."""
    if version > known:
        raise StoreError(
            f"The database has the schema {version}, which this program does not know.",
            "Copy it with the newer program: this one would leave out what it does not know.",
        )


@asynccontextmanager
async def open_executor(url: str, default: Path, on_create: str = "") -> AsyncIterator[Executor]:
    """Open a database to be copied from or to. A missing one is made, together with `on_create`."""
    clock = SystemClock()
    if is_postgres(url):
        check_extra("postgres", "A database on PostgreSQL")
        from talaria.store.postgres.store import PostgresStore  # noqa: PLC0415 - psycopg is for this engine only

        name = "talaria store copy"
        async with await PostgresStore.open(url, clock, name=name, on_create=on_create) as store:
            if await store.is_in_use():
                raise StoreError("A gateway works on the database of the URL.", "Stop it, then try again.")
            (version,) = await store.threads.read(lambda db: db.execute(FIND_SCHEMA).fetchone())
            check_schema(version, store.threads.schema)
            yield store.threads
    else:
        path = find_database(url, default)
        async with await SqliteStore.open(path, clock, on_create=on_create) as file:
            yield file.threads


async def copy_store(source: str, target: str, default: Path, tell: Tell) -> CopyResult:
    """Copy the database of one URL to that of another. Raises `StoreError`."""
    async with _open_both(source, target, default) as (first, second):
        return await StoreCopy(first, second, tell).run(SystemClock().now())


async def restore_rows(
    snapshot: Path, target: str, tell: Tell, on_compared: Callable[[], None]
) -> CopyResult:
    """Copy the database of a backup to the empty one of a URL. `on_compared` is called before that can be
    used. Raises `StoreError`."""
    async with _open_both(f"sqlite:{snapshot}", target, snapshot) as (first, second):
        copy = StoreCopy(first, second, tell, is_snapshot=True)
        return await copy.run(SystemClock().now(), on_compared)


@asynccontextmanager
async def _open_both(source: str, target: str, default: Path) -> AsyncIterator[tuple[Executor, Executor]]:
    async with (
        open_executor(source, default) as first,
        open_executor(target, default, on_create=SET_MARK) as second,
    ):
        yield first, second
