"""`TelegramOutlet`: sends and edits messages in Telegram's chats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from talaria.channels import pieces
from talaria.channels.live_message import REPEATED, ChatOutlet
from talaria.channels.pieces import shorten
from talaria.channels.platform_api import as_delivery_error
from talaria.channels.telegram.bot_api import BotApi, BotApiRefused, PostedMessage, Value
from talaria.channels.telegram.parse import ChatTarget, keyboard_params
from talaria.channels.telegram.render import LIMIT, MAX_CAPTION, Hosts, refused_addresses, to_html
from talaria.core.clock import Clock
from talaria.core.delivery import Button, DeliveryRefused, OutgoingMessage

PRIVATE_SECONDS = 1.5  # between two edits: Telegram allows a private chat one message a second
GROUP_SECONDS = 4.0  # and a group 20 a minute
_PHOTOS = (".jpg", ".jpeg", ".png", ".webp")
_VOICES = (".ogg", ".oga", ".opus")
_MAX_PHOTO = 10 << 20
_MAX_FILE = 50 << 20  # that bots may send

_T_co = TypeVar("_T_co", covariant=True)


class TelegramOutlet(ChatOutlet):
    """Sends and edits messages. `on_moved` is called when Telegram says that a chat has another id; the
    message is then sent there."""

    longest = LIMIT

    def __init__(
        self,
        api: BotApi,
        clock: Clock,
        progress: str,
        on_moved: Callable[[int, int], Awaitable[None]],
        own: Hosts = frozenset(),
    ) -> None:
        """`own` are the gateway's own hosts; addresses of theirs are no links."""
        super().__init__(clock, progress)
        self._api = api
        self._own = own
        self._on_moved = on_moved

    def split(self, reply: str, address: str) -> Iterator[str]:
        return pieces.split(reply, LIMIT)

    async def deliver(self, post: OutgoingMessage) -> str:
        try:
            target = ChatTarget.read(post.address)
        except ValueError:
            raise DeliveryRefused(f"{post.address!r} is no address of a Telegram chat.") from None
        try:
            return await self._deliver(target, post)
        except _ChatMoved as moved:
            await self._on_moved(target.chat, moved.to)
            return await self._deliver(ChatTarget(moved.to), post)

    async def type_in(self, address: str) -> None:
        target = ChatTarget.read(address)
        params: dict[str, Value] = {"chat_id": target.chat, "message_thread_id": target.thread}
        with as_delivery_error(), _moves():
            await self._api.call("sendChatAction", bool, action="typing", **params)

    def edit_pause(self, address: str) -> float:
        return PRIVATE_SECONDS if ChatTarget.read(address).chat > 0 else GROUP_SECONDS

    def max_file(self, address: str) -> int:
        return _MAX_FILE

    async def _deliver(self, target: ChatTarget, post: OutgoingMessage) -> str:
        post = self.fitting(post)
        if post.file is not None:
            return await self._send_file(target, post)
        if post.edits is not None and await self._edit(target, post):
            return post.edits
        return await self._send(target, post)

    async def _send(self, target: ChatTarget, post: OutgoingMessage) -> str:
        params = {**target.params(), **_keyboard(post.buttons)}

        async def send(text: str, **form: Value) -> PostedMessage:
            return await self._api.call("sendMessage", PostedMessage, text=text, **form, **params)

        body = f"{REPEATED}\n\n{post.body}" if post.is_repeat else post.body
        with as_delivery_error(), _moves():
            return str((await _with_formatting(send, body, self._own)).message_id)

    async def _edit(self, target: ChatTarget, post: OutgoingMessage) -> bool:
        """Return False if the message to edit is gone."""

        async def edit(text: str, **form: Value) -> None:
            form |= _keyboard(post.buttons)
            await self._api.edit(target.chat, post.edits or "0", text=text, **form)

        with as_delivery_error(is_edit=True), _moves():
            try:
                await _with_formatting(edit, post.body, self._own)
            except BotApiRefused as refusal:
                if refusal.says("message to edit not found", "message can't be edited", "MESSAGE_ID_INVALID"):
                    return False
                raise
        return True

    async def _send_file(self, target: ChatTarget, post: OutgoingMessage) -> str:
        assert post.file is not None
        file = (post.file.name, post.file.data)
        kind = _file_kind(*file)
        params = {**target.params(), **_keyboard(post.buttons)}

        async def upload(text: str, entities: Value = None, **form: Value) -> PostedMessage:
            method = f"send{kind.capitalize()}"
            form |= {"caption": text or None, "caption_entities": entities}
            return await self._api.upload(method, PostedMessage, kind, file, **form, **params)

        body = f"{REPEATED}\n{post.body}" if post.is_repeat else post.body
        caption = shorten(body, MAX_CAPTION)
        with as_delivery_error(), _moves():
            try:
                sent = await _with_formatting(upload, caption, self._own)
            except BotApiRefused as refusal:
                if kind == "document" or not refusal.says("PHOTO", "IMAGE", "VOICE"):
                    raise
                kind = "document"  # a file that Telegram does not accept as an image or a voice message
                sent = await _with_formatting(upload, caption, self._own)
        return str(sent.message_id)


class _ChatMoved(DeliveryRefused):
    def __init__(self, to: int) -> None:
        super().__init__(f"The chat has moved to {to}.")
        self.to = to


@contextmanager
def _moves() -> Iterator[None]:
    try:
        yield
    except BotApiRefused as refusal:
        if refusal.moved_to is not None:
            raise _ChatMoved(refusal.moved_to) from None
        raise


class _Call(Protocol[_T_co]):
    def __call__(self, text: str, **form: Value) -> Awaitable[_T_co]: ...


async def _with_formatting(call: _Call[_T_co], body: str, own: Hosts) -> _T_co:
    """Call with the text as HTML; if Telegram refuses the formatting, call again with plain text."""
    try:
        return await call(to_html(body, own), parse_mode="HTML")
    except BotApiRefused as refusal:
        if not refusal.says("can't parse", "too long", "TOO_LONG", "text is empty"):
            raise
        entities: list[Any] = [*refused_addresses(body, own)]
        return await call(body, entities=entities or None)


def _file_kind(name: str, data: bytes) -> str:
    if name.lower().endswith(_PHOTOS) and len(data) <= _MAX_PHOTO:
        return "photo"
    return "voice" if name.lower().endswith(_VOICES) else "document"


def _keyboard(buttons: tuple[Button, ...]) -> dict[str, Value]:
    return keyboard_params(buttons, 3 if all(len(button.label) <= 16 for button in buttons) else 1)
