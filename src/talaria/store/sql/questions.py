"""Questions to people and what was granted to sessions, in SQL. A question is decided once."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.errors import IllegalMove
from talaria.core.ids import JobId, QuestionId, SessionId, TurnId
from talaria.core.ledger import AskedQuestion, Commit, Page, QuestionPage
from talaria.core.questions import APPROVE, Decision, Question, QuestionKind, Span
from talaria.core.turns import StepState, Turn, TurnState
from talaria.store.sql import locks, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import (
    QUESTION_COLUMNS,
    TURN_COLUMNS,
    check_limit,
    find_one,
    key_bounds,
    parse_number_cursor,
    prefixed,
    question_from,
    turn_from,
)

# -- orders -----------------------------------------------------------------------------------------------

PARK_TURN = "UPDATE turns SET state = 'waiting' WHERE position = ?"
PARK_SESSION = "UPDATE sessions SET waiting_turn = ? WHERE id = ?"
FIND_TURN = f"SELECT {TURN_COLUMNS} FROM turns WHERE id = ?"
FIND_STEP = "SELECT state FROM steps WHERE turn_id = ? AND n = ?"
CLOSE_OPEN = """
UPDATE questions SET expires_at = ?
WHERE turn_id = ? AND decided_at IS NULL AND kind <> 'host' AND expires_at > ?
"""
INSERT_QUESTION = """
INSERT INTO questions (id, turn_id, n, call_id, kind, text, asked_at, expires_at, choices, name, digest, span)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'once')
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at
"""
FIND_QUESTION = f"""
SELECT {prefixed("t", TURN_COLUMNS)}, {prefixed("q", QUESTION_COLUMNS)}
FROM questions q JOIN turns t ON t.id = q.turn_id WHERE q.id = ?
"""
SET_DECISION = "UPDATE questions SET decision = ?, decided_by = ?, decided_at = ?, span = ? WHERE id = ?"
SET_SHOWN = "UPDATE questions SET shown_id = ? WHERE id = ?"
FIND_ENDED = "SELECT ended_at FROM sessions WHERE id = ?"
ADD_GRANT = """
INSERT INTO grants (session_id, digest, granted_by, granted_at) VALUES (?, ?, ?, ?)
ON CONFLICT (session_id, digest) DO NOTHING
"""

ADD_JOB_GRANT = """
INSERT INTO job_grants (job_id, plan, digest, granted_by, granted_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (job_id, plan, digest) DO NOTHING
"""
_HAS_ASKED = ""  # the digest of the row that says so


def park(tx: Transaction, order: Commit, turn: Turn, position: int) -> None:
    """Let the turn wait for the order's questions. Questions that it left undecided expire now: they stay on
    record, because a person may still be reading one."""
    turn_id = turn.id
    _note_asking(tx, turn)
    tx.execute(PARK_TURN, (position,))
    tx.execute(PARK_SESSION, (turn_id, order.session_id))
    tx.execute(CLOSE_OPEN, (tx.now, turn_id, tx.now))
    for question in order.ask:
        row = tx.execute(FIND_STEP, (turn_id, question.n)).fetchone()
        state = "nothing" if row is None else row[0]
        if state != StepState.PENDING:
            raise IllegalMove(f"step {turn_id}/{question.n}", state, "asked about")
        _insert(tx, question)


def _insert(tx: Transaction, question: Question) -> None:
    place = (question.id, question.turn_id, question.n, question.call_id)
    content = (question.kind.value, question.text, question.asked_at, question.expires_at)
    choices = msgspec.json.encode(question.choices).decode()
    tx.execute(INSERT_QUESTION, (*place, *content, choices, question.name, question.digest))


def ask(tx: Transaction, question: Question) -> None:
    """Write a question for which no turn waits (`QuestionKind.HOST`). Durable. Raises `NotFound` for an
    unknown turn. Questions for which a turn waits are written by `Store.commit`."""
    row = tx.execute(FIND_TURN, (question.turn_id,)).fetchone()
    if row is None:
        raise rules.no_turn(question.turn_id)
    _note_asking(tx, turn_from(row))
    _insert(tx, question)


def _note_asking(tx: Transaction, turn: Turn) -> None:
    """Note that a run of a job has asked: later ones may not."""
    run = turn.inbound.order
    if run is not None and run.job_id:
        tx.execute(ADD_JOB_GRANT, (run.job_id, run.plan, _HAS_ASKED, "", tx.now))


def decide(tx: Transaction, question_id: QuestionId, decision: Decision) -> Turn:
    """Record the decision and return the question's turn, which stays as it is. Durable.

    The caller resumes the turn with `begin` once each of its questions is decided. An approval that
    reaches further than once is a grant for the session from then on. Raises `NotFound`, and
    `IllegalMove` when the question has a decision already or has expired, its turn does not wait, or the
    session of a question about a host is over.
    """
    locks.session_of_question(tx, question_id)
    found = find_question(tx, question_id)
    if found is None:
        raise rules.no_question(question_id)
    question, turn = found.question, found.turn
    is_host = question.kind is QuestionKind.HOST
    if question.decision is not None:
        raise IllegalMove(f"question {question_id}", "decided", "decided again")
    if max(tx.now, decision.decided_at) >= question.expires_at:
        raise IllegalMove(f"question {question_id}", "expired", "decided")
    if turn.state is not TurnState.WAITING and not is_host:
        raise IllegalMove(f"question {question_id} of a turn that is {turn.state}", "open", "decided")
    if is_host and tx.execute(FIND_ENDED, (turn.session_id,)).fetchone()[0] is not None:
        raise IllegalMove(f"question {question_id} of a session that is over", "open", "decided")
    said = (decision.text, decision.by, decision.decided_at, decision.span.value)
    tx.execute(SET_DECISION, (*said, question_id))
    if decision.text == APPROVE and decision.span is not Span.ONCE and question.digest:
        tx.execute(ADD_GRANT, (turn.session_id, question.digest, decision.by, decision.decided_at))
    run = turn.inbound.order
    if decision.text == APPROVE and question.digest and run is not None and run.job_id:
        granted = (question.digest, decision.by, decision.decided_at)
        tx.execute(ADD_JOB_GRANT, (run.job_id, run.plan, *granted))
    return turn


def show_question(tx: Transaction, question_id: QuestionId, platform_id: str) -> None:
    """Store the id of the platform's message that shows the question. Raises `NotFound`."""
    if not tx.execute(SET_SHOWN, (platform_id, question_id)).rowcount:
        raise rules.no_question(question_id)


# -- reading ----------------------------------------------------------------------------------------------

QUESTIONS = f"SELECT {QUESTION_COLUMNS} FROM questions WHERE turn_id = ? ORDER BY position"
OPEN_QUESTIONS = f"""
SELECT q.position, {prefixed("t", TURN_COLUMNS)}, {prefixed("q", QUESTION_COLUMNS)}
FROM questions q JOIN turns t ON t.id = q.turn_id JOIN sessions s ON s.id = t.session_id
WHERE q.decided_at IS NULL AND q.expires_at > ? AND q.position > ?
AND (t.state = 'waiting' OR (q.kind = 'host' AND s.ended_at IS NULL))
AND t.chat_key >= ? AND t.chat_key < ?
ORDER BY q.position LIMIT ?
"""
CLOSED_SINCE = f"""
SELECT {prefixed("t", TURN_COLUMNS)}, {prefixed("q", QUESTION_COLUMNS)}
FROM questions q JOIN turns t ON t.id = q.turn_id
WHERE q.expires_at >= ? AND coalesce(q.decided_at, q.expires_at) >= ? AND t.chat_key >= ? AND t.chat_key < ?
AND (q.decided_at IS NOT NULL OR q.expires_at <= ? OR (q.kind <> 'host' AND t.ended_at >= ?))
ORDER BY q.expires_at
"""
FIND_GRANT = "SELECT 1 FROM grants WHERE session_id = ? AND digest = ?"
FIND_JOB_GRANT = "SELECT 1 FROM job_grants WHERE job_id = ? AND plan = ? AND digest = ?"


def questions(db: Connection, turn_id: TurnId) -> tuple[Question, ...]:
    """Return all questions of the turn in the order in which they were put, decided or not."""
    return tuple(map(question_from, db.execute(QUESTIONS, (turn_id,))))


def open_questions(db: Connection, now: float, page: Page, within: str = "") -> QuestionPage:
    """Return the questions that can be decided now, oldest first, in chats whose key begins with `within`."""
    limit, bounds = check_limit(page), key_bounds(within)
    rows = db.execute(OPEN_QUESTIONS, (now, parse_number_cursor(page.after), *bounds, limit + 1)).fetchall()
    found = tuple(_asked_from(row[1:]) for row in rows[:limit])
    return QuestionPage(found, str(rows[limit - 1][0]) if len(rows) > limit else None)


def closed_questions(db: Connection, now: float, since: float, within: str) -> tuple[AskedQuestion, ...]:
    """Return the questions that were open at the time `since` or later and cannot be decided any more, in
    chats whose key begins with `within`."""
    rows = db.execute(CLOSED_SINCE, (since, since, *key_bounds(within), now, since))
    return tuple(map(_asked_from, rows))


def find_question(db: Connection, question_id: QuestionId) -> AskedQuestion | None:
    return find_one(_asked_from, db.execute(FIND_QUESTION, (question_id,)))


def is_granted(db: Connection, session_id: SessionId, digest: str) -> bool:
    """Return whether a person granted this to the session. No grant outlasts the end of its session."""
    return db.execute(FIND_GRANT, (session_id, digest)).fetchone() is not None


def is_granted_to_job(db: Connection, job_id: JobId, plan: str, digest: str) -> bool:
    """Return whether a person granted this to a job, in answer to one of its runs. A grant lasts as long
    as the digest of the job's plan is `plan`."""
    return db.execute(FIND_JOB_GRANT, (job_id, plan, digest)).fetchone() is not None


def has_job_asked(db: Connection, job_id: JobId, plan: str) -> bool:
    """Return whether a run of the job with this plan has put a question."""
    return is_granted_to_job(db, job_id, plan, _HAS_ASKED)


def _asked_from(row: Any) -> AskedQuestion:
    width = len(TURN_COLUMNS.split(","))
    return AskedQuestion(question_from(row[width:]), turn_from(row[:width]))
