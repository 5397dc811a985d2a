"""Parses events: what each one means for the gateway. Pure; every event has one of four results.

A conversation in a channel is a thread: a message outside of one begins its own, and the reply goes there, so
the first message and all later ones of the thread have one key. A direct message is one conversation with all
its threads. In a channel a message is read by the rule of `Mention`. Messages of bots are never read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import accumulate
from zlib import crc32

import msgspec

from talaria.access.authorizer import Actor, ChatKind, Ingress
from talaria.channels.descriptor import Mention
from talaria.channels.incoming import (
    ButtonPress,
    IncomingMessage,
    RemoteFile,
    Withdrawal,
    chat_key,
    clean,
    clean_name,
    file_name,
    preface_of,
    speaker_of,
    stable_name,
)
from talaria.channels.slack.part import CHANNEL
from talaria.channels.slack.render import mentioned, to_plain
from talaria.channels.slack.slack_api import BotIdentity
from talaria.commands.command import parse_command
from talaria.core.ids import ChatKey

_SPOKEN = frozenset({"", "file_share", "thread_broadcast", "me_message"})  # subtypes that a person writes
_MAX_SHARED = 4000  # characters of a forwarded message
PEOPLE = ("U", "W")  # with which the ids of people begin
_BANG = re.compile(r"!([A-Za-z][A-Za-z_-]*)(?=\s|$)")


# -- events, with Slack's field names ---------------------------------------------------------------------


class _File(msgspec.Struct, frozen=True):
    id: str = ""
    name: str | None = None
    mimetype: str | None = None
    size: int | None = None
    mode: str = ""
    url_private_download: str | None = None
    url_private: str | None = None


class _Attachment(msgspec.Struct, frozen=True):
    """A message that a person shared."""

    is_share: bool = False
    is_msg_unfurl: bool = False
    author_id: str = ""
    author_name: str = ""
    text: str = ""


class _Edited(msgspec.Struct, frozen=True):
    ts: str = ""


class MessageFields(msgspec.Struct, frozen=True):
    """A message, in an event or in a thread that was read."""

    ts: str = ""
    user: str = ""
    text: str | None = ""
    subtype: str = ""
    bot_id: str | None = None
    thread_ts: str | None = None
    parent_user_id: str = ""
    files: tuple[_File, ...] = ()
    attachments: tuple[_Attachment, ...] = ()
    edited: _Edited | None = None


class _Event(MessageFields, frozen=True):
    type: str = ""
    channel: str | None = None
    message: MessageFields | None = None
    previous_message: MessageFields | None = None


class _EventCallback(msgspec.Struct, frozen=True):
    event: _Event


class _Id(msgspec.Struct, frozen=True):
    id: str = ""


class _PressedMessage(msgspec.Struct, frozen=True):
    ts: str = ""
    thread_ts: str | None = None


class _Action(msgspec.Struct, frozen=True):
    type: str = ""
    value: str = ""
    action_ts: str = ""


class _Interaction(msgspec.Struct, frozen=True):
    type: str
    user: _Id
    channel: _Id = _Id()
    message: _PressedMessage = _PressedMessage()
    actions: tuple[_Action, ...] = ()


class _SlashCommand(msgspec.Struct, frozen=True):
    channel_id: str
    user_id: str
    trigger_id: str
    text: str = ""
    command: str = ""


# -- results ----------------------------------------------------------------------------------------------


class SlackPlace(msgspec.Struct, frozen=True):
    """Where a reply goes: a conversation and, unless the reply is outside of threads, the first message of a
    thread. The id of a person stands for the direct messages with the bot. Stored as an address with the
    turn."""

    channel: str
    thread: str | None = None

    def address(self) -> str:
        return f"{self.channel}:{self.thread or ''}"

    @classmethod
    def read(cls, address: str) -> SlackPlace:
        """Return the place that `address` wrote. Raises ValueError for any other text."""
        channel, thread = address.split(":")
        return cls(channel, thread or None)

    @property
    def kind(self) -> ChatKind:
        return ChatKind.PRIVATE if self.channel.startswith(("D", *PEOPLE)) else ChatKind.GROUP

    def chat(self, agent: str, user: str) -> ChatKey:
        """Return the conversation. The key of direct messages has the person's id, as memory needs it."""
        if self.kind is ChatKind.PRIVATE:
            return chat_key(agent, CHANNEL, self.kind, user)
        return chat_key(agent, CHANNEL, self.kind, self.channel, self.thread)


