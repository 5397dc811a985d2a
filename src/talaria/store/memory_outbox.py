"""Replies to send, in memory. `write` is called by the order that ends their turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from talaria.core.delivery import Mark, OutboxRow, OutboxState
from talaria.core.ids import ChatKey, TurnId
from talaria.store import rules

_UNSENT = (OutboxState.PENDING, OutboxState.SENDING)


class MemoryOutbox:
    """See `core.ports.Outbox`. `now` raises when the store is closed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rows: dict[int, OutboxRow] = {}
        self._last_id = 0

    async def due(self, channel: str, limit: int) -> Sequence[OutboxRow]:
        now = self._now()
        first: dict[str, OutboxRow] = {}
        for row in self._in_order():
            if row.channel == channel and row.state in _UNSENT:
                first.setdefault(row.address, row)
        return tuple(row for row in first.values() if row.due_at <= now)[:limit]

    async def split(self, row_id: int, bodies: Sequence[str]) -> None:
        self._now()
        parts = rules.split_reply(self._find(row_id), bodies)
        if len(parts) > 1:
            self._rows[row_id] = parts[0]
            self.write(parts[1:])

    async def claim(self, row: OutboxRow, until: float) -> OutboxRow | None:
        self._now()
        known = self._rows.get(row.id)
        if known is None or known.attempts != row.attempts or known.state not in _UNSENT:
            return None
        return self._change(known, state=OutboxState.SENDING, attempts=row.attempts + 1, due_at=until)

    async def mark(self, order: Mark) -> bool:
        now = self._now()
        row = self._find(order.row_id)
        if not rules.takes_mark(row, order):
            return False
        self._change(
            row,
            state=order.state,
            due_at=order.due_at,
            platform_id=order.platform_id or row.platform_id,
            sent_at=now if order.state is OutboxState.SENT else None,
            error=order.error,
        )
        return True

    async def expire(self, written_before: float, error: str) -> int:
        self._now()
        old = [row for row in self._rows.values() if row.state in _UNSENT and row.written_at < written_before]
        for row in old:
            self._change(row, state=OutboxState.FAILED, error=error)
        return len(old)

    # -- within one order

    def write(self, rows: Iterable[OutboxRow]) -> None:
        for row in rows:
            self._last_id += 1
            self._change(row, id=self._last_id, head=row.head or self._last_id)

    def make_edit(self, turn_id: TurnId, platform_id: str) -> bool:
        for row in self.of_turn(turn_id):
            is_first = row.id == row.head and row.part == 0 and row.file is None
            if is_first and row.state is OutboxState.PENDING and not row.attempts:
                self._change(row, edits=platform_id)
                return True
        return False

    def of_turn(self, turn_id: TurnId) -> tuple[OutboxRow, ...]:
        return tuple(row for row in self._in_order() if row.turn_id == turn_id)

    def make_due(self) -> None:
        for row in list(self._rows.values()):
            if row.state is OutboxState.SENDING:
                self._change(row, due_at=0.0)

    def move_chat(self, old: ChatKey, new: ChatKey) -> None:
        for row in list(self._rows.values()):
            if row.chat_key == old:
                self._change(row, chat_key=new)

    def forget(self, turns: Collection[TurnId]) -> None:
        self._rows = {row.id: row for row in self._rows.values() if row.turn_id not in turns}

    def unsent_since(self) -> list[float]:
        """When each unsent row was written."""
        return [row.written_at for row in self._rows.values() if row.state in _UNSENT]

    def _in_order(self) -> list[OutboxRow]:
        return sorted(self._rows.values(), key=lambda row: (row.head, row.part))

    def _find(self, row_id: int) -> OutboxRow:
        row = self._rows.get(row_id)
        if row is None:
            raise rules.no_outbox_row(row_id)
        return row

    def _change(self, row: OutboxRow, **changes: object) -> OutboxRow:
        row = msgspec.structs.replace(row, **changes)
        self._rows[row.id] = row
        return row
