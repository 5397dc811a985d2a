"""Sessions and people from another program, in SQL. For `talaria import`, which holds the home's lock."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from talaria.core.access import Paired, PairingOrigin, Person
from talaria.core.entries import Entry, Revision, TitleSet, advance
from talaria.core.ledger import ImportSession
from talaria.core.sessions import Session
from talaria.store.sql import leases, locks, log, pairing
from talaria.store.sql.executor import Transaction
from talaria.store.sql.rows import SESSION_COLUMNS

INSERT_SESSION = f"INSERT INTO sessions ({SESSION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, ?, 0, ?, '')"
SET_HEAD = "UPDATE sessions SET epoch = ?, seq = ? WHERE id = ?"
SET_CURRENT = """
INSERT INTO chats (chat_key, session_id, member, place) VALUES (?, ?, '', '')
ON CONFLICT (chat_key) DO UPDATE SET session_id = excluded.session_id
WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = chats.session_id)
"""


def import_session(tx: Transaction, order: ImportSession) -> Session | None:
    """Create a session with its whole log; see `ImportSession`. Return None if there is one with this id."""
    locks.session(tx, order.id)
    if leases.find_session(tx, order.id) is not None:
        return None
    locks.chat(tx, order.chat_key)
    is_current = order.is_current and _take_chat(tx, order)
    updated_at = tx.now if is_current else min(order.updated_at, tx.now)
    ended_at = None if is_current else tx.now  # the time from which `retention.ended_sessions` counts
    head = Revision(0, 0)
    row = (
        order.id,
        order.chat_key,
        order.created_at,
        updated_at,
        head.epoch,
        head.seq,
        order.title,
        ended_at,
    )
    tx.execute(INSERT_SESSION, row)
    for at, body in order.read():
        head = advance(head, body)
        log.insert_entry(tx, Entry(order.id, head.seq, head.epoch, min(at, tx.now), None, body))
    if order.title:
        head = advance(head, title := TitleSet(order.title))
        log.insert_entry(tx, Entry(order.id, head.seq, head.epoch, updated_at, None, title))
    tx.execute(SET_HEAD, (head.epoch, head.seq, order.id))
    return Session(
        order.id, order.chat_key, order.created_at, updated_at, head, title=order.title, ended_at=ended_at
    )


def _take_chat(tx: Transaction, order: ImportSession) -> bool:
    """Make the session the current one of its chat, unless the chat has one already."""
    return bool(tx.execute(SET_CURRENT, (order.chat_key, order.id)).rowcount)


def import_person(tx: Transaction, person: Person) -> Paired | None:
    """Pair a person whom another program has approved. Durable. Return None if they are paired already."""
    locks.names(tx, "pairing", person.channel)
    if pairing.is_paired(tx, person.channel, person.user_id):
        return None
    return pairing.pair(tx, person, PairingOrigin.APPROVED)
