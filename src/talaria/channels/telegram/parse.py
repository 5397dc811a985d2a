"""Parses updates: what each one means for the gateway. Pure; every update has one of four results.

In a group, only messages that address the bot are read: a mention, a reply to it, or `/command@bot`.
"""

from __future__ import annotations

import re
from typing import Literal
from zlib import crc32

import msgspec

from talaria.access.authorizer import Actor, ChatKind, Ingress
from talaria.channels import incoming
from talaria.channels.incoming import (
    RemoteFile,
    chat_key,
    clean,
    clean_name,
    file_name,
    preface_of,
    speaker_of,
)
from talaria.channels.telegram.bot_api import (
    CallbackQuery,
    ChatInfo,
    Message,
    TelegramFile,
    Update,
    User,
    Value,
)
from talaria.commands.command import parse_command
from talaria.core.delivery import Button
from talaria.core.ids import ChatKey

CHANNEL = "telegram"
_FULL_UNITS = 4000  # of UTF-16. A message may have 4096, and programs split a longer text near that.
_MAX_NAME = 64  # of a mention, with its @
_MAX_MEDIA_TYPE = 129  # two names of 64 characters; those of office documents have more than 64 together
_KINDS = {"private": ChatKind.PRIVATE, "group": ChatKind.GROUP, "supergroup": ChatKind.GROUP}
_COMMAND = re.compile(r"(/[A-Za-z][A-Za-z0-9_-]*)@([A-Za-z0-9_]{3,64})(?=\s|$)")
_FILES = {  # field of a message: the file's name and media type if Telegram names none
    "document": ("file", "application/octet-stream"),
    "voice": ("voice.ogg", "audio/ogg"),
    "audio": ("audio.mp3", "audio/mpeg"),
    "video": ("video.mp4", "video/mp4"),
    "video_note": ("video.mp4", "video/mp4"),
    "animation": ("animation.mp4", "video/mp4"),
}


class ChatTarget(msgspec.Struct, frozen=True):
    """Where a reply goes. Stored as an address with the turn."""

    chat: int
    thread: int | None = None
    reply_to: int | None = None

    def address(self) -> str:
        return ":".join("" if part is None else str(part) for part in (self.chat, self.thread, self.reply_to))

    @classmethod
    def read(cls, address: str) -> ChatTarget:
        """Return the target that `address` wrote. Raises ValueError for any other text."""
        chat, thread, reply_to = address.split(":")
        return cls(int(chat), int(thread) if thread else None, int(reply_to) if reply_to else None)

    def params(self) -> dict[str, Value]:
        """Return the parameters of a new message. It is not a reply if the question was deleted meanwhile."""
        params: dict[str, Value] = {"chat_id": self.chat, "message_thread_id": self.thread}
        if self.reply_to is not None:
            params["reply_parameters"] = {"message_id": self.reply_to, "allow_sending_without_reply": True}
        return params


class TelegramMessage(incoming.IncomingMessage, frozen=True, kw_only=True):
    """The messages of an album share `album`."""

    target: ChatTarget
    message_id: int
    album: str | None = None


class TelegramPress(incoming.ButtonPress, frozen=True, kw_only=True):
    target: ChatTarget
    query_id: str


class ChatMigration(msgspec.Struct, frozen=True):
    """Telegram gave a group another id."""

    old: int
    new: int


class IgnoredUpdate(msgspec.Struct, frozen=True):
    reason: str


ParsedUpdate = TelegramMessage | TelegramPress | ChatMigration | IgnoredUpdate

_decoder = msgspec.json.Decoder(Update)


