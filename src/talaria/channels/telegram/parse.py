"""From an update to what it means for us. Pure, and total: whatever comes, the answer is one of these four.

In a group, only what is addressed to the bot is heard: a mention, a reply to it, or `/command@bot`.
"""

from __future__ import annotations

import re
from typing import Literal
from zlib import crc32

import msgspec

from talaria.access.authorizer import Actor, ChatKind, Ingress
from talaria.channels.telegram.wire import CallbackQuery, Chat, Message, RemoteFile, Update, User
from talaria.commands.slash import parse_command
from talaria.core.ids import ChatAddress, ChatKey

CHANNEL = "telegram"
MAX_QUOTE = 500
_KINDS = {"private": ChatKind.PRIVATE, "group": ChatKind.GROUP, "supergroup": ChatKind.GROUP}
_COMMAND = re.compile(r"(/[A-Za-z][A-Za-z0-9_-]*)@([A-Za-z0-9_]{3,64})(?=\s|$)")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_NAMED_FILES = ("document", "voice", "audio", "video", "video_note", "animation")
_MEDIA = {
    "voice": ("voice.ogg", "audio/ogg"),
    "audio": ("audio.mp3", "audio/mpeg"),
    "video": ("video.mp4", "video/mp4"),
    "video_note": ("video.mp4", "video/mp4"),
    "animation": ("animation.mp4", "video/mp4"),
}


class Place(msgspec.Struct, frozen=True):
    """Where a reply goes; written into the ledger as an address and read back from it."""

    chat: int
    thread: int | None = None
    reply_to: int | None = None

    def address(self) -> str:
        return ":".join("" if part is None else str(part) for part in (self.chat, self.thread, self.reply_to))

    @classmethod
    def read(cls, address: str) -> Place:
        """Raises ValueError for what `address` did not write."""
        chat, thread, reply_to = address.split(":")
        return cls(int(chat), int(thread) if thread else None, int(reply_to) if reply_to else None)


class Attachment(msgspec.Struct, frozen=True):
    file_id: str
    name: str
    media_type: str
    size: int | None


class Heard(msgspec.Struct, frozen=True):
    """Someone wrote. `before` and `text` are what the agent reads; a command has no `before`. `key` is the
    platform's id of it, `album` the id that the messages of a media group share."""

    actor: Actor
    ingress: Ingress
    place: Place
    key: str
    text: str
    before: str = ""
    files: tuple[Attachment, ...] = ()
    message_id: int = 0
    album: str | None = None


class Pressed(msgspec.Struct, frozen=True):
    """Someone pressed a button: the same as writing `text`. None: what it stood for is not known any more."""

    actor: Actor
    place: Place
    query_id: str
    text: str | None


class Moved(msgspec.Struct, frozen=True):
    """A group got another id."""

    old: int
    new: int


class Ignored(msgspec.Struct, frozen=True):
    reason: str


Parsed = Heard | Pressed | Moved | Ignored

_decoder = msgspec.json.Decoder(Update)


