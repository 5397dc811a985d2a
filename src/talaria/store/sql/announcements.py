"""Messages in the logs of chats that no turn of the chat wrote, in SQL: sent ones, and replies of runs."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from talaria.core.entries import Announcement
from talaria.core.ids import ChatKey, SessionId, TurnId, new_session_id
from talaria.core.jobs import SlotEnd, failure_text, result_text
from talaria.core.ledger import Accept, Fresh, TurnEnd
from talaria.core.turns import Inbound, ReplyPlace, RunOrder, Turn, TurnState
from talaria.store.sql import binding, delivery, locks, log, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.leases import Lease, find_session
from talaria.store.sql.rows import decode_body, encode

WAIT = "INSERT INTO announcements (turn_id, session_id, at, body) VALUES (?, ?, ?, ?)"
FIND_WAITING = "SELECT turn_id, body FROM announcements WHERE session_id = ? ORDER BY at, turn_id"
FIND_SESSIONS = f"SELECT DISTINCT session_id FROM announcements LIMIT {rules.BATCH}"
DROP = "DELETE FROM announcements WHERE session_id = ?"
# An append outside of a turn takes the lease and gives it back in one transaction: the new fence keeps out
# a holder whose lease has expired. `updated_at` stays, because no person has used the session.
APPEND = "UPDATE sessions SET lease_fence = ?, lease_expires = 0, epoch = ?, seq = ? WHERE id = ?"


def wait(tx: Transaction, turn_id: TurnId, session_id: SessionId, entry: Announcement) -> bool:
    """Let the session's log have the entry, at once if no turn of it runs. Return whether it was at once."""
    tx.execute(WAIT, (turn_id, session_id, tx.now, encode(entry)))
    return announce(tx, session_id)


def announce(tx: Transaction, session_id: SessionId) -> bool:
    """Append the sent messages that wait for this session to its log. Return False, having changed
    nothing, while a turn of the session runs or waits for a person."""
    locks.session(tx, session_id)
    session, lease = find_session(tx, session_id) or (None, Lease())
    if lease.expires > tx.now or lease.waiting_turn:
        return False
    waiting = tx.execute(FIND_WAITING, (session_id,)).fetchall()
    if waiting and session is not None:
        head = session.revision
        for turn_id, body in waiting:
            head, entries = rules.number(session_id, head, (decode_body(body),), TurnId(turn_id), tx.now)
            for entry in entries:
                log.insert_entry(tx, entry)
        tx.execute(APPEND, (lease.fence + 1, head.epoch, head.seq, session_id))
    tx.execute(DROP, (session_id,))
    return True


def unannounced(db: Connection) -> Sequence[SessionId]:
    """Return sessions for which sent messages wait, up to 100."""
    return [row[0] for row in db.execute(FIND_SESSIONS)]


def reply_elsewhere(
    tx: Transaction, turn: Turn, order: RunOrder, end: TurnEnd, ended: SlotEnd | None = None
) -> None:
    """Send the reply of a run to the chat that its order names, in the transaction that ends the turn. The
    chat that asked for a job is told of its failures. `ended` is the slot of the job."""
    place, text = _news(order, end, ended)
    rows = rules.replies_elsewhere(turn, place, text, end, tx.now) if place is not None else ()
    if place is None or not rows:
        return
    if place.address is not None:
        delivery.write_replies(tx, rows)
    if text and place.chat_key != turn.chat_key:  # its own log has the reply
        is_untrusted = order.untrusted or log.is_tainted(tx, turn.session_id)
        session_id = _session_of(tx, turn, place.chat_key)
        wait(tx, turn.id, session_id, Announcement(text, untrusted=is_untrusted or UNSET))


def _session_of(tx: Transaction, turn: Turn, chat_key: ChatKey) -> SessionId:
    """Return the open session of the chat. One is created for a chat without it, so that people can see
    what the chat got, and the model of the chat knows it."""
    order = Accept(turn.id, Inbound(chat_key, turn.inbound.sender, ()), Fresh(new_session_id(), None))
    locks.current_session(tx, chat_key)
    found = binding.bind_session(tx, order).session
    return found.id if found is not None else binding.make_session(tx, order).id


def _news(order: RunOrder, end: TurnEnd, ended: SlotEnd | None) -> tuple[ReplyPlace | None, str]:
    """Return where a run is told of, and the text; an empty one if there is nothing to tell."""
    match end.state:
        case TurnState.DONE:
            return order.reply_to, result_text(order, end.reply or "", ended.slot.cost if ended else 0)
        case TurnState.FAILED if not order.job_id:
            return order.reply_to, end.reply or ""
        case TurnState.FAILED if ended is not None:
            return order.asked_in, failure_text(ended, end.reply or "")
        case _:
            return None, ""
