"""The session that a message belongs to: found, resumed, appended to, or made. In SQL."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from typing import NamedTuple

import msgspec

from talaria.core.entries import EntryBody, Revision, SpecSet
from talaria.core.errors import NoSession
from talaria.core.ids import SessionId
from talaria.core.ledger import Accept, Binding
from talaria.core.sessions import Session
from talaria.store.sql import branches, chains, homes, leases, locks, log, rules
from talaria.store.sql.executor import Transaction
from talaria.store.sql.homes import ChatHome
from talaria.store.sql.leases import LEASE_COLUMNS, Lease
from talaria.store.sql.rows import SESSION_COLUMNS, prefixed, session_from

FIND_CURRENT = f"""
SELECT {prefixed("s", SESSION_COLUMNS)}, {prefixed("s", LEASE_COLUMNS)}
FROM chats c JOIN sessions s ON s.id = c.session_id WHERE c.chat_key = ?
"""
FIND_CURRENT_AND_HOME = f"""
SELECT {homes.HOME_COLUMNS}, {prefixed("s", SESSION_COLUMNS)}, {prefixed("s", LEASE_COLUMNS)}
FROM chats c LEFT JOIN sessions s ON s.id = c.session_id WHERE c.chat_key = ?
"""
MOVE_CHAIN = "UPDATE sessions SET updated_at = ?, epoch = ?, seq = ?, spec_id = ? WHERE id = ?"
REOPEN_SESSION = "UPDATE sessions SET ended_at = NULL, updated_at = ? WHERE id = ?"
SET_CURRENT = """
INSERT INTO chats (chat_key, session_id, member, place) VALUES (?, ?, ?, ?)
ON CONFLICT (chat_key) DO UPDATE SET session_id = excluded.session_id
"""
INSERT_SESSION = f"""
INSERT INTO sessions ({SESSION_COLUMNS}, job_id) VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, NULL, nullif(?, ''))
"""

_HOME = len(ChatHome._fields)


class BoundSession(NamedTuple):
    """The session that a message belongs to, None when a fresh one is to be made, and its lease. `home` is
    the row of the chat; it is read for a member of a cluster only."""

    session: Session | None = None
    lease: Lease = Lease()
    home: ChatHome | None = None


def find_session(tx: Transaction, order: Accept) -> BoundSession:
    chat_key = order.inbound.chat_key
    match order.binding:
        case Binding.NEW:
            return BoundSession(home=_find_home(tx, order))
        case Binding.CURRENT:
            found = _find_current(tx, order)
            if found.session is None and locks.chat(tx, chat_key):
                # Another message may have made a session meanwhile.
                locks.current_session(tx, chat_key)
                found = _find_current(tx, order)
            return found
        case Binding.RESUME:
            resumed = leases.find_session(tx, order.resume)
            if resumed is None or resumed[0].chat_key != chat_key or resumed[0].ephemeral:
                raise rules.no_session_here(order.resume)
            session, lease = resumed
            home = _find_home(tx, order)
            tx.execute(REOPEN_SESSION, (tx.now, session.id))
            _set_current(tx, order, session.id)
            session = msgspec.structs.replace(session, ended_at=None, updated_at=tx.now)
            return BoundSession(session, lease, home)
        case Binding.CHAIN:
            assert order.behind is not None
            session, lease = chains.find_chain(tx, order.behind)
            return BoundSession(_append_to_chain(tx, session, order), lease, _find_home(tx, order))


def _find_current(tx: Transaction, order: Accept) -> BoundSession:
    """Return the session of the chat, if it has one that is open."""
    home, parameters = None, (order.inbound.chat_key,)
    if order.here is None:
        row = tx.execute(FIND_CURRENT, parameters).fetchone()
    else:
        row = tx.execute(FIND_CURRENT_AND_HOME, parameters).fetchone()
        if row is not None:
            home, row = ChatHome(*row[:_HOME]), row[_HOME:]
    session = None if row is None or row[0] is None else session_from(row[:-4])
    if session is None or session.ended_at is not None:
        return BoundSession(home=home)
    return BoundSession(session, Lease(*row[-4:]), home)


def _find_home(tx: Transaction, order: Accept) -> ChatHome | None:
    if order.here is None or order.is_ephemeral:
        return None
    return homes.find(tx, order.inbound.chat_key)


def _set_current(tx: Transaction, order: Accept, session_id: SessionId) -> None:
    member = "" if order.here is None else order.here.owner
    place = order.here.place if order.here is not None and homes.brings_files(order) else ""
    tx.execute(SET_CURRENT, (order.inbound.chat_key, session_id, member, place))


def _append_to_chain(tx: Transaction, session: Session, order: Accept) -> Session:
    assert order.fresh is not None
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


def make_session(tx: Transaction, order: Accept) -> Session:
    """Create the session that the order describes. Raises `NoSession` if it describes none."""
    chat_key, fresh, behind = order.inbound.chat_key, order.fresh, order.behind
    if fresh is None:
        raise NoSession(chat_key)
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
        _set_current(tx, order, session.id)
    return session
