"""A model server and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from talaria.testing.model_server import ModelServer


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
