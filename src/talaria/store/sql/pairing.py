"""Pairing, in SQL: people who were let in, people who ask to be, invitations, and wrong codes.

Wrong codes are counted by *gate*: one gate for approvals, and one for each channel's invitation. A gate has a
count for each person, and one for all people together.
"""

from __future__ import annotations

from typing import NamedTuple

from talaria.core.access import (
    ApprovePairing,
    CodesLocked,
    CreateInvitation,
    CreateLinkCode,
    Paired,
    PairingLimits,
    PairingList,
    PairingOrigin,
    PairingOutcome,
    PairingRequest,
    Person,
    RedeemInvitation,
    RedeemLinkCode,
    RequestOpened,
    RequestOutcome,
    RequestPairing,
    RequestPending,
    RequestsFull,
    WrongCode,
)
from talaria.store.sql import locks
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import find_one

# -- requests ---------------------------------------------------------------------------------------------

DROP_EXPIRED = "DELETE FROM pairing_requests WHERE expires_at <= ?"
FIND_REQUEST = "SELECT expires_at, told_at FROM pairing_requests WHERE channel = ? AND user_id = ?"
SET_TOLD = "UPDATE pairing_requests SET told_at = ? WHERE channel = ? AND user_id = ?"
COUNT_REQUESTS = "SELECT count(*), min(expires_at) FROM pairing_requests WHERE channel = ?"
INSERT_REQUEST = """
INSERT INTO pairing_requests (channel, user_id, name, code, asked_at, expires_at, told_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""


def ask(tx: Transaction, order: RequestPairing) -> RequestOutcome:
    """Open a request, unless the person has one or the channel has too many."""
    person, limits = order.person, order.limits
    key = (person.channel, person.user_id)
    locks.names(tx, "pairing", person.channel)
    tx.execute(DROP_EXPIRED, (tx.now,))
    row = tx.execute(FIND_REQUEST, key).fetchone()
    if row is not None:
        expires_at, told_at = row
        may_tell = tx.now >= told_at + limits.pause_seconds
        if may_tell:
            tx.execute(SET_TOLD, (tx.now, *key))
            told_at = tx.now
        return RequestPending(may_tell, min(expires_at, told_at + limits.pause_seconds))
    count, next_expiry = tx.execute(COUNT_REQUESTS, (person.channel,)).fetchone()
    if count >= limits.per_channel:
        # An approval may make room before the next request expires.
        return RequestsFull(min(next_expiry, tx.now + limits.pause_seconds))
    expires_at = tx.now + limits.code_seconds
    tx.execute(INSERT_REQUEST, (*key, person.name, order.code, tx.now, expires_at, tx.now))
    return RequestOpened(expires_at)


# -- wrong codes ------------------------------------------------------------------------------------------

APPROVALS = "approve"
ALL_PEOPLE = ""
FIND_TRIES = "SELECT count, last_at FROM wrong_codes WHERE gate = ? AND who = ?"
SET_TRIES = """
INSERT INTO wrong_codes (gate, who, count, last_at) VALUES (?, ?, ?, ?)
ON CONFLICT (gate, who) DO UPDATE SET count = excluded.count, last_at = excluded.last_at
"""
FORGET_TRIES = "DELETE FROM wrong_codes WHERE gate = ?"


def _invitation_gate(channel: str) -> str:
    return f"invite {channel}"


class _Tries(NamedTuple):
    """Wrong codes, each within `pause_seconds` of the one before."""

    wrong: int = 0
    last_at: float = 0.0

    def are_forgotten(self, limits: PairingLimits, now: float) -> bool:
        return now >= self.last_at + limits.pause_seconds

    def lock(self, most: int, limits: PairingLimits, now: float) -> CodesLocked | None:
        """Return the lock that `most` wrong codes put on the gate. Asked before any code is looked at."""
        if self.wrong < most or self.are_forgotten(limits, now):
            return None
        return CodesLocked(self.last_at + limits.pause_seconds)


def _find_tries(tx: Transaction, gate: str, who: str) -> _Tries:
    row = tx.execute(FIND_TRIES, (gate, who)).fetchone()
    return _Tries() if row is None else _Tries(*row)


def _count_try(tx: Transaction, gate: str, who: str, tries: _Tries, limits: PairingLimits) -> _Tries:
    tries = _Tries(1 if tries.are_forgotten(limits, tx.now) else tries.wrong + 1, tx.now)
    tx.execute(SET_TRIES, (gate, who, *tries))
    return tries


def _refuse(tries: _Tries, limits: PairingLimits) -> WrongCode:
    return WrongCode(max(0, limits.tries - tries.wrong))


# -- letting people in ------------------------------------------------------------------------------------

FIND_BY_CODE = "SELECT channel, user_id, name FROM pairing_requests WHERE code = ? AND expires_at > ?"
SET_INVITATION = """
INSERT INTO invitations (channel, code, expires_at) VALUES (?, ?, ?)
ON CONFLICT (channel) DO UPDATE SET code = excluded.code, expires_at = excluded.expires_at
"""
USE_INVITATION = "DELETE FROM invitations WHERE channel = ? AND code = ? AND expires_at > ?"
DROP_REQUEST = "DELETE FROM pairing_requests WHERE channel = ? AND user_id = ?"
PAIR = """
INSERT INTO paired (channel, user_id, name, paired_at, origin) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (channel, user_id) DO UPDATE
SET name = excluded.name, paired_at = excluded.paired_at, origin = excluded.origin
"""
REVOKE = """
DELETE FROM paired WHERE channel = ? AND user_id = ? RETURNING channel, user_id, name, paired_at, origin
"""


def approve(tx: Transaction, order: ApprovePairing) -> PairingOutcome:
    """Pair the person with this code. Durable. If several calls race, one gets `Paired`."""
    locks.names(tx, "codes", APPROVALS)
    tries = _find_tries(tx, APPROVALS, ALL_PEOPLE)
    if (locked := tries.lock(order.limits.tries, order.limits, tx.now)) is not None:
        return locked
    row = tx.execute(FIND_BY_CODE, (order.code, tx.now)).fetchone()
    if row is None:
        return _refuse(_count_try(tx, APPROVALS, ALL_PEOPLE, tries, order.limits), order.limits)
    return pair(tx, Person(*row), PairingOrigin.APPROVED)


def invite(tx: Transaction, order: CreateInvitation) -> float:
    """Open the channel's invitation, forget wrong ones, and return when it expires. Durable."""
    expires_at = tx.now + order.limits.code_seconds
    locks.names(tx, "codes", _invitation_gate(order.channel))
    tx.execute(SET_INVITATION, (order.channel, order.code, expires_at))
    tx.execute(FORGET_TRIES, (_invitation_gate(order.channel),))
    return expires_at


