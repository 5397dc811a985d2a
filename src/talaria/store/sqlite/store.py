"""`SqliteStore`: the store's port on one SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from talaria.core.clock import Clock
from talaria.core.entries import Entry
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    Accept,
    Accepted,
    Began,
    Begin,
    ChatSummary,
    Commit,
    Committed,
    EntryPage,
    OutboxRow,
    OutboxState,
    Page,
    Renewal,
    SessionPage,
    StoreStats,
    TurnEnd,
    TurnStory,
)
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec
from talaria.core.turns import Turn
from talaria.store import rules
from talaria.store.sqlite import orders, queries, upkeep
from talaria.store.sqlite.answers import Taken
from talaria.store.sqlite.connection import open_reader, open_writer
from talaria.store.sqlite.engine import driver, engine_version
from talaria.store.sqlite.readers import Readers
from talaria.store.sqlite.schema import latest_version
from talaria.store.sqlite.writer import Transaction, Writer

P = TypeVar("P")
T = TypeVar("T")


class SqliteStore:
    """See `core.ports.Store` for what each method promises.

    Belongs to the event loop that opened it. A caller that is cancelled while its write is under way gets
    the cancellation once the write is done; one that reads gets it at once. Disk errors come out as
    `StoreError`, and then nothing of the order was done.
    """

    def __init__(self, path: Path, clock: Clock, writer: Writer, readers: Readers) -> None:
        self._path = path
        self._clock = clock
        self._writer = writer
        self._readers = readers
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> SqliteStore:
        """Open the database, made or migrated if need be. The caller holds the home's lock.

        Raises `StoreError` for a shared file system, an unusable folder, a file that is no Talaria database,
        and a database newer than this program.
        """
        writer = await Writer.start(partial(open_writer, path), clock)
        return cls(path, clock, writer, Readers(partial(open_reader, path)))

    async def __aenter__(self) -> SqliteStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="store-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        # Readers first: an open read would keep the writer's last checkpoint from emptying the WAL.
        await self._readers.stop()
        await self._writer.stop()

    def _write(
        self, carry_out: Callable[[Transaction, P], T], order: P, *, is_durable: bool = False
    ) -> Taken[T]:
        if self._closing is not None:
            raise rules.closed()
        return self._writer.submit(carry_out, order, is_durable)

    def _read(self, query: Callable[[driver.Connection, P], T], question: P) -> asyncio.Future[T]:
        if self._closing is not None:
            raise rules.closed()
        return self._readers.submit(query, question)

    # -- writing

    async def accept(self, order: Accept) -> Accepted:
        return await self._write(orders.accept, order, is_durable=True)

    async def begin(self, order: Begin) -> Began:
        return await self._write(orders.begin, order)

    async def commit(self, order: Commit) -> Committed:
        return await self._write(orders.commit, order, is_durable=order.end is not None)

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        return await self._write(orders.settle, (turn_id, end), is_durable=True)

    async def hold(self, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
        return await self._write(upkeep.hold, upkeep.Hold(session_id, owner, lease_seconds))

    async def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
    ) -> frozenset[SessionId]:
        return await self._write(upkeep.renew, upkeep.Renew(owner, tuple(renewals), lease_seconds))

    async def end_session(self, session_id: SessionId, fence: Fence) -> Session:
        return await self._write(upkeep.end_session, (session_id, fence))

    async def reclaim(self, owner: OwnerId) -> Sequence[Turn]:
        return await self._write(upkeep.reclaim, owner)

    async def outbox_mark(
        self, row_id: int, state: OutboxState, *, due_at: float = 0.0, platform_id: str | None = None
    ) -> None:
        mark = upkeep.Mark(row_id, state, due_at, platform_id)
        await self._write(upkeep.outbox_mark, mark, is_durable=True)

    async def end_unused(self, before: float) -> Sequence[SessionId]:
        return await self._write(upkeep.end_unused, before)

    async def prune_ephemeral(self, older_than: float) -> int:
        """Whole sessions at a time, in as many transactions as it takes."""
        total = 0
        while True:
            pruned = await self._write(upkeep.prune_ephemeral, older_than)
            total += pruned
            if pruned < upkeep.PRUNE_BATCH:
                return total

    # -- reading

    async def outbox_due(self, channel: str, limit: int) -> Sequence[OutboxRow]:
        return await self._read(queries.outbox_due, (channel, self._clock.now(), limit))

    async def session(self, session_id: SessionId) -> Session | None:
        return await self._read(queries.session, session_id)

    async def current_session(self, chat_key: ChatKey) -> Session | None:
        return await self._read(queries.current_session, chat_key)

    async def sessions(self, page: Page) -> SessionPage:
        return await self._read(queries.sessions, page)

    async def entries(self, session_id: SessionId, page: Page) -> EntryPage:
        return await self._read(queries.entries, (session_id, page))

    async def log(self, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
        return await self._read(queries.log, (session_id, after_seq))

    async def spec(self, spec_id: SpecId) -> PinnedSpec | None:
        return await self._read(queries.spec, spec_id)

    async def story(self, turn_id: TurnId) -> TurnStory | None:
        return await self._read(queries.story, turn_id)

    async def summary(self, session_id: SessionId) -> ChatSummary | None:
        return await self._read(queries.summary, session_id)

    async def stats(self) -> StoreStats:
        sessions, turns, unsent = await self._read(queries.counts, None)
        return StoreStats(
            engine=f"sqlite {engine_version}",
            schema=latest_version(),
            size_bytes=_size(self._path),
            wal_bytes=_size(self._path.with_name(self._path.name + "-wal")),
            sessions=sessions,
            turns=turns,
            owed=sum(turns[state] for state in rules.UNSETTLED),
            outbox=unsent,
        )


def _size(path: Path) -> int:
    """By name: the live file must not be opened."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
