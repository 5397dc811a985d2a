"""`Reception`: decides about each input of a chat platform and hands messages to the intake."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec

from talaria.access.approvals import Decider, NotEntitled, QuestionClosed
from talaria.access.authorizer import Authorized, Authorizer, Denied, Ingress, Stranger
from talaria.access.settings import Unknown
from talaria.channels.incoming import ButtonPress, IncomingMessage, Reaction, RemoteFile, Withdrawal
from talaria.channels.platform_api import PlatformError, PlatformTooLarge
from talaria.channels.questions import PressedDecision, decided_by
from talaria.commands.command import outcome_words, parse_command
from talaria.core.errors import (
    IdempotencyConflict,
    LimitReached,
    Overloaded,
    StoreError,
    TalariaError,
    ToolError,
)
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatKey
from talaria.core.ledger import Page
from talaria.core.messages import Part, Text
from talaria.core.turns import Inbound, Sender
from talaria.gateway import Gateway
from talaria.turns.intake import Draining
from talaria.workspace.quota import FolderFull

_log = logging.getLogger("talaria.channels")

_DOWNLOADS_AT_ONCE = 3  # files are held in memory as a whole
CORRECTS = "[This corrects an earlier message.]"
_OLD_BUTTON = "This button is too old."


class Platform(Protocol):
    """The calls that `Reception` needs from a chat platform."""

    @property
    def title(self) -> str:
        """The platform's name for people."""
        ...

    @property
    def max_download(self) -> int:
        """The size in bytes of the largest file that is fetched."""
        ...

    async def say(self, address: str, text: str) -> None:
        """Send a notice that is not a reply. Log an error instead of raising it."""
        ...

    async def fetch(self, file: RemoteFile) -> bytes:
        """Return the content of a file. Raises `PlatformError`."""
        ...


