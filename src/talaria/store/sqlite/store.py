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
from talaria.core.errors import StoreError
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    Accept,
    Accepted,
    Began,
    Begin,
    ChatSummary,
    Commit,
    Committed,
    Ended,
    EntryPage,
    Page,
    Renewal,
    SessionPage,
    StoreStats,
    TurnEnd,
    TurnStory,
)
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec
from talaria.core.spending import Overrun, Reserve, Spending, Whose
from talaria.core.turns import Turn
from talaria.store import rules
from talaria.store.sqlite import orders, queries, spending, upkeep
from talaria.store.sqlite.answers import Taken
from talaria.store.sqlite.connection import open_reader, open_writer
from talaria.store.sqlite.copying import copy_database
from talaria.store.sqlite.engine import driver, engine_version
from talaria.store.sqlite.faults import damaged
from talaria.store.sqlite.history import SqliteHistories
from talaria.store.sqlite.integrity import LOOK_FIRST_BYTES, Integrity, find_damage
from talaria.store.sqlite.outbox import SqliteOutbox
from talaria.store.sqlite.pairing import SqlitePairings
from talaria.store.sqlite.readers import Readers
from talaria.store.sqlite.retention import SqliteRetention
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
        self._integrity = Integrity.CLEAN_END
        self._closing: asyncio.Task[None] | None = None
        self.outbox = SqliteOutbox(self._write, self._read, clock)
        self.retention = SqliteRetention(self._write)
        self.histories = SqliteHistories(self._read)
        self.pairings = SqlitePairings(self._write, self._read)

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        is_suspect: bool = False,
        look_first_bytes: int = LOOK_FIRST_BYTES,
    ) -> SqliteStore:
        """Open the database, made or migrated if need be. The caller holds the home's lock.

        `is_suspect`: the last owner did not close it. A file up to `look_first_bytes` is then looked at
        first; a larger one waits for `verify`. Raises `StoreError` for a shared file system, an unusable
        folder, a file that is no Talaria database, a damaged one, and one newer than this program.
        """
        look_first = is_suspect and _size(path) <= look_first_bytes
        writer = await Writer.start(partial(open_writer, path, look_first=look_first), clock)
        store = cls(path, clock, writer, Readers(partial(open_reader, path), on_failure=writer.note_damage))
        if is_suspect:
            store._integrity = Integrity.WHOLE if look_first else Integrity.CHECKING
        return store

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

    # -- the file itself

    @property
    def integrity(self) -> Integrity:
        return self._integrity

    @property
    def trouble(self) -> StoreError | None:
        """Why nothing can be written now: what the last write met. `probe` finds out whether it is over."""
        return self._writer.trouble

    async def probe(self) -> None:
        """Write to the disk, changing nothing. Raises `StoreError` while that fails."""
        await self._write(upkeep.probe, None, is_durable=True)

    async def verify(self) -> str | None:
        """Look whether the file is whole, beside its other readers; from the first damage on nothing is
        written. Answers with what was found. Raises `StoreError` when the store closed meanwhile."""
        finding = await self._read(find_damage, lambda: self._closing is not None)
        self._integrity = Integrity.WHOLE if finding is None else Integrity.DAMAGED
        if finding is not None:
            self._writer.note_damage(damaged(finding))
        return finding

    async def snapshot(self, path: Path) -> None:
        """Write a whole, compact copy of the database to a new file, 0600, beside all other work.

        Raises `StoreError`; then there is no file.
        """
        if self._closing is not None:
            raise rules.closed()
        await asyncio.to_thread(copy_database, self._path, path, lambda: self._closing is not None)

    # -- writing

    async def accept(self, order: Accept) -> Accepted:
        return await self._write(orders.accept, order, is_durable=True)

    async def begin(self, order: Begin) -> Began:
        return await self._write(orders.begin, order)

    async def commit(self, order: Commit) -> Committed:
        return await self._write(orders.commit, order, is_durable=order.end is not None)

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        return await self._write(orders.settle, (turn_id, end), is_durable=True)

    async def reserve(self, order: Reserve) -> Overrun | None:
        return await self._write(spending.reserve, order)

    async def hold(self, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
        return await self._write(upkeep.hold, upkeep.Hold(session_id, owner, lease_seconds))

    async def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
    ) -> frozenset[SessionId]:
        return await self._write(upkeep.renew, upkeep.Renew(owner, tuple(renewals), lease_seconds))

    async def end_session(self, session_id: SessionId, fence: Fence) -> Ended:
        return await self._write(upkeep.end_session, (session_id, fence))

    async def reclaim(self, owner: OwnerId) -> Sequence[Turn]:
        return await self._write(upkeep.reclaim, owner)

    async def yield_turns(self, owner: OwnerId) -> None:
        await self._write(upkeep.yield_turns, owner, is_durable=True)

    async def forgive(self, turn_id: TurnId) -> None:
        await self._write(upkeep.forgive, turn_id)

    async def show(self, turn_id: TurnId, platform_id: str) -> None:
        await self._write(upkeep.show, (turn_id, platform_id))

    async def set_cursor(self, name: str, value: str) -> None:
        await self._write(upkeep.set_cursor, (name, value), is_durable=True)

    async def move_chat(self, old: ChatKey, new: ChatKey) -> bool:
        return await self._write(upkeep.move_chat, (old, new), is_durable=True)

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

    async def orphans(self, owner: OwnerId, accepted_before: float) -> Sequence[Turn]:
        return await self._read(upkeep.orphans, (self._clock.now(), owner, accepted_before))

    async def cursor(self, name: str) -> str | None:
        return await self._read(upkeep.cursor, name)

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

    async def spending(self, whose: Whose) -> Spending:
        return await self._read(spending.spending, whose)

    async def stats(self) -> StoreStats:
        sessions, turns, unsent, oldest = await self._read(queries.counts, None)
        trouble = self._writer.trouble
        return StoreStats(
            engine=f"sqlite {engine_version}",
            schema=latest_version(),
            size_bytes=_size(self._path),
            wal_bytes=_size(self._path.with_name(self._path.name + "-wal")),
            sessions=sessions,
            turns=turns,
            owed=sum(turns[state] for state in rules.UNSETTLED),
            outbox=unsent,
            oldest_seconds=0.0 if oldest is None else max(0.0, self._clock.now() - oldest),
            integrity=self._integrity.value,
            trouble="" if trouble is None else trouble.user_text,
        )


def _size(path: Path) -> int:
    """By name: the live file must not be opened."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
