"""The store's queries, in SQL: sessions, logs, turns and their histories."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from talaria.core.delivery import OutboxRow
from talaria.core.entries import Entry, Note
from talaria.core.files import SentItem, SentPage
from talaria.core.ids import ChatKey, SessionId, SpecId, TurnId, delegates_within
from talaria.core.ledger import (
    ChatSummary,
    EntryPage,
    Page,
    RecentRequest,
    SessionPage,
    StepUsage,
    TurnHistory,
    TurnRecord,
    TurnSum,
)
from talaria.core.messages import TokenUsage, UserMessage
from talaria.core.sessions import Mark, Session
from talaria.core.specs import PinnedSpec, Prefix
from talaria.core.spending import Spent
from talaria.core.tools import DELEGATE
from talaria.core.turns import Turn, TurnState
from talaria.core.views import view_of
from talaria.store.sql import delegates
from talaria.store.sql.executor import Connection
from talaria.store.sql.questions import questions
from talaria.store.sql.rows import (
    ENTRY_COLUMNS,
    OUTBOX_COLUMNS,
    SESSION_COLUMNS,
    STEP_COLUMNS,
    TURN_COLUMNS,
    UNSENT,
    UNSETTLED,
    check_limit,
    decode_files,
    decode_spec,
    entry_from,
    find_one,
    key_bounds,
    outbox_from,
    parse_number_cursor,
    parse_session_cursor,
    prefixed,
    session_cursor,
    session_from,
    step_from,
    turn_from,
)
from talaria.store.sql.rules import SUMMARY_SESSIONS
from talaria.store.sql.spending import spent_by_turn, spent_with_delegates

_EVERY_KEY = "agent:"  # with which all keys of chats begin

SESSION = f"SELECT {SESSION_COLUMNS} FROM sessions WHERE id = ?"
CURRENT_SESSION = f"""
SELECT {prefixed("s", SESSION_COLUMNS)}
FROM chats c JOIN sessions s ON s.id = c.session_id WHERE c.chat_key = ?
"""
SESSIONS = f"""
SELECT {SESSION_COLUMNS} FROM sessions WHERE ephemeral = 0 AND job_id IS NULL AND (updated_at, id) < (?, ?)
ORDER BY updated_at DESC, id DESC LIMIT ?
"""
# `+` keeps SQLite from the index by activity: it reads the sessions of these chats, not all of them.
SESSIONS_WITHIN = f"""
SELECT {SESSION_COLUMNS} FROM sessions
WHERE chat_key >= ? AND chat_key < ? AND +ephemeral = 0 AND (updated_at, id) < (?, ?)
ORDER BY updated_at DESC, id DESC LIMIT ?
"""
SESSIONS_MARKED = f"""
SELECT {SESSION_COLUMNS} FROM sessions
WHERE mark = ? AND mark <> '' AND chat_key >= ? AND chat_key < ? AND ephemeral = 0
AND (updated_at, id) < (?, ?)
ORDER BY updated_at DESC, id DESC LIMIT ?
"""
ENTRIES = f"SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?"
ENTRIES_BEFORE = f"""
SELECT {ENTRY_COLUMNS} FROM entries WHERE session_id = ? AND seq < ? ORDER BY seq DESC LIMIT ?
"""
# A deleted session has no log, also while a part of it is not purged yet.
_ENTRIES_OF = f"""
SELECT {prefixed("e", ENTRY_COLUMNS)} FROM sessions s JOIN entries e ON e.session_id = s.id WHERE s.id = ?
"""
LOG = f"{_ENTRIES_OF} AND e.seq > ? ORDER BY e.seq"
SHOWN_LOG = f"{_ENTRIES_OF} AND e.seq > s.floor ORDER BY e.seq"
TURN_LOG = f"{_ENTRIES_OF} AND e.turn_id = ? ORDER BY e.seq"
NOTES = f"{_ENTRIES_OF} AND e.kind = 'note' ORDER BY e.seq"
SPOKEN = f"{_ENTRIES_OF} AND e.kind IN ('user', 'assistant', 'hidden') ORDER BY e.seq DESC LIMIT ?"
# The name of a step that is no answer, such as a summary, is not the model's.
LAST_INPUT = """
SELECT u.input FROM turns t JOIN usage u ON u.turn_id = t.id
JOIN steps p ON p.turn_id = u.turn_id AND p.n = u.n AND p.name = u.model
WHERE t.session_id = ? AND u.calls = 1 AND u.estimated = 0 ORDER BY t.position DESC, u.n DESC LIMIT 1
"""
SENT_FILES = """
SELECT position, id, accepted_at, files FROM turns
WHERE session_id = ? AND files IS NOT NULL AND merged_into IS NULL AND position > ? ORDER BY position
"""
SENT_FILES_PAGE = f"{SENT_FILES} LIMIT ?"
SPEC = "SELECT s.spec, p.system, p.tools FROM specs s JOIN prefixes p ON p.id = s.prefix_id WHERE s.id = ?"
# The rows of a deleted session are there until they are purged.
HAS_SESSION = "EXISTS (SELECT 1 FROM sessions WHERE sessions.id = turns.session_id)"
TURN = f"SELECT {TURN_COLUMNS} FROM turns WHERE id = ? AND forgotten = 0 AND {HAS_SESSION}"
COMMANDS_BETWEEN = f"""
SELECT {TURN_COLUMNS} FROM turns
WHERE session_id = ? AND command <> '' AND forgotten = 0 AND accepted_at >= ? AND accepted_at <= ?
ORDER BY position DESC LIMIT 100
"""
STEPS = f"SELECT {STEP_COLUMNS} FROM steps WHERE turn_id = ? ORDER BY n"
REPLIES = f"SELECT {OUTBOX_COLUMNS} FROM outbox WHERE turn_id = ? ORDER BY head, part"
OTHER_SESSIONS = f"""
SELECT {SESSION_COLUMNS} FROM sessions WHERE chat_key = ? AND ephemeral = 0 AND id <> ?
ORDER BY updated_at DESC, id DESC LIMIT {SUMMARY_SESSIONS - 1}
"""
COUNT_TURNS_OF_SESSION = "SELECT count(*) FROM turns WHERE session_id = ?"
COUNTS = "SELECT name, CAST(coalesce(sum(n), 0) AS BIGINT) FROM counts GROUP BY name"
COUNT_UNSETTLED = f"SELECT state, count(*) FROM turns WHERE state IN ({UNSETTLED}) GROUP BY state"
OLDEST_TURN = f"SELECT min(accepted_at) FROM turns WHERE state IN ({UNSETTLED})"
OLDEST_UNSENT = f"SELECT min(written_at) FROM outbox WHERE {UNSENT}"
COUNT_UNSENT = f"SELECT channel, count(*) FROM outbox WHERE {UNSENT} GROUP BY channel"


def session(db: Connection, session_id: SessionId) -> Session | None:
    return find_one(session_from, db.execute(SESSION, (session_id,)))


def current_session(db: Connection, chat_key: ChatKey) -> Session | None:
    return find_one(session_from, db.execute(CURRENT_SESSION, (chat_key,)))


def sessions(db: Connection, page: Page, within: str = "", mark: Mark = "") -> SessionPage:
    """Return lasting sessions, the last used first, but for those of jobs. With `within`, only those of
    chats whose keys begin with it, chats of jobs too. With `mark`, only those that people have marked so.
    Raises `BadRequest` for an invalid page."""
    limit = check_limit(page)
    rest = (*parse_session_cursor(page.after), limit + 1)
    if mark:
        rows = db.execute(SESSIONS_MARKED, (mark, *key_bounds(within or _EVERY_KEY), *rest)).fetchall()
    elif within:
        rows = db.execute(SESSIONS_WITHIN, (*key_bounds(within), *rest)).fetchall()
    else:
        rows = db.execute(SESSIONS, rest).fetchall()
    items = tuple(map(session_from, rows[:limit]))
    return SessionPage(items, session_cursor(items[-1]) if len(rows) > limit else None)


def entries(db: Connection, session_id: SessionId, page: Page) -> EntryPage:
    """Return a page of the session's log. Raises `BadRequest` for an invalid page."""
    limit = check_limit(page)
    rows = db.execute(ENTRIES, (session_id, parse_number_cursor(page.after), limit + 1)).fetchall()
    found = tuple(map(entry_from, rows[:limit]))
    return EntryPage(
        found, str(found[-1].seq) if len(rows) > limit else None, _files_of(db, session_id, found)
    )


