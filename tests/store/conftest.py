"""What the tests of the store share: each store that there is, empty, by a clock in the test's hands."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from contracts.store_orders import HandClock
from talaria.store.memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "talaria.db"


# The store in memory runs the same SQL: the soak repeats the suites on it, `test_contract` has a short form.
@pytest.fixture(params=["file", pytest.param("memory", marks=pytest.mark.long)])
async def store(
    request: pytest.FixtureRequest, path: Path, clock: HandClock
) -> AsyncIterator[MemoryStore | SqliteStore]:
    store = MemoryStore(clock) if request.param == "memory" else await SqliteStore.open(path, clock)
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("talaria-store")]
