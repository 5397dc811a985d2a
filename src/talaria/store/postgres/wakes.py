"""Wake-ups between gateways by LISTEN and NOTIFY.

A notification is sent in its own transaction, after the order that it is about is committed: inside of the
order it would hold a lock of the whole database until the commit is on disk. It is a hint, so its own commit
need not be on disk. Every member listens on a channel of its own and on one for all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from talaria.core.backoff import Backoff
from talaria.core.cluster import Wake
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId
from talaria.core.tasks import running
from talaria.store.sql.executor import Reader
from talaria.store.sql.wakes import Heard

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
