"""Explains a turn from its ledger alone: what happened, in order, as sentences for `talaria why`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec

from talaria.core.delegates import Delegate
from talaria.core.delivery import OutboxRow, OutboxState
from talaria.core.ids import EPHEMERAL, ChatAddress
from talaria.core.ledger import SENT_TURN, StepUsage, TurnHistory, TurnRecord
from talaria.core.questions import APPROVE, DENY, Question, QuestionKind, Span
from talaria.core.spending import price_command, show_usd
from talaria.core.text import cut
from talaria.core.turns import Step, StepKind, StepState, Turn, TurnState

NO_SUCH_TURN = "`talaria why` lists the last messages with their ids; old turns may have been pruned."

_PREVIEW = 80
_SPANS = {Span.ONCE: "once", Span.SESSION: "for the session", Span.ALWAYS: "for always"}
_DECISIONS = {APPROVE: "approved it", DENY: "denied it"}


class HistoryLine(msgspec.Struct, frozen=True):
    """A line of a turn's history. `at` is None if the ledger has no time for it; `kind` is for programs."""

    at: float | None
    kind: str
    text: str


def explain_history(history: TurnHistory) -> tuple[HistoryLine, ...]:
    """Return what happened to the turn, in the order of the ledger."""
    turn = history.record.turn
    return (
        *_arrival(turn, history.ahead),
        *_attempts(history),
        *_steps(history.record, {used.n: used for used in history.usage}),
        *(line for used in history.usage for line in _estimate(used)),
        *_cost(history.usage, turn.ended_at),
        *_cost_of_tree(history.record),
        *_end(turn),
        *(line for row in history.record.replies for line in _delivery(row)),
    )


def _arrival(turn: Turn, ahead: int) -> Iterator[HistoryLine]:
    sender = turn.inbound.sender
    who = f"{sender.name} ({sender.id})" if sender.name else sender.id or "somebody"
    is_call = ChatAddress.parse(turn.chat_key).kind == EPHEMERAL
    what = f"the command /{turn.command}" if turn.command else "a call of /v1" if is_call else "a message"
    key = f", known there as {turn.inbound.key}" if turn.inbound.key else ""
    if turn.command == SENT_TURN:
        yield HistoryLine(turn.accepted_at, "sent", f"Written to the chat by {who}, outside of a turn{key}.")
        return
    yield HistoryLine(turn.accepted_at, "accepted", f"Accepted {what} of {who} durably{key}.")
    if ahead:
        yield HistoryLine(
            turn.accepted_at, "queued", f"Queued behind {_count(ahead, 'turn')} of its session."
        )
    if turn.merged_into is not None:
        text = f"Joined the running turn {turn.merged_into} and ends as that does."
        yield HistoryLine(turn.accepted_at, "merged", text)


def _attempts(history: TurnHistory) -> Iterator[HistoryLine]:
    turn, owner = history.record.turn, history.begun_by
    by = f" by process {owner}" if owner else ""
    if turn.started_at is None:
        return
    yield HistoryLine(turn.started_at, "begun", f"Begun{by if turn.attempts == 1 else ''}.")
    if turn.attempts < 2:
        return
    crashes = turn.attempts - 1 - turn.forgiven
    why = "its process ended without a word" if crashes else "its process released it in good order"
    many = f" It was interrupted {turn.attempts - 1} times in all." if turn.attempts > 2 else ""
    yield HistoryLine(None, "interrupted", f"Interrupted: {why}.{many}")
    begun = history.begun_at or 0.0
    ended = {step.n for step in history.record.steps if (step.ended_at or math.inf) <= begun}
    first = next(n for n in itertools.count(1) if n not in ended)
    place = f" It continued at step {first}; no step before was repeated." if first > 1 else ""
    yield HistoryLine(history.begun_at, "begun", f"Taken up again, attempt {turn.attempts}{by}.{place}")


