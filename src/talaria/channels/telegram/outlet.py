"""The way back to Telegram's chats: `core.ports.Outlet` over the Bot API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from talaria.channels.telegram.client import BotApi, Refused, Unanswered, Unreached, Value
from talaria.channels.telegram.live import LiveMessage, target
from talaria.channels.telegram.parse import Place, button_data
from talaria.channels.telegram.render import MAX_CAPTION, shorten, split, to_html
from talaria.channels.telegram.wire import Sent
from talaria.core.clock import Clock
from talaria.core.delivery import Button, DeliveryDelayed, DeliveryRefused, DeliveryUnknown, OutgoingMessage
from talaria.core.ports import TurnFeed

REPEATED = "↻ sent again, the first try may have arrived"
_PHOTOS = (".jpg", ".jpeg", ".png", ".webp")
_VOICES = (".ogg", ".oga", ".opus")
_MAX_PHOTO = 10 << 20
_NOT_THERE = ("message to edit not found", "message can't be edited", "MESSAGE_ID_INVALID")

_T = TypeVar("_T")


class TelegramOutlet:
    """`on_moved` is told when the platform says that a chat has another id; the send goes on there."""

    takes_nonce = False

    def __init__(
        self, api: BotApi, clock: Clock, progress: str, on_moved: Callable[[int, int], Awaitable[None]]
    ) -> None:
        self._api = api
        self._clock = clock
        self._progress = progress
        self._on_moved = on_moved

    def split(self, reply: str) -> tuple[str, ...]:
        return split(reply)

    async def deliver(self, post: OutgoingMessage) -> str:
        try:
            place = Place.read(post.address)
        except ValueError:
            raise DeliveryRefused(f"{post.address!r} is no address of a Telegram chat.") from None
        try:
            return await self._deliver(place, post)
        except _Moved as moved:
            await self._on_moved(place.chat, moved.to)
            return await self._deliver(Place(moved.to), post)

    async def show(self, view: TurnFeed) -> None:
        """Until the turn's last event, or until cancelled; a message on its way is waited for even then, so
        that the reply can take its place."""
        place = Place.read(view.turn.inbound.address or "")
        await LiveMessage(self._api, self._clock, place, view, self._progress).run()

    # -- one call each --------------------------------------------------------------------------------------

    async def _deliver(self, place: Place, post: OutgoingMessage) -> str:
        if post.file is not None:
            return await self._send_file(place, post)
        if post.edits is not None and await self._edit(place, post):
            return post.edits
        return await self._send(place, post)

    async def _send(self, place: Place, post: OutgoingMessage) -> str:
        body = f"{REPEATED}\n\n{post.body}" if post.is_repeat else post.body
        with _told(is_edit=False):
            sent = await _formatted(
                lambda text, mode: self._api.call(
                    "sendMessage",
                    Sent,
                    text=text,
                    parse_mode=mode,
                    **target(place),
                    **_keyboard(post.buttons),
                ),
                body,
            )
        return str(sent.message_id)

    async def _edit(self, place: Place, post: OutgoingMessage) -> bool:
        """False: there is nothing that could be edited."""
        params: dict[str, Value] = {"chat_id": place.chat, "message_id": int(post.edits or 0)}
        params |= _keyboard(post.buttons)
        with _told(is_edit=True):
            try:
                await _formatted(
                    lambda text, mode: self._api.call(
                        "editMessageText", msgspec.Raw, text=text, parse_mode=mode, **params
                    ),
                    post.body,
                )
            except Refused as refusal:
                if refusal.says("message is not modified"):
                    return True
                if any(refusal.says(words) for words in _NOT_THERE):
                    return False
                raise
        return True

    async def _send_file(self, place: Place, post: OutgoingMessage) -> str:
        assert post.file is not None
        name, data = post.file.name, post.file.data
        kind = _kind(name, len(data))
        caption = f"{REPEATED}\n{post.body}" if post.is_repeat else post.body
        params = {**target(place), **_keyboard(post.buttons)}

        async def upload(text: str, mode: str | None) -> Sent:
            return await self._api.upload(
                f"send{kind.capitalize()}",
                Sent,
                kind,
                (name, data),
                caption=text or None,
                parse_mode=mode,
                **params,
            )

        with _told(is_edit=False):
            try:
                sent = await _formatted(upload, shorten(caption, MAX_CAPTION))
            except Refused as refusal:
                if kind == "document" or not any(map(refusal.says, ("PHOTO", "IMAGE", "VOICE"))):
                    raise
                kind = "document"  # what Telegram does not take for an image or a voice is still a file
                sent = await _formatted(upload, shorten(caption, MAX_CAPTION))
        return str(sent.message_id)


class _Moved(DeliveryRefused):
    def __init__(self, to: int) -> None:
        super().__init__(f"The chat has moved to {to}.")
        self.to = to


@contextmanager
def _told(*, is_edit: bool) -> Iterator[None]:
    """What the ledger should know of a call that failed."""
    try:
        yield
    except Unreached as error:
        raise DeliveryDelayed(error.user_text) from None
    except Unanswered as error:
        if is_edit and error.status is not None and error.status >= 500:
            raise DeliveryDelayed(error.user_text) from None
        raise DeliveryUnknown(error.user_text) from None
    except Refused as refusal:
        if refusal.moved_to is not None:
            raise _Moved(refusal.moved_to) from None
        # A wrong token says nothing about the message: it waits for a right one, until it is too old.
        if refusal.code == 429 or refusal.is_about_token:
            raise DeliveryDelayed(refusal.user_text, retry_after=refusal.retry_after) from None
        raise DeliveryRefused(refusal.user_text) from None


async def _formatted(call: Callable[[str, str | None], Awaitable[_T]], body: str) -> _T:
    """With formatting, and without when Telegram cannot read it."""
    try:
        return await call(to_html(body), "HTML")
    except Refused as refusal:
        if not any(map(refusal.says, ("can't parse", "too long", "TOO_LONG", "text is empty"))):
            raise
        return await call(body, None)


def _kind(name: str, size: int) -> str:
    if name.lower().endswith(_PHOTOS) and size <= _MAX_PHOTO:
        return "photo"
    return "voice" if name.lower().endswith(_VOICES) else "document"


def _keyboard(buttons: tuple[Button, ...]) -> dict[str, Value]:
    if not buttons:
        return {}
    drawn = [
        {"text": button.label, "callback_data": button_data(button.command, index)}
        for index, button in enumerate(buttons)
    ]
    width = 3 if all(len(button.label) <= 16 for button in buttons) else 1
    rows = [drawn[start : start + width] for start in range(0, len(drawn), width)]
    return {"reply_markup": {"inline_keyboard": rows}}