class Shared(msgspec.Struct, frozen=True):
    """A message of someone that a person shared."""

    author: str  # an id
    name: str
    text: str

    def quote(self, names: Mapping[str, str]) -> str:
        name = names.get(self.author) or self.name
        text = clean(to_plain(self.text, names))
        lines = [f"> {line}" for line in text[:_MAX_SHARED].splitlines()]
        return "\n".join([f"[Forwarded message{f' of {name}' if name else ''}:]", *lines])


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A person wrote, in Slack's text. `ts` is the message's id in its conversation.

    `is_mention`: the text names the agent. `needs_thread`: read it only if the agent takes part in the
    thread. `is_own_thread`: the agent began the thread.
    """

    user: str
    place: SlackPlace
    ts: str
    text: str
    is_command: bool = False
    edited: str = ""
    files: tuple[RemoteFile, ...] = ()
    shared: tuple[Shared, ...] = ()
    is_mention: bool = False
    is_reply: bool = False
    needs_thread: bool = False
    is_own_thread: bool = False

    @property
    def people(self) -> set[str]:
        """The ids of the people whose names `message` needs."""
        texts = (self.text, *(each.text for each in self.shared))
        authors = {each.author for each in self.shared if each.author}
        return {self.user, *authors}.union(*map(mentioned, texts))

    def chat(self, agent: str) -> ChatKey:
        return self.place.chat(agent, self.user)

    def message(self, agent: str, names: Mapping[str, str], earlier: str = "") -> IncomingMessage:
        """Return what the gateway takes. `earlier` are messages of the thread that the agent has not read."""
        text = clean(to_plain(self.text, names)).strip()
        if self.edited:
            ingress, key = Ingress.EDIT, f"m{self.ts}e{self.edited}.{crc32(text.encode()):08x}"
        else:
            ingress, key = Ingress.FILE if self.files else Ingress.MESSAGE, f"m{self.ts}"
        if self.is_command and not self.edited:
            ingress = Ingress.COMMAND
        name = names.get(self.user) or self.user
        actor = Actor(CHANNEL, self.user, self.place.kind, self.place.channel, name)
        return IncomingMessage(
            actor=actor,
            ingress=ingress,
            chat=self.chat(agent),
            address=self.place.address(),
            key=key,
            text=text,
            preface="" if self.is_command else self._preface(names, earlier, speaker_of(actor)),
            files=self.files,
            edits=f"m{self.ts}" if self.edited else None,
            repeats_others=bool(earlier or any(each.author != self.user for each in self.shared)),
        )

    def _preface(self, names: Mapping[str, str], earlier: str, speaker: str) -> str:
        parts = [earlier, *(each.quote(names) for each in self.shared), preface_of(speaker=speaker)]
        return "\n".join(part for part in parts if part)


class Ignored(msgspec.Struct, frozen=True):
    reason: str


Parsed = Said | Withdrawal | ButtonPress | Ignored


class Rules(msgspec.Struct, frozen=True):
    """What `parse` needs to know. `commands` are the names after `!` that are commands."""

    bot: BotIdentity
    agent: str
    mention: Mention = "channels"
    mention_in: Mapping[str, Mention] = {}
    commands: Collection[str] = ()


# -- parsing ----------------------------------------------------------------------------------------------


def parse(kind: str, payload: bytes | bytearray | msgspec.Raw, rules: Rules) -> Parsed:
    """Return what an event means. `kind` is the type of a socket's envelope."""
    try:
        match kind:
            case "events_api":
                return _parse_event(msgspec.json.decode(payload, type=_EventCallback).event, rules)
            case "interactive":
                return _parse_press(msgspec.json.decode(payload, type=_Interaction), rules)
            case "slash_commands":
                return _parse_slash(msgspec.json.decode(payload, type=_SlashCommand), rules)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Ignored("not an event of Slack")
    return Ignored("of no use here")


def _parse_event(event: _Event, rules: Rules) -> Parsed:
    if event.type not in ("message", "app_mention") or not event.channel:
        return Ignored("of no use here")
    before = event.previous_message
    # If a message with a thread is deleted, a tombstone takes its place.
    has_tombstone = event.message is not None and event.message.subtype == "tombstone"
    if before is not None and (event.subtype == "message_deleted" or has_tombstone):
        chat = _place(event.channel, before).chat(rules.agent, before.user)
        return Withdrawal(chat=chat, key=f"m{before.ts}")
    if event.subtype == "message_changed" and event.message is not None:
        edited = event.message.edited
        if edited is None or (before is not None and before.text == event.message.text):
            return Ignored("the text is the same")  # Slack added a preview
        return _parse_message(event.message, event.channel, rules, edited=edited.ts or event.ts)
    return _parse_message(event, event.channel, rules)


