"""What is done about an update: who is it, may they, and then into the intake as one message."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, assert_never

import msgspec

from talaria.access.authorizer import (
    Actor,
    Authorized,
    Authorizer,
    ChatKind,
    Denied,
    Ingress,
    Stranger,
    Verdict,
)
from talaria.channels.telegram.client import BotApi, BotApiError
from talaria.channels.telegram.files import FileFetcher
from talaria.channels.telegram.parse import Heard, Ignored, Moved, Parsed, Place, Pressed, chat_key, parse
from talaria.channels.telegram.wire import Update, User
from talaria.commands.slash import parse_command
from talaria.core.errors import IdempotencyConflict, StoreError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatKey
from talaria.core.messages import Part, Text
from talaria.core.turns import Inbound, Sender
from talaria.turns.intake import Draining

_log = logging.getLogger("talaria.telegram")

_TOO_OLD = "This button is too old."


@dataclass(frozen=True, slots=True)
class DeskParts:
    """`submit` returns when the message is durable. `move` gives a chat's rows another key."""

    api: BotApi
    authorizer: Authorizer
    submit: Callable[[Inbound], Awaitable[object]]
    move: Callable[[ChatKey, ChatKey], Awaitable[bool]]
    folder_of: Callable[[ChatKey], Path]
    agent: str
    groups: Literal["mention", "all", "off"] = "mention"


class Desk:
    def __init__(self, parts: DeskParts) -> None:
        self._parts = parts
        self._files = FileFetcher(parts.api, parts.folder_of)

    async def handle(self, updates: Iterable[Update], bot: User) -> None:
        """Chats side by side, each in its order. When it returns, all that may become a turn is durable.

        Raises `StoreError` and `Draining` when something could not be made so: then nothing may be confirmed.
        """
        chats: defaultdict[int, list[Parsed]] = defaultdict(list)
        for update in updates:
            parsed = parse(update, bot, self._parts.groups)
            if isinstance(parsed, Ignored):
                _log.debug("update %s ignored: %s", update.update_id, parsed.reason)
            else:
                chats[_chat_of(parsed)].append(parsed)
        done = await asyncio.gather(*(self._chat(each) for each in chats.values()), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def moved(self, old: int, new: int) -> None:
        """The group goes on under its new id, with its files."""
        before, after = (chat_key(self._parts.agent, Place(chat), ChatKind.GROUP) for chat in (old, new))
        if await self._parts.move(before, after):
            _log.info("the group %s is %s now", old, new)
            await asyncio.to_thread(_rename, self._parts.folder_of(before), self._parts.folder_of(after))

    async def _chat(self, parsed: Sequence[Parsed]) -> None:
        for _, group in groupby(parsed, key=_album_of):
            try:
                await self._take(list(group))
            except (StoreError, Draining):
                raise
            except Exception:  # an update that breaks us would come again and again
                _log.exception("an update could not be handled and is left out")

    async def _take(self, group: list[Parsed]) -> None:
        first = group[0]
        match first:
            case Heard():
                await self._heard([each for each in group if isinstance(each, Heard)])
            case Pressed():
                await self._pressed(first)
            case Moved(old=old, new=new):
                await self.moved(old, new)
            case Ignored():
                pass
            case _:
                assert_never(first)

    async def _heard(self, messages: list[Heard]) -> None:
        """One message, or the messages of an album, which share their sender."""
        first = messages[0]
        said = "\n".join(message.text for message in messages if message.text)
        match await self._parts.authorizer.check(first.actor, first.ingress):
            case Authorized(sender=sender):
                await self._accept(messages, said, sender)
            case Stranger():
                await self._greet(first.actor, first.place, said)
            case Denied(reason=reason):
                _log.debug("a message was dropped: %s", reason)

    async def _accept(self, messages: list[Heard], said: str, sender: Sender) -> None:
        first = messages[0]
        key = chat_key(self._parts.agent, first.place, first.actor.chat_kind)
        command = parse_command(said)
        if command is not None and command.name == "start":
            said = "/help"
        text = "\n".join(part for part in (first.before, said) if part)
        parts: tuple[Part, ...] = (Text(text),) if text else ()
        parts += await self._files.parts(key, messages)
        inbound = Inbound(key, sender, parts, first.key, address=first.place.address())
        try:
            await self._hand_in(inbound)
        except IdempotencyConflict:
            # Accepted before, from the same message with other content: a file could not be had at the other
            # time, or the album was not whole. What is new in it has keys of its own.
            for message in messages[1:]:
                await self._accept([message], message.text, sender)

    async def _pressed(self, pressed: Pressed) -> None:
        entitled = await self._parts.authorizer.check(pressed.actor, Ingress.BUTTON)
        if isinstance(entitled, Authorized) and pressed.text is not None:
            key = chat_key(self._parts.agent, pressed.place, pressed.actor.chat_kind)
            text = Text(pressed.text)
            inbound = Inbound(
                key, entitled.sender, (text,), f"q{pressed.query_id}", address=pressed.place.address()
            )
            try:
                await self._hand_in(inbound)
            except IdempotencyConflict:
                _log.debug("button press %s came twice", pressed.query_id)
        await self._answer(pressed, entitled)

    async def _hand_in(self, inbound: Inbound) -> None:
        hit(Failpoint.RECEIVED)
        await self._parts.submit(inbound)
        hit(Failpoint.ACCEPTED)

    async def _answer(self, pressed: Pressed, verdict: Verdict) -> None:
        """Always, so that the presser's client stops waiting; strangers learn nothing from it."""
        is_old = isinstance(verdict, Authorized) and pressed.text is None
        try:
            await self._parts.api.call(
                "answerCallbackQuery",
                msgspec.Raw,
                callback_query_id=pressed.query_id,
                text=_TOO_OLD if is_old else None,
            )
        except BotApiError as error:
            _log.debug("a button press was not answered: %s", error.user_text)

    async def _greet(self, actor: Actor, place: Place, said: str) -> None:
        text = await self._parts.authorizer.greet(actor, said)
        if text is None:
            return
        try:
            await self._parts.api.call("sendMessage", msgspec.Raw, chat_id=place.chat, text=text)
        except BotApiError as error:
            _log.warning("a stranger could not be told how to be let in: %s", error.user_text)


def _chat_of(parsed: Heard | Pressed | Moved) -> int:
    return parsed.old if isinstance(parsed, Moved) else parsed.place.chat


def _album_of(parsed: Parsed) -> object:
    """Equal for neighbours that belong together, and for no others."""
    if isinstance(parsed, Heard) and parsed.album is not None:
        return (parsed.album, parsed.actor.user_id)
    return id(parsed)


def _rename(old: Path, new: Path) -> None:
    if old.is_dir() and not new.exists():
        old.rename(new)
