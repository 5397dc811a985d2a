"""Forgetting, in SQL: small batches, so that the orders of turns never wait long behind one.

What is unsettled or unsent is never touched. Of a forgotten turn the bare row stays as long as its session,
for the sums that people ask for; message, reply, steps and sent messages go.
"""

# ruff: noqa: S608 (statements are put together from constants only)

from __future__ import annotations

from talaria.core.files import MESSAGE_PATH, MESSAGES
from talaria.core.history import PruneProgress
from talaria.core.ids import ChatKey, SessionId
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.store.sql import branches, locks, rules
from talaria.store.sql.executor import Transaction
from talaria.store.sql.leases import ALL_SETTLED
from talaria.store.sql.rows import UNSENT, encode

FIND_OLD_TURNS = f"""
SELECT position, id, chat_key, state, accepted_at, ended_at, forgotten FROM turns
WHERE position > ? ORDER BY position LIMIT {rules.FORGET_BATCH}
"""
HAS_UNSENT = f"SELECT 1 FROM outbox WHERE turn_id = ? AND {UNSENT} LIMIT 1"
FORGET_STEPS = "DELETE FROM steps WHERE turn_id = ?"
FORGET_QUESTIONS = "DELETE FROM questions WHERE turn_id = ?"
FORGET_REPLIES = f"DELETE FROM outbox WHERE turn_id = ? AND NOT {UNSENT}"
FORGET_TURN = """
UPDATE turns
SET forgotten = 1, inbound = ?, reply = NULL, error = NULL, files = NULL, key = NULL, digest = '',
    address = NULL
WHERE position = ?
"""


_ONLY_KEY = 2  # the value of `forgotten` for a turn of a deleted session
DROP_KEY = "DELETE FROM turns WHERE position = ?"


def forget_turns(tx: Transaction, after: int, before: float) -> PruneProgress:
    """Delete the content of turns that were settled before `before`: message, reply, steps, questions,
    outbox rows and key. The bare row stays, and `Store.turn_record` returns None for it.

    Looks at turns behind the position `after`; see `PruneProgress` for how to go on.
    """
    rows = tx.execute(FIND_OLD_TURNS, (after,)).fetchall()
    count = 0
    for position, turn_id, chat_key, state, accepted_at, ended_at, is_forgotten in rows:
        if accepted_at >= before:
            return PruneProgress(None, count)
        after = position
        if is_forgotten == _ONLY_KEY:
            tx.execute(DROP_KEY, (position,))
        if is_forgotten or not TurnState(state).is_final or ended_at >= before:
            continue
        if tx.execute(HAS_UNSENT, (turn_id,)).fetchone() is not None:
            continue
        tx.execute(FORGET_STEPS, (turn_id,))
        tx.execute(FORGET_QUESTIONS, (turn_id,))
        tx.execute(FORGET_REPLIES, (turn_id,))
        tx.execute(FORGET_TURN, (encode(Inbound(chat_key, Sender(""), ())), position))
        count += 1
    return PruneProgress(after if len(rows) == rules.FORGET_BATCH else None, count)


_LAST_SEQ = 2**62

# -- sessions and specs -----------------------------------------------------------------------------------

# The tables whose rows go with a turn, and those whose rows go with a session.
OF_TURN = ("steps", "questions", "outbox", "usage")
OF_SESSION = ("responses", "grants", "announcements")
_OF_ITS_TURNS = "turn_id IN (SELECT id FROM turns WHERE session_id = ?)"
PRUNE_TURNS = (
    *(f"DELETE FROM {table} WHERE {_OF_ITS_TURNS}" for table in OF_TURN),
    "DELETE FROM turns WHERE session_id = ?",
)
DROP_SESSION = (
    *(f"DELETE FROM {table} WHERE session_id = ?" for table in OF_SESSION),
    "DELETE FROM sessions WHERE id = ?",
)
PRUNE_ENTRIES = "DELETE FROM entries WHERE session_id = ? AND seq > ?"
FIND_EPHEMERAL = f"""
SELECT s.id, s.chat_key FROM sessions s
WHERE s.ephemeral = 1 AND s.stored = 0 AND s.updated_at < ? AND {ALL_SETTLED}
LIMIT {rules.BATCH}
"""


def prune_ephemeral(tx: Transaction, older_than: float) -> int:
    """Delete up to `rules.BATCH` sessions and return how many; fewer means that no more are left."""
    locks.whole(tx, locks.BRANCHES)
    doomed = locks.confirmed(tx, FIND_EPHEMERAL, (older_than,))
    for session_id, chat_key in doomed:
        prune_session(tx, session_id, chat_key)
    return len(doomed)


