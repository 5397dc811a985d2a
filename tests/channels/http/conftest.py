"""A gateway with its model server for each test; nothing may be left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def api(tmp_path: Path, model: ModelServer) -> AsyncIterator[Api]:
    before = asyncio.all_tasks()
    async with in_process(tmp_path / "home", model) as api:
        yield api
    assert not asyncio.all_tasks() - before - {asyncio.current_task()}
