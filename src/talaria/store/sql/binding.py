"""The session that a message belongs to: found, resumed, appended to, or made. In SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from talaria.core.entries import Entry, EntryBody, Revision, SpecSet
from talaria.core.errors import HeadMoved, NoSession
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.ledger import Accept, Binding, ChainPlace, NewResponse, StoredResponse
from talaria.core.sessions import Session
from talaria.store.sql import branches, homes, leases, locks, log, retention, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.homes import ChatHome
from talaria.store.sql.leases import ALL_SETTLED, LEASE_COLUMNS, Lease, find_session
from talaria.store.sql.rows import (
    ENTRY_COLUMNS,
    SESSION_COLUMNS,
    TURN_COLUMNS,
    entry_from,
    prefixed,
    session_from,
    turn_from,
)

# -- chains of stored responses: where a response is put, how it is found, and how it goes ----------------


# ruff: noqa: S608 (statements are put together from constant column lists only)


# -- putting a response into a chain ----------------------------------------------------------------------

COPY_ENTRIES = """
INSERT INTO entries (session_id, seq, epoch, kind, turn_id, at, body)
SELECT ?, seq, epoch, kind, NULL, at, body FROM entries WHERE session_id = ? AND seq <= ?
"""
# The entries of a deleted session are there until they are purged.
LAST_ENTRY = """
SELECT e.epoch FROM sessions s JOIN entries e ON e.session_id = s.id WHERE s.id = ? AND e.seq = ?
"""
INSERT_RESPONSE = """
INSERT INTO responses (turn_id, session_id, created_at, first_seq, last_seq, previous, request)
VALUES (?, ?, ?, ?, ?, nullif(?, ''), ?)
"""
SET_STORED = "UPDATE sessions SET stored = 1 WHERE id = ?"


def find_chain(tx: Transaction, place: ChainPlace) -> tuple[Session, Lease]:
    """Return the session of a place that must be its head. Raises `HeadMoved` if it is not."""
    found = find_session(tx, place.session_id)
    if found is None or found[0].revision.seq != place.seq:
        raise HeadMoved(
            f"The response {place.turn_id} is not the last one of its chain any more.", "Branch from it."
        )
    return found


def copy_chain(tx: Transaction, place: ChainPlace, session_id: SessionId) -> Revision:
    """Give a new session the log up to a place, and return its head."""
    row = tx.execute(LAST_ENTRY, (place.session_id, place.seq)).fetchone()
    if row is None:
        raise rules.no_session(place.session_id)
    tx.execute(COPY_ENTRIES, (session_id, place.session_id, place.seq))
    return Revision(row[0], place.seq)


def store(tx: Transaction, session: Session, order: Accept, response: NewResponse) -> None:
    """Write the row of a response whose input is at the end of the log."""
    assert order.fresh is not None
    last = session.revision.seq
    first = last - len(order.fresh.context) + 1
    previous = response.previous or ""
    tx.execute(INSERT_RESPONSE, (order.turn_id, session.id, tx.now, first, last, previous, response.request))
    tx.execute(SET_STORED, (session.id,))


# -- finding ----------------------------------------------------------------------------------------------

FIND_RESPONSE = f"""
SELECT {prefixed("t", TURN_COLUMNS)}, r.request, r.previous, r.first_seq, r.last_seq, s.seq
FROM responses r JOIN turns t ON t.id = r.turn_id JOIN sessions s ON s.id = r.session_id WHERE r.turn_id = ?
"""
OUTPUT = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq = ? AND turn_id = ?"
INPUT = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq >= ? AND seq <= ? ORDER BY seq"


def find(db: Connection, turn_id: TurnId) -> StoredResponse | None:
    row = db.execute(FIND_RESPONSE, (turn_id,)).fetchone()
    if row is None:
        return None
    turn = turn_from(row[:-5])
    request, previous, first, last, head = row[-5:]
    output = db.execute(OUTPUT, (turn.session_id, last + 1, turn_id)).fetchone()
    return StoredResponse(
        turn, request, previous, first, last, head, None if output is None else entry_from(output)
    )


def input_entries(db: Connection, stored: StoredResponse) -> Sequence[Entry]:
    """Return the entries of its input."""
    rows = db.execute(INPUT, (stored.turn.session_id, stored.first_seq, stored.last_seq))
    return [entry_from(row) for row in rows]


# -- deleting ---------------------------------------------------------------------------------------------

FIND_SESSION = "SELECT session_id FROM responses WHERE turn_id = ?"
FIND_OLD = (
    f"SELECT session_id, turn_id FROM responses WHERE created_at < ? ORDER BY created_at LIMIT {rules.BATCH}"
)
DELETE_RESPONSE = "DELETE FROM responses WHERE turn_id = ?"
HAS_RESPONSES = "SELECT 1 FROM responses WHERE session_id = ? LIMIT 1"
IS_SETTLED = f"SELECT 1 FROM sessions s WHERE s.id = ? AND {ALL_SETTLED}"
UNSET_STORED = "UPDATE sessions SET stored = 0 WHERE id = ?"


def delete(tx: Transaction, turn_id: TurnId) -> bool:
    """Delete a response. Durable. Return False if there was none.

    Its chain goes with the last response of it, log and turns included; until then its entries stay.
    """
    locks.session_of_response(tx, turn_id)
    row = tx.execute(FIND_SESSION, (turn_id,)).fetchone()
    if row is None:
        return False
    _delete(tx, turn_id, row[0])
    return True


def prune(tx: Transaction, before: float) -> int:
    """Delete responses that were made before `before`; return how many (up to 100)."""
    doomed = locks.confirmed(tx, FIND_OLD, (before,))
    for session_id, turn_id in doomed:
        _delete(tx, turn_id, session_id)
    return len(doomed)


def _delete(tx: Transaction, turn_id: TurnId, session_id: SessionId) -> None:
    """Delete a response, and its chain with the last one. A chain with an unsettled turn goes by its age."""
    tx.execute(DELETE_RESPONSE, (turn_id,))
    if tx.execute(HAS_RESPONSES, (session_id,)).fetchone() is not None:
        return
    if tx.execute(IS_SETTLED, (session_id,)).fetchone() is None:
        tx.execute(UNSET_STORED, (session_id,))
        return
    retention.prune_session(tx, session_id, ChatKey(""))  # stateless: no file is named in it


# -- the session that a message belongs to: found, resumed, appended to, or made --------------------------


# ruff: noqa: S608 (statements are put together from constant column lists only)


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
INSERT INTO sessions ({SESSION_COLUMNS}, job_id) VALUES (?, ?, ?, ?, ?, ?, ?, '', ?, NULL, '', nullif(?, ''))
"""

_HOME = len(ChatHome._fields)


class BoundSession(NamedTuple):
    """The session that a message belongs to, None when a fresh one is to be made, and its lease. `home` is
    the row of the chat; it is read for a member of a cluster only."""

    session: Session | None = None
    lease: Lease = Lease()
    home: ChatHome | None = None


def bind_session(tx: Transaction, order: Accept) -> BoundSession:
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
            session, lease = find_chain(tx, order.behind)
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
    start = Revision(0, 0) if behind is None else copy_chain(tx, behind, fresh.session_id)
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
