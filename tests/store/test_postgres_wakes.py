"""Wake-ups between two gateways on one database of PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from contracts.store_orders import ME
from talaria.core.cluster import Wake
from talaria.store.postgres.store import PostgresStore, PostgresWakes
from talaria.testing.clock import FakeClock

Stores = tuple[PostgresStore, PostgresStore]
CUT_ALL = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'talaria'
"""


@pytest.fixture
async def stores(postgres_url: str, clock: FakeClock) -> AsyncIterator[Stores]:
    async with (
        await PostgresStore.open(postgres_url, clock, connections=2) as one,
        await PostgresStore.open(postgres_url, clock, connections=2) as two,
    ):
        yield one, two


async def test_a_listener_whose_connection_was_cut_looks_at_everything_and_hears_again(
    stores: Stores, postgres_url: str
) -> None:
    heard = asyncio.Queue[Wake]()
    async with stores[0].cluster.listen(ME, heard.put_nowait):
        await stores[1].cluster.wake(Wake.TURNS, ME)
        assert await heard.get() is Wake.TURNS
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(CUT_ALL)
        assert {await heard.get() for _ in Wake} == set(Wake)
        await stores[1].cluster.wake(Wake.OUTBOX)
        assert await heard.get() is Wake.OUTBOX


async def test_what_was_sent_last_goes_out_before_the_store_is_closed(stores: Stores) -> None:
    heard = asyncio.Queue[Wake]()
    async with stores[0].cluster.listen(ME, heard.put_nowait):
        for what in Wake:
            await stores[1].cluster.wake(what, ME)
        await stores[1].close()
        assert {await heard.get() for _ in Wake} == set(Wake)


async def test_a_database_that_cannot_be_reached_is_logged_once(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "talaria.store")
    attempts, tried_often = 0, asyncio.Event()

    async def connect() -> psycopg.AsyncConnection[Any]:
        nonlocal attempts
        attempts += 1
        if attempts == 3:
            tried_often.set()
        raise psycopg.OperationalError("The database is gone.")

    async with PostgresWakes(stores[0].threads, connect).listen(ME, lambda what: None):
        await asyncio.wait_for(tried_often.wait(), 20)
    assert caplog.text.count("The database is gone.") == 1
