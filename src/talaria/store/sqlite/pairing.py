"""`SqlitePairings`: the orders of pairing, in SQL, on the store's own writer and readers."""

from __future__ import annotations

from talaria.core.access import (
    Admission,
    Approve,
    Ask,
    Asked,
    CodeHash,
    Crowded,
    Invite,
    Opened,
    Origin,
    Paired,
    PairingLimits,
    PairingList,
    PairingRequest,
    Person,
    Redeem,
)
from talaria.store import pairing_rules as rules
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.reach import Part, reads, writes
from talaria.store.sqlite.writer import Transaction

IS_PAIRED = "SELECT 1 FROM paired WHERE channel = ? AND user_id = ?"

# -- orders -----------------------------------------------------------------------------------------------


def _ask(tx: Transaction, order: Ask) -> Asked:
    person, limits = order.person, order.limits
    tx.execute("DELETE FROM pairing_requests WHERE expires_at <= ?", (tx.now,))
    key = (person.channel, person.user_id)
    row = tx.execute(
        "SELECT expires_at, reminders, told_at FROM pairing_requests WHERE channel = ? AND user_id = ?", key
    ).fetchone()
    if row is not None:
        waiting = rules.remind(rules.Told(*row), limits, tx.now)
        if waiting.may_tell:
            tx.execute(
                "UPDATE pairing_requests SET reminders = reminders + 1, told_at = ?"
                " WHERE channel = ? AND user_id = ?",
                (tx.now, *key),
            )
        return waiting
    since = tx.now - limits.new_seconds
    count, oldest = tx.execute(
        "SELECT count(*), min(asked_at) FROM pairing_requests WHERE channel = ? AND asked_at > ?",
        (person.channel, since),
    ).fetchone()
    if count >= limits.new_requests:
        return Crowded(oldest + limits.new_seconds)
    # Room for one: all but the newest `open_requests - 1` go.
    tx.execute(
        "DELETE FROM pairing_requests WHERE channel = ?1 AND user_id IN (SELECT user_id FROM"
        " pairing_requests WHERE channel = ?1 ORDER BY asked_at DESC, user_id LIMIT -1 OFFSET ?2)",
        (person.channel, limits.open_requests - 1),
    )
    expires_at = tx.now + limits.code_seconds
    tx.execute(
        "INSERT INTO pairing_requests (channel, user_id, name, code, asked_at, expires_at, told_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*key, person.name, order.code, tx.now, expires_at, tx.now),
    )
    return Opened(expires_at)


def _approve(tx: Transaction, order: Approve) -> Admission:
    tries = _tries(tx, rules.APPROVAL, rules.EVERYBODY)
    locked = rules.lock(tries, order.limits.tries, order.limits, tx.now)
    if locked is not None:
        return locked
    row = tx.execute(
        "SELECT channel, user_id, name FROM pairing_requests WHERE code = ? AND expires_at > ?",
        (order.code, tx.now),
    ).fetchone()
    if row is None:
        tries = _count(tx, rules.APPROVAL, rules.EVERYBODY, tries, order.limits)
        return rules.wrong(tries, order.limits.tries)
    return _pair(tx, Person(*row), Origin.APPROVED)


def _invite(tx: Transaction, order: Invite) -> float:
    expires_at = tx.now + order.limits.code_seconds
    tx.execute(
        "INSERT INTO invitations (channel, code, expires_at) VALUES (?, ?, ?)"
        " ON CONFLICT (channel) DO UPDATE SET code = excluded.code, expires_at = excluded.expires_at",
        (order.channel, order.code, expires_at),
    )
    tx.execute("DELETE FROM wrong_codes WHERE gate = ?", (rules.invitation_gate(order.channel),))
    return expires_at


