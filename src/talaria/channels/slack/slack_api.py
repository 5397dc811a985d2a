"""The Web API and Socket Mode: a client whose errors say what is known of a call.

Why not slack-sdk: docs/adr/0050-slack.md. Arguments are sent as a form, which every method takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from talaria.channels.platform_api import (
    UPLOAD_SECONDS,
    PlatformError,
    PlatformHttp,
    PlatformRefused,
    PlatformUnanswered,
    PlatformUnreachable,
    read_body,
)

T = TypeVar("T")
Value = str | int | bool | None | list[Any] | dict[str, Any]

_FILE = aiohttp.ClientTimeout(total=UPLOAD_SECONDS)
_HELLO_SECONDS = 20.0
_PING_SECONDS = 30.0  # a socket whose pings are not answered is closed
_MAX_FRAME = 4 << 20
_TOKEN_ERRORS = frozenset(
    {"not_authed", "invalid_auth", "account_inactive", "token_revoked", "token_expired"}
    | {"not_allowed_token_type", "missing_scope", "two_factor_setup_required", "access_denied"}
)
_FAILURES = frozenset({"fatal_error", "internal_error"})  # parts of the call may have been carried out
_INVITE = "; invite the bot to the channel with /invite"
_HINTS = {"not_in_channel": _INVITE, "channel_not_found": _INVITE}
_LATER = frozenset(("ratelimited", "rate_limited", "service_unavailable", "request_timeout")) | frozenset(
    ("team_added_to_org", "org_login_required")
)


# -- types, with Slack's field names ----------------------------------------------------------------------


class BotIdentity(msgspec.Struct, frozen=True):
    """The answer of auth.test."""

    user_id: str
    user: str = ""
    team: str = ""


class Posted(msgspec.Struct, frozen=True):
    ts: str = ""


class Envelope(msgspec.Struct, frozen=True):
    """A message of a socket. `type` is `events_api`, `interactive`, `slash_commands`, `hello` or
    `disconnect`."""

    type: str
    envelope_id: str = ""
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    reason: str = ""
    num_connections: int = 1


class _Answer(msgspec.Struct, frozen=True):
    ok: bool
    error: str = ""
    needed: str = ""


class _SocketAddress(msgspec.Struct, frozen=True):
    url: str


# -- errors -----------------------------------------------------------------------------------------------


class SlackRefused(PlatformRefused):
    """Slack answered with an error and did nothing. `needed` names a missing scope."""

    def __init__(
        self, method: str, error: str, *, needed: str = "", retry_after: float | None = None
    ) -> None:
        more = f": the scope {needed} is missing" if needed else _HINTS.get(error, "")
        super().__init__(
            f"Slack refused {method}: {error}{more}.",
            code=429 if error in _LATER else error,
            retry_after=retry_after,
            is_about_token=error in _TOKEN_ERRORS,
        )
        self.method = method
        self.error = error
        self.needed = needed


def explain(refusal: PlatformRefused) -> tuple[str, str]:
    """Return what is wrong with a token that Slack refused, and what to do."""
    assert isinstance(refusal, SlackRefused)
    is_app = refusal.method == "apps.connections.open"
    page, reinstall = "https://api.slack.com/apps, OAuth & Permissions", "reinstall the app (Install App)"
    if is_app:
        page = "https://api.slack.com/apps, Basic Information, App-Level Tokens"
    match refusal.error:
        case "missing_scope" if is_app:
            text = "The app-level token lacks the scope connections:write."
            return text, f"Open {page}. Click Generate Token and Scopes, add it, and paste the new token."
        case "missing_scope":
            text = f"The app lacks the scope {refusal.needed or 'that is needed'}."
            return text, f"Add it at {page}. Then {reinstall}, and run `talaria connect slack`."
        case "not_allowed_token_type":
            text = "The bot token and the app-level token are swapped, or one is of another kind."
            return text, "The bot token begins with xoxb-, the app-level token with xapp-."
        case "invalid_auth" | "not_authed":
            kind = "app-level" if is_app else "bot"
            return f"Slack does not know this {kind} token.", f"Copy it whole from {page}."
        case error:
            text = f"Slack does not accept the token any more: {error}."
            return text, f"At {page.partition(',')[0]}, {reinstall}, and run `talaria connect slack`."


# -- the Web API ------------------------------------------------------------------------------------------


class SlackApi(PlatformHttp):
    """The calls with one token over one HTTP session, open within `async with`. `scopes` are those of the
    token, once a call was answered."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, "channels.slack.api_url")
        self._proof = {"Authorization": f"Bearer {token}"}
        self.scopes: frozenset[str] = frozenset()

    async def call(self, method: str, answer: type[T], /, **params: Value) -> T:
        """Return the decoded answer."""
        form = {key: _as_field(value) for key, value in params.items() if value is not None}
        async with self.request("POST", f"/{method}", headers=self._proof, data=form) as response:
            status, headers = response.status, response.headers
            data = await read_body(response)
        self.scopes = frozenset(headers.get("x-oauth-scopes", "").replace(" ", "").split(",")) - {""}
        if status == 429:
            raise SlackRefused(method, "ratelimited", retry_after=_seconds(headers.get("Retry-After", "")))
        try:
            said = msgspec.json.decode(data, type=_Answer)
            if said.ok:
                return msgspec.json.decode(data, type=answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            text = f"{method}: the answer ({status}) is not one of Slack's Web API."
            raise PlatformUnanswered(text, status=status) from None
        if said.error in _FAILURES or status >= 500:
            raise PlatformUnanswered(f"{method}: Slack failed ({said.error or status}).", status=500)
        raise SlackRefused(method, said.error, needed=said.needed)

    async def upload(self, url: str, data: bytes) -> None:
        """Send a file's content to the address that files.getUploadURLExternal returned."""
        with self.errors():
            async with self.session.post(url, data=data, timeout=_FILE, allow_redirects=False) as response:
                status = response.status
            if status != 200:
                raise PlatformUnanswered(f"Slack did not take the file ({status}).", status=500)

    async def download(self, url: str, max_bytes: int, *, is_page: bool = False) -> bytes:
        """Return the content of a file of an event. `is_page` says that it is HTML itself. Raises
        `PlatformTooLarge`."""
        parts, own = urlsplit(url), urlsplit(self.url)
        is_own = (parts.scheme, parts.netloc) == (own.scheme, own.netloc)
        is_slack = parts.scheme == "https" and (parts.hostname or "").endswith(".slack.com")
        if not is_own and not is_slack:
            raise PlatformUnreachable("The file is outside Slack.")  # the token goes to Slack only
        with self.errors():
            async with self.session.get(
                url, headers=self._proof, timeout=_FILE, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise PlatformUnanswered(f"Slack did not hand out the file ({response.status}).")
                if response.content_type == "text/html" and not is_page:
                    # Without the scope Slack shows its page to log in, and calls that a success.
                    raise SlackRefused("the file", "missing_scope", needed="files:read")
                return await read_body(response, max_bytes)

    # -- Socket Mode ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open_socket(self) -> AsyncIterator[SlackSocket]:
        """Open a socket with an app-level token, until the context is left. Raises `SlackSocketOff` if the
        app has Socket Mode switched off."""
        address = await self.call("apps.connections.open", _SocketAddress)
        timeout = aiohttp.ClientWSTimeout(ws_close=1.0)
        with self.errors():
            async with asyncio.timeout(_HELLO_SECONDS):
                connection = await self.session.ws_connect(
                    address.url, heartbeat=_PING_SECONDS, max_msg_size=_MAX_FRAME, timeout=timeout
                )
        try:
            yield await SlackSocket.greet(connection)
        finally:
            await connection.close()


class SlackSocketOff(PlatformError):
    """Socket Mode is switched off for the app."""


class SlackSocketClosed(PlatformError):
    """The socket is closed; unacknowledged events come again over another one."""


class SlackSocket:
    """An open socket. Slack sends an event again over any socket of the app until it is acknowledged."""

    def __init__(self, connection: aiohttp.ClientWebSocketResponse, connections: int) -> None:
        self._connection = connection
        self.connections = connections
        """The number of open sockets of the app, this one included. Slack splits the events over them."""

    @classmethod
    async def greet(cls, connection: aiohttp.ClientWebSocketResponse) -> SlackSocket:
        self = cls(connection, 1)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                first = await self.receive()
        except TimeoutError:
            raise PlatformUnanswered("Slack opened the socket and did not say hello.") from None
        if first.reason == "link_disabled":
            raise SlackSocketOff(
                "Socket Mode is switched off for this app.",
                "Switch it on at https://api.slack.com/apps, under Socket Mode.",
            )
        if first.type != "hello":
            raise SlackSocketClosed(f"Slack closed the socket: {first.reason or first.type}.")
        self.connections = first.num_connections
        return self

    async def receive(self) -> Envelope:
        """Return the next message. Raises `SlackSocketClosed`."""
        while True:
            message = await self._connection.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise SlackSocketClosed("The socket to Slack was closed.")
            try:
                return msgspec.json.decode(message.data, type=Envelope)
            except (msgspec.MsgspecError, RecursionError):
                continue  # not an envelope, so there is nothing to acknowledge

    async def acknowledge(self, envelope: Envelope) -> None:
        """Tell Slack that the event need not come again. No effect on a closed socket: it comes again."""
        try:
            await self._connection.send_str(f'{{"envelope_id":{_as_json(envelope.envelope_id)}}}')
        except (ConnectionError, aiohttp.ClientError):
            return


def _as_field(value: Value) -> str:
    return value if isinstance(value, str) else _as_json(value)


def _as_json(value: Value) -> str:
    return msgspec.json.encode(value).decode()


def _seconds(header: str) -> float | None:
    return float(header) if header.isascii() and header.isdecimal() and len(header) < 6 else None