def _steps(record: TurnRecord, usage: dict[int, StepUsage]) -> Iterator[HistoryLine]:
    lines: list[HistoryLine] = []
    for step in record.steps:
        for question in record.questions:
            if question.n == step.n and question.kind is not QuestionKind.HOST:
                lines += _question(question, record.turn)
        for delegate in record.delegates:
            if delegate.n == step.n:
                lines += _delegate(delegate)
        lines += _step(step, usage.get(step.n))
    for question in record.questions:
        for told in _host_question(question) if question.kind is QuestionKind.HOST else ():
            later = (n for n, line in enumerate(lines) if line.at is not None and line.at > (told.at or 0))
            lines.insert(next(later, len(lines)), told)
    yield from lines


def _delegate(delegate: Delegate) -> Iterator[HistoryLine]:
    """Tell a task that was handed out, and its outcome. The story of its own turn is told with that."""
    task = f"Step {delegate.n}: handed “{_shortened(delegate.task.title)}” to the delegate {delegate.id}."
    yield HistoryLine(delegate.asked_at, "delegated", task)
    if (outcome := delegate.outcome) is not None:
        turn = f", as {outcome.turn_id}" if outcome.turn_id else ""
        yield HistoryLine(
            delegate.ended_at, "delegate", f"The delegate {delegate.id} ended{turn}: {outcome.state}."
        )


def _host_question(question: Question) -> Iterator[HistoryLine]:
    """Tell a question about a host, for which no turn waits, and its decision. It belongs to no step."""
    place = question.text.partition("\n")[0]
    yield HistoryLine(
        question.asked_at, "asked", f"Asked a person whether commands may reach {_shortened(place)}."
    )
    if (decision := question.decision) is None:
        return
    told = _DECISIONS.get(decision.text, "denied it")
    told += f", {_SPANS[decision.span]}" if decision.text == APPROVE else ""
    yield HistoryLine(decision.decided_at, "decided", f"{decision.by} {told}: {_shortened(place)}.")


def _step(step: Step, usage: StepUsage | None) -> Iterator[HistoryLine]:
    if step.kind is StepKind.MODEL:
        yield HistoryLine(step.ended_at, "model", f"Step {step.n}: {step.name} answered{_used(usage)}.")
        return
    name = f"Step {step.n}: tool {step.name}"
    match step.state:
        case StepState.PENDING:
            yield HistoryLine(None, "tool", f"{name} was asked for and has not run.")
        case StepState.STARTED:
            yield HistoryLine(step.started_at, "tool", f"{name} started; no end of it is known.")
        case StepState.ENDED:
            if step.started_at is not None:
                yield HistoryLine(step.started_at, "tool", f"{name} started.")
            outcome = step.result.outcome.value if step.result else "nothing"
            yield HistoryLine(step.ended_at, "tool", f"{name} ended: {outcome}.")


def _question(question: Question, turn: Turn) -> Iterator[HistoryLine]:
    """Tell a question that parked the turn, and its decision."""
    is_approval = question.kind is QuestionKind.APPROVAL
    asked = f"Asked a person {'whether it may run' if is_approval else 'for an answer'}"
    yield HistoryLine(
        question.asked_at, "asked", f"Step {question.n}: {asked}: “{_shortened(question.text)}”"
    )
    decision = question.decision
    if decision is None:
        if turn.state is not TurnState.WAITING:
            yield HistoryLine(question.expires_at, "decided", f"Step {question.n}: nobody decided in time.")
        return
    told = _DECISIONS.get(decision.text) if is_approval else None
    told = told or f"answered “{_shortened(decision.text)}”"
    late = ", too late" if question.is_expired(decision.decided_at) else ""
    yield HistoryLine(decision.decided_at, "decided", f"Step {question.n}: {decision.by} {told}{late}.")


def _shortened(text: str) -> str:
    return cut(" ".join(text[: _PREVIEW * 16].split()), _PREVIEW)


def _used(usage: StepUsage | None) -> str:
    if usage is None:
        return ""
    tries = f" after {usage.calls} calls" if usage.calls > 1 else ""
    tokens = usage.tokens
    money = f", {show_usd(usage.cost)}" if usage.cost else ""
    return f"{tries} ({tokens.input} tokens in, {tokens.cached} of them cached, {tokens.output} out{money})"


