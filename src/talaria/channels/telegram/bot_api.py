"""The Bot API: its types as far as they are used, and a client whose errors say what is known of a call.

The token is part of every URL, so no error text contains a URL with a path.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, TypeVar

import aiohttp
import msgspec

from talaria.channels.platform_api import (
    ANSWER_SECONDS,
    UPLOAD_SECONDS,
    PlatformHttp,
    PlatformRefused,
    PlatformUnanswered,
    read_body,
)

T = TypeVar("T")
Value = str | int | float | bool | None | list[Any] | dict[str, Any]


# Telegram fetches the first link of a text for its preview, so a model could send data out without a click.
_WRITING = frozenset({"sendMessage", "editMessageText"})

WANTED_UPDATES = ["message", "edited_message", "callback_query"]
DISPUTED = "another process polls with this bot's token; only one can"


# -- types, with the Bot API's field names ----------------------------------------------------------------


class User(msgspec.Struct, frozen=True):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""

    @property
    def name(self) -> str:
        return " ".join(f"{self.first_name} {self.last_name}".split()) or self.username


class ChatInfo(msgspec.Struct, frozen=True):
    id: int
    type: str


class MessageEntity(msgspec.Struct, frozen=True):
    """`offset` and `length` count UTF-16 units."""

    type: str
    offset: int
    length: int
    user: User | None = None


class TelegramFile(msgspec.Struct, frozen=True):
    file_id: str
    file_size: int | None = None
    file_name: str = ""
    mime_type: str = ""
    file_path: str = ""


class TextQuote(msgspec.Struct, frozen=True):
    text: str = ""


class Sticker(msgspec.Struct, frozen=True):
    emoji: str = ""


class InlineButton(msgspec.Struct, frozen=True):
    text: str = ""


class InlineKeyboard(msgspec.Struct, frozen=True):
    inline_keyboard: tuple[tuple[InlineButton, ...], ...] = ()


class Message(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """`sender_chat` is set if a chat speaks and not a person; `edit_date` is set on edited messages."""

    message_id: int
    chat: ChatInfo
    sender: User | None = None
    sender_chat: ChatInfo | None = None
    edit_date: int | None = None
    message_thread_id: int | None = None
    is_topic_message: bool = False
    text: str = ""
    caption: str = ""
    entities: tuple[MessageEntity, ...] = ()
    caption_entities: tuple[MessageEntity, ...] = ()
    reply_to_message: Message | None = None
    quote: TextQuote | None = None
    forward_origin: dict[str, Any] | None = None
    media_group_id: str | None = None
    photo: tuple[TelegramFile, ...] = ()
    document: TelegramFile | None = None
    voice: TelegramFile | None = None
    audio: TelegramFile | None = None
    video: TelegramFile | None = None
    video_note: TelegramFile | None = None
    animation: TelegramFile | None = None
    sticker: Sticker | None = None
    reply_markup: InlineKeyboard | None = None
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


class PostedMessage(msgspec.Struct, frozen=True):
    """A message of the bot, as Telegram confirms it."""

    message_id: int


class WebhookInfo(msgspec.Struct, frozen=True):
    url: str = ""
    last_error_message: str = ""


class _Parameters(msgspec.Struct, frozen=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _Answer(msgspec.Struct, frozen=True):
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error_code: int = 0
    description: str = ""
    parameters: _Parameters = _Parameters()


# -- errors -----------------------------------------------------------------------------------------------


class BotApiRefused(PlatformRefused):
    """Telegram answered with an error and did nothing. 401 refuses the token, and so does 404, for a text
    that cannot be a token."""

    def __init__(
        self, code: int, description: str, *, retry_after: float | None = None, moved_to: int | None = None
    ) -> None:
        text, is_about_token = f"Telegram refused ({code}): {description}", code in (401, 404)
        super().__init__(text, code=code, retry_after=retry_after, is_about_token=is_about_token)
        self.description = description
        self.moved_to = moved_to

    def says(self, *texts: str) -> bool:
        """Return whether the description contains one of these texts."""
        return any(text in self.description for text in texts)


# -- the client -------------------------------------------------------------------------------------------


class BotApi(PlatformHttp):
    """The calls of one bot over one HTTP session, open within `async with`."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, "channels.telegram.api_url")
        self.token = token

    async def call(self, method: str, answer: type[T], wait: float = 0.0, /, **params: Value) -> T:
        """Return the decoded result. `wait` is how many seconds the server may hold the request."""
        given = {key: value for key, value in params.items() if value is not None}
        if method in _WRITING:
            given["link_preview_options"] = {"is_disabled": True}
        return await self._ask(method, answer, ANSWER_SECONDS + wait, json=given)

    async def edit(self, chat: int, message_id: str, **params: Value) -> None:
        """Edit the text of a message. No effect if the message has this text already."""
        try:
            await self.call(
                "editMessageText", msgspec.Raw, chat_id=chat, message_id=int(message_id), **params
            )
        except BotApiRefused as refusal:
            if not refusal.says("message is not modified"):
                raise

    async def upload(
        self, method: str, answer: type[T], field: str, file: tuple[str, bytes], /, **params: Value
    ) -> T:
        """Call a method with a file (name and content) in `field`."""
        form = aiohttp.FormData()
        for key, value in params.items():
            if value is not None:
                form.add_field(key, value if isinstance(value, str) else msgspec.json.encode(value).decode())
        form.add_field(field, BytesIO(file[1]), filename=file[0])
        return await self._ask(method, answer, UPLOAD_SECONDS, data=form)

    async def download(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a file that `getFile` named. Raises `PlatformTooLarge`."""
        async with self.request("GET", f"/file/bot{self.token}/{path}", UPLOAD_SECONDS) as response:
            if response.status != 200:
                raise PlatformUnanswered(f"Telegram did not hand out the file ({response.status}).")
            return await read_body(response, max_bytes)

    async def _ask(self, method: str, answer: type[T], seconds: float, **body: Any) -> T:
        async with self.request("POST", f"/bot{self.token}/{method}", seconds, **body) as response:
            status = response.status
            data = await read_body(response)
        try:
            said = msgspec.json.decode(data, type=_Answer)
            if said.ok:
                return msgspec.json.decode(said.result, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            text = f"{method}: the answer ({status}) is not one of the Bot API."
            raise PlatformUnanswered(text, status=status) from None
        code = said.error_code or status
        if code >= 500:
            raise PlatformUnanswered(f"{method}: Telegram failed ({code}): {said.description}", status=code)
        extra = said.parameters
        raise BotApiRefused(
            code, said.description, retry_after=extra.retry_after, moved_to=extra.migrate_to_chat_id
        )