def redeem(tx: Transaction, order: RedeemInvitation) -> PairingOutcome:
    """Pair the person who presents the channel's invitation, which is then used up. Durable."""
    person, limits, gate = order.person, order.limits, _invitation_gate(order.person.channel)
    locks.names(tx, "codes", gate)
    own, all_tries = _find_tries(tx, gate, person.user_id), _find_tries(tx, gate, ALL_PEOPLE)
    locked = own.lock(limits.tries, limits, tx.now) or all_tries.lock(limits.per_channel, limits, tx.now)
    if locked is not None:
        return locked
    if tx.execute(USE_INVITATION, (person.channel, order.code, tx.now)).rowcount:
        return pair(tx, person, PairingOrigin.INVITED)
    if all_tries.are_forgotten(limits, tx.now):
        # No person of the channel is counted any more, so the rows of all can go.
        tx.execute(FORGET_TRIES, (gate,))
    _count_try(tx, gate, ALL_PEOPLE, all_tries, limits)
    return _refuse(_count_try(tx, gate, person.user_id, own, limits), limits)


# -- identities of one person -----------------------------------------------------------------------------

SET_LINK_CODE = """
INSERT INTO link_codes (identity, code, expires_at) VALUES (?, ?, ?)
ON CONFLICT (identity) DO UPDATE SET code = excluded.code, expires_at = excluded.expires_at
"""
FIND_LINK_CODE = "SELECT identity FROM link_codes WHERE code = ? AND expires_at > ?"
USE_LINK_CODE = "DELETE FROM link_codes WHERE code = ?"
DROP_LINK_CODES = "DELETE FROM link_codes WHERE expires_at <= ?"
DROP_LINK_CODE = "DELETE FROM link_codes WHERE identity = ?"
UNLINK = "DELETE FROM linked_identities WHERE identity = ? OR root = ?"
FIND_ROOT = "SELECT root FROM linked_identities WHERE identity = ?"
SET_ROOT = """
INSERT INTO linked_identities (identity, root, linked_at) VALUES (?, ?, ?)
ON CONFLICT (identity) DO UPDATE SET root = excluded.root, linked_at = excluded.linked_at
"""
MOVE_ROOT = "UPDATE linked_identities SET root = ? WHERE root = ?"
LINKS = "SELECT identity, root FROM linked_identities ORDER BY identity"
_LINK_GATE = "link"


