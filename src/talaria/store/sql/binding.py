"""The session that a message belongs to: found, resumed, appended to, or made. In SQL."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

import msgspec

from talaria.core.entries import EntryBody, Revision, SpecSet
from talaria.core.ids import ChatKey
from talaria.core.ledger import Accept, Binding, Fresh
from talaria.core.responses import ChainPlace
from talaria.core.sessions import Session
from talaria.store.sql import branches, chains, locks, log, rules
from talaria.store.sql.executor import Transaction
from talaria.store.sql.leases import LEASE_COLUMNS, Lease
from talaria.store.sql.rows import SESSION_COLUMNS, prefixed, session_from

FIND_CURRENT = f"""
SELECT {prefixed("s", SESSION_COLUMNS)}, {prefixed("s", LEASE_COLUMNS)}
FROM chats c JOIN sessions s ON s.id = c.session_id WHERE c.chat_key = ?
"""
FIND_TO_RESUME = f"SELECT {SESSION_COLUMNS}, {LEASE_COLUMNS} FROM sessions WHERE id = ?"
MOVE_CHAIN = "UPDATE sessions SET updated_at = ?, epoch = ?, seq = ?, spec_id = ? WHERE id = ?"
REOPEN_SESSION = "UPDATE sessions SET ended_at = NULL, updated_at = ? WHERE id = ?"
SET_CURRENT = """
INSERT INTO chats (chat_key, session_id) VALUES (?, ?)
ON CONFLICT (chat_key) DO UPDATE SET session_id = excluded.session_id
"""
INSERT_SESSION = f"""
INSERT INTO sessions ({SESSION_COLUMNS}, job_id) VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, NULL, nullif(?, ''))
"""


def find_session(tx: Transaction, order: Accept) -> tuple[Session, Lease] | None:
    """The existing session that the message belongs to; None when a fresh one is to be made."""
    chat_key = order.inbound.chat_key
    match order.binding:
        case Binding.NEW:
            return None
        case Binding.CURRENT:
            found = _find_current(tx, chat_key)
            if found is None and locks.chat(tx, chat_key):
                # Another message may have made a session meanwhile.
                locks.current_session(tx, chat_key)
                found = _find_current(tx, chat_key)
            return found
        case Binding.RESUME:
            row = tx.execute(FIND_TO_RESUME, (order.resume,)).fetchone()
            session = None if row is None else session_from(row[:-4])
            if session is None or session.chat_key != chat_key or session.ephemeral:
                raise rules.no_session_here(order.resume)
            tx.execute(REOPEN_SESSION, (tx.now, session.id))
            tx.execute(SET_CURRENT, (chat_key, session.id))
            session = msgspec.structs.replace(session, ended_at=None, updated_at=tx.now)
            return session, Lease(*row[-4:])
        case Binding.CHAIN:
            assert order.behind is not None
            session, lease = chains.find_chain(tx, order.behind)
            return _append_to_chain(tx, session, order), lease


def _find_current(tx: Transaction, chat_key: ChatKey) -> tuple[Session, Lease] | None:
    """Return the session of the chat; None if it has none that is open."""
    row = tx.execute(FIND_CURRENT, (chat_key,)).fetchone()
    session = None if row is None else session_from(row[:-4])
    return None if session is None or session.ended_at is not None else (session, Lease(*row[-4:]))


def _append_to_chain(tx: Transaction, session: Session, order: Accept) -> Session:
    bodies, spec = list[EntryBody](order.fresh.context), order.fresh.spec
    if spec is not None and spec.id != session.spec_id:
        log.store_spec(tx, spec)
        bodies.insert(0, SpecSet(spec.id))
    head, entries = rules.number(session.id, session.revision, bodies, order.turn_id, tx.now)
    for entry in entries:
        log.insert_entry(tx, entry)
    spec_id, _ = rules.latest_marks(bodies, session.spec_id, "")
    tx.execute(MOVE_CHAIN, (tx.now, head.epoch, head.seq, spec_id, session.id))
    return msgspec.structs.replace(session, revision=head, updated_at=tx.now, spec_id=spec_id)


def make_session(
    tx: Transaction, chat_key: ChatKey, fresh: Fresh, behind: ChainPlace | None = None
) -> Session:
    spec_id = None
    bodies = list[EntryBody](fresh.context)
    if fresh.spec is not None:
        log.store_spec(tx, fresh.spec)
        spec_id = fresh.spec.id
        bodies.insert(0, SpecSet(spec_id))
    start = Revision(0, 0) if behind is None else chains.copy_chain(tx, behind, fresh.session_id)
    head, entries = rules.number(fresh.session_id, start, bodies, None, tx.now)
    session = Session(fresh.session_id, chat_key, tx.now, tx.now, head, spec_id, ephemeral=fresh.ephemeral)
    row = (session.id, chat_key, tx.now, tx.now, head.epoch, head.seq, spec_id, int(fresh.ephemeral))
    tx.execute(INSERT_SESSION, (*row, fresh.job_id or ""))
    for entry in entries:
        log.insert_entry(tx, entry)
    if fresh.parent is not None:
        branches.link(tx, session.id, fresh.parent)
    if not fresh.ephemeral:
        tx.execute(SET_CURRENT, (chat_key, session.id))
    return session
