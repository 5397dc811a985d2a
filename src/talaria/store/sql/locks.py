"""Locks of orders, for an engine that runs several at once. Each is kept until the transaction ends.

A statement sees what was committed when it began, so an order locks first and reads afterwards. The order of
locks is the same everywhere: sessions, then chats and other names, then jobs and slots, then money. An order
that meets them the other way round may be chosen to run again. On SQLite orders run one by one and nothing is
locked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from talaria.core.ids import ChatKey, JobId, OwnerId, QuestionId, SessionId, TurnId
from talaria.core.ledger import Accept, Binding
from talaria.store.sql.executor import Transaction

SESSION = "SELECT 1 FROM sessions WHERE id = ? FOR UPDATE"
SESSION_OF_TURN = """
SELECT 1 FROM sessions WHERE id = (SELECT session_id FROM turns WHERE id = ?) FOR UPDATE
"""
SESSION_OF_QUESTION = """
SELECT 1 FROM sessions
WHERE id = (SELECT t.session_id FROM questions q JOIN turns t ON t.id = q.turn_id WHERE q.id = ?) FOR UPDATE
"""
SESSION_OF_RESPONSE = """
SELECT 1 FROM sessions WHERE id = (SELECT session_id FROM responses WHERE turn_id = ?) FOR UPDATE
"""
CURRENT_SESSION = """
SELECT 1 FROM sessions WHERE id = (SELECT session_id FROM chats WHERE chat_key = ?) FOR UPDATE
"""
SESSIONS_OF_OWNER = """
SELECT 1 FROM sessions WHERE lease_owner = ? AND lease_expires > 0 ORDER BY id FOR UPDATE
"""
LEASED_BY_OTHERS = """
SELECT 1 FROM sessions
WHERE (lease_owner <> ? AND lease_expires > 0)
   OR id IN (SELECT session_id FROM reservations WHERE owner <> ?)
ORDER BY id FOR UPDATE
"""
JOB = "SELECT 1 FROM jobs WHERE id = ? FOR UPDATE"
SLOT = "SELECT 1 FROM slots WHERE job_id = ? AND instant = ? FOR UPDATE"
REPLY = "SELECT 1 FROM outbox WHERE id = ? FOR UPDATE"
NAME = "SELECT pg_advisory_xact_lock(hashtextextended(?, 0))"
SHARED_NAME = "SELECT pg_advisory_xact_lock_shared(hashtextextended(?, 0))"


# -- sessions ---------------------------------------------------------------------------------------------


def session(tx: Transaction, session_id: SessionId | None) -> bool:
    """Lock a session. What its turns, steps, questions and log are is changed under this lock only."""
    return tx.lock(SESSION, (session_id,))


def sessions(tx: Transaction, ids: Iterable[SessionId]) -> bool:
    """Lock sessions. Return whether they were locked: what was read of them before may be old then."""
    return _each(tx, SESSION, ids)


def session_of_turn(tx: Transaction, turn_id: TurnId) -> None:
    tx.lock(SESSION_OF_TURN, (turn_id,))


def session_of_question(tx: Transaction, question_id: QuestionId) -> None:
    tx.lock(SESSION_OF_QUESTION, (question_id,))


def session_of_response(tx: Transaction, turn_id: TurnId) -> None:
    tx.lock(SESSION_OF_RESPONSE, (turn_id,))


def current_session(tx: Transaction, chat_key: ChatKey) -> bool:
    """Lock the session that the chat has now."""
    return tx.lock(CURRENT_SESSION, (chat_key,))


def sessions_of(tx: Transaction, owner: OwnerId) -> None:
    """Lock the sessions whose lease the owner has."""
    tx.lock(SESSIONS_OF_OWNER, (owner,))


def leased_by_others(tx: Transaction, owner: OwnerId) -> None:
    """Lock the sessions whose lease, or money, another owner has."""
    tx.lock(LEASED_BY_OTHERS, (owner, owner))


# -- names ------------------------------------------------------------------------------------------------


def chat(tx: Transaction, *chat_keys: ChatKey) -> bool:
    """Lock the right to make these chats known."""
    return _each(tx, NAME, (f"chat {key}" for key in chat_keys))


def names(tx: Transaction, what: str, *keys: str) -> None:
    """Lock things that may have no row yet, or that are decided by several rows together."""
    _each(tx, NAME, (f"{what} {key}" for key in keys))


def share(tx: Transaction, what: str) -> bool:
    """Keep others from locking this name by `whole`, without keeping each other from sharing it."""
    return tx.lock(SHARED_NAME, (what,))


def whole(tx: Transaction, what: str) -> None:
    tx.lock(NAME, (what,))


# Names that orders share while they add to a thing, and that retention locks before it looks for unused ones.
SPECS = "specs"
BRANCHES = "branches"
SLOT_CLAIMS = "slot claims"


def member(owner: OwnerId) -> str:
    """Return the name that orders share while they write turns for this member."""
    return f"member {owner}"


# -- jobs and replies -------------------------------------------------------------------------------------


def jobs(tx: Transaction, *ids: JobId) -> bool:
    """Lock jobs. What their slots are is changed under this lock, or the slot's own."""
    return _each(tx, JOB, ids)


def slot(tx: Transaction, job_id: JobId, instant: float) -> None:
    tx.lock(SLOT, (job_id, instant))


def reply(tx: Transaction, row_id: int) -> None:
    tx.lock(REPLY, (row_id,))


def _each(tx: Transaction, sql: str, keys: Iterable[str]) -> bool:
    """Lock these one by one, always in the same order. Return whether this engine locks."""
    is_locked = False
    for key in sorted(keys):
        is_locked = tx.lock(sql, (key,))
    return is_locked


def accepting(tx: Transaction, order: Accept) -> None:
    """Lock what decides whether the message is known, and the session that it may belong to."""
    if order.names:
        names(tx, f"repeat {order.scope}", *(name.key for name in order.names))
    if order.binding is Binding.CURRENT:
        current_session(tx, order.inbound.chat_key)
    elif order.binding is Binding.RESUME:
        session(tx, order.resume)
    if order.here is not None and order.binding in (Binding.NEW, Binding.RESUME) and not order.is_ephemeral:
        current_session(tx, order.inbound.chat_key)  # it decides which member has the chat
    if order.behind is not None:
        session(tx, order.behind.session_id)
    if order.claim is not None:
        jobs(tx, order.claim.job_id)
        slot(tx, order.claim.job_id, order.claim.instant)


# -- reading again ----------------------------------------------------------------------------------------


def confirmed(tx: Transaction, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
    """Return the rows of a query whose first column is a session, with those sessions locked. Rows that are
    not found any more once they are locked are left out."""
    rows = tx.execute(sql, parameters).fetchall()
    if not rows or not sessions(tx, (row[0] for row in rows)):
        return rows
    locked = {row[0] for row in rows}
    return [row for row in tx.execute(sql, parameters).fetchall() if row[0] in locked]
