"""Snapshots of a store on PostgreSQL: a SQLite file with all rows of one moment, while gateways write."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from contracts.store_orders import (
    OTHER_CHAT,
    accepting,
    answered,
    begun,
    parked,
    pinned,
    record_of,
)
from support.postgres_server import PostgresServer
from talaria.core.errors import StoreError
from talaria.store.copying import CopiedTable, copied_tables
from talaria.store.postgres.connections import open_pipe
from talaria.store.postgres.schema import latest_version
from talaria.store.postgres.snapshots import copy_snapshot
from talaria.store.postgres.store import PostgresStore
from talaria.store.settings import UNFINISHED_COPY
from talaria.store.sql.executor import Executor
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock


async def _fill(store: PostgresStore) -> None:
    for n in range(450):
        await store.set_cursor(f"cursor {n}", "a\U0001f600b")
    await answered(store, accepting(spec=pinned(), address="a", key="k"))
    await parked(store, accepting(chat=OTHER_CHAT))
    await begun(store, accepting(address="b"))


async def _rows(executor: Executor, table: CopiedTable) -> list[object]:
    sql = f"SELECT {', '.join(table.columns)} FROM {table.name}"
    rows = await executor.read(lambda db: db.execute(sql).fetchall())
    return sorted(map(tuple, rows), key=repr)


def _left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_snapshot_has_every_row_of_every_table_also_while_a_turn_runs(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with await PostgresStore.open(postgres_url, clock) as server:
        await _fill(server)
        await server.snapshot(path)
        assert _left(path.parent) == [path.name], "it is one file"
        assert path.stat().st_mode & 0o777 == 0o600
        async with await SqliteStore.open(path, clock) as copy:
            for table in copied_tables():
                assert await _rows(copy.threads, table) == await _rows(server.threads, table), table.name
            counted, expected = await copy.stats(), await server.stats()
            assert (counted.sessions, counted.turns) == (expected.sessions, expected.turns)
            assert await copy.cursor(UNFINISHED_COPY) is None


async def test_writes_during_a_snapshot_are_not_in_it(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    """Each write changes a table that was copied already and one that was not."""
    async with await PostgresStore.open(postgres_url, clock) as server:
        await _fill(server)
        seen: set[str] = set()

        def write(table: str, rows: int) -> None:
            if table not in seen:
                seen.add(table)
                with psycopg.connect(postgres_url) as other:
                    other.execute("UPDATE cursors SET value = %s WHERE name = 'cursor 7'", [table])
                    other.execute("UPDATE turns SET reply = %s", [table])
                    other.execute("DELETE FROM cursors WHERE name = 'cursor 9'")

        before = {table.name: await _rows(server.threads, table) for table in copied_tables()}
        connect = partial(open_pipe, postgres_url, is_snapshot=True)
        await copy_snapshot(connect, path, clock, tell=write)
        assert await server.cursor("cursor 7") == "wrong_codes" and await server.cursor("cursor 9") is None
        async with await SqliteStore.open(path, clock) as copy:
            assert {table.name: await _rows(copy.threads, table) for table in copied_tables()} == before


async def test_a_snapshot_under_load_is_a_whole_store(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with await PostgresStore.open(postgres_url, clock) as server:
        await _fill(server)
        ids = [(await answered(server, accepting(key=f"before {n}"))).turn.id for n in range(20)]
        copying = asyncio.create_task(server.snapshot(path))
        during = 0
        while not copying.done():
            await answered(server, accepting(key=f"during {during}"))
            during += 1
        await copying
        assert during > 0
        async with await SqliteStore.open(path, clock) as copy:
            assert [(await record_of(copy, each)).turn.reply for each in ids] == ["hi"] * 20
            open_turns = "SELECT count(*) FROM turns t JOIN sessions s ON s.id = t.session_id"
            (joined,) = await copy.threads.read(lambda db: db.execute(open_turns).fetchone())
            assert joined == sum((await copy.stats()).turns.values()), "rows of all tables fit"


async def test_a_snapshot_from_a_newer_schema_is_refused(
    path: Path, clock: FakeClock, postgres_database: str
) -> None:
    async with await PostgresStore.open(postgres_database, clock) as server:
        with psycopg.connect(postgres_database) as other:
            other.execute("UPDATE talaria_schema SET version = %s", [latest_version() + 1])
        with pytest.raises(StoreError, match="schema") as refused:
            await server.snapshot(path)
        assert "newer" in refused.value.hint
    assert not _left(path.parent)


async def test_a_lost_server_ends_a_snapshot_and_leaves_no_file(
    path: Path, clock: FakeClock, postgres_url: str, postgres: PostgresServer
) -> None:
    async with await PostgresStore.open(postgres_url, clock) as server:
        await _fill(server)

        def cut(table: str, rows: int) -> None:
            postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'snapshot'"
            )

        connect = partial(open_pipe, postgres_url, name="snapshot", is_snapshot=True)
        with pytest.raises(StoreError, match="database stopped") as lost:
            await copy_snapshot(connect, path, clock, tell=cut)
        assert "try again" in lost.value.hint.lower()
    assert not _left(path.parent)


async def test_a_full_disk_ends_a_snapshot_with_the_reason_and_leaves_no_file(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with await PostgresStore.open(postgres_url, clock) as server:
        await _fill(server)
        with _largest_file(300_000), pytest.raises(StoreError, match="could not be written") as full:
            await server.snapshot(path)
        assert full.value.hint == "Free space on that disk, then try again."
        assert not _left(path.parent)
        await server.snapshot(path)


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """Let writes fail as on a full disk (EFBIG: Python ignores the signal)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_store_that_closes_ends_its_snapshot(path: Path, clock: FakeClock, postgres_url: str) -> None:
    async with await PostgresStore.open(postgres_url, clock) as server:
        await _fill(server)
        copying = asyncio.create_task(server.snapshot(path))
        await asyncio.sleep(0)
    with pytest.raises(StoreError):
        await copying
    assert not _left(path.parent)


async def test_a_snapshot_that_is_cancelled_leaves_no_file_and_no_connection(
    path: Path, clock: FakeClock, postgres_url: str, postgres: PostgresServer
) -> None:
    async with await PostgresStore.open(postgres_url, clock) as server:
        await _fill(server)
        reached = asyncio.Event()

        def stop(table: str, rows: int) -> None:
            reached.set()

        connect = partial(open_pipe, postgres_url, name="snapshot", is_snapshot=True)
        copying = asyncio.create_task(copy_snapshot(connect, path, clock, tell=stop))
        await reached.wait()
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
    assert not _left(path.parent)