def decode(data: bytes | bytearray | msgspec.Raw) -> Update | None:
    """None for what is no update, however it is broken."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def chat_key(agent: str, place: Place, kind: ChatKind) -> ChatKey:
    name = "dm" if kind is ChatKind.PRIVATE else "group"
    thread = None if place.thread is None else str(place.thread)
    return ChatAddress(agent, CHANNEL, name, str(place.chat), thread).key()


def parse(update: Update, bot: User, groups: Literal["mention", "all", "off"] = "mention") -> Parsed:
    if update.callback_query is not None:
        return _pressed(update.callback_query)
    message = update.message or update.edited_message
    return _heard(message, bot, groups) if message is not None else Ignored("not a kind that is used")


def _heard(message: Message, bot: User, groups: str) -> Parsed:
    if message.migrate_to_chat_id is not None:
        return Moved(message.chat.id, message.migrate_to_chat_id)
    if message.migrate_from_chat_id is not None:
        return Moved(message.migrate_from_chat_id, message.chat.id)
    files = _files(message)
    sticker = message.sticker.emoji if message.sticker else ""
    said = _clean(message.text or message.caption or (f"[sticker {sticker}]" if sticker else ""))
    if not said.strip() and not files:
        return Ignored("nothing to read")
    actor = _actor(message.sender, message.chat, speaks_as_chat=message.sender_chat is not None)
    is_group = actor.chat_kind is ChatKind.GROUP
    command = _COMMAND.match(said)
    if command and command[2].casefold() != bot.username.casefold():
        return Ignored("a command for another bot")
    if is_group and groups != "all" and (groups == "off" or not (command or _is_addressed(message, bot))):
        return Ignored("not addressed")
    text = command[1] + said[command.end() :] if command else _without_mention(said, bot)
    is_command = message.forward_origin is None and parse_command(text) is not None
    is_edit = message.edit_date is not None
    return Heard(
        actor,
        _way(is_edit=is_edit, is_command=is_command, has_files=bool(files)),
        Place(message.chat.id, _thread(message), message.message_id if is_group else None),
        _key(message, said),
        text,
        "" if is_command else _before(message, actor, is_edit=is_edit),
        files,
        message.message_id,
        message.media_group_id if not is_edit else None,
    )


def _key(message: Message, said: str) -> str:
    """Telegram tells the second of an edit; two edits within one second differ in what they say."""
    if message.edit_date is None:
        return f"m{message.message_id}"
    return f"m{message.message_id}e{message.edit_date}.{crc32(said.encode()):08x}"


def _actor(sender: User | None, chat: Chat | None, *, speaks_as_chat: bool = False) -> Actor:
    return Actor(
        CHANNEL,
        str(sender.id) if sender else "",
        _KINDS.get(chat.type, ChatKind.BROADCAST) if chat else ChatKind.BROADCAST,
        str(chat.id) if chat else "",
        _line(sender.name if sender else ""),
        is_bot=sender.is_bot if sender else False,
        speaks_as_chat=speaks_as_chat,
    )


def _way(*, is_edit: bool, is_command: bool, has_files: bool) -> Ingress:
    if is_edit:
        return Ingress.EDIT
    if is_command:
        return Ingress.COMMAND
    return Ingress.FILE if has_files else Ingress.MESSAGE


def _thread(message: Message) -> int | None:
    """Replies in ordinary groups have a thread id too, but are no topics."""
    return message.message_thread_id if message.is_topic_message else None


def _before(message: Message, actor: Actor, *, is_edit: bool) -> str:
    """What the agent should know about a message before it reads it."""
    lines = []
    if is_edit:
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
    short = text if len(text) <= MAX_QUOTE else text[:MAX_QUOTE] + "…"
    who = _line(earlier.sender.name) if earlier.sender else ""
    quote = "\n".join(f"> {line}" for line in short.splitlines())
    return f"[In reply to{f' {who}' if who else ''}:]\n{quote}"


def _is_addressed(message: Message, bot: User) -> bool:
    earlier = message.reply_to_message
    if earlier is not None and earlier.sender is not None and earlier.sender.id == bot.id:
        return True
    text, name = message.text or message.caption, f"@{bot.username}".casefold()
    for entity in message.entities or message.caption_entities:
        if entity.type == "text_mention" and entity.user is not None and entity.user.id == bot.id:
            return True
        if entity.type == "mention" and _slice(text, entity.offset, entity.length) == name:
            return True
    return False


def _slice(text: str, offset: int, length: int) -> str:
    if offset < 0 or length < 0:
        return ""
    units = text.encode("utf-16-le", "surrogatepass")
    return units[offset * 2 : (offset + length) * 2].decode("utf-16-le", "replace").casefold()


def _without_mention(text: str, bot: User) -> str:
    if not bot.username or "@" not in text:
        return text
    name = re.compile(rf"(?<![\w@])@{re.escape(bot.username)}(?!\w)[,:]?[ \t]*", re.IGNORECASE)
    return name.sub("", text).strip() or text


def _files(message: Message) -> tuple[Attachment, ...]:
    found = []
    if message.photo:
        best = sorted(message.photo, key=lambda size: size.file_size or 0)[-1]
        name = f"photo-{message.message_id}.jpg"
        found.append(Attachment(best.file_id, name, "image/jpeg", best.file_size))
    for kind in _NAMED_FILES:
        file: RemoteFile | None = getattr(message, kind)
        if file is None or (kind == "document" and message.animation is not None):
            continue
        name, media_type = _MEDIA.get(kind, ("file", "application/octet-stream"))
        name, media_type = _file_name(file.file_name or name), _line(file.mime_type) or media_type
        found.append(Attachment(file.file_id, name, media_type, file.file_size))
    return tuple(found)


def _file_name(name: str) -> str:
    """One part of a path, printable and short, whatever was sent."""
    kept = re.sub(r"[^\w. ()+-]", "_", _line(name)).strip(". ")
    stem, dot, ending = kept.rpartition(".")
    short = f"{stem[:80]}{dot}{ending[:16]}" if stem else kept[:80]
    return short or "file"


def _pressed(query: CallbackQuery) -> Parsed:
    """The actor is the one who pressed; the message is the bot's own."""
    message = query.message
    if message is None:
        return Pressed(_actor(query.sender, None), Place(query.sender.id), query.id, None)
    place = Place(message.chat.id, _thread(message))
    return Pressed(_actor(query.sender, message.chat), place, query.id, _meaning(query, message))


def button_data(command: str, index: int) -> str:
    """What a button carries: its command, or where that is too long, its place in the message."""
    is_plain = 0 < len(command.encode()) <= 64 and not command.startswith("#")
    return command if is_plain else f"#{index}"


def _meaning(query: CallbackQuery, message: Message) -> str | None:
    data = query.data or ""
    if not data.startswith("#"):
        return _clean(data) or None
    rows = message.reply_markup.inline_keyboard if message.reply_markup else ()
    labels = [button.text for row in rows for button in row]
    number = data[1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 4 and int(number) < len(labels)):
        return None
    return _clean(labels[int(number)]) or None


def _clean(text: str) -> str:
    """Without control characters and half surrogate pairs, which no store or model takes."""
    return _CONTROLS.sub("", text).encode("utf-8", "ignore").decode()


def _line(text: str) -> str:
    return " ".join(_clean(text).split())[:64]
