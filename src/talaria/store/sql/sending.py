"""Messages to a chat outside of its turns, in SQL. See `core.sending`."""

from __future__ import annotations

from talaria.core.entries import Announcement
from talaria.core.ids import new_session_id, new_turn_id
from talaria.core.jobs import SettleSlot, Slot, SlotState
from talaria.core.ledger import Accept, Fresh, TurnEnd, ended_turn
from talaria.core.run_texts import failure_text
from talaria.core.sending import SENT_TURN, SendMessage, SentTurn
from talaria.core.turns import Inbound, ReplyPlace, Sender, TurnState
from talaria.store.sql import announcements, orders, slots
from talaria.store.sql.executor import Transaction


def send(tx: Transaction, order: SendMessage) -> SentTurn:
    """Write a message to a chat outside of its turns; see `SendMessage`. Durable."""
    inbound = Inbound(order.chat_key, order.sender, (), order.key, address=order.address)
    accept = Accept(
        order.turn_id,
        inbound,
        order.fresh,
        SENT_TURN,
        scope=order.scope,
        digest=order.digest,
        key_ttl=order.key_ttl,
        claim=order.claim,
    )
    accepted = orders.accept(tx, accept)
    if accepted.is_duplicate:
        return SentTurn(accepted.turn, is_duplicate=True, is_logged=True)
    turn, end = accepted.turn, TurnEnd(TurnState.DONE, order.entry.text, files=order.files)
    orders.settle(tx, turn.id, end)
    is_logged = announcements.wait(tx, turn.id, turn.session_id, order.entry)
    return SentTurn(ended_turn(turn, end, tx.now), is_logged=is_logged)


def settle_slot(tx: Transaction, order: SettleSlot) -> Slot:
    """See `slots.settle`. A failure is told to the chat that asked for the job."""
    ended = slots.settle(tx, order)
    job = ended.job
    if order.state is SlotState.FAILED and job is not None and (text := failure_text(ended, order.reason)):
        place = order.asked_in or ReplyPlace(job.origin.chat_key, job.origin.address)
        sender, fresh = Sender(f"job:{job.id}", job.name), Fresh(new_session_id(), None)
        entry = Announcement(text)
        send(tx, SendMessage(new_turn_id(), place.chat_key, sender, entry, fresh, place.address))
    return ended.slot
