"""Deleting sessions, in SQL. The first order makes a session invisible; the rest of its rows goes in slices.

A session is refused while it owes something: an unsettled turn, a lease that is held, an unsent reply. What
was spent stays in `spending`. A turn that was accepted lately leaves its key, so that a message which its
platform sends again, or a client with the same `Idempotency-Key`, does not run again.
"""

# ruff: noqa: S608 (statements are put together from constants only)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from talaria.core.files import MESSAGE_PATH, MESSAGES, RESULT_PATH, RESULTS, Removal, result_name, todo_path
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.sessions import Session
from talaria.core.turns import Inbound, Sender
from talaria.store.sql import branches, locks, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.leases import lock_session
from talaria.store.sql.retention import ADD_REMOVAL, DROP_SESSION, FORGET_CHAT, OF_TURN, remove_messages
from talaria.store.sql.rows import UNSETTLED, decode_files, encode

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
