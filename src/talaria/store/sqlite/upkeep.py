"""The orders around a turn, in SQL: leases, ends of sessions, recovery, what channels note, pruning."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, TurnId
from talaria.core.ledger import Ended, Renewal
from talaria.core.turns import Turn
from talaria.store import rules
from talaria.store.sqlite import outbox
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.orders import END_SESSION, FIND_OWED, TAKE_LEASE, find_turn
from talaria.store.sqlite.rows import (
    SESSION_COLUMNS,
    TURN_COLUMNS,
    UNSETTLED,
    prefixed,
    session_from,
    turn_from,
)
from talaria.store.sqlite.spending import RELEASE_OTHERS, RELEASE_OWN
from talaria.store.sqlite.writer import Transaction

# -- leases -----------------------------------------------------------------------------------------------

FIND_LEASE = "SELECT lease_fence, lease_expires, waiting_turn FROM sessions WHERE id = ?"
RENEW_LEASE = """
UPDATE sessions SET lease_expires = ?
WHERE id = ? AND lease_fence = ? AND lease_owner = ? AND lease_expires > 0
"""


def hold(tx: Transaction, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
    row = tx.execute(FIND_LEASE, (session_id,)).fetchone()
    if row is None:
        raise rules.no_session(session_id)
    fence, expires, waiting_turn = row
    if expires > tx.now:
        raise rules.lease_held(session_id)
    if waiting_turn:
        raise rules.session_waits(session_id)
    tx.execute(TAKE_LEASE, (owner, fence + 1, tx.now + lease_seconds, session_id))
    return Fence(fence + 1)


def renew(
    tx: Transaction, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
) -> frozenset[SessionId]:
    until = tx.now + lease_seconds
    return frozenset(
        renewal.session_id
        for renewal in renewals
        if not tx.execute(RENEW_LEASE, (until, renewal.session_id, renewal.fence, owner)).rowcount
    )


# -- ends and recovery ------------------------------------------------------------------------------------

FIND_TO_END = f"SELECT {SESSION_COLUMNS}, lease_fence, lease_expires FROM sessions WHERE id = ?"
EXPIRE_OTHERS = "UPDATE sessions SET lease_expires = 0 WHERE lease_owner <> ? AND lease_expires > 0"
FIND_UNSETTLED = f"SELECT {TURN_COLUMNS} FROM turns WHERE state IN ({UNSETTLED}) ORDER BY position"


def end_session(tx: Transaction, session_id: SessionId, fence: Fence) -> Ended:
    row = tx.execute(FIND_TO_END, (session_id,)).fetchone()
    if row is None:
        raise rules.no_session(session_id)
    current, expires = row[-2:]
    if fence != current or not expires:
        raise rules.stale_fence(session_id)
    session = session_from(row[:-2])
    is_news = session.ended_at is None and tx.execute(FIND_OWED, (session_id,)).fetchone() is None
    ended_at = tx.now if is_news else session.ended_at
    tx.execute(END_SESSION, (ended_at, session_id))
    return Ended(msgspec.structs.replace(session, ended_at=ended_at), is_news)


def reclaim(tx: Transaction, owner: OwnerId) -> Sequence[Turn]:
    tx.execute(EXPIRE_OTHERS, (owner,))
    tx.execute(RELEASE_OTHERS, (owner,))
    tx.execute(outbox.DUE_AT_ONCE)
    return tuple(map(turn_from, tx.execute(FIND_UNSETTLED).fetchall()))


FIND_ORPHANS = f"""
SELECT {prefixed("t", TURN_COLUMNS)} FROM turns t JOIN sessions s ON s.id = t.session_id
WHERE t.state IN ({UNSETTLED}) AND s.lease_expires <= ?
AND CASE s.waiting_turn
    WHEN '' THEN (t.attempts > 0 AND s.lease_owner <> ?) OR (t.attempts = 0 AND t.accepted_at < ?)
    ELSE s.waiting_turn IN (t.id, t.merged_into) AND NOT EXISTS
    (SELECT 1 FROM questions q WHERE q.turn_id = s.waiting_turn AND coalesce(q.decided_at, q.expires_at) >= ?)
    END
