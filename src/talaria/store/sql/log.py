"""Entries and specs in SQL: what every order that writes to a session's log needs."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from talaria.core.entries import Entry, EntryBody, Hidden, SpecSet, Summary, SummaryDropped
from talaria.core.ids import SessionId, SpecId
from talaria.core.shown import find_summary
from talaria.core.specs import PinnedSpec
from talaria.store.sql import locks, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import ENTRY_COLUMNS, ENTRY_KINDS, encode, entry_from

INSERT_ENTRY = """
INSERT INTO entries (session_id, seq, epoch, kind, turn_id, at, body) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
FIND_FLOOR = "SELECT floor FROM sessions WHERE id = ?"
SET_FLOOR = "UPDATE sessions SET floor = ? WHERE id = ?"
MARKS = f"""
SELECT {ENTRY_COLUMNS} FROM entries
WHERE session_id = ? AND kind IN ('hidden', 'summary', 'summary_dropped') ORDER BY seq
"""
# A body is JSON, so a quotation mark inside of a text has a backslash in front. `core.messages.is_untrusted`
# has the same rule for one message; a message that was too long, which is a file too, counts here.
IS_TAINTED = """
SELECT 1 FROM entries WHERE session_id = ? AND (
    replace(body, '"untrusted":true', '') <> body
    OR kind = 'user' AND replace(replace(body, '"type":"image"', ''), '"type":"file"', '') <> body
) LIMIT 1
"""
HAS_SPEC = "SELECT 1 FROM specs WHERE id = ?"
INSERT_SPEC = "INSERT INTO specs (id, spec, prefix_id) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
INSERT_PREFIX = "INSERT INTO prefixes (id, system, tools) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"


def insert_entry(tx: Transaction, entry: Entry) -> None:
    body = entry.body
    tx.execute(
        INSERT_ENTRY,
        (
            entry.session_id,
            entry.seq,
            entry.epoch,
            ENTRY_KINDS[type(body)],
            entry.turn_id,
            entry.at,
            encode(body),
        ),
    )
    if isinstance(body, Hidden | Summary | SummaryDropped):
        _move_floor(tx, entry.session_id, body)


def is_tainted(db: Connection | Transaction, session_id: SessionId) -> bool:
    """Return whether untrusted content ever entered the log, also if it was undone since."""
    return db.execute(IS_TAINTED, (session_id,)).fetchone() is not None


def _move_floor(tx: Transaction, session_id: SessionId, body: Hidden | Summary | SummaryDropped) -> None:
    """Keep the number in the session's row behind which the model sees the log.

    All summaries are looked at only if an undo reaches behind the floor, or a summary is dropped.
    """
    if isinstance(body, Summary):
        tx.execute(SET_FLOOR, (body.floor, session_id))
        return
    if isinstance(body, Hidden):
        row = tx.execute(FIND_FLOOR, (session_id,)).fetchone()
        if row is None or body.first > row[0]:
            return
    marks = [entry_from(row) for row in tx.execute(MARKS, (session_id,))]
    tx.execute(SET_FLOOR, (find_summary(marks)[1].floor, session_id))


def check_specs(tx: Transaction, bodies: Iterable[EntryBody]) -> None:
    for body in bodies:
        if isinstance(body, SpecSet) and not _has_spec(tx, body.spec_id):
            raise rules.no_spec(body.spec_id)


def _has_spec(tx: Transaction, spec_id: SpecId) -> bool:
    locks.share(tx, locks.SPECS)
    return tx.execute(HAS_SPEC, (spec_id,)).fetchone() is not None


def store_spec(tx: Transaction, pinned: PinnedSpec) -> None:
    if _has_spec(tx, pinned.id):
        return
    system, tools = pinned.prefix.system, pinned.prefix.tools
    digest = hashlib.sha256(len(system).to_bytes(8, "big") + system + tools)
    prefix_id = "pre_" + digest.hexdigest()[:40]
    tx.execute(INSERT_PREFIX, (prefix_id, system, tools))
    tx.execute(INSERT_SPEC, (pinned.id, encode(pinned.spec), prefix_id))