def _parse_message(message: MessageFields, channel: str, rules: Rules, edited: str = "") -> Parsed:
    if not message.user or message.bot_id or message.user == rules.bot.user_id:
        return Ignored("not of a person")  # never read, so no two bots can answer each other forever
    if message.subtype not in _SPOKEN or not message.ts:
        return Ignored(f"a notice: {message.subtype}")
    place = _place(channel, message)
    text, is_mention = _without_mention(message.text or "", rules.bot)
    files = tuple(
        _remote(file) for file in message.files if file.mode not in ("tombstone", "hidden_by_limit")
    )
    shared = tuple(
        Shared(each.author_id, clean_name(each.author_name), each.text)
        for each in message.attachments
        if each.text and (each.is_share or each.is_msg_unfurl)
    )
    if not text and not files and not shared:
        return Ignored("nothing to read")
    is_reply = message.thread_ts not in (None, message.ts)
    rule = rules.mention_in.get(channel, rules.mention)
    is_group = place.kind is ChatKind.GROUP
    if is_group and (
        rule == "off" or (not is_mention and rule != "never" and not (is_reply and rule == "channels"))
    ):
        return Ignored("not addressed")
    text, is_command = _as_command(text, rules.commands)
    return Said(
        user=message.user,
        place=place,
        ts=message.ts,
        text=text,
        is_command=is_command,
        edited=edited,
        files=files,
        shared=shared,
        is_mention=is_mention,
        is_reply=is_reply,
        needs_thread=is_group and not is_mention and rule == "channels",
        is_own_thread=message.parent_user_id == rules.bot.user_id,
    )


def _place(channel: str, message: MessageFields) -> SlackPlace:
    """In a channel, a message outside of threads is the first of its own."""
    thread = message.thread_ts or (None if channel.startswith("D") else message.ts)
    return SlackPlace(channel, thread or None)


def _without_mention(text: str, bot: BotIdentity) -> tuple[str, bool]:
    """Return the text without mentions of the bot, and whether there was one."""
    mention = re.compile(rf"<@{re.escape(bot.user_id)}(?:\|[^<>]*)?>[,:]?[ \t]*")
    rest, count = mention.subn("", text)
    return rest.strip(), count > 0


def _as_command(text: str, commands: Collection[str]) -> tuple[str, bool]:
    """Return `!new` as `/new`, because Slack takes no slash commands in threads."""
    if (bang := _BANG.match(text)) and bang[1].lower() in commands:
        text = f"/{text[1:]}"
    return text, parse_command(text) is not None


def _remote(file: _File) -> RemoteFile:
    """The id is the address, which `fetch` needs."""
    url = file.url_private_download or file.url_private or ""
    media_type = clean_name(file.mimetype or "", 129) or "application/octet-stream"
    return RemoteFile(url, file_name(file.name or "file"), media_type, file.size)


def _parse_press(interaction: _Interaction, rules: Rules) -> Parsed:
    if interaction.type != "block_actions" or not interaction.actions or not interaction.channel.id:
        return Ignored("not a button")
    action, message = interaction.actions[0], interaction.message
    channel = interaction.channel.id
    # The bot's messages outside of threads belong to the channel, also once people have replied to one.
    thread = None if message.thread_ts == message.ts else message.thread_ts
    place = SlackPlace(channel, thread or None)
    return ButtonPress(
        actor=Actor(CHANNEL, interaction.user.id, place.kind, channel),
        chat=place.chat(rules.agent, interaction.user.id),
        address=place.address(),
        key=f"q{message.ts}.{action.action_ts}",
        command=clean(action.value) or None,
    )


def _parse_slash(command: _SlashCommand, rules: Rules) -> Parsed:
    """`/talaria new` is the command `/new`; `/talaria` with other words is a message. Written in any direct
    messages, also with another person, it is answered in those with the bot."""
    text = command.text.strip() or "help"
    word = text.split(maxsplit=1)[0].lower()
    text = f"/{text}" if word in rules.commands else text
    return Said(
        user=command.user_id,
        place=SlackPlace(command.user_id if command.channel_id.startswith("D") else command.channel_id),
        ts=command.trigger_id,
        text=text,
        is_command=parse_command(text) is not None,
        is_mention=True,
    )


def people_in(messages: Collection[MessageFields]) -> set[str]:
    """Return the ids of the people who wrote or are mentioned."""
    writers = {message.user for message in messages if message.user}
    return writers.union(*(mentioned(message.text or "") for message in messages))


def thread_text(
    messages: Collection[MessageFields], before: str, bot: BotIdentity, names: Mapping[str, str], limit: int
) -> str:
    """Return the messages of people in a thread after the bot's last one and before the message `before`, the
    newest ones within `limit` characters; empty if there are none. A message of the bot that begins the
    thread is one of them."""
    unread: list[str] = []
    for message in messages:
        if message.ts >= before:
            break
        if message.user == bot.user_id:
            is_first = message.thread_ts == message.ts
            unread = [f"You: {clean(to_plain(message.text or '', names))}"] if is_first else []
        elif message.text and message.subtype in _SPOKEN:
            writer = stable_name(names.get(message.user) or message.user, message.user) or "An app"
            unread.append(f"{writer}: {clean(to_plain(message.text, names))}")
    sizes = accumulate(map(len, reversed(unread)))
    kept = [each for each, size in zip(reversed(unread), sizes, strict=True) if size <= limit]
    if not kept:
        return ""
    lines = [f"> {line}" for each in reversed(kept) for line in each.splitlines()]
    return "\n".join(["[Earlier in this thread:]", *lines])
