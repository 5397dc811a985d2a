from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.store_orders import new_clock
from support.search_world import SearchWorld
from talaria.store.in_memory import MemoryStore


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SearchWorld]:
    clock = new_clock()
    store = MemoryStore(clock)
    world = SearchWorld(store, tmp_path, clock)
    yield world
    await world.close()
    await store.close()
