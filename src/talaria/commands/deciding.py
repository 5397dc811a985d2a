"""`/approve` and `/deny`: which open question a person means, and what the person is told."""

from __future__ import annotations

from talaria.commands.command_types import CommandContext, CommandResult, DecisionWish
from talaria.core.delivery import Button
from talaria.core.ids import QuestionId, asking_chat
from talaria.core.ledger import AskedQuestion
from talaria.core.questions import APPROVE, DENY, Question, QuestionKind, Span
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


def approve(context: CommandContext, args: str) -> CommandResult:
    words = args.split()
    spans = [_SPANS[word] for word in words if word in _SPANS]
    named = [word for word in words if word not in _SPANS]
    if len(spans) > 1 or len(named) > 1:
        return CommandResult(
            "Say `/approve`, `/approve ID`, `/approve ID session` or, for a host, `/approve ID always`."
        )
    return _decide(context, "".join(named), APPROVE, spans[0] if spans else Span.ONCE)


def deny(context: CommandContext, args: str) -> CommandResult:
    return _decide(context, args, DENY, Span.ONCE)


def _decide(context: CommandContext, named: str, text: str, span: Span) -> CommandResult:
    asked = [item.question for item in context.questions if item.question.kind is not QuestionKind.ANSWER]
    if named:
        found = [question for question in asked if question.id == named]
        if not found:
            return CommandResult(f"There is no open question {clean_line(named, 60)}.{_listed(asked)}")
    else:
        found = [item.question for item in context.questions if _is_here(context, item)]
        found = [question for question in found if question in asked]
    if not found:
        return CommandResult("Nothing waits for a decision in this chat.")
    if len(found) > 1 or (not named and context.is_ambiguous):
        why = "Several approval requests are open" if len(found) > 1 else "The approval request has changed"
        told = f"Nothing was decided. {why}, so name the one you mean: `/{text} ID`.{_listed(found)}"
        return CommandResult(told, buttons=decision_buttons(found[0].id) if len(found) == 1 else ())
    question = found[0]
    return CommandResult(say_decision(question, text, span), decide=DecisionWish(question.id, text, span))


def _is_here(context: CommandContext, item: AskedQuestion) -> bool:
    return asking_chat(item.turn.chat_key) == context.session.chat_key


def _listed(questions: list[Question]) -> str:
    if not questions:
        return ""
    lines = [f"- {question.id}: {name_question(question)}" for question in questions[:_LISTED]]
    return "\nOpen:\n" + "\n".join(lines)


def waiting_lines(context: CommandContext) -> str:
    """Return the open questions of the chat for `/status`, each on a line of its own."""
    lines = []
    for item in context.questions[:_LISTED]:
        question, who = item.question, item.turn.inbound.sender
        how = f"`/approve {question.id}` or `/deny {question.id}`"
        if question.kind is QuestionKind.ANSWER:
            how = "the next message is the answer"
        lines.append(f"\nWaits for {who.name or who.id}: {name_question(question)} ({how})")
    return "".join(lines)
