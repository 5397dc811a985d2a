"""Parses events: what each one means for the gateway. Pure.

In a server channel, only messages that address the bot are read: a mention, a reply to it, or a slash
command; a thread that the bot opened needs no mention. `channels.discord.mention` and `.mention_in` change
that.
"""

from __future__ import annotations

import re
from zlib import crc32

import msgspec

from talaria.access.authorizer import Actor, ChatKind, Ingress
from talaria.channels import incoming
from talaria.channels.descriptor import Mention
from talaria.channels.discord.api import (
    AddedReaction,
    Attachment,
    DiscordChannelInfo,
    DiscordUser,
    GuildMessage,
    Interaction,
)
from talaria.channels.incoming import (
    ButtonPress,
    Reaction,
    RemoteFile,
    chat_key,
    clean,
    clean_name,
    file_name,
    preface_of,
    speaker_of,
)
from talaria.commands.command import parse_command
from talaria.core.ids import ChatKey

CHANNEL = "discord"
MAX_THREAD_NAME = 80  # of 100
# https://docs.discord.com/developers/resources/message#message-object-message-types: an ordinary message and
# a reply. The others are notices, among them the starter of a thread (21), which repeats a message.
_WRITTEN = frozenset((0, 19))
_THREADS = frozenset((10, 11, 12))
_FORWARD = 1
_MENTION = re.compile(r"<@!?(\d{1,20})>")
_COMMAND, _PRESSED = 2, 3


class Place(msgspec.Struct, frozen=True):
    """Where a reply goes. Stored as an address with the turn.

    A private chat may be known by its `user` only. `reply_to` is the message that is answered, and `limit`
    the size in MB of the largest file that the server allows.
    """

    channel: str = ""
    user: str = ""
    reply_to: str = ""
    limit: int = 0

    def address(self) -> str:
        return f"{self.channel}:{self.user}:{self.reply_to}:{self.limit or ''}"

    @classmethod
    def read(cls, address: str) -> Place:
        """Return the place that `address` wrote. Raises ValueError for any other text."""
        channel, user, reply_to, limit = address.split(":")
        if not (channel or user) or not all(not each or each.isdigit() for each in (channel, user, reply_to)):
            raise ValueError(address)
        return cls(channel, user, reply_to, int(limit or 0))


class EventContext(msgspec.Struct, frozen=True):
    """The place of an event, as far as the gateway knows it: the bot, its agent, the channel of a server
    (None in a private chat) and the rules for it."""

    bot: DiscordUser
    agent: str
    channel: DiscordChannelInfo | None = None
    mention: Mention = "channels"
    auto_thread: bool = False
    limit: int = 0

    @property
    def is_thread(self) -> bool:
        return self.channel is not None and self.channel.type in _THREADS

    @property
    def home(self) -> str:
        """The id of the channel, or of the one to which a thread belongs."""
        if self.channel is None:
            return ""
        return self.channel.parent_id or self.channel.id if self.is_thread else self.channel.id


class DiscordMessage(incoming.IncomingMessage, frozen=True, kw_only=True):
    """With `new_thread`, a thread of this name is opened at the message, and the message belongs to it."""

    message_id: str
    new_thread: str | None = None


class IgnoredEvent(msgspec.Struct, frozen=True):
    reason: str


def parse_message(message: GuildMessage, around: EventContext) -> DiscordMessage | IgnoredEvent:
    author = message.author
    if author is None or message.type not in _WRITTEN:
        return IgnoredEvent("no message of a person")
    if author.id == around.bot.id:
        return IgnoredEvent("the bot's own message")
    is_group = around.channel is not None
    forwarded = message.message_snapshots if _is_forward(message) else ()
    content = forwarded[0].message.content if forwarded else message.content
    files = _files((*message.attachments, *(file for each in forwarded for file in each.message.attachments)))
    if not content.strip() and not files:
        return IgnoredEvent("nothing to read")
    is_addressed = not is_group or _is_addressed(message, around)
    if around.mention == "off" and is_group:
        return IgnoredEvent("the channel is off")
    needs_none = around.mention == "never" or (around.mention == "channels" and _is_own_thread(around))
    if not is_addressed and not needs_none:
        return IgnoredEvent("not addressed")
    text = _readable(content, message.mentions, around.bot)
    is_command = not forwarded and parse_command(text) is not None
    edited = message.edited_timestamp
    if edited is not None:
        ingress = Ingress.EDIT
    elif is_command:
        ingress = Ingress.COMMAND
    else:
        ingress = Ingress.FILE if files else Ingress.MESSAGE
    opens = is_group and around.auto_thread and not around.is_thread and not is_command
    actor = _actor(author, message.channel_id, around, is_bot=author.bot or message.webhook_id is not None)
    quoted = message.referenced_message if not forwarded else None
    place = Place(message.channel_id, "", message.id if is_group and not opens else "", around.limit)
    if opens:  # a thread has the id of the message that it begins with
        place = Place(message.id, "", "", around.limit)
    preface = preface_of(
        is_forwarded=bool(forwarded),
        author=clean_name(quoted.author.name) if quoted is not None and quoted.author else "",
        quote=_readable(quoted.content, quoted.mentions, around.bot) if quoted is not None else "",
        speaker=speaker_of(actor),
    )
    return DiscordMessage(
        actor=actor,
        ingress=ingress,
        chat=chat_of(around, author.id, message.id if opens else None),
        address=place.address(),
        key=f"m{message.id}"
        if edited is None
        else f"m{message.id}e{crc32(f'{edited}{content}'.encode()):08x}",
        text=text,
        preface="" if is_command else preface,
        files=files,
        repeats_others=bool(forwarded) or (not is_command and _quotes_others(quoted, author, around.bot)),
        edits=None if edited is None else f"m{message.id}",
        message_id=message.id,
        new_thread=(clean_name(text, MAX_THREAD_NAME) or "Conversation") if opens else None,
    )


