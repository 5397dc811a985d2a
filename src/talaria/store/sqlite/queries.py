"""The store's reads, in SQL. Each runs inside one read transaction of one thread."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.entries import Entry
from talaria.core.ids import ChatKey, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    ChatSummary,
    EntryPage,
    Page,
    SessionPage,
    TurnRecord,
)
from talaria.core.sessions import Session
from talaria.core.specs import PinnedSpec, Prefix
from talaria.core.turns import TurnState
from talaria.store.paging import check_limit, parse_number_cursor, parse_session_cursor, session_cursor
from talaria.store.rules import SUMMARY_SESSIONS
from talaria.store.sqlite import outbox
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.questions import QUESTIONS, question_from
from talaria.store.sqlite.rows import (
    ENTRY_COLUMNS,
    SESSION_COLUMNS,
    STEP_COLUMNS,
    TURN_COLUMNS,
    UNSENT,
    UNSETTLED,
    decode_spec,
    entry_from,
    prefixed,
    session_from,
    step_from,
    turn_from,
)
from talaria.store.sqlite.spending import spent_by_turn

SESSION = f"SELECT {SESSION_COLUMNS} FROM sessions WHERE id = ?"
CURRENT_SESSION = f"""
SELECT {prefixed("s", SESSION_COLUMNS)}
FROM chats c JOIN sessions s ON s.id = c.session_id WHERE c.chat_key = ?
"""
SESSIONS = f"""
SELECT {SESSION_COLUMNS} FROM sessions WHERE ephemeral = 0 AND (updated_at, id) < (?, ?)
ORDER BY updated_at DESC, id DESC LIMIT ?
"""
ENTRIES = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
LOG = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq > ? ORDER BY seq"
SPEC = "SELECT s.spec, p.system, p.tools FROM specs s JOIN prefixes p ON p.id = s.prefix_id WHERE s.id = ?"
TURN = f"SELECT {TURN_COLUMNS} FROM turns WHERE id = ? AND forgotten = 0"
STEPS = f"SELECT {STEP_COLUMNS} FROM steps WHERE turn_id = ? ORDER BY n"
OTHER_SESSIONS = f"""
SELECT {SESSION_COLUMNS} FROM sessions WHERE chat_key = ? AND ephemeral = 0 AND id <> ?
ORDER BY updated_at DESC, id DESC LIMIT {SUMMARY_SESSIONS - 1}
"""
COUNT_TURNS_OF_SESSION = "SELECT count(*) FROM turns WHERE session_id = ?"
COUNT_SESSIONS = "SELECT count(*) FROM sessions WHERE ephemeral = 0"
COUNT_TURNS = "SELECT state, count(*) FROM turns GROUP BY state"
OLDEST_TURN = f"SELECT min(accepted_at) FROM turns WHERE state IN ({UNSETTLED})"
OLDEST_UNSENT = f"SELECT min(written_at) FROM outbox WHERE {UNSENT}"
COUNT_UNSENT = f"SELECT count(*) FROM outbox WHERE {UNSENT}"


def session(db: driver.Connection, session_id: SessionId) -> Session | None:
    row = db.execute(SESSION, (session_id,)).fetchone()
    return None if row is None else session_from(row)


def current_session(db: driver.Connection, chat_key: ChatKey) -> Session | None:
    row = db.execute(CURRENT_SESSION, (chat_key,)).fetchone()
    return None if row is None else session_from(row)


def sessions(db: driver.Connection, page: Page) -> SessionPage:
    limit = check_limit(page)
    rows = db.execute(SESSIONS, (*parse_session_cursor(page.after), limit + 1)).fetchall()
    items = tuple(map(session_from, rows[:limit]))
    return SessionPage(items, session_cursor(items[-1]) if len(rows) > limit else None)


def entries(db: driver.Connection, session_id: SessionId, page: Page) -> EntryPage:
    limit = check_limit(page)
    rows = db.execute(ENTRIES, (session_id, parse_number_cursor(page.after), limit + 1)).fetchall()
    found = tuple(map(entry_from, rows[:limit]))
    return EntryPage(found, str(found[-1].seq) if len(rows) > limit else None)


def log(db: driver.Connection, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
    return tuple(map(entry_from, db.execute(LOG, (session_id, after_seq))))


def spec(db: driver.Connection, spec_id: SpecId) -> PinnedSpec | None:
    row = db.execute(SPEC, (spec_id,)).fetchone()
    return None if row is None else PinnedSpec(spec_id, decode_spec(row[0]), Prefix(row[1], row[2]))


def turn_record(db: driver.Connection, turn_id: TurnId) -> TurnRecord | None:
    row = db.execute(TURN, (turn_id,)).fetchone()
    if row is None:
        return None
    steps = tuple(map(step_from, db.execute(STEPS, (turn_id,))))
    questions = tuple(map(question_from, db.execute(QUESTIONS, (turn_id,))))
    replies, spent = outbox.of_turn(db, turn_id), spent_by_turn(db, turn_id)
    return TurnRecord(turn_from(row), steps, replies, spent, questions)


def summary(db: driver.Connection, session_id: SessionId) -> ChatSummary | None:
    current = session(db, session_id)
    if current is None:
        return None
    others = db.execute(OTHER_SESSIONS, (current.chat_key, session_id)).fetchall()
    (turns,) = db.execute(COUNT_TURNS_OF_SESSION, (session_id,)).fetchone()
    return ChatSummary(current, (current, *map(session_from, others)), turns)


def counts(db: driver.Connection, _: None) -> tuple[int, dict[str, int], int, float | None]:
    """Lasting sessions, turns by state, unsent replies, and since when the oldest of these is owed."""
    (session_count,) = db.execute(COUNT_SESSIONS).fetchone()
    turns = {str(state): 0 for state in TurnState} | dict(db.execute(COUNT_TURNS).fetchall())
    (unsent,) = db.execute(COUNT_UNSENT).fetchone()
    oldest = [db.execute(question).fetchone()[0] for question in (OLDEST_TURN, OLDEST_UNSENT)]
    return session_count, turns, unsent, min((at for at in oldest if at is not None), default=None)