def prune_session(tx: Transaction, session_id: SessionId, chat_key: ChatKey) -> None:
    for statement in (*PRUNE_TURNS, *DROP_SESSION):
        tx.execute(statement, (session_id,))
    kept = branches.kept_seq(tx, session_id)
    remove_messages(tx, session_id, chat_key, kept, _LAST_SEQ)
    tx.execute(PRUNE_ENTRIES, (session_id, kept))
    branches.unlink(tx, session_id, chat_key)


FIND_LONG_MESSAGES = f"""
SELECT body FROM entries
WHERE session_id = ? AND seq > ? AND seq <= ? AND kind = 'user' AND replace(body, '{MESSAGES}/', '') <> body
"""
ADD_REMOVAL = "INSERT INTO removals (chat_key, path) VALUES (?, ?)"


def remove_messages(tx: Transaction, session_id: SessionId, chat_key: ChatKey, after: int, last: int) -> None:
    """Note the files of long messages among these entries, so that they are removed."""
    for (body,) in tx.execute(FIND_LONG_MESSAGES, (session_id, after, last)).fetchall():
        for path in MESSAGE_PATH.findall(body):
            tx.execute(ADD_REMOVAL, (chat_key, path))


_ALL_SENT = """NOT EXISTS (SELECT 1 FROM turns t JOIN outbox o ON o.turn_id = t.id
                WHERE t.session_id = s.id AND (o.state = 'pending' OR o.state = 'sending'))"""
FIND_ENDED = f"""
SELECT s.id, s.chat_key FROM sessions s
WHERE s.ended_at IS NOT NULL AND s.ephemeral = 0 AND s.ended_at < ? AND s.lease_expires <= ?
AND s.job_id IS NULL AND {ALL_SETTLED} AND {_ALL_SENT}
LIMIT {rules.BATCH}
"""
# The last session of a job stays as long as the job: the next run may go on in it.
FIND_OLD_RUNS = f"""
SELECT s.id, s.chat_key FROM sessions s
WHERE s.job_id IS NOT NULL AND s.updated_at < ? AND s.lease_expires <= ? AND {ALL_SETTLED} AND {_ALL_SENT}
AND NOT EXISTS (SELECT 1 FROM chats c JOIN jobs j ON j.id = s.job_id
                WHERE c.chat_key = s.chat_key AND c.session_id = s.id)
LIMIT {rules.BATCH}
"""
# A gateway of a cluster keeps files of a chat with a place.
FORGET_CHAT = "DELETE FROM chats WHERE chat_key = ? AND session_id = ? AND place = ''"


def prune_ended(tx: Transaction, before: float) -> int:
    """Delete lasting sessions that ended before `before`, with all rows; return how many (up to 100).
    Those of jobs are left alone."""
    return _prune(tx, FIND_ENDED, before)


def prune_runs(tx: Transaction, before: float) -> int:
    """Delete sessions of jobs that were not used since `before`, with all rows; return how many (up to
    100). The last one of each job that exists stays."""
    return _prune(tx, FIND_OLD_RUNS, before)


def _prune(tx: Transaction, sql: str, before: float) -> int:
    locks.whole(tx, locks.BRANCHES)
    doomed = locks.confirmed(tx, sql, (before, tx.now))
    for session_id, chat_key in doomed:
        prune_session(tx, session_id, chat_key)
        tx.execute(FORGET_CHAT, (chat_key, session_id))
    return len(doomed)


FIND_UNUSED_SPECS = f"""
SELECT id FROM specs WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.spec_id = specs.id)
LIMIT {rules.BATCH}
"""
FORGET_SPEC = "DELETE FROM specs WHERE id = ?"
FIND_UNUSED_PREFIXES = f"""
SELECT id FROM prefixes WHERE NOT EXISTS (SELECT 1 FROM specs WHERE specs.prefix_id = prefixes.id)
LIMIT {rules.BATCH}
"""
FORGET_PREFIX = "DELETE FROM prefixes WHERE id = ?"


def prune_specs(tx: Transaction) -> int:
    """Delete specs that no session uses; return how many (up to 100)."""
    locks.whole(tx, locks.SPECS)
    doomed = tx.execute(FIND_UNUSED_SPECS).fetchall()
    for row in doomed:
        tx.execute(FORGET_SPEC, row)
    for row in tx.execute(FIND_UNUSED_PREFIXES).fetchall():
        tx.execute(FORGET_PREFIX, row)
    return len(doomed)
