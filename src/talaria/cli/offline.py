"""The home's store when no gateway runs: under the home's lock; nothing is resumed, no model called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from talaria.config.home import Home
from talaria.config.settings import Settings
from talaria.core.clock import SystemClock
from talaria.core.errors import ConfigError
from talaria.store.home_lock import HomeLock
from talaria.store.sqlite.store import SqliteStore


@asynccontextmanager
async def offline_store(
    home: Home, settings: Settings, *, make: bool = False
) -> AsyncIterator[SqliteStore | None]:
    """None for a home without a database, unless it is to be made.

    Raises `ConfigError` for a database elsewhere and `StoreError` for one that cannot be opened.
    """
    if settings.store.url:
        raise ConfigError(
            "store.url names a database elsewhere, which is read through a running gateway only.",
            "Start it with `talaria serve` and try again.",
        )
    if make:
        home.prepare()
    elif not home.database.exists():
        yield None
        return
    with HomeLock(home.path):
        async with await SqliteStore.open(home.database, SystemClock()) as store:
            yield store
