"""Output to Slack's conversations: messages and edits as blocks, and files."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from talaria.channels.live_message import REPEATED, ChatOutlet
from talaria.channels.pieces import shorten
from talaria.channels.platform_api import as_delivery_error
from talaria.channels.slack.parse import PEOPLE, SlackPlace
from talaria.channels.slack.render import LIMIT, Hosts, escape, split, to_blocks, to_mrkdwn
from talaria.channels.slack.slack_api import Posted, SlackApi, SlackRefused, Value
from talaria.core.clock import Clock
from talaria.core.delivery import DeliveryRefused, OutgoingMessage
from talaria.core.limits import BoundedDict

EDIT_SECONDS = 2.0  # between two edits of one message
EDITS_A_MINUTE = 40  # of all messages together: Slack takes 50 chat.update calls a minute
_MAX_TEXT = 3000  # characters of the text that notifications show
_GONE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})


class _Upload(msgspec.Struct, frozen=True):
    upload_url: str
    file_id: str


class _Opened(msgspec.Struct, frozen=True):
    channel: dict[str, Any]


class SlackOutlet(ChatOutlet):
    """Sends and edits messages, and sends files."""

    longest = LIMIT

    def __init__(self, api: SlackApi, clock: Clock, progress: str, own: Hosts = frozenset()) -> None:
        """`own` are the gateway's own hosts; addresses of theirs are no links."""
        super().__init__(clock, progress)
        self._api = api
        self._own = own
        self._channels: BoundedDict[str, str] = BoundedDict(1000)  # of people to whom messages were sent
        self._edits: deque[float] = deque(maxlen=EDITS_A_MINUTE)  # their times

    def split(self, reply: str, address: str) -> Iterator[str]:
        return split(reply, self._own)

    async def deliver(self, post: OutgoingMessage) -> str:
        try:
            place = SlackPlace.read(post.address)
        except ValueError:
            raise DeliveryRefused(f"{post.address!r} is not an address in Slack.") from None
        post = self.fitting(post)
        if place.channel.startswith(PEOPLE):
            with as_delivery_error(is_edit=True):
                place = SlackPlace(await self._find_channel(place.channel))
        if post.file is not None:
            return await self._send_file(place, post)
        if post.edits is not None and await self._edit(place, post, post.edits):
            return post.edits
        return await self._send(place, post)

    async def _find_channel(self, user: str) -> str:
        """Return the channel of the direct messages with a person."""
        if user not in self._channels:
            opened = await self._api.call("conversations.open", _Opened, users=user)
            self._channels[user] = str(opened.channel["id"])
        return self._channels[user]

    async def say(self, address: str, text: str, only_to: str | None = None) -> None:
        """Send a notice; with `only_to`, only this person sees it."""
        place, method = SlackPlace.read(address), "chat.postEphemeral" if only_to else "chat.postMessage"
        is_person = place.channel.startswith(PEOPLE)
        channel = await self._find_channel(place.channel) if is_person else place.channel
        params: dict[str, Value] = {"channel": channel, "thread_ts": place.thread, "user": only_to}
        await self._api.call(method, msgspec.Raw, text=escape(text), **params)

    async def type_in(self, address: str) -> None:
        """No effect: Slack has no sign for a bot that types."""

    def edit_pause(self, address: str) -> float:
        """The more messages are edited, the slower each is, because Slack counts all edits together."""
        if len(self._edits) < EDITS_A_MINUTE:
            return EDIT_SECONDS
        return max(EDIT_SECONDS, 60.0 - (self.clock.elapsed() - self._edits[0]))

    def max_file(self, address: str) -> int:
        return 1 << 30

    async def _send(self, place: SlackPlace, post: OutgoingMessage) -> str:
        body = f"{REPEATED}\n\n{post.body}" if post.is_repeat else post.body
        with as_delivery_error():
            posted = await self._api.call(
                "chat.postMessage",
                Posted,
                channel=place.channel,
                thread_ts=place.thread,
                unfurl_links=False,  # else Slack fetches the links of a model's text
                unfurl_media=False,
                **self._content(body, post),
            )
        return posted.ts

    async def _edit(self, place: SlackPlace, post: OutgoingMessage, ts: str) -> bool:
        """Return False if the message to edit is gone."""
        self._edits.append(self.clock.elapsed())
        with as_delivery_error(is_edit=True):
            try:
                await self._api.call(
                    "chat.update", Posted, channel=place.channel, ts=ts, **self._content(post.body, post)
                )
            except SlackRefused as refusal:
                if refusal.error in _GONE:
                    return False
                raise
        return True

    def _content(self, body: str, post: OutgoingMessage) -> dict[str, Value]:
        """The text is for notifications; programs of Slack show the blocks."""
        blocks = to_blocks(body, self._own, post.buttons)
        return {"text": shorten(escape(body), _MAX_TEXT), "blocks": [*blocks]}

    async def _send_file(self, place: SlackPlace, post: OutgoingMessage) -> str:
        assert post.file is not None
        name, data = post.file.name, post.file.data
        body = f"{REPEATED}\n{post.body}" if post.is_repeat else post.body
        with as_delivery_error(is_edit=True):  # until the last call nobody sees the file
            upload = await self._api.call(
                "files.getUploadURLExternal", _Upload, filename=name, length=len(data)
            )
            await self._api.upload(upload.upload_url, data)
        with as_delivery_error():
            await self._api.call(
                "files.completeUploadExternal",
                msgspec.Raw,
                files=[{"id": upload.file_id, "title": name}],
                channel_id=place.channel,
                thread_ts=place.thread,
                initial_comment=to_mrkdwn(body, self._own) or None,
            )
        return upload.file_id
