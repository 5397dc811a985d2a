"""`DiscordOutlet`: sends and edits messages on Discord."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from talaria.channels import pieces
from talaria.channels.discord.api import (
    UNKNOWN_MESSAGE,
    DiscordApi,
    DiscordChannelInfo,
    DiscordRefused,
    GuildMessage,
)
from talaria.channels.discord.parse import Place, custom_id
from talaria.channels.discord.render import LIMIT, Hosts, to_discord
from talaria.channels.live_message import REPEATED, ChatOutlet
from talaria.channels.pieces import shorten
from talaria.channels.platform_api import as_delivery_error
from talaria.core.clock import Clock
from talaria.core.delivery import Button, DeliveryRefused, OutgoingMessage
from talaria.core.limits import BoundedDict

EDIT_SECONDS = 1.5  # Discord allows five edits in five seconds in one channel
MAX_FILE_MB = 10  # in a private chat, and in a server without boosts
_SUPPRESS_EMBEDS = (
    1 << 2
)  # Discord would fetch the links of a text, so a model could send data without a click
_DM = 1
_MAX_LABEL, _IN_ROW, _MAX_BUTTONS = 80, 5, 25
_MAX_KNOWN = 1024


class DiscordOutlet(ChatOutlet):
    """Every message has a nonce that Discord enforces for some minutes: a message that comes again meanwhile
    is the earlier one. After that it comes with the visible mark of a repeat."""

    longest = LIMIT
    typing_seconds = 8.0  # Discord shows it for ten

    def __init__(self, api: DiscordApi, clock: Clock, progress: str, own: Hosts = frozenset()) -> None:
        """`own` are the gateway's own hosts; addresses of theirs are no links."""
        super().__init__(clock, progress)
        self._api = api
        self._own = own
        self._private: BoundedDict[str, str] = BoundedDict(_MAX_KNOWN)  # the channel of a person

    def split(self, reply: str, address: str) -> Iterator[str]:
        return pieces.split(reply, LIMIT)

    def edit_pause(self, address: str) -> float:
        return EDIT_SECONDS

    def max_file(self, address: str) -> int:
        return (Place.read(address).limit or MAX_FILE_MB) << 20

    async def type_in(self, address: str) -> None:
        with as_delivery_error():
            await self._api.call("POST", f"{await self._channel(_place(address))}/typing", msgspec.Raw)

    async def deliver(self, post: OutgoingMessage) -> str:
        place = _place(post.address)
        post = self.fitting(post)
        with as_delivery_error(is_edit=True):  # to open a private chat again changes nothing
            channel = await self._channel(place)
            if post.edits is not None and await self._edit(channel, post):
                return post.edits
        with as_delivery_error():
            return await self._send(channel, place, post)

    async def say(self, address: str, text: str) -> None:
        body = {"content": shorten(text, LIMIT), "allowed_mentions": {"parse": []}, "flags": _SUPPRESS_EMBEDS}
        await self._api.call("POST", f"{await self._channel(_place(address))}/messages", GuildMessage, body)

    async def _channel(self, place: Place) -> str:
        """Return the path of the channel. The private chat with a person is opened if it is not known; to
        open it again changes nothing."""
        channel = place.channel or self._private.get(place.user)
        if channel is None:
            body = {"recipient_id": place.user}
            channel = (await self._api.call("POST", "/users/@me/channels", DiscordChannelInfo, body)).id
            self._private[place.user] = channel
        return f"/channels/{channel}"

    async def _send(self, channel: str, place: Place, post: OutgoingMessage) -> str:
        text = f"{REPEATED}\n\n{post.body}" if post.is_repeat else post.body
        body: dict[str, Any] = {
            "content": to_discord(text, self._own),
            "nonce": hashlib.sha256(post.nonce.encode()).hexdigest()[:25],
            "enforce_nonce": True,
            "allowed_mentions": {"parse": [], "replied_user": False},
            "flags": _SUPPRESS_EMBEDS,
        }
        if place.reply_to:  # an ordinary message if the one that is answered was deleted
            body["message_reference"] = {"message_id": place.reply_to, "fail_if_not_exists": False}
        if post.buttons:
            body["components"] = _components(post.buttons)
        file = None
        if post.file is not None:
            file = (post.file.name, post.file.data)
            body["attachments"] = [{"id": 0, "filename": post.file.name}]
        return (await self._api.call("POST", f"{channel}/messages", GuildMessage, body, file=file)).id

    async def _edit(self, channel: str, post: OutgoingMessage) -> bool:
        """Return False if the message to edit is gone."""
        body = {
            "content": to_discord(post.body, self._own),
            "allowed_mentions": {"parse": []},
            "flags": _SUPPRESS_EMBEDS,
            "components": _components(post.buttons),
        }
        try:
            await self._api.call("PATCH", f"{channel}/messages/{post.edits}", GuildMessage, body)
        except DiscordRefused as refusal:
            if refusal.number != UNKNOWN_MESSAGE:
                raise
            return False
        return True


def _place(address: str) -> Place:
    try:
        return Place.read(address)
    except ValueError:
        raise DeliveryRefused(f"{address!r} is not an address of a Discord chat.") from None


def _components(buttons: tuple[Button, ...]) -> list[dict[str, Any]]:
    """Return rows of buttons: https://docs.discord.com/developers/components/reference#button"""
    keys = [
        {
            "type": 2,
            "style": 2,
            "label": shorten(button.label, _MAX_LABEL),
            "custom_id": custom_id(button.command, index),
        }
        for index, button in enumerate(buttons[:_MAX_BUTTONS])
    ]
    return [{"type": 1, "components": keys[at : at + _IN_ROW]} for at in range(0, len(keys), _IN_ROW)]
