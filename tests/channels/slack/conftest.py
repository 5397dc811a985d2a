from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from talaria.testing.slack_server import SlackServer


@pytest.fixture
async def server() -> AsyncIterator[SlackServer]:
    async with SlackServer() as server:
        yield server