ORDER BY t.position
"""


def orphans(db: driver.Connection, now: float, owner: OwnerId, before: float) -> Sequence[Turn]:
    return tuple(map(turn_from, db.execute(FIND_ORPHANS, (now, owner, before, before))))


FORGIVE = """
UPDATE turns SET forgiven = CASE WHEN forgiven < attempts THEN forgiven + 1 ELSE attempts END
WHERE state = 'running' AND merged_into IS NULL
AND session_id IN (SELECT id FROM sessions WHERE lease_owner = ? AND lease_expires > 0)
"""
YIELD_LEASES = "UPDATE sessions SET lease_expires = 0 WHERE lease_owner = ? AND lease_expires > 0"

CLEAR = "UPDATE turns SET forgiven = attempts WHERE id = ?"


def forgive(tx: Transaction, turn_id: TurnId) -> None:
    if not tx.execute(CLEAR, (turn_id,)).rowcount:
        raise rules.no_turn(turn_id)


def yield_turns(tx: Transaction, owner: OwnerId) -> None:
    tx.execute(FORGIVE, (owner,))
    tx.execute(YIELD_LEASES, (owner,))
    tx.execute(RELEASE_OWN, (owner,))


# -- channels ---------------------------------------------------------------------------------------------

SET_SHOWN = "UPDATE turns SET shown_id = ? WHERE position = ?"
SET_CURSOR = """
INSERT INTO cursors (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
CURSOR = "SELECT value FROM cursors WHERE name = ?"
KNOWS_CHAT = "SELECT 1 FROM chats WHERE chat_key = ?"
MOVE_CHAT = (
    "UPDATE chats SET chat_key = ? WHERE chat_key = ?",
    "UPDATE sessions SET chat_key = ? WHERE chat_key = ?",
    "UPDATE turns SET chat_key = ? WHERE chat_key = ?",
    "UPDATE outbox SET chat_key = ? WHERE chat_key = ?",
)


def show(tx: Transaction, turn_id: TurnId, platform_id: str) -> None:
    turn, position = find_turn(tx, turn_id)
    tx.execute(SET_SHOWN, (platform_id, position))
    turn = msgspec.structs.replace(turn, shown_id=platform_id)
    if turn.state.is_final and not outbox.make_edit(tx, turn_id, platform_id):
        outbox.write_replies(tx, rules.late_replies(turn, tx.now))


def set_cursor(tx: Transaction, name: str, value: str) -> None:
    tx.execute(SET_CURSOR, (name, value))


def cursor(db: driver.Connection, name: str) -> str | None:
    row = db.execute(CURSOR, (name,)).fetchone()
    return None if row is None else str(row[0])


def move_chat(tx: Transaction, old: ChatKey, new: ChatKey) -> bool:
    if tx.execute(KNOWS_CHAT, (new,)).fetchone() or not tx.execute(KNOWS_CHAT, (old,)).fetchone():
        return False
    for statement in MOVE_CHAT:
        tx.execute(statement, (new, old))
    return True


# -- unused sessions --------------------------------------------------------------------------------------

FIND_UNUSED = f"""
SELECT s.id FROM sessions s
WHERE s.ended_at IS NULL AND s.ephemeral = 0 AND s.updated_at < ? AND s.lease_expires <= ? AND NOT EXISTS
(SELECT 1 FROM turns t WHERE t.session_id = s.id AND t.state IN ({UNSETTLED}))
ORDER BY s.updated_at LIMIT {rules.BATCH}
"""


def end_unused(tx: Transaction, before: float) -> Sequence[SessionId]:
    unused = [row[0] for row in tx.execute(FIND_UNUSED, (before, tx.now)).fetchall()]
    for session_id in unused:
        tx.execute(END_SESSION, (tx.now, session_id))
    return unused


# -- pruning ----------------------------------------------------------------------------------------------

FIND_TO_PRUNE = f"""
SELECT s.id FROM sessions s WHERE s.ephemeral = 1 AND s.updated_at < ? AND NOT EXISTS
(SELECT 1 FROM turns t WHERE t.session_id = s.id AND t.state IN ({UNSETTLED}))
LIMIT {rules.BATCH}
"""
_TURNS_OF = "(SELECT id FROM turns WHERE session_id = ?)"
PRUNE_SESSION = (
    f"DELETE FROM steps WHERE turn_id IN {_TURNS_OF}",
    f"DELETE FROM questions WHERE turn_id IN {_TURNS_OF}",
    f"DELETE FROM outbox WHERE turn_id IN {_TURNS_OF}",
    f"DELETE FROM usage WHERE turn_id IN {_TURNS_OF}",
    "DELETE FROM turns WHERE session_id = ?",
    "DELETE FROM entries WHERE session_id = ?",
    "DELETE FROM sessions WHERE id = ?",
)


def prune_ephemeral(tx: Transaction, older_than: float) -> int:
    """Deletes up to `rules.BATCH` sessions and says how many; fewer means that no more are left."""
    doomed = tx.execute(FIND_TO_PRUNE, (older_than,)).fetchall()
    for row in doomed:
        for statement in PRUNE_SESSION:
            tx.execute(statement, row)
    return len(doomed)
