"""Parses updates: what each one means for the gateway. Pure; every update has one of four results.

In a group, only messages that address the bot are read: a mention, a reply to it, or `/command@bot`.
"""

from __future__ import annotations

import re
from typing import Literal
from zlib import crc32

import msgspec

from talaria.access.authorizer import Actor, ChatKind, Ingress
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
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.text import CONTROLS, EMBEDDINGS, cut

CHANNEL = "telegram"
MAX_QUOTE = 500
_FULL_UNITS = 4000  # of UTF-16. A message may have 4096, and programs split a longer text near that.
_MAX_NAME = 64  # of a mention, with its @
_MAX_MEDIA_TYPE = 129  # two names of 64 characters; those of office documents have more than 64 together
_KINDS = {"private": ChatKind.PRIVATE, "group": ChatKind.GROUP, "supergroup": ChatKind.GROUP}
_COMMAND = re.compile(r"(/[A-Za-z][A-Za-z0-9_-]*)@([A-Za-z0-9_]{3,64})(?=\s|$)")
_CONTROLS = re.compile(f"[{CONTROLS}{EMBEDDINGS}]")
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


class Attachment(msgspec.Struct, frozen=True):
    file_id: str
    name: str
    media_type: str
    size: int | None


class IncomingMessage(msgspec.Struct, frozen=True):
    """A person wrote. The agent reads `preface` and `text`; a command has no preface. `key` identifies the
    message for deduplication. The messages of an album share `album`. If the message `repeats_others`, it is
    forwarded or quotes another person."""

    actor: Actor
    ingress: Ingress
    target: ChatTarget
    key: str
    text: str
    preface: str = ""
    files: tuple[Attachment, ...] = ()
    message_id: int = 0
    album: str | None = None
    repeats_others: bool = False


class ButtonPress(msgspec.Struct, frozen=True):
    """A person pressed a button, which is the same as writing `text`; None if its meaning is lost."""

    actor: Actor
    target: ChatTarget
    query_id: str
    text: str | None


class ChatMigration(msgspec.Struct, frozen=True):
    """Telegram gave a group another id."""

    old: int
    new: int


class IgnoredUpdate(msgspec.Struct, frozen=True):
    reason: str


ParsedUpdate = IncomingMessage | ButtonPress | ChatMigration | IgnoredUpdate

_decoder = msgspec.json.Decoder(Update)


