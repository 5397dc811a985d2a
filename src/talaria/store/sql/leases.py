"""Leases, the end of sessions, and recovery, in SQL."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from talaria.core.ids import Fence, OwnerId, SessionId, TurnId
from talaria.core.ledger import BLAMED, Ended, Renewal, blamed_turns
from talaria.core.sessions import Session
from talaria.core.turns import Turn
from talaria.store.sql import delivery, locks, rules, slots, spending
from talaria.store.sql.delivery import DUE_AT_ONCE
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import (
    FOR_MEMBER,
    SESSION_COLUMNS,
    TURN_COLUMNS,
    UNSETTLED,
    prefixed,
    session_from,
    turn_from,
)

# -- leases -----------------------------------------------------------------------------------------------

LEASE_COLUMNS = "lease_owner, lease_fence, lease_expires, waiting_turn"
FIND_SESSION = f"SELECT {SESSION_COLUMNS}, {LEASE_COLUMNS} FROM sessions WHERE id = ?"
TAKE_LEASE = """
UPDATE sessions SET lease_owner = ?, lease_fence = ?, lease_expires = ?, waiting_turn = '' WHERE id = ?
"""
GIVE_LEASE_BACK = "UPDATE sessions SET lease_expires = 0 WHERE id = ?"
RENEW_LEASE = """
UPDATE sessions SET lease_expires = ?
WHERE id = ? AND lease_fence = ? AND lease_owner = ? AND lease_expires > 0
"""


class Lease(NamedTuple):
    """A session's lease; `expires` is 0 for one that was given back. `waiting_turn` is the turn that waits
    for a person, '' for none: only that turn may begin."""

    owner: str = ""
    fence: int = 0
    expires: float = 0.0
    waiting_turn: str = ""

    def is_free_for(self, owner: OwnerId, now: float) -> bool:
        return self.owner == owner or self.expires <= now


def find_session(tx: Transaction, session_id: SessionId | None) -> tuple[Session, Lease] | None:
    """Return a session with its lease; None if there is none."""
    row = tx.execute(FIND_SESSION, (session_id,)).fetchone()
    return None if row is None else (session_from(row[:-4]), Lease(*row[-4:]))


def lock_session(tx: Transaction, session_id: SessionId) -> tuple[Session, Lease]:
    """Lock a session and return it with its lease. Raises `NotFound`."""
    locks.session(tx, session_id)
    if (found := find_session(tx, session_id)) is None:
        raise rules.no_session(session_id)
    return found


def hold(tx: Transaction, session_id: SessionId, owner: OwnerId, lease_seconds: float) -> Fence:
    """Take the session's lease outside a turn, and return its fence.

    Raises `LeaseHeld` while any owner has it or a turn of the session waits for a person, `NotFound`.
    """
    _, lease = lock_session(tx, session_id)
    if lease.expires > tx.now:
        raise rules.lease_held(session_id)
    if lease.waiting_turn:
        raise rules.session_waits(session_id)
    fence = Fence(lease.fence + 1)
    tx.execute(TAKE_LEASE, (owner, fence, tx.now + lease_seconds, session_id))
    return fence


def renew(
    tx: Transaction, owner: OwnerId, renewals: Sequence[Renewal], lease_seconds: float
) -> frozenset[SessionId]:
    """Extend these leases, and return the sessions whose lease was lost."""
    until = tx.now + lease_seconds
    return frozenset(
        renewal.session_id
        for renewal in sorted(renewals, key=lambda renewal: renewal.session_id)
        if not tx.execute(RENEW_LEASE, (until, renewal.session_id, renewal.fence, owner)).rowcount
    )


# -- the end of sessions ----------------------------------------------------------------------------------

# No turn of the session `s` is unsettled.
ALL_SETTLED = f"NOT EXISTS (SELECT 1 FROM turns t WHERE t.session_id = s.id AND t.state IN ({UNSETTLED}))"
# When the session `s` may end. The parameter is the current time.
MAY_END = f"s.ended_at IS NULL AND s.lease_expires <= ? AND {ALL_SETTLED}"

END_SESSION = f"UPDATE sessions AS s SET ended_at = ?, lease_expires = 0 WHERE s.id = ? AND {MAY_END}"
DROP_GRANTS = "DELETE FROM grants WHERE session_id = ?"
FIND_UNUSED = f"""
SELECT s.id FROM sessions s WHERE s.ephemeral = 0 AND s.job_id IS NULL AND s.updated_at < ? AND {MAY_END}
ORDER BY s.updated_at LIMIT {rules.BATCH}
"""


def end_if_idle(tx: Transaction, session_id: SessionId) -> bool:
    """End the session if it may end, and say whether it did."""
    locks.session(tx, session_id)
    if not tx.execute(END_SESSION, (tx.now, session_id, tx.now)).rowcount:
        return False
    tx.execute(DROP_GRANTS, (session_id,))
    return True


def end_session(tx: Transaction, session_id: SessionId, fence: Fence) -> Ended:
    """Give the lease back, and end the session unless it ended before or one of its turns is unsettled.

    Raises `StaleFence`, `NotFound`.
    """
    session, lease = lock_session(tx, session_id)
    if fence != lease.fence or not lease.expires:
        raise rules.stale_fence(session_id)
    tx.execute(GIVE_LEASE_BACK, (session_id,))
    if not end_if_idle(tx, session_id):
        return Ended(session, is_news=False)
    return Ended(msgspec.structs.replace(session, ended_at=tx.now), is_news=True)


def end_unused(tx: Transaction, before: float) -> Sequence[SessionId]:
    """End lasting sessions that were not used since `before`, and return their ids: at most a hundred.

    A session with a lease or with an unsettled turn is left alone, and so are those of jobs.
    """
    unused = [row[0] for row in locks.confirmed(tx, FIND_UNUSED, (before, tx.now))]
    return [session_id for session_id in unused if end_if_idle(tx, session_id)]


_BLAMED_KEPT = 20

# -- recovery ---------------------------------------------------------------------------------------------

EXPIRE_OTHERS = "UPDATE sessions SET lease_expires = 0 WHERE lease_owner <> ? AND lease_expires > 0"
# No other gateway is there, and so no turn is for one.
FREE_TURNS = f"UPDATE turns AS t SET member = '' WHERE {FOR_MEMBER}"
FIND_UNSETTLED = f"SELECT {TURN_COLUMNS} FROM turns WHERE state IN ({UNSETTLED}) ORDER BY position"
FIND_ORPHANS = f"""
SELECT {prefixed("t", TURN_COLUMNS)} FROM turns t JOIN sessions s ON s.id = t.session_id
WHERE t.state IN ({UNSETTLED}) AND s.lease_expires <= ?
AND CASE s.waiting_turn
    WHEN '' THEN (t.attempts > 0 AND s.lease_owner <> ?) OR (t.attempts = 0 AND t.accepted_at < ?)
    ELSE s.waiting_turn IN (t.id, t.merged_into) AND NOT EXISTS
    (SELECT 1 FROM questions q WHERE q.turn_id = s.waiting_turn AND coalesce(q.decided_at, q.expires_at) >= ?)
    AND NOT EXISTS
    (SELECT 1 FROM delegates d WHERE d.turn_id = s.waiting_turn AND d.report = 0
        AND coalesce(d.ended_at, d.expires_at) >= ?)
    END
