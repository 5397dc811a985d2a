from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from talaria.testing.telegram_server import TelegramServer


@pytest.fixture
async def server() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        yield server
