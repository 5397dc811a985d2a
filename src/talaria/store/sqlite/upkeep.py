"""The orders around a turn, in SQL: leases, ends of sessions, recovery, delivery marks, pruning."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from talaria.core.ids import Fence, OwnerId, SessionId
from talaria.core.ledger import OutboxState, Renewal
from talaria.core.sessions import Session
from talaria.core.turns import Turn
from talaria.store import rules
from talaria.store.sqlite.orders import END_SESSION, TAKE_LEASE
from talaria.store.sqlite.rows import SESSION_COLUMNS, TURN_COLUMNS, session_from, turn_from
from talaria.store.sqlite.writer import Transaction

# Sessions that one pruning transaction deletes, so that the orders of turns never wait long behind it.
PRUNE_BATCH = 100

_UNSETTLED = ", ".join(f"'{state}'" for state in rules.UNSETTLED)

# -- leases -----------------------------------------------------------------------------------------------

FIND_LEASE = "SELECT lease_fence, lease_expires FROM sessions WHERE id = ?"
RENEW_LEASE = """
UPDATE sessions SET lease_expires = ?
WHERE id = ? AND lease_fence = ? AND lease_owner = ? AND lease_expires > 0
"""


class Hold(msgspec.Struct, frozen=True):
    session_id: SessionId
    owner: OwnerId
    lease_seconds: float


class Renew(msgspec.Struct, frozen=True):
    owner: OwnerId
    renewals: tuple[Renewal, ...]
    lease_seconds: float


def hold(tx: Transaction, order: Hold) -> Fence:
    row = tx.execute(FIND_LEASE, (order.session_id,)).fetchone()
    if row is None:
        raise rules.no_session(order.session_id)
    fence, expires = row
    if expires > tx.now:
        raise rules.lease_held(order.session_id)
    tx.execute(TAKE_LEASE, (order.owner, fence + 1, tx.now + order.lease_seconds, order.session_id))
    return Fence(fence + 1)


def renew(tx: Transaction, order: Renew) -> frozenset[SessionId]:
    until = tx.now + order.lease_seconds
    return frozenset(
        renewal.session_id
        for renewal in order.renewals
        if not tx.execute(RENEW_LEASE, (until, renewal.session_id, renewal.fence, order.owner)).rowcount
    )


# -- ends and recovery ------------------------------------------------------------------------------------

FIND_TO_END = f"SELECT {SESSION_COLUMNS}, lease_fence, lease_expires FROM sessions WHERE id = ?"
EXPIRE_OTHERS = "UPDATE sessions SET lease_expires = 0 WHERE lease_owner <> ? AND lease_expires > 0"
FIND_UNSETTLED = f"SELECT {TURN_COLUMNS} FROM turns WHERE state IN ({_UNSETTLED}) ORDER BY position"


def end_session(tx: Transaction, order: tuple[SessionId, Fence]) -> Session:
    session_id, order_fence = order
    row = tx.execute(FIND_TO_END, (session_id,)).fetchone()
    if row is None:
        raise rules.no_session(session_id)
    fence, expires = row[-2:]
    if fence != order_fence or not expires:
        raise rules.stale_fence(session_id)
    session = session_from(row[:-2])
    ended_at = tx.now if session.ended_at is None else session.ended_at
    tx.execute(END_SESSION, (ended_at, session_id))
    return msgspec.structs.replace(session, ended_at=ended_at)


def reclaim(tx: Transaction, owner: OwnerId) -> Sequence[Turn]:
    tx.execute(EXPIRE_OTHERS, (owner,))
    return tuple(map(turn_from, tx.execute(FIND_UNSETTLED).fetchall()))


# -- delivery ---------------------------------------------------------------------------------------------

MARK_OUTBOX = """
UPDATE outbox SET state = ?, attempts = attempts + ?, due_at = ?, platform_id = coalesce(?, platform_id)
WHERE id = ?
"""


class Mark(msgspec.Struct, frozen=True):
    row_id: int
    state: OutboxState
    due_at: float
    platform_id: str | None


def outbox_mark(tx: Transaction, order: Mark) -> None:
    is_attempt = order.state is OutboxState.SENDING
    marked = tx.execute(
        MARK_OUTBOX, (order.state.value, int(is_attempt), order.due_at, order.platform_id, order.row_id)
    )
    if not marked.rowcount:
        raise rules.no_outbox_row(order.row_id)


FIND_UNUSED = f"""
SELECT s.id FROM sessions s
WHERE s.ended_at IS NULL AND s.ephemeral = 0 AND s.updated_at < ? AND s.lease_expires <= ? AND NOT EXISTS
(SELECT 1 FROM turns t WHERE t.session_id = s.id AND t.state IN ({_UNSETTLED}))
ORDER BY s.updated_at LIMIT {rules.END_BATCH}
"""


def end_unused(tx: Transaction, before: float) -> list[SessionId]:
    unused = [row[0] for row in tx.execute(FIND_UNUSED, (before, tx.now)).fetchall()]
    for session_id in unused:
        tx.execute(END_SESSION, (tx.now, session_id))
    return unused


# -- pruning ----------------------------------------------------------------------------------------------

FIND_TO_PRUNE = f"""
SELECT s.id FROM sessions s WHERE s.ephemeral = 1 AND s.updated_at < ? AND NOT EXISTS
(SELECT 1 FROM turns t WHERE t.session_id = s.id AND t.state IN ({_UNSETTLED}))
LIMIT {PRUNE_BATCH}
"""
_TURNS_OF = "(SELECT id FROM turns WHERE session_id = ?)"
PRUNE_SESSION = (
    f"DELETE FROM steps WHERE turn_id IN {_TURNS_OF}",
    f"DELETE FROM outbox WHERE turn_id IN {_TURNS_OF}",
    f"DELETE FROM usage WHERE turn_id IN {_TURNS_OF}",
    "DELETE FROM turns WHERE session_id = ?",
    "DELETE FROM entries WHERE session_id = ?",
    "DELETE FROM sessions WHERE id = ?",
)


def prune_ephemeral(tx: Transaction, older_than: float) -> int:
    """Deletes up to `PRUNE_BATCH` sessions and says how many; fewer means that no more are left."""
    doomed = tx.execute(FIND_TO_PRUNE, (older_than,)).fetchall()
    for row in doomed:
        for statement in PRUNE_SESSION:
            tx.execute(statement, row)
    return len(doomed)