def entries_before(db: Connection, session_id: SessionId, before: int, limit: int) -> EntryPage:
    """Return the last entries of the session's log that come before the number `before`, in order. The page's
    `next` is the `before` of the page with older ones."""
    rows = db.execute(ENTRIES_BEFORE, (session_id, before, limit + 1)).fetchall()
    found = tuple(map(entry_from, reversed(rows[:limit])))
    return EntryPage(
        found, str(found[0].seq) if len(rows) > limit else None, _files_of(db, session_id, found)
    )


def _files_of(db: Connection, session_id: SessionId, found: Sequence[Entry]) -> tuple[SentItem, ...]:
    turns = {entry.turn_id for entry in found}
    rows = db.execute(SENT_FILES, (session_id, 0))
    return tuple(item for row in rows if row[1] in turns for item in _sent(row))


def turn_sums(
    db: Connection, session_id: SessionId, turn_ids: Sequence[TurnId], since: float, until: float
) -> tuple[TurnSum, ...]:
    """Return what people are shown of these turns, and of the session's commands that were sent from `since`
    to `until`. Turns that are forgotten are left out."""
    rows = [db.execute(TURN, (turn_id,)).fetchone() for turn_id in turn_ids]
    rows += db.execute(COMMANDS_BETWEEN, (session_id, since, until)).fetchall()
    turns = {turn.id: turn for turn in map(turn_from, filter(None, rows))}
    return tuple(_turn_sum(db, turn) for turn in turns.values())


