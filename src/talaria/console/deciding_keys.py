"""Decisions in the terminal chat: the questions that are open, and the keys that decide them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from talaria.commands.command import outcome_words
from talaria.console.gateway_client import GatewayClient
from talaria.core.errors import TalariaError
from talaria.core.events import FINAL_EVENTS, Event, QuestionAsked, QuestionDecided
from talaria.core.ids import QuestionId
from talaria.core.questions import APPROVE, DENY, QuestionKind, Span

_REPLACED = "Nothing was decided: the earlier request was closed, and this is another request. Decide again."


class KeyChoice(msgspec.Struct, frozen=True):
    """A key, its meaning in words, and the decision that it makes."""

    key: str
    words: str
    text: str
    span: Span = Span.ONCE


_ONCE = KeyChoice("a", "approve once", APPROVE)
_SESSION = KeyChoice("s", "approve for the session", APPROVE, Span.SESSION)
_ALWAYS = KeyChoice("w", "approve always", APPROVE, Span.ALWAYS)
_DENY = KeyChoice("d", "deny", DENY)


def key_choices(kind: QuestionKind) -> tuple[KeyChoice, ...]:
    """Return the keys for a question; none for one that is answered in words."""
    match kind:
        case QuestionKind.APPROVAL:
            return (_ONCE, _SESSION, _DENY)
        case QuestionKind.HOST:
            return (_ONCE, _SESSION, _ALWAYS, _DENY)
        case QuestionKind.ANSWER:
            return ()


def prompt_of(event: QuestionAsked) -> str:
    """Return the line that says which keys decide."""
    if keys := key_choices(event.kind):
        return ", ".join(f"{choice.key} = {choice.words}" for choice in keys) + " › "
    return "your answer (or its number) › " if event.choices else "your answer › "


def read_decision(event: QuestionAsked, typed: str) -> tuple[str, Span] | None:
    """Return the decision that a typed text means; None if it means none."""
    typed = typed.strip()
    if keys := key_choices(event.kind):
        found = [choice for choice in keys if typed.lower() in (choice.key, choice.words)]
        return (found[0].text, found[0].span) if found else None
    if typed.isdecimal() and len(typed) < 3 and 1 <= int(typed) <= len(event.choices):
        return event.choices[int(typed) - 1], Span.ONCE
    return (typed, Span.ONCE) if typed else None


class OpenQuestions:
    """The open questions of the turn that is shown. The person is asked about the first one.

    A question that is decided elsewhere, or whose turn ends, is no longer asked. `notice` prints what became
    of one. `opened` is set while there is a question.
    """

    def __init__(self, client: GatewayClient, notice: Callable[[str], None]) -> None:
        self._client = client
        self._notice = notice
        self._open: dict[QuestionId, QuestionAsked] = {}
        self._kinds: dict[QuestionId, QuestionKind] = {}
        self._is_replaced = False  # the first request was closed elsewhere, perhaps unnoticed
        self.opened = asyncio.Event()

    @property
    def first(self) -> QuestionAsked | None:
        return next(iter(self._open.values()), None)

    def take(self, event: Event) -> None:
        """Take an event of the turn, after it was shown."""
        if isinstance(event, QuestionAsked):
            self._open[event.question_id] = event
            self._kinds[event.question_id] = event.kind
            self.opened.set()
        elif isinstance(event, QuestionDecided):
            self._is_replaced |= self.first is not None and self.first.question_id == event.question_id
            self._close(event.question_id)
            kind = self._kinds.get(event.question_id, QuestionKind.APPROVAL)
            self._notice(outcome_words(kind, event.decision, event.span))
        elif isinstance(event, FINAL_EVENTS):
            self.clear()

    def clear(self) -> None:
        """Ask nothing more: the turn is no longer shown."""
        self._open.clear()
        self._is_replaced = False
        self.opened.clear()

    async def decide(self, typed: str) -> bool:
        """Decide the first question. Return False if none is open, or if the text decides nothing."""
        event = self.first
        decision = None if event is None else read_decision(event, typed)
        if event is None or decision is None:
            return False
        if self._is_replaced:
            self._is_replaced = False
            self._notice(_REPLACED)
            return True
        self._close(event.question_id)  # an event about this request is from now on its outcome
        try:
            await self._client.decide(event, *decision)
        except TalariaError as error:
            self._notice(f"✗ {error.user_text}")
        return True

    def _close(self, question_id: QuestionId) -> None:
        self._open.pop(question_id, None)
        if not self._open:
            self.opened.clear()
