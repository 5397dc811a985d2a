"""Forgetting, over every store, and the plans of its statements."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.store_orders import HandClock
from contracts.store_retention_suite import RetentionSubject, StoreRetentionSuite
from talaria.store.memory import MemoryStore
from talaria.store.sqlite import retention
from talaria.store.sqlite.connection import open_writer
from talaria.store.sqlite.store import SqliteStore


class TestRetention(StoreRetentionSuite):
    @pytest.fixture(params=["memory", "sqlite"])
    async def store(
        self, request: pytest.FixtureRequest, clock: HandClock, path: Path
    ) -> AsyncIterator[RetentionSubject]:
        store: RetentionSubject
        store = MemoryStore(clock) if request.param == "memory" else await SqliteStore.open(path, clock)
        yield store
        await store.close()


@pytest.mark.parametrize("name", [name for name in vars(retention) if name.isupper() and len(name) > 1])
def test_statement_finds_its_rows_by_an_index(path: Path, name: str) -> None:
    """Specs and prefixes are few: those that nobody has are looked for among all."""
    sql = getattr(retention, name)
    if not isinstance(sql, str) or name.startswith("_"):
        return
    connection = open_writer(path)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?")).fetchall()
    connection.close()
    scanned = {row[3] for row in plan if row[3].startswith("SCAN")}
    assert not scanned or name.startswith("FIND_UNUSED"), scanned
