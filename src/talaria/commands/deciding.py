"""The texts about open questions: how they are shown, and what people are told who decide them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.delivery import Button
from talaria.core.ids import QuestionId
from talaria.core.ledger import AskedQuestion
from talaria.core.questions import APPROVE, Question, QuestionKind, Span
from talaria.core.text import clean_line

_LISTED = 10
_SHORT = 200
_SPANS = {span.value: span for span in Span}
_SAID = {
    Span.ONCE: "Approved, once",
    Span.SESSION: "Approved for this session",
    Span.ALWAYS: "Approved for always",
}
HOST_TITLE = "May commands reach this host?"


def decision_buttons(question_id: QuestionId) -> tuple[Button, ...]:
    """Return the buttons that approve or deny. None of them allows a host for always: that is for operators,
    and nobody is one on a platform with buttons."""
    return (
        Button("Approve once", f"/approve {question_id}"),
        Button("For the session", f"/approve {question_id} session"),
        Button("Deny", f"/deny {question_id}"),
    )


def host_message(question: Question, outcome: str = "") -> str:
    """Return the markdown of a message with a question about a host, and its outcome if it is decided."""
    place, _, why = question.text.partition("\n\n")
    return "\n\n".join(filter(None, (HOST_TITLE, f"`{place}`", why, outcome)))


def name_question(question: Question) -> str:
    """Return the question in one line."""
    return clean_line(question.text, _SHORT)


def outcome_words(kind: QuestionKind, text: str, span: Span) -> str:
    """Return a decision in words, for the place where the question was shown."""
    if kind is QuestionKind.ANSWER:
        return f"Answered: {clean_line(text, _SHORT)}"
    return f"{_SAID[span]}." if text == APPROVE else "Denied."


def say_decision(question: Question, text: str, span: Span) -> str:
    """Return what a person is told who has decided: it names what was decided about."""
    if question.kind is QuestionKind.ANSWER:
        return f"Answered: {name_question(question)}"
    said = _SAID[span] if text == APPROVE else "Denied"
    return f"{said}: {name_question(question)}"


def parse_approval(args: str) -> tuple[str, Span] | None:
    """Return the id (`""` for none) and the span that the arguments of `/approve` name; None for too many."""
    words = args.split()
    spans = [_SPANS[word] for word in words if word in _SPANS]
    named = [word for word in words if word not in _SPANS]
    if len(spans) > 1 or len(named) > 1:
        return None
    return "".join(named), spans[0] if spans else Span.ONCE


def list_questions(questions: Sequence[Question]) -> str:
    """Return the open questions with their ids, to follow a sentence; `""` if there are none."""
    if not questions:
        return ""
    lines = [f"- {question.id}: {name_question(question)}" for question in questions[:_LISTED]]
    return "\nOpen:\n" + "\n".join(lines)


def waiting_lines(asked: Sequence[AskedQuestion]) -> str:
    """Return the open questions of the chat for `/status`, each on a line of its own."""
    lines = []
    for item in asked[:_LISTED]:
        question, who = item.question, item.turn.inbound.sender
        how = f"`/approve {question.id}` or `/deny {question.id}`"
        if question.kind is QuestionKind.ANSWER:
            how = "the next message is the answer"
        lines.append(f"\nWaits for {who.name or who.id}: {name_question(question)} ({how})")
    return "".join(lines)
