"""Orders and queries of channels: the outbox, the cursors of what they have read, chats with a new id."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from talaria.core.delivery import LONGEST_WAIT, OUTBOX_MOVES, DeliveryResult, OutboxRow, OutboxState
from talaria.core.errors import IllegalMove
from talaria.core.ids import ChatKey
from talaria.store.sql import locks, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import OUTBOX_COLUMNS, UNSENT, outbox_from

_SLACK = 60.0  # seconds that clocks of two processes may differ

# -- the outbox -------------------------------------------------------------------------------------------

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
    """Written in the transaction that ends their turn. A row without a `head` is its own head."""
    for row in rows:
        values = (row.turn_id, row.chat_key, row.channel, row.address, row.body, row.state.value)
        times_and_place = (row.written_at, row.due_at, row.head, row.part, row.edits)
        content = (msgspec.json.encode(row.buttons).decode(), row.file)
        new = tx.execute(INSERT, values + times_and_place + content).fetchone()
        if not row.head:
            tx.execute(SET_HEAD, new)


def make_edit(tx: Transaction, turn_id: str, platform_id: str) -> bool:
    """Let the turn's reply replace the message that showed the turn, unless sending it was tried already."""
    return bool(tx.execute(MAKE_EDIT, (platform_id, turn_id)).rowcount)


def _find(tx: Transaction, row_id: int) -> OutboxRow:
    row = tx.execute(FIND, (row_id,)).fetchone()
    if row is None:
        raise rules.no_outbox_row(row_id)
    return outbox_from(row)


def split(tx: Transaction, row_id: int, bodies: Sequence[str], file: str | None = None) -> None:
    """Replace the text of a row by the first body, and put a row for each other body behind it. The last
    row gets `file`.

    Raises `NotFound`, and `IllegalMove` for a row that was tried already.
    """
    locks.reply(tx, row_id)
    row = _find(tx, row_id)
    parts = rules.split_reply(row, bodies, file)
    if len(parts) > 1:
        tx.execute(SHORTEN, (parts[0].body, row_id))
        write_replies(tx, parts[1:])


def claim(tx: Transaction, row: OutboxRow, until: float) -> OutboxRow | None:
    """Mark the row `SENDING` before the platform is called, and return it. Durable.

    `until` is the attempt's deadline, after which the row is due again. Returns None when another caller
    claimed or settled it meanwhile.
    """
    if not tx.execute(CLAIM, (until, row.id, row.attempts)).rowcount:
        return None
    return _find(tx, row.id)


def mark(tx: Transaction, order: DeliveryResult) -> bool:
    """Record the outcome of an attempt. Durable.

    Returns False, having changed nothing, for an attempt before the last. Raises `NotFound`, and
    `IllegalMove` also for a row that only `claim` may set to `SENDING`.
    """
    locks.reply(tx, order.row_id)
    row = _find(tx, order.row_id)
    if order.attempt != row.attempts:
        return False
    is_claim = row.state is OutboxState.PENDING and order.state is OutboxState.SENDING
    if is_claim or order.state not in OUTBOX_MOVES[row.state]:
        raise IllegalMove(f"reply {row.id}", row.state, order.state)
    sent_at = tx.now if order.state is OutboxState.SENT else None
    tx.execute(MARK, (order.state.value, order.due_at, order.platform_id, sent_at, order.error, order.row_id))
    return True


def expire(tx: Transaction, written_before: float, error: str) -> int:
    """Give up the unsent rows written before `written_before`, and return how many."""
    return int(tx.execute(EXPIRE, (error, written_before)).rowcount)


DUE = f"""
SELECT {OUTBOX_COLUMNS} FROM outbox AS o
WHERE channel = ? AND {UNSENT} AND (attempts = 0 OR due_at <= ? OR due_at > ?) AND NOT EXISTS
(SELECT 1 FROM outbox AS e WHERE e.channel = o.channel AND e.address = o.address
 AND (e.state = 'pending' OR e.state = 'sending') AND (e.head, e.part) < (o.head, o.part))
ORDER BY head, part LIMIT ?
"""


NEXT_DUE = f"SELECT min(due_at) FROM outbox WHERE channel = ? AND {UNSENT} AND due_at > ?"
IS_OWED = f"SELECT 1 FROM outbox WHERE channel = ? AND address = ? AND {UNSENT} LIMIT 1"


def is_owed(db: Connection, channel: str, address: str) -> bool:
    """Return whether a reply to the address is not sent yet, whether its time has come or not."""
    return db.execute(IS_OWED, (channel, address)).fetchone() is not None


def due(
    db: Connection, store_now: float, channel: str, limit: int, now: float | None = None
) -> Sequence[OutboxRow]:
    """Return the first unsent row of each address of the channel, if its time has come, oldest first.

    A row that is `SENDING` is returned again once the deadline of its attempt is past. A row that was not
    tried is due at once, and so is one whose time is further away than any attempt may ask for: the machine's
    clock was set back since that time was written. `now` is the caller's time, by default the store's.
    """
    now = store_now if now is None else now
    rows = db.execute(DUE, (channel, now, now + LONGEST_WAIT + _SLACK, limit))
    return tuple(map(outbox_from, rows))


def next_due(db: Connection, channel: str, after: float) -> float | None:
    """Return the earliest time later than `after` at which an unsent row of the channel is due."""
    row = db.execute(NEXT_DUE, (channel, after)).fetchone()
    return None if row[0] is None else float(row[0])


# -- cursors and chats ------------------------------------------------------------------------------------

SET_CURSOR = """
INSERT INTO cursors (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
CURSOR = "SELECT value FROM cursors WHERE name = ?"
CURSORS = "SELECT name, value FROM cursors WHERE name >= ? AND name < ? ORDER BY name"
KNOWS_CHAT = "SELECT 1 FROM chats WHERE chat_key = ?"
MOVE_CHAT = (
    "UPDATE chats SET chat_key = ? WHERE chat_key = ?",
    "UPDATE sessions SET chat_key = ? WHERE chat_key = ?",
    "UPDATE turns SET chat_key = ? WHERE chat_key = ?",
    "UPDATE outbox SET chat_key = ? WHERE chat_key = ?",
    "UPDATE tainted_folders SET folder = 'chat:' || ? WHERE folder = 'chat:' || ?",
)


def set_cursor(tx: Transaction, name: str, value: str) -> None:
    """Note how far a channel has read its platform's queue: everything before is accepted. Durable."""
    tx.execute(SET_CURSOR, (name, value))


def cursor(db: Connection, name: str) -> str | None:
    row = db.execute(CURSOR, (name,)).fetchone()
    return None if row is None else str(row[0])


def cursors(db: Connection, prefix: str) -> list[tuple[str, str]]:
    """Return the cursors whose names begin so, with their values."""
    rows = db.execute(CURSORS, (prefix, f"{prefix}\x7f")).fetchall()
    return [(str(name), str(value)) for name, value in rows]


def move_chat(tx: Transaction, old: ChatKey, new: ChatKey) -> bool:
    """Move a chat's sessions, turns and unsent replies to the key that its platform gave it. Durable.

    Returns False, having changed nothing, when `old` is not known or `new` is in use already.
    """
    locks.current_session(tx, old)
    locks.chat(tx, old, new)
    if tx.execute(KNOWS_CHAT, (new,)).fetchone() or not tx.execute(KNOWS_CHAT, (old,)).fetchone():
        return False
    for statement in MOVE_CHAT:
        tx.execute(statement, (new, old))
    return True
