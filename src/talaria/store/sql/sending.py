"""Messages to a chat outside of its turns, in SQL. See `core.sending`."""

from __future__ import annotations

from talaria.core.ledger import Accept, TurnEnd, ended_turn
from talaria.core.sending import SENT_TURN, SendMessage, SentTurn
from talaria.core.turns import Inbound, TurnState
from talaria.store.sql import announcements, orders
from talaria.store.sql.executor import Transaction


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
    is_logged = announcements.wait(tx, turn.id, turn.session_id, order.entry)
    return SentTurn(ended_turn(turn, end, tx.now), is_logged=is_logged)
