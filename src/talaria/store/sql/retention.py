"""Forgetting, in SQL: small batches, so that the orders of turns never wait long behind one.

What is unsettled or unsent is never touched. Of a forgotten turn the bare row stays as long as its session,
for the sums that people ask for; message, reply, steps and sent messages go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from talaria.core.files import MESSAGE_PATH, MESSAGES, RESULT_PATH, RESULTS, Removal, result_name, todo_path
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.ledger import PruneProgress
from talaria.core.sessions import Session
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.store.sql import branches, locks, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.leases import ALL_SETTLED, lock_session
from talaria.store.sql.rows import UNSENT, UNSETTLED, decode_files, encode

# ruff: noqa: S608 (statements are put together from constants only)


FIND_OLD_TURNS = f"""
SELECT position, id, chat_key, state, accepted_at, ended_at, forgotten FROM turns
WHERE position > ? ORDER BY position LIMIT {rules.FORGET_BATCH}
"""
HAS_UNSENT = f"SELECT 1 FROM outbox WHERE turn_id = ? AND {UNSENT} LIMIT 1"
FORGET_STEPS = "DELETE FROM steps WHERE turn_id = ?"
FORGET_QUESTIONS = "DELETE FROM questions WHERE turn_id = ?"
FORGET_DELEGATES = "DELETE FROM delegates WHERE turn_id = ?"
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
        tx.execute(FORGET_DELEGATES, (turn_id,))
        tx.execute(FORGET_REPLIES, (turn_id,))
        tx.execute(FORGET_TURN, (encode(Inbound(chat_key, Sender(""), ())), position))
        count += 1
    return PruneProgress(after if len(rows) == rules.FORGET_BATCH else None, count)


_LAST_SEQ = 2**62

# -- sessions and specs -----------------------------------------------------------------------------------

# The tables whose rows go with a turn, and those whose rows go with a session.
OF_TURN = ("steps", "questions", "delegates", "outbox", "usage")
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


# -- deleting sessions ------------------------------------------------------------------------------------
# The first order makes a session invisible; the rest of its rows goes in slices.
#
# A session is refused while it owes something: an unsettled turn, a lease that is held, an unsent reply.
# The costs stay in `spending`. A turn that was accepted lately leaves its key, so that a message
# which its platform sends again, or a client with the same `Idempotency-Key`, does not run again.


# ruff: noqa: S608 (statements are put together from constants only)


# The most that one order deletes, so that the orders of turns do not wait long behind it.
SLICE_BYTES = 1 << 20
SLICE_ENTRIES = 200
SLICE_TURNS = 50

FIND_OWED = f"SELECT id FROM turns WHERE session_id = ? AND state IN ({UNSETTLED}) LIMIT 1"
FIND_OWED_REPLY = """
SELECT o.turn_id FROM outbox o JOIN turns t ON t.id = o.turn_id
WHERE t.session_id = ? AND (o.state = 'pending' OR o.state = 'sending') LIMIT 1
"""
ADD_DELETION = "INSERT INTO deletions (session_id, chat_key, keys_since) VALUES (?, ?, ?)"


def delete_session(tx: Transaction, session_id: SessionId, keys_since: float) -> Session:
    """Delete the session and return it as it was. Durable.

    From then on no reader finds the session, its log or its turns. Their rows are deleted by
    `RetentionStore.purge_deleted`, and `RetentionStore.removals` lists its files. What was spent stays
    counted. A message whose key was accepted since `keys_since` is still a duplicate.

    Raises `NotFound`; `LeaseHeld`, or `SessionOwes` while a turn is unsettled or a reply unsent.
    """
    session, lease = lock_session(tx, session_id)
    if (owed := tx.execute(FIND_OWED, (session_id,)).fetchone()) is not None:
        raise rules.turn_owed(session_id, owed[0])
    if lease.expires > tx.now:
        raise rules.lease_held(session_id)
    if (owed := tx.execute(FIND_OWED_REPLY, (session_id,)).fetchone()) is not None:
        raise rules.reply_owed(session_id, owed[0])
    for statement in DROP_SESSION:
        tx.execute(statement, (session_id,))
    tx.execute(FORGET_CHAT, (session.chat_key, session_id))
    tx.execute(ADD_DELETION, (session_id, session.chat_key, keys_since))
    tx.execute(ADD_REMOVAL, (session.chat_key, todo_path(session_id)))
    return session


# -- the rows of deleted sessions -------------------------------------------------------------------------

FIND_DELETION = "SELECT session_id, chat_key, keys_since FROM deletions LIMIT 1"
FIND_ENTRIES = f"""
SELECT seq, length(body) FROM entries WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT {SLICE_ENTRIES}
"""
DROP_ENTRIES = "DELETE FROM entries WHERE session_id = ? AND seq > ? AND seq <= ?"
FIND_TURNS = f"""
SELECT position, id, accepted_at, key, files, length(inbound) FROM turns
WHERE session_id = ? AND forgotten < 2 ORDER BY position LIMIT {SLICE_TURNS}
"""
FIND_SAVED = f"""
SELECT name, call_id FROM steps
WHERE turn_id = ? AND kind = 'tool' AND replace(result, '{RESULTS}/', '') <> result
"""
DROP_DETAILS = tuple(f"DELETE FROM {table} WHERE turn_id = ?" for table in (*OF_TURN, "responses"))
DROP_TURN = "DELETE FROM turns WHERE position = ?"
# The key stays for a turn whose message may come again.
KEEP_KEY = """
UPDATE turns SET forgotten = 2, inbound = ?, reply = NULL, error = NULL, usage = NULL, files = NULL,
                 address = NULL, shown_id = NULL
