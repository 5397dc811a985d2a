"""A store whose disk a test can break, fix and delay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from talaria.core.clock import Clock, SystemClock
from talaria.core.entries import Entry
from talaria.core.errors import StoreError
from talaria.core.ids import SessionId, TurnId
from talaria.core.ledger import Accept, Accepted, Began, Begin, ChatSummary, Commit, Committed, TurnEnd
from talaria.core.tasks import Uncancellable
from talaria.core.turns import Turn
from talaria.store.in_memory import MemoryStore

Order = Accept | Begin | Commit | TurnEnd


class FaultyStore(MemoryStore):
    """Writes for which `fails` is true are refused; those for which `holds` is true wait until `let_go`. As
    in the real store, writes cannot be cancelled. With `is_unreadable`, logs and summaries cannot be read.
    Reading the log of the session `held_log` waits until the `gate` is set."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock or SystemClock())
        self.fails: Callable[[Order], bool] = lambda order: False
        self.holds: Callable[[Order], bool] = lambda order: False
        self.is_unreadable = False
        self.held_log: SessionId | None = None
        self.gate = asyncio.Event()
        self.held: list[Uncancellable[None]] = []

    def let_go(self) -> None:
        self.holds = lambda order: False
        while self.held:
            self.held.pop(0).set_result(None)

    async def accept(self, order: Accept) -> Accepted:
        await self._write(order)
        return await super().accept(order)

    async def begin(self, order: Begin) -> Began:
        await self._write(order)
        return await super().begin(order)

    async def commit(self, order: Commit) -> Committed:
        await self._write(order)
        return await super().commit(order)

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        await self._write(end)
        return await super().settle(turn_id, end)

    async def shown_log(self, session_id: SessionId) -> Sequence[Entry]:
        self._read()
        if session_id == self.held_log:
            await self.gate.wait()
        return await super().shown_log(session_id)

    async def summary(self, session_id: SessionId) -> ChatSummary | None:
        self._read()
        return await super().summary(session_id)

    async def _write(self, order: Order) -> None:
        if self.holds(order):
            self.held.append(Uncancellable())
            await self.held[-1]
        if self.fails(order):
            raise StoreError("The database failed: disk I/O error.", "Nothing was written.")

    def _read(self) -> None:
        if self.is_unreadable:
            raise StoreError("The database failed: disk I/O error.", "Nothing was read.")
