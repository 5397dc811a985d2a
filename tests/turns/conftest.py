"""Stores to run turns over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.rig import Rig, start
from talaria.core.clock import SystemClock
from talaria.store.in_memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "memory":
        opened = MemoryStore(SystemClock())
    else:
        opened = await SqliteStore.open(tmp_path / "talaria.db", SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
async def rig(store: Store, tmp_path: Path) -> AsyncIterator[Rig]:
    async with start(store, tmp_path / "files") as rig:
        yield rig
