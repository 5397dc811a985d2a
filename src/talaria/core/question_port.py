"""`QuestionStore`: the part of the store's port about questions to people and what they have granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from talaria.core import ledger
from talaria.core.ids import JobId, QuestionId, SessionId, TurnId
from talaria.core.questions import Decision, Question
from talaria.core.turns import Turn


class QuestionStore(Protocol):
    async def ask(self, question: Question) -> None:
        """Write a question for which no turn waits (`QuestionKind.HOST`). Durable. Raises `NotFound` for an
        unknown turn. Questions for which a turn waits are written by `Store.commit`."""
        ...

    async def decide(self, question_id: QuestionId, decision: Decision) -> Turn:
        """Record the decision and return the question's turn, which stays as it is. Durable.

        The caller resumes the turn with `begin` once each of its questions is decided. An approval that
        reaches further than once is a grant for the session from then on. Raises `NotFound`, and
        `IllegalMove` when the question has a decision already or has expired, its turn does not wait, or the
        session of a question about a host is over.
        """
        ...

    async def show_question(self, question_id: QuestionId, platform_id: str) -> None:
        """Store the id of the platform's message that shows the question. Raises `NotFound`."""
        ...

    async def questions(self, turn_id: TurnId) -> Sequence[Question]:
        """Return all questions of the turn in the order in which they were put, decided or not."""
        ...

    async def find_question(self, question_id: QuestionId) -> ledger.AskedQuestion | None: ...

    async def open_questions(self, page: ledger.Page, within: str = "") -> ledger.QuestionPage:
        """Return the questions that can be decided now, oldest first, in chats whose key begins with
        `within`."""
        ...

    async def closed_questions(self, since: float, within: str) -> Sequence[ledger.AskedQuestion]:
        """Return the questions that were open at the time `since` or later and cannot be decided any more, in
        chats whose key begins with `within`."""
        ...

    async def is_granted(self, session_id: SessionId, digest: str) -> bool:
        """Return whether a person granted this to the session. No grant outlasts the end of its session."""
        ...

    async def is_granted_to_job(self, job_id: JobId, plan: str, digest: str) -> bool:
        """Return whether a person granted this to a job, in answer to one of its runs. A grant lasts as long
        as the digest of the job's plan is `plan`."""
        ...

    async def has_job_asked(self, job_id: JobId, plan: str) -> bool:
        """Return whether a run of the job with this plan has put a question."""
        ...