def _redeem(tx: Transaction, order: Redeem) -> Admission:
    person, limits = order.person, order.limits
    gate = rules.invitation_gate(person.channel)
    theirs, all_of_them = _tries(tx, gate, person.user_id), _tries(tx, gate, rules.EVERYBODY)
    locked = rules.lock(theirs, limits.tries, limits, tx.now) or rules.lock(
        all_of_them, limits.channel_tries, limits, tx.now
    )
    if locked is not None:
        return locked
    if _use_invitation(tx, person.channel, order.code):
        return _pair(tx, person, Origin.INVITED)
    if rules.is_forgotten(all_of_them, limits, tx.now):
        # Nobody of the channel is counted any more: the rows of those who once were can go.
        tx.execute("DELETE FROM wrong_codes WHERE gate = ?", (gate,))
    _count(tx, gate, rules.EVERYBODY, all_of_them, limits)
    return rules.wrong(_count(tx, gate, person.user_id, theirs, limits), limits.tries)


def _revoke(tx: Transaction, channel: str, user_id: str) -> Paired | None:
    row = tx.execute(
        "DELETE FROM paired WHERE channel = ? AND user_id = ?"
        " RETURNING channel, user_id, name, paired_at, origin",
        (channel, user_id),
    ).fetchone()
    return None if row is None else _paired(row)


def _listing(tx: Transaction) -> PairingList:
    """An order, because those have the store's time: what expired is not shown."""
    paired = tx.execute(
        "SELECT channel, user_id, name, paired_at, origin FROM paired ORDER BY paired_at, channel, user_id"
    ).fetchall()
    requests = tx.execute(
        "SELECT channel, user_id, name, asked_at, expires_at FROM pairing_requests WHERE expires_at > ?"
        " ORDER BY asked_at, channel, user_id",
        (tx.now,),
    ).fetchall()
    return PairingList(
        tuple(_paired(row) for row in paired),
        tuple(PairingRequest(Person(*row[:3]), row[3], row[4]) for row in requests),
    )


def _is_paired(db: driver.Connection, channel: str, user_id: str) -> bool:
    return db.execute(IS_PAIRED, (channel, user_id)).fetchone() is not None


# -- parts of orders --------------------------------------------------------------------------------------


def _pair(tx: Transaction, person: Person, origin: Origin) -> Paired:
    """Their request, open or not, is settled with it."""
    key = (person.channel, person.user_id)
    tx.execute("DELETE FROM pairing_requests WHERE channel = ? AND user_id = ?", key)
    tx.execute(
        "INSERT INTO paired (channel, user_id, name, paired_at, origin) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (channel, user_id) DO UPDATE"
        " SET name = excluded.name, paired_at = excluded.paired_at, origin = excluded.origin",
        (*key, person.name, tx.now, origin),
    )
    return Paired(person, tx.now, origin)


def _use_invitation(tx: Transaction, channel: str, code: CodeHash) -> bool:
    return (
        tx.execute(
            "DELETE FROM invitations WHERE channel = ? AND code = ? AND expires_at > ? RETURNING channel",
            (channel, code, tx.now),
        ).fetchone()
        is not None
    )


def _tries(tx: Transaction, gate: str, who: str) -> rules.Tries:
    row = tx.execute(
        "SELECT count, last_at FROM wrong_codes WHERE gate = ? AND who = ?", (gate, who)
    ).fetchone()
    return rules.NO_TRIES if row is None else rules.Tries(*row)


def _count(tx: Transaction, gate: str, who: str, tries: rules.Tries, limits: PairingLimits) -> rules.Tries:
    tries = rules.one_more(tries, limits, tx.now)
    tx.execute(
        "INSERT INTO wrong_codes (gate, who, count, last_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (gate, who) DO UPDATE SET count = excluded.count, last_at = excluded.last_at",
        (gate, who, *tries),
    )
    return tries


def _paired(row: tuple[str, str, str, float, str]) -> Paired:
    return Paired(Person(*row[:3]), row[3], Origin(row[4]))


class SqlitePairings(Part):
    """See `core.ports.Pairings` for what each method promises."""

    is_paired = reads(_is_paired)
    ask = writes(_ask)
    approve = writes(_approve, is_durable=True)
    invite = writes(_invite, is_durable=True)
    redeem = writes(_redeem, is_durable=True)
    revoke = writes(_revoke, is_durable=True)
    listing = writes(_listing)
