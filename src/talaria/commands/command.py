"""Commands: how a text is parsed into one, how it is answered, and commands of plug-ins and skills."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from talaria.core.delivery import Button
from talaria.core.entries import EntryBody
from talaria.core.files import SentFile
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId
from talaria.core.ledger import AskedQuestion
from talaria.core.questions import APPROVE, Question, QuestionKind, Span
from talaria.core.specs import PinnedSpec
from talaria.core.text import clean_line
from talaria.core.turns import Sender

_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)
_WITH_DIGITS = re.compile(r"/([A-Za-z][A-Za-z0-9_-]*)(?:\s+(.*))?", re.DOTALL)  # extra commands may have them
_NUMBER_DIGITS = 10  # a longer text is not taken for a number; Python refuses to convert very long ones


class Command(msgspec.Struct, frozen=True):
    """A parsed command. `name` is lower case, without the slash."""

    name: str
    args: str = ""


def parse_command(text: str, *, with_digits: bool = False) -> Command | None:
    """Return the command if the first word is a slash and letters. `/usr/bin/env` and `/ 2` are messages."""
    match = (_WITH_DIGITS if with_digits else _COMMAND).fullmatch(text.strip())
    return Command(match[1].lower(), (match[2] or "").strip()) if match else None


def parse_number(text: str) -> int | None:
    """Return the whole number that the text is, if it is one of ordinary length."""
    return int(text) if text.isdecimal() and len(text) < _NUMBER_DIGITS else None


class CommandResult(msgspec.Struct, frozen=True):
    """The answer to a command that has been carried out, and what is committed with it.

    `buttons` are shown below the reply on channels that have buttons. `entries` are appended to the session's
    log, under its lease, with the `specs` that they name. The sessions `ends` are ended before the reply is
    sent. `files` go out with it.
    """

    reply: str
    entries: tuple[EntryBody, ...] = ()
    buttons: tuple[Button, ...] = ()
    specs: tuple[PinnedSpec, ...] = ()
    ends: tuple[SessionId, ...] = ()
    files: tuple[SentFile, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A call of an extra command. After a crash the same call, with the same `turn_id`, may be made again."""

    name: str
    args: str
    turn_id: TurnId
    session_id: SessionId
    chat_key: ChatKey
    sender: Sender


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraCommand:
    """A command of a plug-in or a skill. `origin` says whose it is, such as `plugin:weather`.

    It has `run`, which answers it without a model, or `message`, which returns the text that the model gets
    in place of the command and its arguments. `message` does not block. `run` raises `TalariaError` for a
    failure that the person should read. A command that `is_control` works while a turn runs; others wait.
    """

    name: str
    help: str
    origin: str
    arguments: str = ""
    run: Callable[[CommandCall], Awaitable[str]] | None = None
    message: Callable[[str], str] | None = None
    is_control: bool = False

    def describe(self) -> str:
        usage = f"/{self.name} {self.arguments}".rstrip()
        return f"{usage}: {self.help} ({self.origin})"


# -- the texts about open questions: how they are shown, and what people are told who decide them ---------
# Pure.


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