def _turn_sum(db: Connection, turn: Turn) -> TurnSum:
    spent = spent_with_delegates(db, turn.id, delegates_within(turn.chat_key, turn.id))
    is_command = bool(turn.command)
    return view_of(
        TurnSum,
        turn,
        sender=turn.inbound.sender.name,
        cost_usd=spent.cost_usd if spent.calls else None,
        questions=questions(db, turn.id),
        said=turn.inbound.text if is_command else "",
        reply=(turn.reply or "") if is_command else "",
        files=turn.files if is_command else (),
    )


def sent_files(db: Connection, session_id: SessionId, page: Page) -> SentPage:
    """Return the files that turns of the session sent, oldest first. The limit of a page counts turns.
    Raises `BadRequest` for an invalid page."""
    limit = check_limit(page)
    after = parse_number_cursor(page.after)
    rows = db.execute(SENT_FILES_PAGE, (session_id, after, limit + 1)).fetchall()
    items = tuple(item for row in rows[:limit] for item in _sent(row))
    return SentPage(items, str(rows[limit - 1][0]) if len(rows) > limit else None)


def _sent(row: Any) -> Iterator[SentItem]:
    _, turn_id, at, files = row
    for file in decode_files(files):
        yield SentItem(file.id, file.name, file.type, file.size, turn_id, at)