class Reception:
    """Takes the inputs of one channel. A message is durable when the call that took it returns.

    Each call raises `StoreError`, `Draining` or `Overloaded` if a message could not be stored. The platform
    must then send the input again. Any other error is logged, and the input is left out: an input that breaks
    the gateway would otherwise come again forever.
    """

    def __init__(
        self, platform: Platform, authorizer: Authorizer, gateway: Gateway, unknown: Unknown = "pair"
    ) -> None:
        self._platform = platform
        self._offers_pairing = unknown == "pair"
        self._authorizer = authorizer
        self._gateway = gateway
        self._full: set[ChatKey] = set()  # chats that were told that too many of their messages wait
        self._downloads = asyncio.Semaphore(_DOWNLOADS_AT_ONCE)

    async def receive(self, messages: Sequence[IncomingMessage]) -> bool:
        """Take one message, or several of one sender that are one: an album, or the parts of a long text.
        Return whether the sender may use the agent."""
        with leaving_out_broken():
            first = messages[0]
            said = "\n".join(message.text for message in messages if message.text)
            match await self._authorizer.check(first.actor, first.ingress):
                case Authorized(sender=sender):
                    await self._accept(messages, said, sender)
                    return True
                case Stranger():
                    greeting = await self._authorizer.greet(first.actor, said, offers=self._offers_pairing)
                    if greeting is not None:
                        await self._platform.say(first.address, greeting)
                case Denied(reason=reason):
                    _log.debug("a message was dropped: %s", reason)
        return False

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Cancel a message that waits, without an answer. One that has begun is left alone."""
        with leaving_out_broken():
            self._gateway.turns.withdraw(withdrawal.chat, withdrawal.key)

    async def press(self, press: ButtonPress) -> str | None:
        """Take a button press as a decision or as a message, and return what the person is told. A stranger
        learns nothing from it."""
        with leaving_out_broken():
            verdict = await self._authorizer.check(press.actor, Ingress.BUTTON)
            if isinstance(verdict, Authorized):
                return await self._take_press(press, verdict.sender)
        return None

    async def react(self, reaction: Reaction) -> None:
        """Take an emoji below an open question as a decision, if the person may decide. The question shows
        the outcome. Any other reaction has no effect."""
        with leaving_out_broken():
            verdict = await self._authorizer.check(reaction.actor, Ingress.BUTTON)
            if not isinstance(verdict, Authorized):
                return
            decisions, decider = self._gateway.turns.decisions, Decider(verdict.sender.id, reaction.chat)
            for asked in (await decisions.listing(Page(), reaction.chat)).items:
                question = asked.question
                if (asked.turn.chat_key, question.shown_id) != (reaction.chat, reaction.message):
                    continue
                if text := decided_by(reaction.emoji, question):
                    try:
                        await decisions.decide_as(decider, question.id, text)
                    except (NotEntitled, QuestionClosed) as error:
                        _log.debug("a reaction decides nothing: %s", error.user_text)

    async def _accept(self, messages: Sequence[IncomingMessage], said: str, sender: Sender) -> None:
        first = messages[0]
        command = parse_command(said)
        if command is not None and command.name == "start":
            said = "/help"
        text = "\n".join(part for part in (first.preface, said) if part)
        parts: list[Part] = [Text(text)] if text else []
        for message in messages:
            for file in message.files:
                parts += await self._fetch(first.chat, file)
        repeats = any(message.repeats_others for message in messages) or msgspec.UNSET
        inbound = Inbound(
            first.chat, sender, tuple(parts), first.key, address=first.address, repeats_others=repeats
        )
        if first.edits is not None and command is None:
            if await self._gateway.turns.amend(msgspec.structs.replace(inbound, key=first.edits), first.key):
                return
            corrected = (Text(f"{CORRECTS}\n{text}".strip()), *parts[bool(text) :])
            inbound = msgspec.structs.replace(inbound, parts=corrected)
        try:
            await self._submit(inbound, first.address)
        except IdempotencyConflict:
            # The same message was accepted before with other content: a file could not be fetched then, or
            # the album was not complete. The messages that were missing have keys of their own.
            for message in messages[1:]:
                await self._accept([message], message.text, sender)

    async def _submit(self, inbound: Inbound, address: str) -> None:
        """Submit the message. If its chat is full, tell the chat once, until a message is taken again."""
        hit(Failpoint.RECEIVED)
        try:
            await self._gateway.turns.submit(inbound)
            hit(Failpoint.ACCEPTED)
            self._full.discard(inbound.chat_key)
        except LimitReached as full:
            if inbound.chat_key not in self._full:
                self._full.add(inbound.chat_key)
                await self._platform.say(address, full.info().sentence())

    async def _fetch(self, key: ChatKey, file: RemoteFile) -> list[Part]:
        """Store a file in the chat's folder and return its parts; if that fails, a text that says so."""
        if (file.size or 0) > self._platform.max_download:
            return [_missing(file, _too_large(self._platform))]
        try:
            async with self._downloads:
                data = await self._platform.fetch(file)
                # A message that comes twice finds the file of the first by its name and content.
                return await self._gateway.uploads.put(key, file.name, file.media_type, data)
        except PlatformTooLarge:
            return [_missing(file, _too_large(self._platform))]
        except PlatformError as error:
            _log.warning("a file could not be fetched: %s", error.user_text)
            return [_missing(file, f"{self._platform.title} did not hand it out")]
        except FolderFull as error:
            return [_missing(file, f"{error.user_text} {error.hint}".removesuffix("."))]
        except ToolError as error:
            _log.warning("a file could not be written: %s", error.user_text)
            return [_missing(file, "it could not be written here")]

    async def _take_press(self, press: ButtonPress, sender: Sender) -> str | None:
        if press.command is None:
            return _OLD_BUTTON
        if (decided := PressedDecision.read(press.command)) is not None:
            return await self._decide(Decider(sender.id, press.chat), decided)
        inbound = Inbound(press.chat, sender, (Text(press.command),), press.key, address=press.address)
        try:
            await self._submit(inbound, press.address)
        except IdempotencyConflict:
            _log.debug("button press %s came twice", press.key)
        return None

    async def _decide(self, decider: Decider, pressed: PressedDecision) -> str:
        """Take a decision, if the person may decide, and return what the person is told."""
        decisions = self._gateway.turns.decisions
        try:
            found = await decisions.find(pressed.question_id)
            text, choices = pressed.text, found.question.choices
            if pressed.choice is not None:
                if pressed.choice >= len(choices):
                    return _OLD_BUTTON
                text = choices[pressed.choice]
            await decisions.decide_as(decider, pressed.question_id, text, pressed.span)
        except StoreError:
            raise
        except TalariaError as error:
            return error.user_text
        return outcome_words(found.question.kind, text, pressed.span)


async def admit(
    authorizer: Authorizer, message: IncomingMessage, say: Callable[[str, str], Awaitable[object]]
) -> str | None:
    """Answer a message that presents a code, and return the name of the person if it lets the person in. All
    other messages are for the gateway, which receives them later."""
    if not message.text.startswith("/start "):
        return None
    text = await authorizer.greet(message.actor, message.text)
    if text is not None:
        await say(message.address, text)
    is_in = isinstance(await authorizer.check(message.actor, Ingress.MESSAGE), Authorized)
    return message.actor.name or message.actor.user_id if is_in else None


@contextmanager
def leaving_out_broken() -> Iterator[None]:
    """Log an error of an input that would come again forever; raise the errors that may pass."""
    try:
        yield
    except (StoreError, Draining, Overloaded, PlatformError):
        raise
    except Exception:
        _log.exception("an input could not be handled and is left out")


def _too_large(platform: Platform) -> str:
    return f"it is larger than {platform.max_download >> 20} MB, the largest file taken from {platform.title}"


def _missing(file: RemoteFile, reason: str) -> Text:
    return Text(f"[The file {file.name} is not here: {reason}.]")
