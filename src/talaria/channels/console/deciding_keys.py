"""Decisions in the terminal chat: the keys that decide a question, and the prompts that ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from talaria.channels.console.gateway_client import GatewayClient
from talaria.commands.deciding import outcome_words
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


class QuestionRenderer(Protocol):
    """The part of a turn's renderer that makes room for a prompt."""

    def hold(self) -> None:
        """Draw nothing below the text until `release`."""
        ...

    def release(self) -> None: ...

    def notice(self, text: str) -> None: ...


class TerminalDecisions:
    """Asks the person at the terminal about the questions of one turn, one after the other.

    `read` prompts for a text and returns None if there is none. A question that is decided elsewhere, or
    whose turn ends, is no longer asked.
    """

    def __init__(
        self,
        client: GatewayClient,
        renderer: QuestionRenderer,
        read: Callable[[QuestionAsked], Awaitable[str | None]],
    ) -> None:
        self._client = client
        self._renderer = renderer
        self._read = read
        self._kinds: dict[QuestionId, QuestionKind] = {}
        self._open: dict[QuestionId, QuestionAsked] = {}
        self._asking: asyncio.Task[None] | None = None
        self._asked: QuestionId | None = None
        self._is_replaced = False  # the request in the prompt was closed elsewhere, perhaps unnoticed

    def take(self, event: Event) -> None:
        """Take an event of the turn, after it was shown."""
        if isinstance(event, QuestionAsked):
            self._open[event.question_id] = event
            self._kinds[event.question_id] = event.kind
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask(), name="chat question")
        elif isinstance(event, QuestionDecided):
            self._open.pop(event.question_id, None)
            kind = self._kinds.get(event.question_id, QuestionKind.APPROVAL)
            self._renderer.notice(outcome_words(kind, event.decision, event.span))
            if self._asked == event.question_id and self._asking is not None:
                self._asking.cancel()
                self._is_replaced = True
        elif isinstance(event, FINAL_EVENTS):
            self._open.clear()
            if self._asking is not None:
                self._asking.cancel()

    async def close(self) -> None:
        """Stop asking."""
        self._open.clear()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))

    async def _ask(self) -> None:
        self._renderer.hold()
        try:
            while self._open:
                self._asked, event = next(iter(self._open.items()))
                if not await self._ask_one(event):
                    self._open.clear()
                self._open.pop(event.question_id, None)
        except asyncio.CancelledError:
            pass
        finally:
            self._renderer.release()
            self._asking = self._asked = None
            if self._open:
                self._asking = asyncio.create_task(self._ask(), name="chat question")

    async def _ask_one(self, event: QuestionAsked) -> bool:
        """Return whether the question is settled; False if nothing more can be read."""
        while (typed := await self._read(event)) is not None:
            if (decision := read_decision(event, typed)) is None:
                continue
            if self._is_replaced:
                self._is_replaced = False
                self._renderer.notice(_REPLACED)
                continue
            self._asked = None  # the key is pressed: an event about this request is its outcome
            try:
                await self._client.decide(event, *decision)
            except TalariaError as error:
                self._renderer.notice(f"✗ {error.user_text}")
            return True
        return False