WHERE position = ?
"""
DROP_DELETION = "DELETE FROM deletions WHERE session_id = ?"


def purge(tx: Transaction) -> bool:
    """Delete some rows of deleted sessions. Return whether there may be more."""
    locks.whole(tx, locks.BRANCHES)
    deletion = tx.execute(FIND_DELETION).fetchone()
    if deletion is None:
        return False
    session_id, chat_key, keys_since = deletion
    kept = branches.kept_seq(tx, session_id)
    if entries := _slice(tx.execute(FIND_ENTRIES, (session_id, kept))):
        last = entries[-1][0]
        remove_messages(tx, session_id, chat_key, kept, last)
        tx.execute(DROP_ENTRIES, (session_id, kept, last))
        return True
    turns = _slice(tx.execute(FIND_TURNS, (session_id,)))
    for position, turn_id, accepted_at, key, files, _ in turns:
        for path in _files_of(tx, turn_id, files):
            tx.execute(ADD_REMOVAL, (chat_key, path))
        for statement in DROP_DETAILS:
            tx.execute(statement, (turn_id,))
        if key is None or accepted_at < keys_since:
            tx.execute(DROP_TURN, (position,))
        else:
            tx.execute(KEEP_KEY, (encode(Inbound(chat_key, Sender(""), ())), position))
    if not turns:
        tx.execute(DROP_DELETION, (session_id,))
        branches.unlink(tx, session_id, chat_key)
    return True


def _slice(rows: Iterable[Any]) -> list[Any]:
    """Return the first rows. The last column is the length of the text that goes with a row."""
    size, found = 0, []
    for row in rows:
        found.append(row)
        size += row[-1]
        if size >= SLICE_BYTES:
            break
    return found


def _files_of(tx: Transaction, turn_id: TurnId, files: str | None) -> Iterable[str]:
    if files is not None:
        yield from (file.copy_path for file in decode_files(files))
    for tool, call_id in tx.execute(FIND_SAVED, (turn_id,)).fetchall():
        yield f"{RESULTS}/{result_name(tool, turn_id, call_id)}"


# -- their files ------------------------------------------------------------------------------------------

FIND_REMOVALS = f"""
SELECT id, chat_key, path FROM removals
WHERE ? = '' OR NOT EXISTS
      (SELECT 1 FROM chats c WHERE c.chat_key = removals.chat_key AND c.place NOT IN ('', ?))
ORDER BY id LIMIT {rules.BATCH}
"""
DROP_REMOVAL = "DELETE FROM removals WHERE id = ?"
FIND_MENTIONS = f"""
SELECT e.body FROM sessions s JOIN entries e ON e.session_id = s.id
WHERE s.chat_key = ?
  AND (e.kind = 'tool_results' AND replace(e.body, '{RESULTS}/', '') <> e.body
       OR e.kind = 'user' AND replace(e.body, '{MESSAGES}/', '') <> e.body)
"""


def removals(db: Connection, place: str = "") -> Sequence[Removal]:
    """Return files of deleted sessions that are to be removed from the disk, up to 100. With `place`,
    leave out those of chats whose files are in another place."""
    return [Removal(*row) for row in db.execute(FIND_REMOVALS, (place, place))]


def mentioned_results(db: Connection, chat_key: ChatKey) -> frozenset[str]:
    """Return the paths of saved results that the logs of the chat's sessions name. A branch names those
    of the session that it was made from."""
    bodies = db.execute(FIND_MENTIONS, (chat_key,))
    kept = (RESULT_PATH, MESSAGE_PATH)
    return frozenset(path for (body,) in bodies for pattern in kept for path in pattern.findall(body))


def forget_removals(tx: Transaction, done: Sequence[int]) -> None:
    """Forget these removals: their files are gone, or stay."""
    for removal in done:
        tx.execute(DROP_REMOVAL, (removal,))
