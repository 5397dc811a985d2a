"""The record of one turn, in SQL. Asked for by people, so a look through a whole table is allowed here."""

from __future__ import annotations

from talaria.core.history import StepUsage, TurnHistory
from talaria.core.ids import TurnId
from talaria.core.messages import TokenUsage
from talaria.store.sqlite import queries
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.reach import Part, reads

_MOST_FOUND = 10
REPLY = "reply:"

# Platforms number messages, and channels write more around the number: `CHAT:NUMBER`, `mNUMBER`, and for an
# edit `mNUMBEReTIME`.
FIND_TURN = "SELECT id FROM turns WHERE id = ? AND forgotten = 0"
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
BEGUN = "SELECT begun_at, begun_by, position, session_id, accepted_at FROM turns WHERE id = ?"
COUNT_AHEAD = """
SELECT count(*) FROM turns
WHERE session_id = ? AND position < ? AND (ended_at IS NULL OR ended_at > ?)
"""
USAGE = """
SELECT n, provider, model, calls, input, cached, output, reasoning, at FROM usage
WHERE turn_id = ? ORDER BY n, at
"""


def find(db: driver.Connection, name: str) -> list[TurnId]:
    if name.startswith(REPLY):
        number = name.removeprefix(REPLY)
        if not (number.isascii() and number.isdigit() and len(number) < 19):
            return []
        return [row[0] for row in db.execute(FIND_BY_ROW, (int(number),))]
    if found := [row[0] for row in db.execute(FIND_TURN, (name,))]:
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


def history(db: driver.Connection, turn_id: TurnId) -> TurnHistory | None:
    record = queries.turn_record(db, turn_id)
    if record is None:
        return None
    begun_at, begun_by, position, session_id, accepted_at = db.execute(BEGUN, (turn_id,)).fetchone()
    (ahead,) = db.execute(COUNT_AHEAD, (session_id, position, accepted_at)).fetchone()
    usage = [
        StepUsage(n, provider, model, calls, TokenUsage(*tokens), at)
        for n, provider, model, calls, *tokens, at in db.execute(USAGE, (turn_id,))
    ]
    return TurnHistory(record, tuple(usage), ahead, begun_at, begun_by)


class SqliteHistories(Part):
    """See `core.ports.Histories`."""

    find = reads(find)
    history = reads(history)
