"""Discord's REST API: its types as far as they are used, and a client whose errors say what is known.

Discord: https://docs.discord.com/developers/reference. A call is made once: the outbox and the intake decide
what is made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeVar
from urllib.parse import urlsplit

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
from talaria.core.limits import BoundedDict

T = TypeVar("T")

# The errors that have a meaning here: https://docs.discord.com/developers/topics/opcodes-and-status-codes
UNKNOWN_MESSAGE = 10008
MISSING_ACCESS = 50001
NO_PERMISSION = 50013
THREAD_EXISTS = 160004

_PERMISSION_HINT = (
    "In the settings of the channel, below Permissions, let the bot's role view the channel, send messages "
    "and attach files, also in threads."
)
_AGENT = "DiscordBot (https://github.com/talaria, 1)"
_FILE_HOSTS = frozenset(("cdn.discordapp.com", "media.discordapp.net"))
_MAX_ROUTES = 1024


# -- types, with Discord's field names --------------------------------------------------------------------


class DiscordUser(msgspec.Struct, frozen=True):
    id: str
    username: str = ""
    global_name: str | None = None
    bot: bool = False

    @property
    def name(self) -> str:
        return self.global_name or self.username


class Attachment(msgspec.Struct, frozen=True):
    id: str
    url: str
    filename: str = ""
    content_type: str | None = None
    size: int | None = None


class MessageReference(msgspec.Struct, frozen=True):
    type: int = 0
    message_id: str | None = None


class SnapshotMessage(msgspec.Struct, frozen=True):
    content: str = ""
    attachments: tuple[Attachment, ...] = ()


class Snapshot(msgspec.Struct, frozen=True):
    message: SnapshotMessage = SnapshotMessage()


class Component(msgspec.Struct, frozen=True):
    label: str | None = None
    components: tuple[Component, ...] = ()


class GuildMessage(msgspec.Struct, frozen=True):
    """A message as the gateway sends it or a call returns it; a partial one has no author."""

    id: str
    channel_id: str = ""
    guild_id: str | None = None
    author: DiscordUser | None = None
    content: str = ""
    type: int = 0
    edited_timestamp: str | None = None
    webhook_id: str | None = None
    mentions: tuple[DiscordUser, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    message_reference: MessageReference | None = None
    referenced_message: GuildMessage | None = None
    message_snapshots: tuple[Snapshot, ...] = ()
    components: tuple[Component, ...] = ()


class BulkDeletion(msgspec.Struct, frozen=True):
    """Messages that a moderator has deleted together."""

    ids: tuple[str, ...]
    channel_id: str
    guild_id: str | None = None


class CommandOption(msgspec.Struct, frozen=True):
    value: str | int | float | bool = ""


class InteractionData(msgspec.Struct, frozen=True):
    name: str = ""
    options: tuple[CommandOption, ...] = ()
    custom_id: str = ""


class GuildMember(msgspec.Struct, frozen=True):
    user: DiscordUser | None = None


class Emoji(msgspec.Struct, frozen=True):
    """`name` is the emoji itself, unless it is one of a server, which has an id."""

    id: str | None = None
    name: str | None = None


class AddedReaction(msgspec.Struct, frozen=True):
    user_id: str
    channel_id: str
    message_id: str
    guild_id: str | None = None
    member: GuildMember | None = None
    emoji: Emoji = Emoji()


class Interaction(msgspec.Struct, frozen=True):
    """A slash command (type 2) or a pressed button (type 3)."""

    id: str
    token: str
    type: int
    channel_id: str = ""
    guild_id: str | None = None
    user: DiscordUser | None = None
    member: GuildMember | None = None
    data: InteractionData = InteractionData()
    message: GuildMessage | None = None

    @property
    def sender(self) -> DiscordUser | None:
        return self.user or (self.member.user if self.member else None)


class DiscordChannelInfo(msgspec.Struct, frozen=True):
    id: str
    type: int = 0
    parent_id: str | None = None
    owner_id: str | None = None


class Guild(msgspec.Struct, frozen=True):
    id: str
    premium_tier: int = 0


class Application(msgspec.Struct, frozen=True):
    id: str
    flags: int = 0


class SessionLimit(msgspec.Struct, frozen=True):
    remaining: int = 1
    reset_after: int = 0


class GatewayLocation(msgspec.Struct, frozen=True):
    url: str
    session_start_limit: SessionLimit = SessionLimit()


class _Error(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""
    retry_after: float | None = None


class DiscordRefused(PlatformRefused):
    """Discord answered with an error and did nothing. `number` is Discord's own code of the error."""

    def __init__(self, status: int, number: int, message: str, retry_after: float | None = None) -> None:
        text = f"Discord refused ({number or status}): {message}"
        if number in (MISSING_ACCESS, NO_PERMISSION):
            text += f". {_PERMISSION_HINT}"
        super().__init__(text, code=status, retry_after=retry_after, is_about_token=status == 401)
        self.number = number


