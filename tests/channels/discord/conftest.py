"""Fixtures for the Discord channel."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from talaria.testing.discord_server import DiscordServer


@pytest.fixture
async def discord() -> AsyncIterator[DiscordServer]:
    async with DiscordServer() as server:
        yield server