def create_link(tx: Transaction, order: CreateLinkCode) -> None:
    """Open a code; see `CreateLinkCode`. Durable."""
    locks.names(tx, "codes", _LINK_GATE)
    tx.execute(DROP_LINK_CODES, (tx.now,))
    tx.execute(SET_LINK_CODE, (order.identity, order.code, tx.now + order.seconds))


def redeem_link(tx: Transaction, order: RedeemLinkCode) -> str | WrongCode | CodesLocked:
    """Join an identity, with all that are joined to it, to the one that created the code, and return that
    one. The code is then used up, unless its creator presented it. Durable."""
    locks.names(tx, "codes", _LINK_GATE)
    tries = _find_tries(tx, _LINK_GATE, order.identity)
    if (locked := tries.lock(order.limits.tries, order.limits, tx.now)) is not None:
        return locked
    row = tx.execute(FIND_LINK_CODE, (order.code, tx.now)).fetchone()
    if row is None:
        return _refuse(_count_try(tx, _LINK_GATE, order.identity, tries, order.limits), order.limits)
    if (creator := str(row[0])) == order.identity:
        return creator
    tx.execute(USE_LINK_CODE, (order.code,))
    root, joined = _root_of(tx, creator), _root_of(tx, order.identity)
    if root != joined:
        tx.execute(MOVE_ROOT, (root, joined))
        tx.execute(SET_ROOT, (joined, root, tx.now))
    return creator


def unlink(tx: Transaction, identity: str) -> bool:
    """Make an identity a person of its own again, and forget its code. If others are joined to it, they leave
    it too. Durable. Return False if it was not joined to any."""
    locks.names(tx, "codes", _LINK_GATE)
    tx.execute(DROP_LINK_CODE, (identity,))
    return tx.execute(UNLINK, (identity, identity)).rowcount > 0


def _root_of(tx: Transaction, identity: str) -> str:
    found = tx.execute(FIND_ROOT, (identity,)).fetchone()
    return identity if found is None else str(found[0])


def links(db: Connection) -> list[tuple[str, str]]:
    """Return the joined identities, each with its root."""
    return [(str(identity), str(root)) for identity, root in db.execute(LINKS).fetchall()]


def pair(tx: Transaction, person: Person, origin: PairingOrigin) -> Paired:
    """Pair a person, and drop their open request."""
    key = (person.channel, person.user_id)
    tx.execute(DROP_REQUEST, key)
    tx.execute(PAIR, (*key, person.name, tx.now, origin.value))
    return Paired(person, tx.now, origin)


def revoke(tx: Transaction, channel: str, user_id: str) -> Paired | None:
    """End a pairing. Durable. Return None if there was none."""
    return find_one(_paired_from, tx.execute(REVOKE, (channel, user_id)))


# -- reading ----------------------------------------------------------------------------------------------

IS_PAIRED = "SELECT 1 FROM paired WHERE channel = ? AND user_id = ?"
ALL_PAIRED = (
    "SELECT channel, user_id, name, paired_at, origin FROM paired ORDER BY paired_at, channel, user_id"
)
ALL_REQUESTS = """
SELECT channel, user_id, name, asked_at, expires_at FROM pairing_requests WHERE expires_at > ?
ORDER BY asked_at, channel, user_id
"""


def is_paired(db: Connection, channel: str, user_id: str) -> bool:
    """Read one row by key: what any process committed last."""
    return db.execute(IS_PAIRED, (channel, user_id)).fetchone() is not None


def listing(tx: Transaction) -> PairingList:
    """Run as an order, because a transaction has the store's time: expired requests are not listed."""
    paired = tx.execute(ALL_PAIRED).fetchall()
    requests = tx.execute(ALL_REQUESTS, (tx.now,)).fetchall()
    return PairingList(
        tuple(_paired_from(row) for row in paired),
        tuple(PairingRequest(Person(*row[:3]), row[3], row[4]) for row in requests),
    )


def _paired_from(row: tuple[str, str, str, float, str]) -> Paired:
    return Paired(Person(*row[:3]), row[3], PairingOrigin(row[4]))