# -- the client -------------------------------------------------------------------------------------------


class DiscordApi(PlatformHttp):
    """The calls of one bot over one HTTP session, open within `async with`."""

    def __init__(self, url: str, token: str, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(url, "channels.discord.api_url")
        self.token = token
        self._now = now
        self._headers_sent = {"Authorization": f"Bot {token}", "User-Agent": _AGENT}
        self._until: BoundedDict[str, float] = BoundedDict(_MAX_ROUTES)  # a route is used up until then

    async def call(
        self,
        verb: str,
        path: str,
        answer: type[T],
        body: object = None,
        *,
        file: tuple[str, bytes] | None = None,
    ) -> T:
        """Return the decoded answer. Raises `DiscordRefused` with 429 without a request while the route is
        used up: https://docs.discord.com/developers/topics/rate-limits asks for that."""
        place = path.partition("?")[0]
        route = f"{verb} {place.rpartition('/')[0] if verb == 'PATCH' else place}"
        for key in (route, ""):
            if (left := self._until.get(key, 0.0) - self._now()) > 0:
                raise DiscordRefused(429, 0, "the rate limit of this call is used up", left)
        given: dict[str, Any] = {}
        if file is not None:
            form = aiohttp.FormData()
            form.add_field(
                "payload_json", msgspec.json.encode(body).decode(), content_type="application/json"
            )
            form.add_field("files[0]", BytesIO(file[1]), filename=file[0])
            given["data"] = form
        elif body is not None:
            given = {"data": msgspec.json.encode(body)}
        headers = self._headers_sent | ({} if file or body is None else {"Content-Type": "application/json"})
        seconds = ANSWER_SECONDS if file is None else UPLOAD_SECONDS
        async with self.request(verb, path, seconds, headers=headers, **given) as response:
            status, data = response.status, await read_body(response)
            self._note_limits(route, response)
        if status < 300:
            try:
                return msgspec.json.decode(data or b"null", type=answer)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise PlatformUnanswered(
                    f"The answer to {verb} is not one of Discord.", status=status
                ) from None
        try:
            error = msgspec.json.decode(data, type=_Error)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            error = _Error(message="an answer that is not one of Discord")
        if status >= 500 or not status >= 400:
            raise PlatformUnanswered(f"Discord failed ({status}): {error.message}", status=status)
        raise DiscordRefused(status, error.code, error.message, error.retry_after)

    def _note_limits(self, route: str, response: aiohttp.ClientResponse) -> None:
        headers = response.headers
        try:
            if response.status == 429:
                is_global = headers.get("X-RateLimit-Global") == "true"
                self._until["" if is_global else route] = self._now() + float(headers.get("Retry-After", 1))
            elif headers.get("X-RateLimit-Remaining") == "0":
                self._until[route] = self._now() + float(headers.get("X-RateLimit-Reset-After", 1))
        except ValueError:
            return

    async def download(self, url: str, max_bytes: int) -> bytes:
        """Return an attachment. It is fetched from Discord's hosts only, and without the token."""
        parts = urlsplit(url)
        own = urlsplit(self.url.target(""))
        is_own = (parts.scheme, parts.netloc) == (own.scheme, own.netloc)
        if not is_own and not (parts.scheme == "https" and parts.hostname in _FILE_HOSTS):
            raise PlatformUnanswered("The address of the file is not one of Discord.")
        timeout = aiohttp.ClientTimeout(total=UPLOAD_SECONDS)
        with self.errors():
            async with self.session.get(url, timeout=timeout, allow_redirects=False) as response:
                if response.status != 200:
                    raise PlatformUnanswered(f"Discord did not hand out the file ({response.status}).")
                return await read_body(response, max_bytes)
