"""Questions of a turn in a Telegram chat: messages with buttons, which are edited when they are decided."""

from __future__ import annotations

import logging

import msgspec

from talaria.channels.telegram.bot_api import BotApi, BotApiError, BotApiRefused, PostedMessage, Value
from talaria.channels.telegram.parse import ChatTarget, keyboard_params
from talaria.commands.command import HOST_TITLE, decision_buttons, outcome_words
from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.delivery import Button
from talaria.core.events import FINAL_EVENTS, Event, QuestionAsked, QuestionDecided
from talaria.core.ids import QuestionId
from talaria.core.questions import QuestionKind, Span
from talaria.turns.delivery import ShownTurn

_log = logging.getLogger("talaria.telegram")

MAX_TEXT = 3500  # characters of a question in one message; Telegram takes 4096 units
_RETRIES = Backoff(first=1.0, longest=60.0)
_CLOSED = "Not decided: it is no longer asked."
_IN_FILE = "The whole text is in the file above; read it before you decide."


def question_buttons(event: QuestionAsked) -> tuple[Button, ...]:
    """Return the buttons of a question. Each names the question, so that an old one decides nothing else."""
    key = event.question_id
    if event.kind is QuestionKind.ANSWER:
        return tuple(Button(text, f"/answer {key} {n}") for n, text in enumerate(event.choices))
    return decision_buttons(key)


def title_of(event: QuestionAsked) -> str:
    match event.kind:
        case QuestionKind.APPROVAL:
            return "May this run?"
        case QuestionKind.HOST:
            return HOST_TITLE
        case QuestionKind.ANSWER:
            return "Your answer is needed (a button, or your next message):"


class QuestionBoard:
    """Shows the questions of one turn. A message that shows a question is sent once, also over a restart."""

    def __init__(self, api: BotApi, clock: Clock, target: ChatTarget, view: ShownTurn) -> None:
        self._api = api
        self._clock = clock
        self._target = target
        self._view = view
        self._shown: dict[QuestionId, tuple[QuestionAsked, str]] = {}  # with the message's id

    async def take(self, event: Event) -> None:
        """Show what an event of the turn changes. Tries until Telegram has taken or refused it."""
        try:
            await self._handle(event)
        except BotApiError as error:
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
        for pause in _RETRIES.pauses():
            try:
                if len(event.text) > MAX_TEXT:
                    await self._send_file(event)
                text = self._text(event)
                sent = await self._api.call(
                    "sendMessage",
                    PostedMessage,
                    text=text,
                    entities=_code(text, event),
                    **self._target.params(),
                    **keyboard_params(question_buttons(event)),
                )
                break
            except BotApiRefused as refusal:
                if refusal.code != 429:
                    raise
                await self._clock.sleep(refusal.retry_after or pause)
            except BotApiError:
                await self._clock.sleep(pause)
        await self._view.question_shown(event.question_id, str(sent.message_id))
        return str(sent.message_id)

    async def _send_file(self, event: QuestionAsked) -> None:
        name = f"{event.name or 'question'}.txt"
        await self._api.upload(
            "sendDocument", PostedMessage, "document", (name, event.text.encode()), **self._target.params()
        )

    async def _close(self, event: QuestionAsked, shown: str, told: str) -> None:
        """Let the message say the outcome. Its buttons go."""
        text = f"{self._text(event)}\n\n{told}"
        await self._api.edit(self._target.chat, shown, text=text, entities=_code(text, event))

    def _text(self, event: QuestionAsked) -> str:
        body = event.text if len(event.text) <= MAX_TEXT else f"{event.name}: {_IN_FILE}"
        return f"{title_of(event)}\n\n{body}"


def _code(text: str, event: QuestionAsked) -> Value:
    """Return the entity that shows a call letter by letter; no text of it is taken for a link or a mark."""
    if event.kind is QuestionKind.ANSWER or event.text not in text:
        return None
    before = len(title_of(event)) + 2
    return [{"type": "pre", "offset": before, "length": len(event.text.encode("utf-16-le")) // 2}]


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
        if word not in ("/approve", "/deny", "/answer") or not rest or not rest[0].startswith("q_"):
            return None
        question_id, last = QuestionId(rest[0]), rest[1] if len(rest) > 1 else ""
        if word == "/answer":
            is_place = last.isascii() and last.isdecimal() and len(last) < 4
            return cls(question_id, choice=int(last)) if is_place else None
        if last and last not in set(Span):
            return None
        return cls(question_id, word[1:], Span(last or Span.ONCE))
