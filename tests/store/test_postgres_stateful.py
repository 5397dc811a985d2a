"""The ledger's state machine on PostgreSQL: whatever is ordered, it does what SQLite does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from store.test_stateful import Ledger
from talaria.core.clock import Clock
from talaria.store.postgres.connections import open_pipe
from talaria.store.postgres.link import PostgresLink
from talaria.store.sql.executor import Connection, Executor, Transaction
from talaria.store.sqlite.database import open_memory
from talaria.testing.clock import FakeClock

T = TypeVar("T")
TABLES = [
    name
    for (name,) in open_memory().execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
    if not name.startswith("sqlite_")
]
ALL_ROWS = " UNION ALL ".join(f"SELECT '{name}', CAST(t AS TEXT) FROM {name} t" for name in sorted(TABLES))


class InlinePostgres(Executor):
    """Runs orders and queries at once, in the caller's own step, as `InlineExecutor` does."""

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__("postgresql", 0, clock)
        self._writer = PostgresLink(lambda: open_pipe(url), clock)
        self._reader = PostgresLink(lambda: open_pipe(url, is_reader=True), clock)

    async def write(self, order: Callable[[Transaction], T], *, is_durable: bool = False) -> T:
        return self._writer.write(order)

    async def read(self, query: Callable[[Connection], T]) -> T:
        return self._reader.read(query)

    async def close(self) -> None:
        self._writer.close()
        self._reader.close()


class PostgresLedger(Ledger):
    url: ClassVar[str] = ""
    empty: ClassVar[Callable[[], object]]

    def make_executor(self, clock: FakeClock) -> Any:
        type(self).empty()
        return InlinePostgres(self.url, clock)

    def all_rows(self, db: Connection) -> Any:
        return sorted(db.execute(ALL_ROWS).fetchall())


@pytest.fixture(autouse=True)
def database(emptied_database: tuple[str, Callable[[], object]]) -> Iterator[None]:
    PostgresLedger.url, empty = emptied_database
    PostgresLedger.empty = staticmethod(empty)
    yield
    empty()


class PostgresLedgerLong(PostgresLedger):
    pass


_CHECKS = list(HealthCheck)
TestPostgresLedger = PostgresLedger.TestCase
TestPostgresLedger.settings = settings(
    max_examples=4, stateful_step_count=25, deadline=None, suppress_health_check=_CHECKS
)
TestPostgresLedgerLong = pytest.mark.long(PostgresLedgerLong.TestCase)
TestPostgresLedgerLong.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=_CHECKS
)