def log(db: Connection, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
    """Return all entries after `after_seq`, in order."""
    return tuple(map(entry_from, db.execute(LOG, (session_id, after_seq))))


def shown_log(db: Connection, session_id: SessionId) -> Sequence[Entry]:
    """Return the entries from which a warm agent is built, in order: those behind the floor, which is the
    last entry that the summary in force stands for. That summary is among them."""
    return tuple(map(entry_from, db.execute(SHOWN_LOG, (session_id,))))


def turn_log(db: Connection, session_id: SessionId, turn_id: TurnId) -> Sequence[Entry]:
    """Return the entries that a turn wrote, in order, also those behind the floor."""
    return tuple(map(entry_from, db.execute(TURN_LOG, (session_id, turn_id))))


def last_input(db: Connection, session_id: SessionId) -> int | None:
    """Return the tokens of the last request of the session whose provider reported them."""
    row = db.execute(LAST_INPUT, (session_id,)).fetchone()
    return None if row is None else row[0]


def notes(db: Connection, session_id: SessionId) -> Sequence[Note]:
    """Return all notes of the session's log, in order."""
    bodies = (entry_from(row).body for row in db.execute(NOTES, (session_id,)))
    return tuple(body for body in bodies if isinstance(body, Note))


def spoken(db: Connection, session_id: SessionId, limit: int) -> Sequence[Entry]:
    """Return the newest messages of users and models, and the entries that hide some, oldest first."""
    return tuple(map(entry_from, reversed(db.execute(SPOKEN, (session_id, limit)).fetchall())))


def spec(db: Connection, spec_id: SpecId) -> PinnedSpec | None:
    row = db.execute(SPEC, (spec_id,)).fetchone()
    return None if row is None else PinnedSpec(spec_id, decode_spec(row[0]), Prefix(row[1], row[2]))


def turn_record(db: Connection, turn_id: TurnId) -> TurnRecord | None:
    row = db.execute(TURN, (turn_id,)).fetchone()
    if row is None:
        return None
    steps = tuple(map(step_from, db.execute(STEPS, (turn_id,))))
    replies = tuple(map(outbox_from, db.execute(REPLIES, (turn_id,))))
    has_delegates = any(step.name == DELEGATE for step in steps)
    turn = turn_from(row)
    return TurnRecord(
        turn,
        steps,
        replies,
        spent_by_turn(db, turn_id),
        questions(db, turn_id),
        delegates.of_turn(db, turn_id) if has_delegates else (),
        _spent_below(db, turn) if has_delegates else Spent(),
    )


def _spent_below(db: Connection, turn: Turn) -> Spent:
    """Return what the delegates below a turn have used."""
    order = turn.inbound.order
    holder = turn.id if order is None or order.descent is None else order.descent.delegate
    return spent_with_delegates(db, TurnId(""), delegates_within(turn.chat_key, holder))


def summary(db: Connection, session_id: SessionId) -> ChatSummary | None:
    current = session(db, session_id)
    if current is None:
        return None
    others = db.execute(OTHER_SESSIONS, (current.chat_key, session_id)).fetchall()
    (turns,) = db.execute(COUNT_TURNS_OF_SESSION, (session_id,)).fetchone()
    return ChatSummary(current, (current, *map(session_from, others)), turns)


def counts(db: Connection) -> tuple[int, dict[str, int], dict[str, int], float | None]:
    """Lasting sessions, turns by state, unsent replies by channel, and since when the oldest is owed."""
    counted = dict(db.execute(COUNTS).fetchall()) | dict(db.execute(COUNT_UNSETTLED).fetchall())
    turns = {str(state): counted.get(str(state), 0) for state in TurnState}
    unsent = dict(db.execute(COUNT_UNSENT).fetchall())
    oldest = [db.execute(question).fetchone()[0] for question in (OLDEST_TURN, OLDEST_UNSENT)]
    return counted["sessions"], turns, unsent, min((at for at in oldest if at is not None), default=None)


# -- histories: people ask for these, so a statement may look through a whole table -----------------------

_MOST_FOUND = 10
_REPLY = "reply:"

# Platforms number messages, and channels write more around the number: `CHAT:NUMBER`, `mNUMBER`, and for an
# edit `mNUMBEReTIME`.
FIND_BY_ID = "SELECT id FROM turns WHERE id = ? AND forgotten = 0"
FIND_BY_KEY = """
SELECT id FROM turns
WHERE key = ? OR key = ? OR (length(key) > ? AND substr(key, length(key) - ?) = ?) OR substr(key, 1, ?) = ?
ORDER BY position DESC LIMIT 10
"""
FIND_BY_REPLY = """
SELECT turn_id FROM outbox
WHERE platform_id = ? OR edits = ?
   OR (length(platform_id) > ? AND substr(platform_id, length(platform_id) - ?) = ?)
ORDER BY id DESC LIMIT 10
"""
FIND_BY_SHOWN = "SELECT id FROM turns WHERE shown_id = ? ORDER BY position DESC LIMIT 10"
FIND_BY_ROW = "SELECT turn_id FROM outbox WHERE id = ?"
_LONGEST_WORDS = 1 << 16  # bytes of an entry; a longer one holds pictures
RECENT = f"""
SELECT {TURN_COLUMNS} FROM turns WHERE forgotten = 0 AND chat_key >= ? AND chat_key < ? AND {HAS_SESSION}
ORDER BY position DESC LIMIT ?
"""
UNSETTLED_TURNS = f"""
SELECT {TURN_COLUMNS} FROM turns
WHERE state IN ({UNSETTLED}) AND forgotten = 0 AND chat_key >= ? AND chat_key < ? AND {HAS_SESSION}
ORDER BY position LIMIT ?
"""
# Each has its own index. By the plain id, SQLite would read the whole table in its order.
UNSENT_REPLIES = f"""
SELECT {OUTBOX_COLUMNS} FROM outbox WHERE {UNSENT} AND chat_key >= ? AND chat_key < ? ORDER BY +id LIMIT ?
"""
FAILED_REPLIES = f"""
SELECT {OUTBOX_COLUMNS} FROM outbox
WHERE state = 'failed' AND written_at >= ? AND chat_key >= ? AND chat_key < ? ORDER BY +id LIMIT ?
"""
RECENT_OF_SESSION = f"""
SELECT {TURN_COLUMNS} FROM turns WHERE forgotten = 0 AND session_id = ? ORDER BY position DESC LIMIT ?
"""
LAST_WORDS = f"""
SELECT {ENTRY_COLUMNS} FROM entries
WHERE session_id = ? AND kind = 'user' AND at <= ? AND length(body) < {_LONGEST_WORDS}
ORDER BY seq DESC LIMIT 1
"""
RECENT_REQUESTS = """
SELECT id, digest, accepted_at, answered, key IS NOT NULL FROM turns ORDER BY position DESC LIMIT ?
"""
BEGUN = "SELECT begun_at, begun_by, position, session_id, accepted_at FROM turns WHERE id = ?"
COUNT_AHEAD = """
SELECT count(*) FROM turns
WHERE session_id = ? AND position < ? AND (ended_at IS NULL OR ended_at > ?)
"""
USAGE = """
SELECT n, provider, model, calls, input, cached, output, reasoning, at, cost, estimated FROM usage
WHERE turn_id = ? ORDER BY n, at
"""


def find(db: Connection, name: str) -> list[TurnId]:
    """Return the turns that go by this name, newest first, at most ten.

    A name is a turn's id, the platform's id of its message or of its reply, or `reply:N` for a row of the
    outbox.
    """
    if name.startswith(_REPLY):
        number = name.removeprefix(_REPLY)
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            return []
        return [row[0] for row in db.execute(FIND_BY_ROW, (int(number),))]
    if found := [row[0] for row in db.execute(FIND_BY_ID, (name,))]:
        return found
    length = len(name)
    ending = (length, length, f":{name}")
    ways = (
        (FIND_BY_KEY, (name, f"m{name}", *ending, length + 2, f"m{name}e")),
        (FIND_BY_REPLY, (name, name, *ending)),
        (FIND_BY_SHOWN, (name,)),
    )
    rows = [row[0] for statement, values in ways for row in db.execute(statement, values)]
    return list(dict.fromkeys(rows))[:_MOST_FOUND]


def recent(db: Connection, limit: int, within: str = "") -> list[Turn]:
    """Return the last turns, newest first, of chats whose keys begin with `within`."""
    turns = list(map(turn_from, db.execute(RECENT, (*key_bounds(within), limit))))
    return [turn if turn.inbound.parts else _with_words(db, turn) for turn in turns]


def _with_words(db: Connection, turn: Turn) -> Turn:
    """Return the turn with the last message that it was called with. A stateless call has its messages in
    the log only."""
    row = db.execute(LAST_WORDS, (turn.session_id, turn.accepted_at)).fetchone()
    body = None if row is None else entry_from(row).body
    if not isinstance(body, UserMessage):
        return turn
    return msgspec.structs.replace(turn, inbound=msgspec.structs.replace(turn.inbound, parts=body.parts))


def unsettled(db: Connection, limit: int, within: str = "") -> list[Turn]:
    """Return the turns that are not over, oldest first, of chats whose keys begin with `within`."""
    turns = map(turn_from, db.execute(UNSETTLED_TURNS, (*key_bounds(within), limit)))
    return [turn if turn.inbound.parts else _with_words(db, turn) for turn in turns]


def owed_replies(db: Connection, failed_since: float, limit: int, within: str = "") -> list[OutboxRow]:
    """Return the replies that are not sent, and those given up that were written since then, oldest first."""
    bounds = key_bounds(within)
    rows = db.execute(UNSENT_REPLIES, (*bounds, limit)).fetchall()
    rows += db.execute(FAILED_REPLIES, (failed_since, *bounds, limit)).fetchall()
    return sorted(map(outbox_from, rows), key=lambda row: row.id)[:limit]


def recent_of_session(db: Connection, session_id: SessionId, limit: int) -> list[Turn]:
    """Return the last turns of a session, newest first."""
    return list(map(turn_from, db.execute(RECENT_OF_SESSION, (session_id, limit))))


def recent_requests(db: Connection, since: float, limit: int) -> list[RecentRequest]:
    """Return the turns accepted since then that have a digest and no key, newest first. Looks at the last
    `limit` turns only."""
    found = []
    for turn_id, digest, accepted_at, answered, has_key in db.execute(RECENT_REQUESTS, (limit,)):
        if accepted_at < since:
            break
        if digest and not has_key:
            found.append(RecentRequest(turn_id, digest, accepted_at, bool(answered)))
    return found


def history(db: Connection, turn_id: TurnId) -> TurnHistory | None:
    record = turn_record(db, turn_id)
    if record is None:
        return None
    begun_at, begun_by, position, session_id, accepted_at = db.execute(BEGUN, (turn_id,)).fetchone()
    (ahead,) = db.execute(COUNT_AHEAD, (session_id, position, accepted_at)).fetchone()
    usage = [
        StepUsage(n, provider, model, calls, TokenUsage(*tokens), at, cost, estimated)
        for n, provider, model, calls, *tokens, at, cost, estimated in db.execute(USAGE, (turn_id,))
    ]
    return TurnHistory(record, tuple(usage), ahead, begun_at, begun_by)
