"""Messages to a chat outside of its turns, in SQL. See `core.sending`."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.entries import Revision
from talaria.core.ids import SessionId, TurnId
from talaria.core.ledger import Accept, TurnEnd, ended_turn
from talaria.core.sending import SENT_TURN, SendMessage, SentTurn
from talaria.core.turns import Inbound, TurnState
from talaria.store.sql import log, orders, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.leases import FIND_LEASE, Lease
from talaria.store.sql.rows import decode_body, encode

WAIT = "INSERT INTO announcements (turn_id, session_id, at, body) VALUES (?, ?, ?, ?)"
FIND_WAITING = "SELECT turn_id, body FROM announcements WHERE session_id = ? ORDER BY at, turn_id"
FIND_SESSIONS = f"SELECT DISTINCT session_id FROM announcements LIMIT {rules.BATCH}"
DROP = "DELETE FROM announcements WHERE session_id = ?"
FIND_HEAD = "SELECT epoch, seq FROM sessions WHERE id = ?"
# An append outside of a turn takes the lease and gives it back in one transaction: the new fence keeps out
# a holder whose lease has expired. `updated_at` stays, because no person has used the session.
APPEND = "UPDATE sessions SET lease_fence = ?, lease_expires = 0, epoch = ?, seq = ? WHERE id = ?"


def send(tx: Transaction, order: SendMessage) -> SentTurn:
    inbound = Inbound(order.chat_key, order.sender, (), order.key, address=order.address)
    accept = Accept(
        order.turn_id,
        inbound,
        order.fresh,
        SENT_TURN,
        scope=order.scope,
        digest=order.digest,
        key_ttl=order.key_ttl,
    )
    accepted = orders.accept(tx, accept)
    if accepted.is_duplicate:
        return SentTurn(accepted.turn, is_duplicate=True, is_logged=True)
    turn, end = accepted.turn, TurnEnd(TurnState.DONE, order.entry.text, files=order.files)
    orders.settle(tx, turn.id, end)
    tx.execute(WAIT, (turn.id, turn.session_id, tx.now, encode(order.entry)))
    return SentTurn(ended_turn(turn, end, tx.now), is_logged=announce(tx, turn.session_id))


def announce(tx: Transaction, session_id: SessionId) -> bool:
    """Append what waits for this session. Return False while a turn of it runs or waits for a person."""
    row = tx.execute(FIND_LEASE, (session_id,)).fetchone()
    lease = Lease() if row is None else Lease(*row)
    if lease.expires > tx.now or lease.waiting_turn:
        return False
    waiting = tx.execute(FIND_WAITING, (session_id,)).fetchall()
    if waiting and row is not None:
        head = Revision(*tx.execute(FIND_HEAD, (session_id,)).fetchone())
        for turn_id, body in waiting:
            head, entries = rules.number(session_id, head, (decode_body(body),), TurnId(turn_id), tx.now)
            for entry in entries:
                log.insert_entry(tx, entry)
        tx.execute(APPEND, (lease.fence + 1, head.epoch, head.seq, session_id))
    tx.execute(DROP, (session_id,))
    return True


def unannounced(db: Connection) -> Sequence[SessionId]:
    return [row[0] for row in db.execute(FIND_SESSIONS)]