def decode(data: bytes | bytearray | msgspec.Raw) -> Update | None:
    """Return None for bytes that are no update."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def chat_key(agent: str, target: ChatTarget, kind: ChatKind) -> ChatKey:
    name = "dm" if kind is ChatKind.PRIVATE else "group"
    thread = None if target.thread is None else str(target.thread)
    return ChatAddress(agent, CHANNEL, name, str(target.chat), thread).key()


def parse(update: Update, bot: User, groups: Literal["mention", "all", "off"] = "mention") -> ParsedUpdate:
    if update.callback_query is not None:
        return _parse_press(update.callback_query)
    message = update.message or update.edited_message
    return _parse_message(message, bot, groups) if message is not None else IgnoredUpdate("of no use here")


# -- messages ---------------------------------------------------------------------------------------------


def _parse_message(message: Message, bot: User, groups: str) -> ParsedUpdate:
    if message.migrate_to_chat_id is not None:
        return ChatMigration(message.chat.id, message.migrate_to_chat_id)
    if message.migrate_from_chat_id is not None:
        return ChatMigration(message.migrate_from_chat_id, message.chat.id)
    files = _attachments(message)
    sticker = message.sticker.emoji if message.sticker else ""
    said = _clean(message.text or message.caption or (f"[sticker {sticker}]" if sticker else ""))
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
    return IncomingMessage(
        actor,
        ingress,
        ChatTarget(message.chat.id, _thread(message), message.message_id if is_group else None),
        _key(message, said),
        text,
        "" if is_command else _preface(message, actor),
        files,
        message.message_id,
        None if is_edit else message.media_group_id,
        not is_command and _repeats_others(message, bot),
    )


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
        _clean_line(sender.name if sender else ""),
        is_bot=sender.is_bot if sender else False,
        speaks_as_chat=speaks_as_chat,
    )


def _thread(message: Message) -> int | None:
    """A reply in an ordinary group has a thread id too, but belongs to no topic."""
    return message.message_thread_id if message.is_topic_message else None


def _preface(message: Message, actor: Actor) -> str:
    """Return what the agent is told about a message before its text."""
    lines = []
    if message.edit_date is not None:
        lines.append("[This corrects an earlier message.]")
    if message.forward_origin is not None:
        lines.append("[Forwarded message]")
    if quoted := _quoted(message):
        lines.append(quoted)
    if actor.chat_kind is ChatKind.GROUP and actor.name:
        lines.append(f"{actor.name} says:")
    return "\n".join(lines)


def _quoted(message: Message) -> str:
    earlier = message.reply_to_message
    if earlier is None:
        return ""
    text = _clean((message.quote.text if message.quote else "") or earlier.text or earlier.caption).strip()
    if not text:
        return ""
    author = _clean_line(earlier.sender.name) if earlier.sender else ""
    quote = "\n".join(f"> {line}" for line in cut(text, MAX_QUOTE).splitlines())
    return f"[In reply to{f' {author}' if author else ''}:]\n{quote}"


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


def _attachments(message: Message) -> tuple[Attachment, ...]:
    found = []
    if message.photo:
        largest = sorted(message.photo, key=lambda size: size.file_size or 0)[-1]
        name = f"photo-{message.message_id}.jpg"
        found.append(Attachment(largest.file_id, name, "image/jpeg", largest.file_size))
    for field, (usual_name, usual_type) in _FILES.items():
        file: TelegramFile | None = getattr(message, field)
        if file is None or (field == "document" and message.animation is not None):
            continue
        name = _file_name(file.file_name or usual_name)
        media_type = _clean_line(file.mime_type, _MAX_MEDIA_TYPE) or usual_type
        found.append(Attachment(file.file_id, name, media_type, file.file_size))
    return tuple(found)


def _file_name(name: str) -> str:
    """Return a short printable name that is one part of a path."""
    kept = re.sub(r"[^\w. ()+-]", "_", _clean_line(name, longest=None)).strip(". ")
    stem, dot, ending = kept.rpartition(".")
    short = f"{stem[:80]}{dot}{ending[:16]}" if stem else kept[:80]
    return short or "file"


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


def _parse_press(query: CallbackQuery) -> ParsedUpdate:
    """The actor is the person who pressed; the message is the bot's own."""
    message = query.message
    if message is None:
        return ButtonPress(_actor(query.sender, None), ChatTarget(query.sender.id), query.id, None)
    target = ChatTarget(message.chat.id, _thread(message))
    return ButtonPress(_actor(query.sender, message.chat), target, query.id, _button_text(query, message))


def _button_text(query: CallbackQuery, message: Message) -> str | None:
    data = query.data or ""
    if not data.startswith("#"):
        return _clean(data) or None
    rows = message.reply_markup.inline_keyboard if message.reply_markup else ()
    labels = [button.text for row in rows for button in row]
    number = data[1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 4 and int(number) < len(labels)):
        return None
    return _clean(labels[int(number)]) or None


# -- text -------------------------------------------------------------------------------------------------


def is_full(text: str) -> bool:
    """Return whether a text is so long that the next message may go on with it."""
    return len(text) * 2 >= _FULL_UNITS and len(text.encode("utf-16-le", "ignore")) // 2 >= _FULL_UNITS


def _clean(text: str) -> str:
    """Return the text without control characters and lone surrogates, which no store and no model accepts."""
    return _CONTROLS.sub("", text).encode("utf-8", "ignore").decode()


def _clean_line(text: str, longest: int | None = 64) -> str:
    return " ".join(_clean(text).split())[:longest]
