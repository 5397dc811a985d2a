"""Questions to people, in SQL: written by the commit that parks their turn, decided once."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

import msgspec

from talaria.core.errors import IllegalMove
from talaria.core.ids import QuestionId, TurnId
from talaria.core.ledger import Commit, Page, QuestionPage
from talaria.core.questions import Decision, Question
from talaria.core.turns import StepState, Turn, TurnState
from talaria.store.sql import rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import (
    QUESTION_COLUMNS,
    TURN_COLUMNS,
    check_limit,
    parse_number_cursor,
    prefixed,
    question_from,
    turn_from,
)

# -- orders -----------------------------------------------------------------------------------------------

PARK_TURN = "UPDATE turns SET state = 'waiting' WHERE position = ?"
PARK_SESSION = "UPDATE sessions SET waiting_turn = ? WHERE id = ?"
FIND_STEP = "SELECT state FROM steps WHERE turn_id = ? AND n = ?"
DROP_OPEN = "DELETE FROM questions WHERE turn_id = ? AND decided_at IS NULL"
INSERT_QUESTION = """
INSERT INTO questions (id, turn_id, n, call_id, kind, text, asked_at, expires_at, choices)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
FIND_QUESTION = f"""
SELECT {prefixed("t", TURN_COLUMNS)}, q.expires_at, q.decided_at
FROM questions q JOIN turns t ON t.id = q.turn_id WHERE q.id = ?
"""
SET_DECISION = "UPDATE questions SET decision = ?, decided_by = ?, decided_at = ? WHERE id = ?"


def park(tx: Transaction, order: Commit, position: int) -> None:
    """Let the turn wait for the order's questions, which replace those that it left undecided."""
    turn_id = order.turn_id
    tx.execute(PARK_TURN, (position,))
    tx.execute(PARK_SESSION, (turn_id, order.session_id))
    tx.execute(DROP_OPEN, (turn_id,))
    for question in order.ask:
        row = tx.execute(FIND_STEP, (turn_id, question.n)).fetchone()
        rules.check_question(question, None if row is None else StepState(row[0]))
        content = (question.call_id, question.kind.value, question.text)
        times = (question.asked_at, question.expires_at)
        choices = msgspec.json.encode(question.choices).decode()
        tx.execute(INSERT_QUESTION, (question.id, turn_id, question.n, *content, *times, choices))


def decide(tx: Transaction, question_id: QuestionId, decision: Decision) -> Turn:
    row = tx.execute(FIND_QUESTION, (question_id,)).fetchone()
    if row is None:
        raise rules.no_question(question_id)
    turn = turn_from(row[:-2])
    expires_at, decided_at = row[-2:]
    if decided_at is not None:
        raise IllegalMove(f"question {question_id}", "decided", "decided again")
    if decision.decided_at >= expires_at:
        raise IllegalMove(f"question {question_id}", "expired", "decided")
    if turn.state is not TurnState.WAITING:
        raise IllegalMove(f"question {question_id} of a turn that is {turn.state}", "open", "decided")
    tx.execute(SET_DECISION, (decision.text, decision.by, decision.decided_at, question_id))
    return turn


# -- reading ----------------------------------------------------------------------------------------------

QUESTIONS = f"SELECT {QUESTION_COLUMNS} FROM questions WHERE turn_id = ? ORDER BY position"
OPEN_QUESTIONS = f"""
SELECT q.position, {prefixed("q", QUESTION_COLUMNS)} FROM turns t JOIN questions q ON q.turn_id = t.id
WHERE t.state = 'waiting' AND q.decided_at IS NULL AND q.position > ?
ORDER BY q.position LIMIT ?
"""


def questions(db: Connection, turn_id: TurnId) -> tuple[Question, ...]:
    return tuple(map(question_from, db.execute(QUESTIONS, (turn_id,))))


def open_questions(db: Connection, page: Page) -> QuestionPage:
    limit = check_limit(page)
    rows = db.execute(OPEN_QUESTIONS, (parse_number_cursor(page.after), limit + 1)).fetchall()
    found = tuple(question_from(row[1:]) for row in rows[:limit])
    return QuestionPage(found, str(rows[limit - 1][0]) if len(rows) > limit else None)
