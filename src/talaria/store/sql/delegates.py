"""Delegates in SQL: written by the commit that parks their parent, ended by the last commit of their
child."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from talaria.core.delegates import Delegate, DelegateOutcome, DelegateTask, Descent, Report
from talaria.core.errors import IllegalMove
from talaria.core.ids import DelegateId, SessionId, TurnId
from talaria.core.ledger import TurnEnd
from talaria.core.messages import AssistantMessage
from talaria.core.turns import StepState, Turn, TurnState
from talaria.store.sql import log
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import (
    TURN_COLUMNS,
    decode_body,
    encode,
    find_one,
    key_bounds,
    prefixed,
    turn_from,
)

COLUMNS = "id, turn_id, n, call_id, task, asked_at, expires_at, outcome, ended_at, report"
FIND_STEP = "SELECT state FROM steps WHERE turn_id = ? AND n = ?"
INSERT = """
INSERT INTO delegates (id, turn_id, n, call_id, task, asked_at, expires_at, report)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""
END = "UPDATE delegates SET outcome = ?, ended_at = ? WHERE id = ? AND ended_at IS NULL"
LAST_ENTRIES = """
SELECT body FROM entries WHERE session_id = ? AND turn_id = ? ORDER BY seq DESC LIMIT 20
"""
OF_TURN = f"SELECT {COLUMNS} FROM delegates WHERE turn_id = ?"
FIND = f"SELECT {COLUMNS} FROM delegates WHERE id = ?"
# Messages join a turn `t` that runs or waits for delegates. They do not join one that waits for a person.
CAN_BE_JOINED = """
(t.state = 'running' OR (t.state = 'waiting' AND EXISTS
 (SELECT 1 FROM delegates d WHERE d.turn_id = t.id AND d.report = 0 AND d.ended_at IS NULL)))
"""
OWED = f"SELECT {COLUMNS} FROM delegates WHERE report = 1 ORDER BY asked_at, id LIMIT 1000"
REPORT = "UPDATE delegates SET report = 2 WHERE id = ? AND report = 1"
# The turns of a tree, through the sessions of its chats, which have an index by chat.
TURNS_WITHIN = f"""
SELECT {prefixed("t", TURN_COLUMNS)} FROM sessions s JOIN turns t ON t.session_id = s.id
WHERE s.chat_key >= ? AND s.chat_key < ? AND t.forgotten = 0 ORDER BY t.position LIMIT ?
"""
# Open sessions are few: their index has no ended ones.
UNUSED_SESSIONS = """
SELECT id FROM sessions s
WHERE ended_at IS NULL AND ephemeral = 0 AND chat_key >= ? AND chat_key < ?
AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.session_id = s.id AND t.ended_at IS NULL) LIMIT 100
"""
_tasks: msgspec.json.Decoder[DelegateTask] = msgspec.json.Decoder(DelegateTask)
_outcomes: msgspec.json.Decoder[DelegateOutcome] = msgspec.json.Decoder(DelegateOutcome)


def hand_out(tx: Transaction, turn_id: TurnId, delegates: Iterable[Delegate]) -> None:
    """Write the delegates of a turn that is parked for them, or that continues while they work in the
    background. One that is there already stays as it is."""
    for each in delegates:
        row = tx.execute(FIND_STEP, (turn_id, each.n)).fetchone()
        state = "nothing" if row is None else row[0]
        if state != StepState.PENDING:
            raise IllegalMove(f"step {turn_id}/{each.n}", state, "handed out")
        place, times = (each.id, turn_id, each.n, each.call_id), (each.asked_at, each.expires_at)
        tx.execute(INSERT, (*place, encode(each.task), *times, int(each.report)))


def end(tx: Transaction, turn: Turn, descent: Descent, ended: TurnEnd) -> None:
    """Write the outcome of a child in the transaction that ends its turn."""
    partial = "" if ended.state is TurnState.DONE else _last_words(tx, turn)
    is_untrusted = log.is_tainted(tx, turn.session_id)
    text = ended.reply or ""
    settle(
        tx,
        descent.delegate,
        DelegateOutcome(str(ended.state), text, turn.id, turn.session_id, partial, is_untrusted),
    )


def settle(tx: Transaction, delegate_id: DelegateId, outcome: DelegateOutcome) -> bool:
    """Write an outcome unless there is one. Return whether it was written."""
    return bool(tx.execute(END, (encode(outcome), tx.now, delegate_id)).rowcount)


def report(tx: Transaction, delegate_id: DelegateId) -> bool:
    """Note that the outcome of a delegate in the background was reported, or is not wanted any more. Return
    whether it was owed."""
    return bool(tx.execute(REPORT, (delegate_id,)).rowcount)


def _last_words(tx: Transaction, turn: Turn) -> str:
    """Return the last text that the model of an unfinished turn has said."""
    for (body,) in tx.execute(LAST_ENTRIES, (turn.session_id, turn.id)).fetchall():
        said = decode_body(body)
        if isinstance(said, AssistantMessage) and said.text.strip():
            return said.text
    return ""


# -- reading ----------------------------------------------------------------------------------------------


def of_turn(db: Connection, turn_id: TurnId) -> tuple[Delegate, ...]:
    """Return the delegates that a turn has handed tasks to, in the order of its calls."""
    found = map(_delegate_from, db.execute(OF_TURN, (turn_id,)))
    return tuple(sorted(found, key=lambda each: (each.n, int(each.id.rpartition("-")[2]))))


def find(db: Connection, delegate_id: DelegateId) -> Delegate | None:
    return find_one(_delegate_from, db.execute(FIND, (delegate_id,)))


def owed(db: Connection) -> Sequence[Delegate]:
    """Return the delegates in the background whose outcome was not reported yet, oldest first."""
    return tuple(map(_delegate_from, db.execute(OWED)))


def turns_within(db: Connection, within: str, limit: int) -> Sequence[Turn]:
    """Return the turns of all delegates whose chats' keys begin with `within`, oldest first."""
    return tuple(map(turn_from, db.execute(TURNS_WITHIN, (*key_bounds(within), limit))))


def _delegate_from(row: Any) -> Delegate:
    key, turn_id, n, call_id, task, asked_at, expires_at, outcome, ended_at, told = row
    ended = None if outcome is None else _outcomes.decode(outcome)
    times = (asked_at, expires_at, ended, ended_at)
    return Delegate(key, turn_id, n, call_id, _tasks.decode(task), *times, Report(told))


def unused_sessions(db: Connection, within: str) -> Sequence[SessionId]:
    """Return open sessions of chats whose keys begin with `within` in which no turn is left to do."""
    return [row[0] for row in db.execute(UNUSED_SESSIONS, key_bounds(within))]
