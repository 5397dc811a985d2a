"""`PostgresStore`: the store on a database of PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from talaria.core.backoff import Backoff
from talaria.core.clock import Clock, SystemClock
from talaria.core.cluster import Wake
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId
from talaria.core.tasks import running
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
from talaria.store.postgres.snapshots import copy_snapshot
from talaria.store.postgres.threads import PostgresThreads
from talaria.store.sql.cluster import Heard
from talaria.store.sql.executor import Connection, Reader
from talaria.store.store import ThreadedStore

# -- the clock of the database, which all gateways on it share --------------------------------------------


_LONGEST_TRIP = 0.25  # seconds; a slower answer says too little about the time
_MOST_AGE = 60.0  # seconds after which a slow answer is better than none


class ServerClock:
    """Tells the database's time: this machine's clock of elapsed time, plus what the server's was ahead of it
    when it was last asked. It is wrong by half a round trip at most. This machine's wall clock has no part in
    it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._ahead: float | None = None
        self._asked_at = 0.0

    def now(self) -> float:
        return self._clock.elapsed() + (self._ahead or 0.0)

    def elapsed(self) -> float:
        return self._clock.elapsed()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def note(self, asked_at: float, told: float) -> None:
        """Take up the server's time, which was asked for at `asked_at` by `elapsed`."""
        now = self._clock.elapsed()
        trip = now - asked_at
        if self._ahead is None or trip <= _LONGEST_TRIP or now - self._asked_at > _MOST_AGE:
            self._ahead, self._asked_at = told - (asked_at + now) / 2, now


# -- wake-ups between gateways by LISTEN and NOTIFY -------------------------------------------------------
# A notification is sent in its own transaction, after the order that it is about is committed: inside of
# the order it would hold a lock of the whole database until the commit is on disk. It is a hint, so its own
# commit need not be on disk. Every member listens on a channel of its own and on one for all.


_log = logging.getLogger("talaria.store")
_ALL = "talaria_all"
_PAUSES = Backoff(first=0.1, longest=2.0)
_NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(?, ?)"
_LISTEN = sql.SQL("LISTEN {}")
_KINDS = frozenset(what.value for what in Wake)


@dataclass(frozen=True, slots=True)
class PostgresWakes:
    """Sends wake-ups with the store's readers, and hears them on one connection for each listener. `connect`
    opens that connection."""

    reader: Reader
    connect: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]

    async def wake(self, what: Wake, owner: OwnerId | None) -> None:
        note = (_ALL if owner is None else _channel(owner), what.value)
        with suppress(StoreError):
            await self.reader.read(lambda db: db.execute(_NOTIFY, note).fetchone())

    @asynccontextmanager
    async def listen(self, owner: OwnerId, heard: Heard) -> AsyncIterator[None]:
        """Returns when the server listens, or when it could not be reached at first."""
        has_tried = asyncio.Event()
        async with running(self._listen(owner, heard, has_tried), name="store-wakes"):
            await has_tried.wait()
            yield

    async def _listen(self, owner: OwnerId, heard: Heard, has_tried: asyncio.Event) -> None:
        """Listen until cancelled, and connect again when the connection is cut. Wake-ups that were sent
        meanwhile are lost, so the listener hears all kinds then."""
        loop, failures, told = asyncio.get_running_loop(), 0, ""
        while True:
            try:
                async with await self.connect() as connection:
                    for channel in (_ALL, _channel(owner)):
                        await connection.execute(_LISTEN.format(sql.Identifier(channel)))
                    for what in Wake if has_tried.is_set() else ():
                        loop.call_soon(heard, what)
                    has_tried.set()
                    failures, told = 0, ""
                    async for note in connection.notifies():
                        if note.payload in _KINDS:
                            loop.call_soon(heard, Wake(note.payload))
            except Exception as error:  # the task's boundary: without wake-ups members look each second
                failures += 1
                if (why := str(error)) != told:
                    told = why
                    _log.info("wake-ups between gateways are not passed on: %s", error)
                has_tried.set()
            await asyncio.sleep(_PAUSES.pause(failures))


def _channel(owner: OwnerId) -> str:
    return f"talaria_{owner}"


# -- `PostgresStore`: the store on a database of PostgreSQL -----------------------------------------------


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
