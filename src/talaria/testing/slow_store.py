"""A `Store` whose answers take time, in the order and with the promises of one that has a disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

from talaria.core.delivery import Mark, OutboxRow
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
from talaria.store.memory import MemoryStore
from talaria.store.memory_outbox import MemoryOutbox
from talaria.store.sqlite.answers import Taken

T = TypeVar("T")
Work = Coroutine[Any, Any, T]


class Reads(Protocol):
    def __call__(self, work: Work[T]) -> Work[T]: ...


class Writes(Protocol):
    def __call__(self, work: Work[T]) -> Taken[T]: ...


class SlowOutbox:
    """The outbox of a `SlowStore`, behind the same delays."""

    def __init__(self, inner: MemoryOutbox, read: Reads, write: Writes) -> None:
        self.inner = inner
        self._read = read
        self._write = write

    async def due(self, channel: str, limit: int) -> Sequence[OutboxRow]:
        return await self._read(self.inner.due(channel, limit))

    async def split(self, row_id: int, bodies: Sequence[str]) -> None:
        await self._write(self.inner.split(row_id, bodies))

    async def claim(self, row: OutboxRow, until: float) -> OutboxRow | None:
        return await self._write(self.inner.claim(row, until))

    async def mark(self, order: Mark) -> bool:
        return await self._write(self.inner.mark(order))

    async def expire(self, written_before: float, error: str) -> int:
        return await self._write(self.inner.expire(written_before, error))


class SlowStore:
    """A `MemoryStore` behind random delays: each method may be interrupted by others before and after it.

    Writes are carried out one by one in the order they were asked for, and refuse to be cancelled. Reads may
    be cancelled; a share of them, `failing`, raises `StoreError` as a sick disk would.
    """

    def __init__(self, inner: MemoryStore, random: Random, *, most: float = 0.01) -> None:
        self.inner = inner
        self.failing = 0.0
        self._random = random
        self._most = most
        self._queue: deque[Callable[[], None]] = deque()
        self.outbox = SlowOutbox(inner.outbox, self._read, self._write)

    def _delay(self) -> float:
        """Now and then none at all, as when a page is in memory."""
        return max(0.0, self._random.uniform(-self._most / 4, self._most))

    async def _read(self, work: Work[T]) -> T:
        try:
            await asyncio.sleep(self._delay())
            if self._random.random() < self.failing:
                raise StoreError("The disk is sick.")
            answer = await work
        finally:
            work.close()
        await asyncio.sleep(self._delay())
        return answer

    def _write(self, work: Work[T]) -> Taken[T]:
        loop = asyncio.get_running_loop()
        answer: Taken[T] = Taken(loop=loop)

        def carry_out() -> None:
            try:
                work.send(None)
            except StopIteration as end:
                loop.call_later(self._delay(), answer.set_result, end.value)
            except Exception as error:
                loop.call_later(self._delay(), answer.set_exception, error)
            else:
                raise AssertionError("the store within must not wait")

        self._queue.append(carry_out)
        loop.call_later(self._delay(), self._work_off)
        return answer

    def _work_off(self) -> None:
        self._queue.popleft()()

    # -- writing

    async def accept(self, order: Accept) -> Accepted:
        return await self._write(self.inner.accept(order))

    async def begin(self, order: Begin) -> Began:
        return await self._write(self.inner.begin(order))

    async def commit(self, order: Commit) -> Committed:
        return await self._write(self.inner.commit(order))

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        return await self._write(self.inner.settle(turn_id, end))

    async def reserve(self, order: Reserve) -> Overrun | None:
        return await self._write(self.inner.reserve(order))

    async def hold(self, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
        return await self._write(self.inner.hold(session_id, owner, lease_seconds))

    async def renew(
        self, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
    ) -> frozenset[SessionId]:
        return await self._write(self.inner.renew(owner, renewals, lease_seconds))

    async def end_session(self, session_id: SessionId, fence: Fence) -> Ended:
        return await self._write(self.inner.end_session(session_id, fence))

    async def reclaim(self, owner: OwnerId) -> Sequence[Turn]:
        return await self._write(self.inner.reclaim(owner))

    async def yield_turns(self, owner: OwnerId) -> None:
        await self._write(self.inner.yield_turns(owner))

    async def forgive(self, turn_id: TurnId) -> None:
        await self._write(self.inner.forgive(turn_id))

    async def show(self, turn_id: TurnId, platform_id: str) -> None:
        await self._write(self.inner.show(turn_id, platform_id))

    async def set_cursor(self, name: str, value: str) -> None:
        await self._write(self.inner.set_cursor(name, value))

    async def move_chat(self, old: ChatKey, new: ChatKey) -> bool:
        return await self._write(self.inner.move_chat(old, new))

    async def end_unused(self, before: float) -> Sequence[SessionId]:
        return await self._write(self.inner.end_unused(before))

    async def prune_ephemeral(self, older_than: float) -> int:
        return await self._write(self.inner.prune_ephemeral(older_than))

    # -- reading

    async def session(self, session_id: SessionId) -> Session | None:
        return await self._read(self.inner.session(session_id))

    async def current_session(self, chat_key: ChatKey) -> Session | None:
        return await self._read(self.inner.current_session(chat_key))

    async def sessions(self, page: Page) -> SessionPage:
        return await self._read(self.inner.sessions(page))

    async def entries(self, session_id: SessionId, page: Page) -> EntryPage:
        return await self._read(self.inner.entries(session_id, page))

    async def log(self, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
        return await self._read(self.inner.log(session_id, after_seq))

    async def spec(self, spec_id: SpecId) -> PinnedSpec | None:
        return await self._read(self.inner.spec(spec_id))

    async def story(self, turn_id: TurnId) -> TurnStory | None:
        return await self._read(self.inner.story(turn_id))

    async def summary(self, session_id: SessionId) -> ChatSummary | None:
        return await self._read(self.inner.summary(session_id))

    async def orphans(self, owner: OwnerId, accepted_before: float) -> Sequence[Turn]:
        return await self._read(self.inner.orphans(owner, accepted_before))

    async def cursor(self, name: str) -> str | None:
        return await self._read(self.inner.cursor(name))

    async def spending(self, whose: Whose) -> Spending:
        return await self._read(self.inner.spending(whose))

    async def stats(self) -> StoreStats:
        return await self._read(self.inner.stats())

    async def close(self) -> None:
        await self._write(self.inner.close())
