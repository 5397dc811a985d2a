"""`UpdateHandler`: decides about each update and hands messages to the intake."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, assert_never

import msgspec

from talaria.access.approvals import Decider
from talaria.access.authorizer import Authorized, Authorizer, ChatKind, Denied, Ingress, Stranger
from talaria.channels.telegram.bot_api import (
    BotApi,
    BotApiError,
    BotApiTooLarge,
    TelegramFile,
    Update,
    User,
    Value,
)
from talaria.channels.telegram.parse import (
    Attachment,
    ButtonPress,
    ChatMigration,
    ChatTarget,
    IgnoredUpdate,
    IncomingMessage,
    ParsedUpdate,
    chat_key,
    is_full,
    parse,
)
from talaria.channels.telegram.questions import PressedDecision
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
from talaria.core.messages import Part, Text
from talaria.core.turns import Inbound, Sender
from talaria.gateway import Gateway
from talaria.turns.intake import Draining
from talaria.workspace.quota import FolderFull

_log = logging.getLogger("talaria.telegram")

MAX_DOWNLOAD = 20 << 20  # the largest file that Telegram hands out to bots
_TOO_LARGE = "it is larger than 20 MB, the most that Telegram gives to bots"
_MAX_TOAST = 190  # characters of the note that answers a press; Telegram takes 200
_DOWNLOADS_AT_ONCE = 3  # files are held in memory as a whole


class UpdateHandler:
    """Handles the updates of one bot. `groups` says which messages in groups are read."""

    def __init__(
        self, api: BotApi, authorizer: Authorizer, gateway: Gateway, groups: Literal["mention", "all", "off"]
    ) -> None:
        self._api = api
        self._authorizer = authorizer
        self._gateway = gateway
        self._groups: Literal["mention", "all", "off"] = groups
        self._agent = gateway.settings.agent.name
        self._full: set[ChatKey] = set()  # chats that were told that too many of their messages wait
        self._downloads = asyncio.Semaphore(_DOWNLOADS_AT_ONCE)

    async def handle(self, updates: Iterable[Update], bot: User) -> None:
        """Handle updates: several chats side by side, the updates of one chat in order. When this returns,
        every message that may become a turn is durable.

        Raises `StoreError`, `Draining` or `Overloaded` if a message could not be stored: then no update may
        be confirmed.
        """
        chats: defaultdict[int, list[ParsedUpdate]] = defaultdict(list)
        for update in updates:
            parsed = parse(update, bot, self._groups)
            if isinstance(parsed, IgnoredUpdate):
                _log.debug("update %s ignored: %s", update.update_id, parsed.reason)
            else:
                chat = parsed.old if isinstance(parsed, ChatMigration) else parsed.target.chat
                chats[chat].append(parsed)
        done = await asyncio.gather(
            *(self._handle_chat(each) for each in chats.values()), return_exceptions=True
        )
        for error in done:
            if error is not None:
                raise error

    async def move_chat(self, old: int, new: int) -> None:
        """Give a group's session and files its new id."""
        before, after = (chat_key(self._agent, ChatTarget(chat), ChatKind.GROUP) for chat in (old, new))
        if await self._gateway.store.move_chat(before, after):
            _log.info("the group %s is %s now", old, new)
            await asyncio.to_thread(self._gateway.folders.move, before, after)

    async def _handle_chat(self, parsed: Sequence[ParsedUpdate]) -> None:
        for group in _groups(parsed):
            try:
                await self._handle_group(group)
            except (StoreError, Draining, Overloaded):
                raise
            except Exception:  # an update that breaks us would come again and again
                _log.exception("an update could not be handled and is left out")

    async def _handle_group(self, group: list[ParsedUpdate]) -> None:
        first = group[0]
        match first:
            case IncomingMessage():
                await self._on_messages([each for each in group if isinstance(each, IncomingMessage)])
            case ButtonPress():
                await self._on_press(first)
            case ChatMigration(old=old, new=new):
                await self.move_chat(old, new)
            case IgnoredUpdate():
                pass
            case _:
                assert_never(first)

    # -- messages -------------------------------------------------------------------------------------------

    async def _on_messages(self, messages: list[IncomingMessage]) -> None:
        """Handle one message, or several of one sender that are one: an album, or parts of a long text."""
        first = messages[0]
        said = "\n".join(message.text for message in messages if message.text)
        match await self._authorizer.check(first.actor, first.ingress):
            case Authorized(sender=sender):
                await self._accept(messages, said, sender)
            case Stranger():
                if (greeting := await self._authorizer.greet(first.actor, said)) is not None:
                    await self._say(first.target, greeting)
            case Denied(reason=reason):
                _log.debug("a message was dropped: %s", reason)

    async def _accept(self, messages: list[IncomingMessage], said: str, sender: Sender) -> None:
        first = messages[0]
        key = chat_key(self._agent, first.target, first.actor.chat_kind)
        command = parse_command(said)
        if command is not None and command.name == "start":
            said = "/help"
        text = "\n".join(part for part in (first.preface, said) if part)
        parts: list[Part] = [Text(text)] if text else []
        for message in messages:
            for file in message.files:
                parts += await self._fetch(key, file)
        repeats = any(message.repeats_others for message in messages) or msgspec.UNSET
        inbound = Inbound(
            key, sender, tuple(parts), first.key, address=first.target.address(), repeats_others=repeats
        )
        try:
            await self._submit(inbound, first.target)
        except IdempotencyConflict:
            # The same message was accepted before with other content: a file could not be fetched then, or
            # the album was not complete. The messages that were missing have keys of their own.
            for message in messages[1:]:
                await self._accept([message], message.text, sender)

    async def _submit(self, inbound: Inbound, target: ChatTarget) -> None:
        """Submit the message. If its chat is full, tell the chat once, until a message is taken again."""
        hit(Failpoint.RECEIVED)
        try:
            await self._gateway.turns.submit(inbound)
            hit(Failpoint.ACCEPTED)
            self._full.discard(inbound.chat_key)
        except LimitReached as full:
            if inbound.chat_key not in self._full:
                self._full.add(inbound.chat_key)
                await self._say(target, full.info().sentence())

    async def _say(self, target: ChatTarget, text: str) -> None:
        try:
            await self._api.call(
                "sendMessage", msgspec.Raw, chat_id=target.chat, message_thread_id=target.thread, text=text
            )
        except BotApiError as error:
            _log.warning("a chat could not be told why its message was not taken: %s", error.user_text)

    # -- files ----------------------------------------------------------------------------------------------

    async def _fetch(self, key: ChatKey, file: Attachment) -> list[Part]:
        """Store a file in the chat's folder and return its parts; if that fails, a text that says so."""
        if (file.size or 0) > MAX_DOWNLOAD:
            return [_missing(file, _TOO_LARGE)]
        try:
            async with self._downloads:
                found = await self._api.call("getFile", TelegramFile, file_id=file.file_id)
                data = await self._api.download(found.file_path, MAX_DOWNLOAD)
                # An update that comes twice finds the file of the first by its name and content.
                return await self._gateway.uploads.put(key, file.name, file.media_type, data)
        except BotApiTooLarge:
            return [_missing(file, _TOO_LARGE)]
        except BotApiError as error:
            _log.warning("a file could not be fetched: %s", error.user_text)
            return [_missing(file, "Telegram did not hand it out")]
        except FolderFull as error:
            return [_missing(file, f"{error.user_text} {error.hint}".removesuffix("."))]
        except ToolError as error:
            _log.warning("a file could not be written: %s", error.user_text)
            return [_missing(file, "it could not be written here")]

    # -- buttons --------------------------------------------------------------------------------------------

    async def _on_press(self, press: ButtonPress) -> None:
        verdict = await self._authorizer.check(press.actor, Ingress.BUTTON)
        answer = None
        if isinstance(verdict, Authorized):
            answer = await self._take_press(press, verdict.sender)
        # Always answered, so that the person's client stops waiting. A stranger learns nothing from it.
        query: dict[str, Value] = {"callback_query_id": press.query_id, "text": answer}
        try:
            await self._api.call("answerCallbackQuery", msgspec.Raw, **query)
        except BotApiError as error:
            _log.debug("a button press was not answered: %s", error.user_text)

    async def _take_press(self, press: ButtonPress, sender: Sender) -> str | None:
        """Take a press as a decision or as a message, and return what the person is told."""
        if press.text is None:
            return "This button is too old."
        key = chat_key(self._agent, press.target, press.actor.chat_kind)
        if (decided := PressedDecision.read(press.text)) is not None:
            return await self._decide(Decider(sender.id, key), decided)
        address = press.target.address()
        inbound = Inbound(key, sender, (Text(press.text),), f"q{press.query_id}", address=address)
        try:
            await self._submit(inbound, press.target)
        except IdempotencyConflict:
            _log.debug("button press %s came twice", press.query_id)
        return None

    async def _decide(self, decider: Decider, pressed: PressedDecision) -> str:
        """Take a decision, if the person may decide, and return what the person is told."""
        decisions = self._gateway.turns.decisions
        try:
            found = await decisions.find(pressed.question_id)
            text, choices = pressed.text, found.question.choices
            if pressed.choice is not None:
                if pressed.choice >= len(choices):
                    return "This button is too old."
                text = choices[pressed.choice]
            await decisions.decide_as(decider, pressed.question_id, text, pressed.span)
        except StoreError:
            raise
        except TalariaError as error:
            return error.user_text[:_MAX_TOAST]
        return outcome_words(found.question.kind, text, pressed.span)[:_MAX_TOAST]


def _missing(file: Attachment, reason: str) -> Text:
    return Text(f"[The file {file.name} is not here: {reason}.]")


def _groups(parsed: Sequence[ParsedUpdate]) -> list[list[ParsedUpdate]]:
    """Return the updates of a chat, with messages that are one message together."""
    groups: list[list[ParsedUpdate]] = []
    for update in parsed:
        if groups and _goes_on(groups[-1][-1], update):
            groups[-1].append(update)
        else:
            groups.append([update])
    return groups


def _goes_on(before: ParsedUpdate, update: ParsedUpdate) -> bool:
    """Return whether an update is the next item of an album, or the next part of a text that was too long for
    one message: programs of Telegram split such a text."""
    if not (isinstance(before, IncomingMessage) and isinstance(update, IncomingMessage)):
        return False
    if before.actor.user_id != update.actor.user_id or Ingress.EDIT in (before.ingress, update.ingress):
        return False
    if before.album is not None or update.album is not None:
        return before.album == update.album
    is_next = update.message_id == before.message_id + 1 and update.target.thread == before.target.thread
    is_text = update.ingress is before.ingress is Ingress.MESSAGE and not update.preface.startswith("[")
    return is_next and is_text and is_full(before.text)
