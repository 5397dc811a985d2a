"""Branches in SQL: where they began, and the logs that they know.

A branch knows the log of its parent up to a place, although it has copies of what was visible there only.
When the parent is deleted, its entries up to the last such place stay until the last branch is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.entries import Entry
from talaria.core.ids import ChatKey, SessionId
from talaria.core.ledger import BranchPoint, LogTotals
from talaria.core.sessions import Session
from talaria.store.sql import locks
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import ENTRY_COLUMNS, SESSION_COLUMNS, entry_from, session_from

_MOST_ANCESTORS = 100
_SLICE_ENTRIES = 1000

ADD_BRANCH = "INSERT INTO branches (session_id, parent_id, known_seq) VALUES (?, ?, ?)"
FIND_PARENT = "SELECT parent_id, known_seq FROM branches WHERE session_id = ?"
FIND_KEPT = "SELECT max(known_seq) FROM branches WHERE parent_id = ?"
DROP_BRANCH = "DELETE FROM branches WHERE session_id = ?"
HAS_SESSION = "SELECT 1 FROM sessions WHERE id = ?"
# The rest of the parent may go, as far as no other branch knows it.
PURGE_PARENT = """
INSERT INTO deletions (session_id, chat_key, keys_since) VALUES (?, ?, 0) ON CONFLICT (session_id) DO NOTHING
"""


def link(tx: Transaction, session_id: SessionId, place: BranchPoint) -> None:
    locks.share(tx, locks.BRANCHES)
    tx.execute(ADD_BRANCH, (session_id, place.session_id, place.seq))


def kept_seq(db: Connection | Transaction, session_id: SessionId) -> int:
    """Return the last seq of the session that a branch knows; 0 if it has no branches."""
    (seq,) = db.execute(FIND_KEPT, (session_id,)).fetchone()
    return seq or 0


def unlink(tx: Transaction, session_id: SessionId, chat_key: ChatKey) -> None:
    """Forget where a deleted session began, unless there are branches of it. Its parent, which was in the
    same chat, may go then too."""
    if kept_seq(tx, session_id):
        return
    row = tx.execute(FIND_PARENT, (session_id,)).fetchone()
    if row is None:
        return
    tx.execute(DROP_BRANCH, (session_id,))
    if tx.execute(HAS_SESSION, row[:1]).fetchone() is None:
        tx.execute(PURGE_PARENT, (row[0], chat_key))


# -- reading ----------------------------------------------------------------------------------------------

CHANGED = f"""
SELECT {SESSION_COLUMNS} FROM sessions WHERE ephemeral = 0 AND (updated_at, id) > (?, ?)
ORDER BY updated_at, id LIMIT ?
"""  # noqa: S608
TOTALS = """
SELECT count(*), CAST(coalesce(sum(seq), 0) AS BIGINT) FROM sessions WHERE ephemeral = 0 AND seq > 0
"""
SESSION = f"SELECT {SESSION_COLUMNS} FROM sessions WHERE id = ?"  # noqa: S608
SLICE = f"""
SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT {_SLICE_ENTRIES}
"""  # noqa: S608
ENTRY = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq = ?"  # noqa: S608
_BODY = 5


def changed(db: Connection, since: float, after: SessionId | None, limit: int) -> list[Session]:
    """Return lasting sessions that were used at `since` or later, in the order of their last use.

    `after` is the last session of the page before, which was last used at `since`.
    """
    return list(map(session_from, db.execute(CHANGED, (since, after or "", limit))))


def totals(db: Connection) -> LogTotals:
    """Count the lasting sessions that have entries."""
    return LogTotals(*db.execute(TOTALS).fetchone())


def known_sessions(db: Connection, ids: Sequence[SessionId]) -> dict[SessionId, Session]:
    """Return those of these sessions that exist."""
    rows = (db.execute(SESSION, (session_id,)).fetchone() for session_id in ids)
    return {row[0]: session_from(row) for row in rows if row is not None}


def kept_parents(db: Connection, ids: Sequence[SessionId]) -> dict[SessionId, int]:
    """Return the sessions among these of which there are branches, each with the last seq that a branch
    knows. They may be deleted."""
    return {session_id: seq for session_id in ids if (seq := kept_seq(db, session_id))}


def lineage(db: Connection, session_id: SessionId) -> list[BranchPoint]:
    """Return the places where the session and its ancestors began as branches, the nearest first."""
    found: list[BranchPoint] = []
    while len(found) < _MOST_ANCESTORS:
        row = db.execute(FIND_PARENT, (session_id,)).fetchone()
        if row is None:
            break
        found.append(BranchPoint(*row))
        session_id = row[0]
    return found


def _last_seq(db: Connection, session_id: SessionId) -> float:
    """Return the last seq that may be read. The rows of a deleted session are there until they are purged."""
    is_known = db.execute(HAS_SESSION, (session_id,)).fetchone() is not None
    return float("inf") if is_known else kept_seq(db, session_id)


def slice_log(db: Connection, session_id: SessionId, after_seq: int, max_bytes: int) -> list[Entry]:
    """Return the next entries after `after_seq`: at least one if there is one, at most 200, and no more
    once they have `max_bytes`."""
    last, size, found = _last_seq(db, session_id), 0, []
    for row in db.execute(SLICE, (session_id, after_seq)):
        if row[1] > last or size >= max_bytes:
            break
        size += len(row[_BODY])
        found.append(entry_from(row))
    return found


def entry(db: Connection, session_id: SessionId, seq: int) -> Entry | None:
    row = db.execute(ENTRY, (session_id, seq)).fetchone()
    return None if row is None or seq > _last_seq(db, session_id) else entry_from(row)
