"""Chains of stored responses, in SQL: where a response is put, how it is found, and how it goes."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.entries import Entry, Revision
from talaria.core.errors import HeadMoved
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.ledger import Accept
from talaria.core.responses import ChainPlace, NewResponse, StoredResponse
from talaria.core.sessions import Session
from talaria.store.sql import locks, retention, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.leases import ALL_SETTLED, Lease, find_session
from talaria.store.sql.rows import (
    ENTRY_COLUMNS,
    TURN_COLUMNS,
    entry_from,
    prefixed,
    turn_from,
)

# -- putting a response into a chain ----------------------------------------------------------------------

COPY_ENTRIES = """
INSERT INTO entries (session_id, seq, epoch, kind, turn_id, at, body)
SELECT ?, seq, epoch, kind, NULL, at, body FROM entries WHERE session_id = ? AND seq <= ?
"""
# The entries of a deleted session are there until they are purged.
LAST_ENTRY = """
SELECT e.epoch FROM sessions s JOIN entries e ON e.session_id = s.id WHERE s.id = ? AND e.seq = ?
"""
INSERT_RESPONSE = """
INSERT INTO responses (turn_id, session_id, created_at, first_seq, last_seq, previous, request)
VALUES (?, ?, ?, ?, ?, nullif(?, ''), ?)
"""
SET_STORED = "UPDATE sessions SET stored = 1 WHERE id = ?"


def find_chain(tx: Transaction, place: ChainPlace) -> tuple[Session, Lease]:
    """Return the session of a place that must be its head. Raises `HeadMoved` if it is not."""
    found = find_session(tx, place.session_id)
    if found is None or found[0].revision.seq != place.seq:
        raise HeadMoved(
            f"The response {place.turn_id} is not the last one of its chain any more.", "Branch from it."
        )
    return found


def copy_chain(tx: Transaction, place: ChainPlace, session_id: SessionId) -> Revision:
    """Give a new session the log up to a place, and return its head."""
    row = tx.execute(LAST_ENTRY, (place.session_id, place.seq)).fetchone()
    if row is None:
        raise rules.no_session(place.session_id)
    tx.execute(COPY_ENTRIES, (session_id, place.session_id, place.seq))
    return Revision(row[0], place.seq)


def store(tx: Transaction, session: Session, order: Accept, response: NewResponse) -> None:
    """Write the row of a response whose input is at the end of the log."""
    assert order.fresh is not None
    last = session.revision.seq
    first = last - len(order.fresh.context) + 1
    previous = response.previous or ""
    tx.execute(INSERT_RESPONSE, (order.turn_id, session.id, tx.now, first, last, previous, response.request))
    tx.execute(SET_STORED, (session.id,))


# -- finding ----------------------------------------------------------------------------------------------

FIND_RESPONSE = f"""
SELECT {prefixed("t", TURN_COLUMNS)}, r.request, r.previous, r.first_seq, r.last_seq, s.seq
FROM responses r JOIN turns t ON t.id = r.turn_id JOIN sessions s ON s.id = r.session_id WHERE r.turn_id = ?
"""
OUTPUT = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq = ? AND turn_id = ?"
INPUT = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq >= ? AND seq <= ? ORDER BY seq"


def find(db: Connection, turn_id: TurnId) -> StoredResponse | None:
    row = db.execute(FIND_RESPONSE, (turn_id,)).fetchone()
    if row is None:
        return None
    turn = turn_from(row[:-5])
    request, previous, first, last, head = row[-5:]
    output = db.execute(OUTPUT, (turn.session_id, last + 1, turn_id)).fetchone()
    return StoredResponse(
        turn, request, previous, first, last, head, None if output is None else entry_from(output)
    )


def input_entries(db: Connection, stored: StoredResponse) -> Sequence[Entry]:
    """Return the entries of its input."""
    rows = db.execute(INPUT, (stored.turn.session_id, stored.first_seq, stored.last_seq))
    return [entry_from(row) for row in rows]


# -- deleting ---------------------------------------------------------------------------------------------

FIND_SESSION = "SELECT session_id FROM responses WHERE turn_id = ?"
FIND_OLD = (
    f"SELECT session_id, turn_id FROM responses WHERE created_at < ? ORDER BY created_at LIMIT {rules.BATCH}"
)
DELETE_RESPONSE = "DELETE FROM responses WHERE turn_id = ?"
HAS_RESPONSES = "SELECT 1 FROM responses WHERE session_id = ? LIMIT 1"
IS_SETTLED = f"SELECT 1 FROM sessions s WHERE s.id = ? AND {ALL_SETTLED}"
UNSET_STORED = "UPDATE sessions SET stored = 0 WHERE id = ?"


def delete(tx: Transaction, turn_id: TurnId) -> bool:
    """Delete a response. Durable. Return False if there was none.

    Its chain goes with the last response of it, log and turns included; until then its entries stay.
    """
    locks.session_of_response(tx, turn_id)
    row = tx.execute(FIND_SESSION, (turn_id,)).fetchone()
    if row is None:
        return False
    _delete(tx, turn_id, row[0])
    return True


def prune(tx: Transaction, before: float) -> int:
    """Delete responses that were made before `before`; return how many (up to 100)."""
    doomed = locks.confirmed(tx, FIND_OLD, (before,))
    for session_id, turn_id in doomed:
        _delete(tx, turn_id, session_id)
    return len(doomed)


def _delete(tx: Transaction, turn_id: TurnId, session_id: SessionId) -> None:
    """Delete a response, and its chain with the last one. A chain with an unsettled turn goes by its age."""
    tx.execute(DELETE_RESPONSE, (turn_id,))
    if tx.execute(HAS_RESPONSES, (session_id,)).fetchone() is not None:
        return
    if tx.execute(IS_SETTLED, (session_id,)).fetchone() is None:
        tx.execute(UNSET_STORED, (session_id,))
        return
    retention.prune_session(tx, session_id, ChatKey(""))  # stateless: no file is named in it