ORDER BY t.position
"""
FORGIVE_OWN = """
UPDATE turns SET forgiven = CASE WHEN forgiven < attempts THEN forgiven + 1 ELSE attempts END
WHERE state = 'running' AND merged_into IS NULL
AND session_id IN (SELECT id FROM sessions WHERE lease_owner = ? AND lease_expires > 0)
"""
YIELD_LEASES = "UPDATE sessions SET lease_expires = 0 WHERE lease_owner = ? AND lease_expires > 0"
FORGIVE_OTHERS = f"{FORGIVE_OWN} AND id <> ?"
FORGIVE_ALL = "UPDATE turns SET forgiven = attempts WHERE id = ?"


def reclaim(tx: Transaction, owner: OwnerId) -> Sequence[Turn]:
    """Expire the leases of every other owner, and their claims of slots without a turn, and return the
    unsettled turns, `waiting` ones included, oldest first.

    Only the holder of the home's lock may call it: it knows that no other process is alive.
    """
    locks.leased_by_others(tx, owner)
    tx.execute(EXPIRE_OTHERS, (owner,))
    spending.charge_others(tx, owner)
    tx.execute(slots.FREE_OTHERS, (owner,))
    tx.execute(DUE_AT_ONCE)
    tx.execute(FREE_TURNS)
    return tuple(map(turn_from, tx.execute(FIND_UNSETTLED).fetchall()))


def bury(tx: Transaction, dead: OwnerId) -> None:
    """Expire the leases of an owner whose process is known to be dead, and its claims of slots without a
    turn."""
    locks.sessions_of(tx, dead)
    tx.execute(YIELD_LEASES, (dead,))
    spending.charge_own(tx, dead)
    tx.execute(slots.FREE_CLAIMS, (dead,))


def orphans(db: Connection, now: float, owner: OwnerId, accepted_before: float) -> Sequence[Turn]:
    """Return the unsettled turns that no process works on, oldest first. Read-only.

    These are turns of sessions without a lease: begun by another owner, or accepted before `accepted_before`.
    A turn that waits for a person or for delegates has no lease and needs no process. It is returned, with
    the turns merged into it, once each of its questions was decided or expired before `accepted_before`, and
    each delegate ended, so that none is lost with the process that recorded it. The other turns of its
    session are not returned meanwhile.

    The caller claims a turn with `begin`; if two callers race, the second gets `LeaseHeld`.
    """
    found = db.execute(FIND_ORPHANS, (now, owner, *[accepted_before] * 3))
    return tuple(map(turn_from, found))


def yield_turns(tx: Transaction, owner: OwnerId) -> None:
    """Give back all leases of an owner that shuts down in good order. Durable.

    Another process resumes its running turns, and this attempt does not count as a crash.
    """
    locks.sessions_of(tx, owner)
    tx.execute(FORGIVE_OWN, (owner,))
    tx.execute(YIELD_LEASES, (owner,))
    spending.charge_own(tx, owner)


def blame(tx: Transaction, owner: OwnerId, turn_id: TurnId) -> None:
    locks.sessions_of(tx, owner)
    locks.names(tx, "cursor", BLAMED)
    tx.execute(FORGIVE_OTHERS, (owner, turn_id))
    blamed = blamed_turns(delivery.cursor(tx, BLAMED))
    value = msgspec.json.encode([*blamed, turn_id][-_BLAMED_KEPT:]).decode()
    delivery.set_cursor(tx, BLAMED, value)


def forgive(tx: Transaction, turn_id: TurnId) -> None:
    """Count none of the turn's attempts so far as a crash. Raises `NotFound`."""
    if not tx.execute(FORGIVE_ALL, (turn_id,)).rowcount:
        raise rules.no_turn(turn_id)
