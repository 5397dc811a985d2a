"""The store's contract, over every implementation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.store_delivery_suite import StoreDeliverySuite
from contracts.store_orders import HandClock
from contracts.store_suite import StoreSuite
from talaria.core.ports import Store
from talaria.store.memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore


class TestStoreContract(StoreSuite, StoreDeliverySuite):
    @pytest.fixture(params=["memory", "sqlite"])
    async def store(
        self, request: pytest.FixtureRequest, clock: HandClock, tmp_path: Path
    ) -> AsyncIterator[Store]:
        store: Store
        if request.param == "memory":
            store = MemoryStore(clock)
        else:
            store = await SqliteStore.open(tmp_path / "talaria.db", clock)
        yield store
        await store.close()
