"""What Telegram sends, as far as it is used here. Names are the Bot API's."""

from __future__ import annotations

from typing import Any

import msgspec


class User(msgspec.Struct, frozen=True):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""

    @property
    def name(self) -> str:
        return " ".join(f"{self.first_name} {self.last_name}".split()) or self.username


class Chat(msgspec.Struct, frozen=True):
    id: int
    type: str


class Entity(msgspec.Struct, frozen=True):
    """Offsets and lengths are UTF-16 units."""

    type: str
    offset: int
    length: int
    user: User | None = None


class RemoteFile(msgspec.Struct, frozen=True):
    file_id: str
    file_size: int | None = None
    file_name: str = ""
    mime_type: str = ""
    file_path: str = ""


class Quote(msgspec.Struct, frozen=True):
    text: str = ""


class Sticker(msgspec.Struct, frozen=True):
    emoji: str = ""


class InlineButton(msgspec.Struct, frozen=True):
    text: str = ""


class Keyboard(msgspec.Struct, frozen=True):
    inline_keyboard: tuple[tuple[InlineButton, ...], ...] = ()


class Message(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """`sender_chat`: a chat spoke, not a person. `edit_date` is there on edited messages."""

    message_id: int
    chat: Chat
    sender: User | None = None
    sender_chat: Chat | None = None
    edit_date: int | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    text: str = ""
    caption: str = ""
    entities: tuple[Entity, ...] = ()
    caption_entities: tuple[Entity, ...] = ()
    reply_to_message: Message | None = None
    quote: Quote | None = None
    forward_origin: dict[str, Any] | None = None
    media_group_id: str | None = None
    photo: tuple[RemoteFile, ...] = ()
    document: RemoteFile | None = None
    voice: RemoteFile | None = None
    audio: RemoteFile | None = None
    video: RemoteFile | None = None
    video_note: RemoteFile | None = None
    animation: RemoteFile | None = None
    sticker: Sticker | None = None
    reply_markup: Keyboard | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None


class CallbackQuery(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """A pressed button."""

    id: str
    sender: User
    message: Message | None = None
    data: str | None = None


class Update(msgspec.Struct, frozen=True):
    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None


class Sent(msgspec.Struct, frozen=True):
    """A message of ours, as the platform confirms it."""

    message_id: int


class WebhookInfo(msgspec.Struct, frozen=True):
    url: str = ""
    last_error_message: str = ""


WANTED_UPDATES = ["message", "edited_message", "callback_query"]