def parse_interaction(
    event: Interaction, around: EventContext
) -> DiscordMessage | ButtonPress | IgnoredEvent:
    """The actor is the person who wrote the slash command or pressed the button."""
    sender = event.sender
    if sender is None or event.type not in (_COMMAND, _PRESSED):
        return IgnoredEvent("of no use here")
    actor = _actor(sender, event.channel_id, around, is_bot=sender.bot)
    address = Place(event.channel_id, "", "", around.limit).address()
    chat, key = chat_of(around, sender.id), f"i{event.id}"
    if event.type == _PRESSED:
        command = clean(_command_of(event)) or None
        return ButtonPress(actor=actor, chat=chat, address=address, key=key, command=command)
    words = " ".join(str(option.value) for option in event.data.options)
    text = clean(f"/{event.data.name} {words}").strip()
    return DiscordMessage(
        actor=actor, ingress=Ingress.COMMAND, chat=chat, address=address, key=key, text=text, message_id=""
    )


def parse_reaction(event: AddedReaction, around: EventContext) -> Reaction:
    """In a private chat Discord names no member, and no bot can be there."""
    user = event.member.user if event.member is not None else None
    is_bot = user is not None and user.bot
    actor = _actor(DiscordUser(event.user_id), event.channel_id, around, is_bot=is_bot)
    chat, emoji = chat_of(around, event.user_id), event.emoji.name or ""
    return Reaction(actor=actor, chat=chat, message=event.message_id, emoji=emoji)


def chat_of(around: EventContext, user: str, new_thread: str | None = None) -> ChatKey:
    """A private chat has the person's id. A thread is a chat of its own, below its channel."""
    if around.channel is None:
        return chat_key(around.agent, CHANNEL, ChatKind.PRIVATE, user)
    thread = new_thread or (around.channel.id if around.is_thread else None)
    return chat_key(around.agent, CHANNEL, ChatKind.GROUP, around.home, thread)


def custom_id(command: str, index: int) -> str:
    """Return what a button carries: its command or, if that is too long, its position in the message."""
    return command if 0 < len(command) <= 100 and not command.startswith("#") else f"#{index}"


def _command_of(event: Interaction) -> str:
    given = event.data.custom_id
    if not given.startswith("#"):
        return given
    rows = event.message.components if event.message is not None else ()
    labels = [each.label or "" for row in rows for each in row.components]
    number = given[1:]
    is_place = number.isascii() and number.isdecimal() and len(number) < 4 and int(number) < len(labels)
    return labels[int(number)] if is_place else ""


def _actor(user: DiscordUser, channel_id: str, around: EventContext, *, is_bot: bool) -> Actor:
    kind = ChatKind.PRIVATE if around.channel is None else ChatKind.GROUP
    return Actor(CHANNEL, user.id, kind, channel_id, clean_name(user.name), is_bot=is_bot)


def _is_forward(message: GuildMessage) -> bool:
    return message.message_reference is not None and message.message_reference.type == _FORWARD


def _is_own_thread(around: EventContext) -> bool:
    return around.is_thread and around.channel is not None and around.channel.owner_id == around.bot.id


def _is_addressed(message: GuildMessage, around: EventContext) -> bool:
    earlier = message.referenced_message
    if earlier is not None and earlier.author is not None and earlier.author.id == around.bot.id:
        return True
    return any(user.id == around.bot.id for user in message.mentions)


def _quotes_others(quoted: GuildMessage | None, author: DiscordUser, bot: DiscordUser) -> bool:
    if quoted is None or not quoted.content.strip():
        return False
    return quoted.author is None or quoted.author.id not in (author.id, bot.id)


def _readable(content: str, mentions: tuple[DiscordUser, ...], bot: DiscordUser) -> str:
    """Return the text with names in place of ids, and without the mention of the bot."""
    names = {user.id: user.name for user in mentions}

    def name(found: re.Match[str]) -> str:
        return "" if found[1] == bot.id else f"@{clean_name(names.get(found[1], found[1]))}"

    return clean(_MENTION.sub(name, content)).strip() or (
        "" if not content.strip() else clean(content).strip()
    )


def _files(attachments: tuple[Attachment, ...]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(
            each.url,
            file_name(each.filename or "file"),
            clean_name((each.content_type or "").partition(";")[0]) or "application/octet-stream",
            each.size,
        )
        for each in attachments
    )
