"""The Bot API: its types as far as they are used, and a client whose errors say what is known of a call.

The token is part of every URL, so no error text contains a URL with a path.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from talaria.core.errors import TalariaError
from talaria.core.redaction import ApiAddress

T = TypeVar("T")
Value = str | int | float | bool | None | list[Any] | dict[str, Any]

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 20.0
_UPLOAD_SECONDS = 120.0
_MAX_ANSWER = 32 << 20

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


class BotApiError(TalariaError):
    """A call failed. The subclass says what is known of it."""

    type = "telegram"


class BotApiUnreachable(BotApiError):
    """No connection was made, so Telegram did nothing."""


class BotApiUnanswered(BotApiError):
    """The request was sent, and no answer says whether it was carried out. `status` is set if the server
    reported a failure of its own."""

    def __init__(self, user_text: str, hint: str = "", *, status: int | None = None) -> None:
        super().__init__(user_text, hint)
        self.status = status


class BotApiRefused(BotApiError):
    """Telegram answered with an error and did nothing."""

    def __init__(
        self, code: int, description: str, *, retry_after: float | None = None, moved_to: int | None = None
    ) -> None:
        super().__init__(f"Telegram refused ({code}): {description}")
        self.code = code
        self.description = description
        self.retry_after = retry_after
        self.moved_to = moved_to

    @property
    def is_about_token(self) -> bool:
        """Return whether the token was refused: 401, or 404 for a text that cannot be a token."""
        return self.code in (401, 404)

    def says(self, *texts: str) -> bool:
        """Return whether the description contains one of these texts."""
        return any(text in self.description for text in texts)


class BotApiTooLarge(BotApiError):
    """An answer or a file is larger than the caller allowed."""


# -- the client -------------------------------------------------------------------------------------------


class BotApi:
    """The calls of one bot over one HTTP session, open within `async with`."""

    def __init__(self, url: str, token: str) -> None:
        self._url = ApiAddress(url)
        self.token = token
        self._http: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"BotApi({str(self._url)!r})"

    async def __aenter__(self) -> Self:
        headers = {"Authorization": self._url.authorization} if self._url.authorization else None
        self._http = aiohttp.ClientSession(headers=headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def call(self, method: str, answer: type[T], wait: float = 0.0, /, **params: Value) -> T:
        """Return the decoded result. `wait` is how many seconds the server may hold the request."""
        given = {key: value for key, value in params.items() if value is not None}
        if method in _WRITING:
            given["link_preview_options"] = {"is_disabled": True}
        return await self._ask(method, answer, _ANSWER_SECONDS + wait, json=given)

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
        return await self._ask(method, answer, _UPLOAD_SECONDS, data=form)

    async def download(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a file that `getFile` named. Raises `BotApiTooLarge`."""
        async with self._request("GET", f"file/bot{self.token}/{path}", _UPLOAD_SECONDS) as response:
            if response.status != 200:
                raise BotApiUnanswered(f"Telegram did not hand out the file ({response.status}).")
            return await _read(response, max_bytes)

    async def _ask(self, method: str, answer: type[T], seconds: float, **body: Any) -> T:
        async with self._request("POST", f"bot{self.token}/{method}", seconds, **body) as response:
            status = response.status
            data = await _read(response, _MAX_ANSWER)
        try:
            said = msgspec.json.decode(data, type=_Answer)
            if said.ok:
                return msgspec.json.decode(said.result, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            text = f"{method}: the answer ({status}) is not one of the Bot API."
            raise BotApiUnanswered(text, status=status) from None
        code = said.error_code or status
        if code >= 500:
            raise BotApiUnanswered(f"{method}: Telegram failed ({code}): {said.description}", status=code)
        extra = said.parameters
        raise BotApiRefused(
            code, said.description, retry_after=extra.retry_after, moved_to=extra.migrate_to_chat_id
        )

    @asynccontextmanager
    async def _request(
        self, verb: str, path: str, seconds: float, **body: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._http is not None, "BotApi is used within `async with`"
        timeout = aiohttp.ClientTimeout(total=seconds, connect=_CONNECT_SECONDS)
        url = self._url.target(f"/{path}")
        try:
            async with self._http.request(
                verb, url, timeout=timeout, allow_redirects=False, **body
            ) as response:
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            # asyncio's own text names the socket and not the reason.
            number = getattr(error, "errno", None)
            reason = os.strerror(number) if number and number > 0 else getattr(error, "strerror", None)
            text = f"{self._url} cannot be reached: {reason or 'no answer'}."
            raise BotApiUnreachable(text, "Is the network up?") from None
        except aiohttp.InvalidURL:
            text = f"{self._url} is no address."
            raise BotApiUnreachable(text, "Correct channels.telegram.api_url.") from None
        except TimeoutError:
            raise BotApiUnanswered(f"{self._url} did not answer in time.") from None
        except aiohttp.ClientError:
            raise BotApiUnanswered(f"The connection to {self._url} was lost.") from None


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return the body without holding more than `max_bytes` and one piece. Raises `BotApiTooLarge`."""
    data = bytearray()
    if (response.content_length or 0) <= max_bytes:
        async for piece in response.content.iter_chunked(1 << 16):
            data += piece
            if len(data) > max_bytes:
                break
        else:
            return bytes(data)
    raise BotApiTooLarge(f"There are more than {max_bytes} bytes.")
