"""Replies to send, in SQL. Rows are written by `write_replies` in the transaction that ends their turn."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from talaria.core.clock import Clock
from talaria.core.delivery import Button, Mark, OutboxRow, OutboxState
from talaria.store import rules
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.reach import Part, Reach, writes
from talaria.store.sqlite.rows import UNSENT
from talaria.store.sqlite.writer import Transaction

OUTBOX_COLUMNS = (
    "id, turn_id, chat_key, channel, address, body, state, written_at, due_at, head, part, attempts, edits, "
    "buttons, file, platform_id, sent_at, error"
)
_STATE, _BUTTONS = 6, 13
_buttons = msgspec.json.Decoder(tuple[Button, ...]).decode


def outbox_from(row: Any) -> OutboxRow:
    values = list(row)
    values[_STATE], values[_BUTTONS] = OutboxState(values[_STATE]), _buttons(values[_BUTTONS])
    return OutboxRow(*values)


# -- writing ----------------------------------------------------------------------------------------------

INSERT = """
INSERT INTO outbox (turn_id, chat_key, channel, address, body, state, written_at, due_at, head, part, edits,
                    buttons, file)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING id
"""
SET_HEAD = "UPDATE outbox SET head = id WHERE id = ?"
FIND = f"SELECT {OUTBOX_COLUMNS} FROM outbox WHERE id = ?"
SHORTEN = "UPDATE outbox SET body = ?, buttons = '[]' WHERE id = ?"
CLAIM = f"""
UPDATE outbox SET state = 'sending', attempts = attempts + 1, due_at = ?
WHERE id = ? AND attempts = ? AND {UNSENT}
"""
MARK = """
UPDATE outbox SET state = ?, due_at = ?, platform_id = coalesce(?, platform_id), sent_at = ?, error = ?
WHERE id = ?
"""
EXPIRE = f"UPDATE outbox SET state = 'failed', error = ? WHERE {UNSENT} AND written_at < ?"
MAKE_EDIT = """
UPDATE outbox SET edits = ?
WHERE turn_id = ? AND id = head AND part = 0 AND file IS NULL AND state = 'pending' AND attempts = 0
"""
DUE_AT_ONCE = "UPDATE outbox SET due_at = 0 WHERE state = 'sending'"


def write_replies(tx: Transaction, rows: Iterable[OutboxRow]) -> None:
    """A row without a `head` is its own."""
    for row in rows:
        values = (row.turn_id, row.chat_key, row.channel, row.address, row.body, row.state.value)
        times_and_place = (row.written_at, row.due_at, row.head, row.part, row.edits)
        content = (msgspec.json.encode(row.buttons).decode(), row.file)
        new = tx.execute(INSERT, values + times_and_place + content).fetchone()
        if not row.head:
            tx.execute(SET_HEAD, new)


def make_edit(tx: Transaction, turn_id: str, platform_id: str) -> bool:
    """The turn's reply, if it was not tried yet, replaces the message that showed the turn."""
    return bool(tx.execute(MAKE_EDIT, (platform_id, turn_id)).rowcount)


def _find(tx: Transaction, row_id: int) -> OutboxRow:
    row = tx.execute(FIND, (row_id,)).fetchone()
    if row is None:
        raise rules.no_outbox_row(row_id)
    return outbox_from(row)


def split(tx: Transaction, row_id: int, bodies: Sequence[str]) -> None:
    row = _find(tx, row_id)
    parts = rules.split_reply(row, bodies)
    if len(parts) > 1:
        tx.execute(SHORTEN, (parts[0].body, row_id))
        write_replies(tx, parts[1:])


def claim(tx: Transaction, row: OutboxRow, until: float) -> OutboxRow | None:
    if not tx.execute(CLAIM, (until, row.id, row.attempts)).rowcount:
        return None
    return _find(tx, row.id)


def mark(tx: Transaction, order: Mark) -> bool:
    row = _find(tx, order.row_id)
    if not rules.takes_mark(row, order):
        return False
    sent_at = tx.now if order.state is OutboxState.SENT else None
    tx.execute(MARK, (order.state.value, order.due_at, order.platform_id, sent_at, order.error, order.row_id))
    return True


def expire(tx: Transaction, written_before: float, error: str) -> int:
    return int(tx.execute(EXPIRE, (error, written_before)).rowcount)


# -- reading ----------------------------------------------------------------------------------------------

DUE = f"""
SELECT {OUTBOX_COLUMNS} FROM outbox AS o
WHERE channel = ? AND {UNSENT} AND due_at <= ? AND NOT EXISTS
(SELECT 1 FROM outbox AS e WHERE e.channel = o.channel AND e.address = o.address
 AND (e.state = 'pending' OR e.state = 'sending') AND (e.head, e.part) < (o.head, o.part))
ORDER BY head, part LIMIT ?
"""
OF_TURN = f"SELECT {OUTBOX_COLUMNS} FROM outbox WHERE turn_id = ? ORDER BY head, part"


def due(db: driver.Connection, question: tuple[str, float, int]) -> Sequence[OutboxRow]:
    return tuple(map(outbox_from, db.execute(DUE, question)))


def of_turn(db: driver.Connection, turn_id: str) -> tuple[OutboxRow, ...]:
    return tuple(map(outbox_from, db.execute(OF_TURN, (turn_id,))))


class SqliteOutbox(Part):
    """See `core.ports.Outbox`."""

    def __init__(self, reach: Reach, clock: Clock) -> None:
        super().__init__(reach)
        self._clock = clock

    async def due(self, channel: str, limit: int) -> Sequence[OutboxRow]:
        return await self._reach.read(due, (channel, self._clock.now(), limit))

    split = writes(split)
    claim = writes(claim, is_durable=True)
    mark = writes(mark, is_durable=True)
    expire = writes(expire)
