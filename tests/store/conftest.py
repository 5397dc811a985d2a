"""What the tests of the store share: each store that there is, empty, by a clock in the test's hands."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from contracts.store_orders import new_clock
from support.postgres_server import emptied_database, postgres, postgres_database, postgres_url  # noqa: F401 - fixtures
from talaria.store.in_memory import MemoryStore
from talaria.store.postgres.store import PostgresStore
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return new_clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "talaria.db"


# The store in memory runs the same SQL: the soak repeats the suites on it, `test_contract` has a short form.
@pytest.fixture(params=["file", "postgres", pytest.param("memory", marks=pytest.mark.long)])
async def store(
    request: pytest.FixtureRequest, path: Path, clock: FakeClock
) -> AsyncIterator[MemoryStore | SqliteStore | PostgresStore]:
    store = await open_store(request, path, clock)
    yield store
    await store.close()


async def open_store(
    request: pytest.FixtureRequest, path: Path, clock: FakeClock
) -> MemoryStore | SqliteStore | PostgresStore:
    match request.param:
        case "memory":
            return MemoryStore(clock)
        case "file":
            return await SqliteStore.open(path, clock)
        case _:
            url = request.getfixturevalue("postgres_url")
            return await PostgresStore.open(url, clock)


# On PostgreSQL a test costs ten times as much, so these run on it with --long only.
_LONG_ON_POSTGRES = {
    "TestRetentionContract",
    "TestCompactionContract",
    "TestDeletionContract",
    "TestPairingContract",
    "TestTokenContract",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        kind = item.cls if isinstance(item, pytest.Function) else None
        if kind is not None and kind.__name__ in _LONG_ON_POSTGRES and "[postgres]" in item.name:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("talaria-store")]
