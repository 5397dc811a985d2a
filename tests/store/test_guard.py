"""The guard of the live database goes off, and only then."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from contracts.store_orders import accepting
from support.database_guard import DatabaseGuard
from talaria.store.sqlite.faults import driver
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
async def test_opening_a_live_database_by_other_means_fails_the_test(
    path: Path, clock: FakeClock, database_guard: DatabaseGuard, ending: str
) -> None:
    async with await SqliteStore.open(path, clock) as store:
        await store.accept(accepting())
        with pytest.raises(PermissionError):
            path.with_name(path.name + ending).read_bytes()
    assert len(database_guard.faults) == 1
    database_guard.faults.clear()


@pytest.mark.skipif(driver.__name__.startswith("sqlite3"), reason="the store runs on Python's own SQLite")
async def test_a_second_sqlite_on_a_live_database_fails_the_test(
    path: Path, clock: FakeClock, database_guard: DatabaseGuard
) -> None:
    async with await SqliteStore.open(path, clock):
        with pytest.raises(PermissionError):
            sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert len(database_guard.faults) == 1
    database_guard.faults.clear()


async def test_a_closed_database_may_be_read(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock):
        pass
    assert path.read_bytes()