def _cost(usage: tuple[StepUsage, ...], at: float | None) -> Iterator[HistoryLine]:
    """Tell the cost of all calls, if one of them cost something or has no known price."""
    total = sum(used.cost or 0 for used in usage)
    names = {f"{used.provider}/{used.model}" for used in usage if used.cost is None and used.model}
    unknown = " and ".join(sorted(names))
    if unknown:
        hint = f"The price of {unknown} is not known; this sets it, in dollars for a million tokens:"
        text = f"{hint} {price_command(min(names))}"
        yield HistoryLine(at, "cost", f"Cost {show_usd(total)} without that. {text}" if total else text)
    elif total:
        yield HistoryLine(at, "cost", f"Cost {show_usd(total)} in all.")


def _cost_of_tree(record: TurnRecord) -> Iterator[HistoryLine]:
    if record.spent_below.cost:
        cost = show_usd(record.spent_by_tree.cost)
        yield HistoryLine(record.turn.ended_at, "cost", f"Cost {cost} with its delegates.")


def _estimate(usage: StepUsage) -> Iterator[HistoryLine]:
    if not usage.estimated:
        return
    which = f"{usage.estimated} of {usage.calls} calls" if usage.calls > 1 else "the call"
    model = f" to {usage.provider}/{usage.model}" if usage.model else ""
    money = "" if usage.cost is None else f", {show_usd(usage.cost)}"
    yield HistoryLine(
        usage.at,
        "estimate",
        f"Step {usage.n}: {which}{model} broke off or reported no usage. That part of what is "
        f"counted ({usage.tokens.input} tokens in, {usage.tokens.output} out{money}) is an estimate.",
    )


def _end(turn: Turn) -> Iterator[HistoryLine]:
    match turn.state:
        case TurnState.DONE:
            short = _shortened(turn.reply or "")
            yield HistoryLine(
                turn.ended_at, "done", f"Done: “{short}”" if short else "Done, with nothing to say."
            )
        case TurnState.FAILED:
            why = turn.error.sentence() if turn.error else "no reason is known."
            yield HistoryLine(turn.ended_at, "failed", f"Failed: {why}")
        case TurnState.CANCELLED:
            yield HistoryLine(turn.ended_at, "cancelled", "Cancelled.")
        case TurnState.WAITING:
            yield HistoryLine(None, "waiting", "Parked: waits for a person to decide.")
        case TurnState.RUNNING:
            yield HistoryLine(None, "running", "Not settled yet: it runs, or the next start takes it up.")
        case TurnState.ACCEPTED:
            yield HistoryLine(None, "waiting", "Not begun yet: it waits its turn.")


def _delivery(row: OutboxRow) -> Iterator[HistoryLine]:
    name = f"Message {row.part + 1} of the reply" if row.part else "The reply"
    what = f"{name} (reply:{row.id}) to {row.channel} {_place(row.address)}"
    if row.edits is not None:
        what += f", in place of its message {row.edits}"
    tries = _count(row.attempts, "attempt")
    trouble = f" The last one met: {row.error}" if row.error else ""
    match row.state:
        case OutboxState.SENT:
            text = f"{what} was delivered as {row.platform_id} after {tries}."
            yield HistoryLine(row.sent_at, "delivered", text)
        case OutboxState.FAILED:
            yield HistoryLine(None, "undelivered", f"{what} was given up after {tries}.{trouble}")
        case OutboxState.SENDING:
            yield HistoryLine(
                None, "sending", f"{what} is being sent, attempt {row.attempts}; the outcome is open."
            )
        case OutboxState.PENDING:
            yield HistoryLine(row.written_at, "unsent", f"{what} waits to be sent, {tries} so far.{trouble}")


def _place(address: str) -> str:
    """Return the address without the fields at its end that are empty, or that name one message."""
    return address.partition("::")[0].rstrip(":")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
