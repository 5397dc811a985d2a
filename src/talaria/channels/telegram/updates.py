"""`UpdateHandler`: sorts updates by chat, and hands them to the reception."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, assert_never

import msgspec

from talaria.access.authorizer import Authorizer, ChatKind, Ingress
from talaria.access.settings import Unknown
from talaria.channels.incoming import RemoteFile
from talaria.channels.platform_api import PlatformError
from talaria.channels.reception import Reception, leaving_out_broken
from talaria.channels.telegram.bot_api import BotApi, TelegramFile, Update, User, Value
from talaria.channels.telegram.parse import (
    ChatMigration,
    ChatTarget,
    IgnoredUpdate,
    ParsedUpdate,
    TelegramMessage,
    TelegramPress,
    chat_of,
    is_full,
    parse,
)
from talaria.gateway import Gateway

_log = logging.getLogger("talaria.telegram")

_MAX_TOAST = 190  # characters of the note that answers a press; Telegram takes 200


class UpdateHandler:
    """Handles the updates of one bot. `groups` says which messages in groups are read."""

    def __init__(
        self,
        api: BotApi,
        authorizer: Authorizer,
        gateway: Gateway,
        groups: Literal["mention", "all", "off"],
        unknown: Unknown = "pair",
    ) -> None:
        self._api = api
        self._gateway = gateway
        self._reception = Reception(self, authorizer, gateway, unknown)
        self._groups: Literal["mention", "all", "off"] = groups
        self._agent = gateway.settings.agent.name

    async def handle(self, updates: Iterable[Update], bot: User) -> None:
        """Handle updates: several chats side by side, the updates of one chat in order. When this returns,
        every message that may become a turn is durable.

        Raises `StoreError`, `Draining` or `Overloaded` if a message could not be stored: then no update may
        be confirmed.
        """
        chats: defaultdict[int, list[ParsedUpdate]] = defaultdict(list)
        for update in updates:
            parsed = parse(update, bot, self._groups, self._agent)
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
        before, after = (chat_of(self._agent, ChatTarget(chat), ChatKind.GROUP) for chat in (old, new))
        if await self._gateway.store.move_chat(before, after):
            _log.info("the group %s is %s now", old, new)
            await asyncio.to_thread(self._gateway.folders.move, before, after)

    async def _handle_chat(self, parsed: Sequence[ParsedUpdate]) -> None:
        for group in _groups(parsed):
            first = group[0]
            match first:
                case TelegramMessage():
                    await self._reception.receive(
                        [each for each in group if isinstance(each, TelegramMessage)]
                    )
                case TelegramPress():
                    await self._on_press(first)
                case ChatMigration(old=old, new=new):
                    with leaving_out_broken():
                        await self.move_chat(old, new)
                case IgnoredUpdate():
                    pass
                case _:
                    assert_never(first)

    async def _on_press(self, press: TelegramPress) -> None:
        answer = await self._reception.press(press)
        # Always answered, so that the person's client stops waiting.
        text = answer[:_MAX_TOAST] if answer else None
        query: dict[str, Value] = {"callback_query_id": press.query_id, "text": text}
        try:
            await self._api.call("answerCallbackQuery", msgspec.Raw, **query)
        except PlatformError as error:
            _log.debug("a button press was not answered: %s", error.user_text)

    # -- `reception.Platform` -------------------------------------------------------------------------------

    title = "Telegram"
    max_download = 20 << 20  # the largest file that Telegram hands out to bots

    async def say(self, address: str, text: str) -> None:
        target = ChatTarget.read(address)
        try:
            await self._api.call(
                "sendMessage", msgspec.Raw, chat_id=target.chat, message_thread_id=target.thread, text=text
            )
        except PlatformError as error:
            _log.warning("a chat could not be told why its message was not taken: %s", error.user_text)

    async def fetch(self, file: RemoteFile) -> bytes:
        found = await self._api.call("getFile", TelegramFile, file_id=file.id)
        return await self._api.download(found.file_path, self.max_download)


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
    if not (isinstance(before, TelegramMessage) and isinstance(update, TelegramMessage)):
        return False
    if before.actor.user_id != update.actor.user_id or Ingress.EDIT in (before.ingress, update.ingress):
        return False
    if before.album is not None or update.album is not None:
        return before.album == update.album
    is_next = update.message_id == before.message_id + 1 and update.target.thread == before.target.thread
    is_text = update.ingress is before.ingress is Ingress.MESSAGE and not update.preface.startswith("[")
    return is_next and is_text and is_full(before.text)
