"""`PostgresStore`: the store on a database of PostgreSQL."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import StoreError
from talaria.store.postgres.connections import (
    GATEWAY,
    Connect,
    connect_listener,
    open_pipe,
    preparing,
    version_of,
)
from talaria.store.postgres.faults import hanging
from talaria.store.postgres.schema import migrate
from talaria.store.postgres.server_clock import ServerClock
from talaria.store.postgres.snapshots import copy_snapshot
from talaria.store.postgres.threads import PostgresThreads
from talaria.store.postgres.wakes import PostgresWakes
from talaria.store.sql.executor import Connection
from talaria.store.store import ThreadedStore

CONNECTIONS = 8
TIME = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"
SIZE = "SELECT pg_database_size(current_database())"
_GATEWAYS = f"""
SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{GATEWAY}' LIMIT 1
"""  # noqa: S608 - a constant
_OLD_MARKS = "DELETE FROM order_marks WHERE at < extract(epoch FROM clock_timestamp()) - 7 * 86400"


class PostgresStore(ThreadedStore):
    """Belongs to the event loop that opened it. A write whose commit was cut off returns or raises when the
    database has said whether it was carried out. With the system's clock, times are the database's.
    """

    def __init__(
        self, threads: PostgresThreads, clock: Clock, wakes: PostgresWakes, connect_snapshot: Connect
    ) -> None:
        self._threads = threads
        self._connect_snapshot = connect_snapshot
        self._server_clock = clock if isinstance(clock, ServerClock) else None
        super().__init__(threads, wakes)

    @classmethod
    async def open(
        cls,
        url: str,
        clock: Clock,
        *,
        connections: int = CONNECTIONS,
        name: str = GATEWAY,
        on_create: str = "",
    ) -> PostgresStore:
        """Open the database, and make its tables or migrate them. Raises `StoreError`.

        The server shows the connections under this name. `on_create` is a statement for the transaction that
        creates the tables.
        """
        times: Clock = ServerClock() if isinstance(clock, SystemClock) else clock
        version, schema = await asyncio.to_thread(_prepare, url, times, name, on_create)
        threads = PostgresThreads(
            partial(open_pipe, url, name=name),
            partial(open_pipe, url, name=name, is_reader=True),
            times,
            engine=f"postgresql {version}",
            schema=schema,
            most=connections,
        )
        await asyncio.to_thread(threads.reserve_side)
        wakes = PostgresWakes(threads, partial(connect_listener, url, name))
        return cls(threads, times, wakes, partial(open_pipe, url, name=name, is_snapshot=True))

    @property
    def threads(self) -> PostgresThreads:
        return self._threads

    @property
    def trouble(self) -> StoreError | None:
        return self._threads.trouble

    def abandon(self) -> None:
        self._threads.abandon()

    async def look(self) -> None:
        """Ask the database for its time; `trouble` tells if it does not answer."""
        self._threads.writers.refuse_old()
        self._threads.readers.refuse_old()
        asked = self._threads.read(lambda db: (self.clock.elapsed(), _read_time(db)))
        with suppress(StoreError):
            asked_at, told = await asked
            if self._server_clock is not None:
                self._server_clock.note(asked_at, told)

    async def is_in_use(self) -> bool:
        """Return whether a gateway is connected. This store has another name."""
        return await self._threads.read(lambda db: db.execute(_GATEWAYS).fetchone()) is not None

    async def snapshot(self, path: Path) -> None:
        check_open = self._threads.check_open
        check_open()
        await copy_snapshot(self._connect_snapshot, path, self.clock, check_open=check_open)

    async def _sizes(self) -> tuple[int, int]:
        return await self._threads.read(lambda db: db.execute(SIZE).fetchone()[0]), 0

    def _note_silence(self) -> StoreError:
        return hanging(self.stats_seconds, "a query")


def _read_time(db: Connection) -> float:
    return float(db.execute(TIME).fetchone()[0])


def _prepare(url: str, clock: Clock, name: str, on_create: str) -> tuple[str, int]:
    """Return the server's version and the schema's. Raises `StoreError`."""
    with preparing(url, name) as connection:
        version = version_of(connection)
        schema = migrate(connection, on_create)
        connection.execute(_OLD_MARKS)
        if isinstance(clock, ServerClock):
            asked_at = clock.elapsed()
            row = connection.execute(TIME).fetchone()
            assert row is not None
            clock.note(asked_at, row[0])
        return version, schema