def decode(data: bytes | bytearray | msgspec.Raw) -> Update | None:
    """Return None for bytes that are no update."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def parse(
    update: Update, bot: User, groups: Literal["mention", "all", "off"] = "mention", agent: str = "main"
) -> ParsedUpdate:
    if update.callback_query is not None:
        return _parse_press(update.callback_query, agent)
    message = update.message or update.edited_message
    if message is None:
        return IgnoredUpdate("of no use here")
    return _parse_message(message, bot, groups, agent)


# -- messages ---------------------------------------------------------------------------------------------


def _parse_message(message: Message, bot: User, groups: str, agent: str) -> ParsedUpdate:
    if message.migrate_to_chat_id is not None:
        return ChatMigration(message.chat.id, message.migrate_to_chat_id)
    if message.migrate_from_chat_id is not None:
        return ChatMigration(message.migrate_from_chat_id, message.chat.id)
    files = _attachments(message)
    sticker = message.sticker.emoji if message.sticker else ""
    said = clean(message.text or message.caption or (f"[sticker {sticker}]" if sticker else ""))
    if not said.strip() and not files:
        return IgnoredUpdate("nothing to read")
    actor = _actor(message.sender, message.chat, speaks_as_chat=message.sender_chat is not None)
    is_group = actor.chat_kind is ChatKind.GROUP
    command = _COMMAND.match(said)
    if command and command[2].casefold() != bot.username.casefold():
        return IgnoredUpdate("a command for another bot")
    if is_group and groups != "all" and (groups == "off" or not (command or _is_addressed(message, bot))):
        return IgnoredUpdate("not addressed")
    text = command[1] + said[command.end() :] if command else _without_mention(said, bot)
    is_command = message.forward_origin is None and parse_command(text) is not None
    is_edit = message.edit_date is not None
    if is_edit:
        ingress = Ingress.EDIT
    elif is_command:
        ingress = Ingress.COMMAND
    else:
        ingress = Ingress.FILE if files else Ingress.MESSAGE
    target = ChatTarget(message.chat.id, _thread(message), message.message_id if is_group else None)
    return TelegramMessage(
        actor=actor,
        ingress=ingress,
        chat=chat_of(agent, target, actor.chat_kind),
        address=target.address(),
        key=_key(message, said),
        text=text,
        preface="" if is_command else _preface(message, actor),
        files=files,
        repeats_others=not is_command and _repeats_others(message, bot),
        edits=f"m{message.message_id}" if is_edit else None,
        target=target,
        message_id=message.message_id,
        album=None if is_edit else message.media_group_id,
    )


def chat_of(agent: str, target: ChatTarget, kind: ChatKind) -> ChatKey:
    thread = None if target.thread is None else str(target.thread)
    return chat_key(agent, CHANNEL, kind, str(target.chat), thread)


def _repeats_others(message: Message, bot: User) -> bool:
    """Return whether the agent reads words that neither the sender nor the bot wrote."""
    earlier = message.reply_to_message
    if message.forward_origin is not None:
        return True
    if earlier is None or not _quoted(message):
        return False
    known = (bot.id, message.sender.id if message.sender else bot.id)
    is_own = earlier.sender is not None and earlier.sender.id in known and earlier.sender_chat is None
    return not is_own or earlier.forward_origin is not None


def _key(message: Message, said: str) -> str:
    """Telegram dates an edit to the second; the text tells two edits within one second apart."""
    if message.edit_date is None:
        return f"m{message.message_id}"
    return f"m{message.message_id}e{message.edit_date}.{crc32(said.encode()):08x}"


def _actor(sender: User | None, chat: ChatInfo | None, *, speaks_as_chat: bool = False) -> Actor:
    return Actor(
        CHANNEL,
        str(sender.id) if sender else "",
        _KINDS.get(chat.type, ChatKind.BROADCAST) if chat else ChatKind.BROADCAST,
        str(chat.id) if chat else "",
        clean_name(sender.name if sender else ""),
        is_bot=sender.is_bot if sender else False,
        speaks_as_chat=speaks_as_chat,
    )


def _thread(message: Message) -> int | None:
    """A reply in an ordinary group has a thread id too, but belongs to no topic."""
    return message.message_thread_id if message.is_topic_message else None


def _preface(message: Message, actor: Actor) -> str:
    earlier = message.reply_to_message
    return preface_of(
        is_forwarded=message.forward_origin is not None,
        author=clean_name(earlier.sender.name) if earlier is not None and earlier.sender else "",
        quote=_quoted(message),
        speaker=speaker_of(actor),
    )


def _quoted(message: Message) -> str:
    earlier = message.reply_to_message
    if earlier is None:
        return ""
    return clean((message.quote.text if message.quote else "") or earlier.text or earlier.caption).strip()


def _is_addressed(message: Message, bot: User) -> bool:
    earlier = message.reply_to_message
    if earlier is not None and earlier.sender is not None and earlier.sender.id == bot.id:
        return True
    text, name = message.text or message.caption, f"@{bot.username}".casefold()
    units = text.encode("utf-16-le", "surrogatepass")
    for entity in message.entities or message.caption_entities:
        if entity.type == "text_mention" and entity.user is not None and entity.user.id == bot.id:
            return True
        if entity.type == "mention" and _slice(units, entity.offset, entity.length).casefold() == name:
            return True
    return False


def _slice(units: bytes, offset: int, length: int) -> str:
    """Return a part of a text in UTF-16. It is empty for a part that is too long to be a name."""
    if offset < 0 or not 0 <= length <= _MAX_NAME:
        return ""
    return units[offset * 2 : (offset + length) * 2].decode("utf-16-le", "replace")


def _without_mention(text: str, bot: User) -> str:
    if not bot.username or "@" not in text:
        return text
    name = re.compile(rf"(?<![\w@])@{re.escape(bot.username)}(?!\w)[,:]?[ \t]*", re.IGNORECASE)
    return name.sub("", text).strip() or text


# -- files ------------------------------------------------------------------------------------------------


def _attachments(message: Message) -> tuple[RemoteFile, ...]:
    found = []
    if message.photo:
        largest = sorted(message.photo, key=lambda size: size.file_size or 0)[-1]
        name = f"photo-{message.message_id}.jpg"
        found.append(RemoteFile(largest.file_id, name, "image/jpeg", largest.file_size))
    for field, (usual_name, usual_type) in _FILES.items():
        file: TelegramFile | None = getattr(message, field)
        if file is None or (field == "document" and message.animation is not None):
            continue
        name = file_name(file.file_name or usual_name)
        media_type = clean_name(file.mime_type, _MAX_MEDIA_TYPE) or usual_type
        found.append(RemoteFile(file.file_id, name, media_type, file.file_size))
    return tuple(found)


# -- buttons ----------------------------------------------------------------------------------------------


def button_data(command: str, index: int) -> str:
    """Return what a button carries: its command or, if that is too long, its position in the message."""
    is_plain = 0 < len(command.encode()) <= 64 and not command.startswith("#")
    return command if is_plain else f"#{index}"


def keyboard_params(buttons: tuple[Button, ...], width: int = 1) -> dict[str, Value]:
    """Return the parameters that put buttons below a message, `width` of them in a row."""
    keys = [
        {"text": button.label, "callback_data": button_data(button.command, index)}
        for index, button in enumerate(buttons)
    ]
    rows = [keys[start : start + width] for start in range(0, len(keys), width)]
    return {"reply_markup": {"inline_keyboard": rows}} if rows else {}


def _parse_press(query: CallbackQuery, agent: str) -> ParsedUpdate:
    """The actor is the person who pressed; the message is the bot's own."""
    message = query.message
    target = ChatTarget(message.chat.id, _thread(message)) if message else ChatTarget(query.sender.id)
    actor = _actor(query.sender, message.chat if message else None)
    return TelegramPress(
        actor=actor,
        chat=chat_of(agent, target, actor.chat_kind),
        address=target.address(),
        key=f"q{query.id}",
        command=_button_text(query, message) if message else None,
        target=target,
        query_id=query.id,
    )


def _button_text(query: CallbackQuery, message: Message) -> str | None:
    data = query.data or ""
    if not data.startswith("#"):
        return clean(data) or None
    rows = message.reply_markup.inline_keyboard if message.reply_markup else ()
    labels = [button.text for row in rows for button in row]
    number = data[1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 4 and int(number) < len(labels)):
        return None
    return clean(labels[int(number)]) or None


# -- text -------------------------------------------------------------------------------------------------


def is_full(text: str) -> bool:
    """Return whether a text is so long that the next message may go on with it."""
    return len(text) * 2 >= _FULL_UNITS and len(text.encode("utf-16-le", "ignore")) // 2 >= _FULL_UNITS
