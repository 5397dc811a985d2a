"""Questions of a turn in a chat: messages with buttons, which are edited when they are decided."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from talaria.commands.command import HOST_TITLE, decision_buttons, outcome_words
from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.delivery import (
    Button,
    DeliveryDelayed,
    DeliveryError,
    DeliveryUnknown,
    OutgoingFile,
    OutgoingMessage,
)
from talaria.core.events import FINAL_EVENTS, Event, QuestionAsked, QuestionDecided
from talaria.core.ids import QuestionId
from talaria.core.questions import APPROVE, DENY, Question, QuestionKind, Span
from talaria.turns.delivery import ShownTurn

if TYPE_CHECKING:
    from talaria.channels.live_message import ChatOutlet

_log = logging.getLogger("talaria.channels")

ANSWER_COMMAND = "/answer"  # of a button; people write the number of a choice
ROOM = 500  # characters of a message that shows a question: its title, and the outcome
_RETRIES = Backoff(first=1.0, longest=60.0)
_LONGEST_FENCE = 16  # backticks; the renderers read no longer one
_DECISIONS = {"👍": APPROVE, "✅": APPROVE, "👎": DENY, "❌": DENY}
_KEYCAP = re.compile("([1-9])\u20e3")
_VARIANTS = re.compile("[\ufe0f\U0001f3fb-\U0001f3ff]")  # the colour of a hand, and the form of a keycap
_CLOSED = "Not decided: it is no longer asked."
_IN_FILE = "The whole text is in the file above; read it before you decide."


def question_buttons(event: QuestionAsked) -> tuple[Button, ...]:
    """Return the buttons of a question. Each names the question, so that an old one decides nothing else."""
    key = event.question_id
    if event.kind is QuestionKind.ANSWER:
        return tuple(Button(text, f"{ANSWER_COMMAND} {key} {n}") for n, text in enumerate(event.choices))
    return decision_buttons(key)


def title_of(event: QuestionAsked) -> str:
    match event.kind:
        case QuestionKind.APPROVAL:
            return "May this run?"
        case QuestionKind.HOST:
            return HOST_TITLE
        case QuestionKind.ANSWER:
            how = "a choice, its number, or other words" if event.choices else "in your next message"
            return f"Your answer is needed ({how}):"


def whole_text(event: QuestionAsked) -> str:
    """Return the question with its choices. They are numbered: a button cuts a long one, and a platform may
    have no buttons."""
    listed = "\n".join(f"{number}. {choice}" for number, choice in enumerate(event.choices, 1))
    return f"{event.text}\n\n{listed}" if listed else event.text


class QuestionBoard:
    """Shows the questions of one turn. A message that shows a question is sent once, also after a restart."""

    def __init__(self, outlet: ChatOutlet, clock: Clock, address: str, view: ShownTurn) -> None:
        self._outlet = outlet
        self._clock = clock
        self._address = address
        self._view = view
        self._shown: dict[QuestionId, tuple[QuestionAsked, str]] = {}  # with the message's id

    async def take(self, event: Event) -> None:
        """Show what an event of the turn changes. Tries until the platform has taken or refused it."""
        try:
            await self._handle(event)
        except DeliveryError as error:
            _log.warning("a question is not shown as it should be: %s", error.user_text)

    async def _handle(self, event: Event) -> None:
        if isinstance(event, QuestionAsked):
            known = await self._view.question_message(event.question_id)
            shown = known or await self._ask(event)
            self._shown[event.question_id] = (event, shown)
        elif isinstance(event, QuestionDecided):
            if (asked := self._shown.pop(event.question_id, None)) is not None:
                told = outcome_words(asked[0].kind, event.decision, event.span)
                await self._close(*asked, told)
        elif isinstance(event, FINAL_EVENTS):
            for asked in self._shown.values():
                if asked[0].kind is not QuestionKind.HOST:  # that stays open for the session
                    await self._close(*asked, _CLOSED)
            self._shown.clear()

    async def _ask(self, event: QuestionAsked) -> str:
        """Send the question, whole, before its buttons."""
        body, buttons, key = self._body(event), question_buttons(event), event.question_id
        if (picture := await self._view.picture(event.name)) is not None:
            file = OutgoingFile("page.png", picture)
            with suppress(DeliveryError):  # the question is complete without it
                await self._outlet.deliver(OutgoingMessage(self._address, "", f"{key}.picture", file=file))
        for pause in _RETRIES.pauses():
            try:
                if self._shown_text(event) is None:
                    file = OutgoingFile(f"{event.name or 'question'}.txt", whole_text(event).encode())
                    await self._outlet.deliver(OutgoingMessage(self._address, "", f"{key}.file", file=file))
                sent = await self._outlet.deliver(OutgoingMessage(self._address, body, key, buttons=buttons))
                break
            except (DeliveryDelayed, DeliveryUnknown) as error:
                wish = error.retry_after if isinstance(error, DeliveryDelayed) else None
                await self._clock.sleep(wish or pause)
        await self._view.question_shown(key, sent)
        return sent

    async def _close(self, event: QuestionAsked, shown: str, told: str) -> None:
        """Let the message say the outcome. Its buttons go."""
        body = f"{self._body(event)}\n\n{told}"
        await self._outlet.deliver(OutgoingMessage(self._address, body, event.question_id, edits=shown))

    def _body(self, event: QuestionAsked) -> str:
        return f"{title_of(event)}\n\n{self._shown_text(event) or f'{event.name}: {_IN_FILE}'}"

    def _shown_text(self, event: QuestionAsked) -> str | None:
        """Return the question as markdown; None if it must be sent as a file.

        A call is shown letter by letter in a code block: no text of it is taken for a link or a mark.
        """
        text = whole_text(event)
        if len(text) > self._outlet.longest - ROOM:
            return None
        return text if event.kind is QuestionKind.ANSWER else code_block(text)


def code_block(text: str) -> str | None:
    """Return markdown that shows the text letter by letter; None if no fence is longer than its backticks."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}" if len(fence) <= _LONGEST_FENCE else None


def is_decision(emoji: str) -> bool:
    """Return whether an emoji below a question can decide it."""
    plain = _VARIANTS.sub("", emoji)
    return plain in _DECISIONS or _KEYCAP.fullmatch(plain) is not None


def decided_by(emoji: str, question: Question) -> str:
    """Return what an emoji below a question says: to approve or to deny or, by its number, a choice; empty if
    it says nothing about this question."""
    plain = _VARIANTS.sub("", emoji)
    if question.kind is not QuestionKind.ANSWER:
        return _DECISIONS.get(plain, "")
    number = int(key[1]) if (key := _KEYCAP.fullmatch(plain)) else 0
    return question.choices[number - 1] if 0 < number <= len(question.choices) else ""


class PressedDecision(msgspec.Struct, frozen=True):
    """A button of a question as it was pressed. `choice` is the place of an answer among the choices."""

    question_id: QuestionId
    text: str = ""
    span: Span = Span.ONCE
    choice: int | None = None

    @classmethod
    def read(cls, pressed: str) -> PressedDecision | None:
        """Return None for the text of another button."""
        word, *rest = pressed.split() or [""]
        if word not in ("/approve", "/deny", ANSWER_COMMAND) or not rest or not rest[0].startswith("q_"):
            return None
        question_id, last = QuestionId(rest[0]), rest[1] if len(rest) > 1 else ""
        if word == ANSWER_COMMAND:
            is_place = last.isascii() and last.isdecimal() and len(last) < 4
            return cls(question_id, choice=int(last)) if is_place else None
        if last and last not in set(Span):
            return None
        return cls(question_id, word[1:], Span(last or Span.ONCE))
