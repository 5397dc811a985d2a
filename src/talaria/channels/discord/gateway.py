"""The gateway: one WebSocket connection over which Discord sends events.

https://docs.discord.com/developers/events/gateway. A session outlives its connection: it is resumed with the
number of the last event, and Discord repeats the events after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NoReturn

import aiohttp
import msgspec

from talaria.channels.channel_loop import NeedsOperator
from talaria.channels.discord.api import DiscordApi, GatewayLocation
from talaria.channels.platform_api import CONNECT_SECONDS, PlatformError, PlatformUnanswered
from talaria.core.clock import Clock
from talaria.core.tasks import running

# https://docs.discord.com/developers/events/gateway#list-of-intents
GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15
REACTIONS = 1 << 10 | 1 << 13  # in servers and in private chats
INTENTS = GUILDS | GUILD_MESSAGES | DIRECT_MESSAGES | MESSAGE_CONTENT | REACTIONS

NO_INTENT = (
    "the application lacks the Message Content Intent; turn it on at "
    "https://discord.com/developers/applications, your application, Bot, Privileged Gateway Intents"
)
# https://docs.discord.com/developers/topics/opcodes-and-status-codes#gateway-gateway-close-event-codes
_FINAL = {
    4010: "Discord refused the shard",
    4011: "the bot is in too many servers for one connection",
    4012: "Discord no longer has this version of its gateway",
    4013: "Discord does not know an intent",
    4014: NO_INTENT,
}
_BAD_TOKEN = 4004
_FORGETS = frozenset((4003, 4007, 4009))  # the session is over
_MAX_FRAME = 64 << 20
_HELLO_SECONDS = 30.0


class GatewaySession(msgspec.Struct):
    """A session of the gateway. `seq` is the number of the last event. `url` is where it is resumed; without
    it, anywhere."""

    id: str
    url: str
    seq: int


class Frame(msgspec.Struct, frozen=True):
    op: int
    d: msgspec.Raw = msgspec.Raw(b"null")
    s: int | None = None
    t: str | None = None


class _Hello(msgspec.Struct, frozen=True):
    heartbeat_interval: float


class Ready(msgspec.Struct, frozen=True):
    session_id: str
    resume_gateway_url: str


class GatewayLost(PlatformError):
    """The connection is over, and another one may be made."""


_decoder = msgspec.json.Decoder(Frame)


def _decode(data: str | bytes) -> Frame:
    """Return the frame. A frame that cannot be read is skipped: it would come again after each resume. Half
    characters (lone surrogates) are replaced."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        try:
            return _decoder.decode(
                json.dumps(json.loads(data), ensure_ascii=False).encode("utf-8", "replace")
            )
        except (ValueError, RecursionError):
            return Frame(op=-1)


OnEvent = Callable[[str, msgspec.Raw, int], Awaitable[None]]


class DiscordGateway:
    """Connects with a session if there is one, else with a new one. `session` is kept between connections."""

    def __init__(self, api: DiscordApi, clock: Clock, random: Random | None = None) -> None:
        self._api = api
        self._clock = clock
        self._random = random or Random()  # noqa: S311 - it is for jitter
        self._is_answered = True
        self._ws: aiohttp.ClientWebSocketResponse | None = None
        self.session: GatewaySession | None = None

    @property
    def is_open(self) -> bool:
        return self._ws is not None

    async def run(self, on_event: OnEvent) -> NoReturn:
        """Receive until the connection ends. Raises `GatewayLost`, `NeedsOperator` and other errors."""
        session = self.session
        url = (session.url if session is not None else "") or await self._find_url()
        if session is not None:
            session.url = ""  # the address of a session may be gone; then another one resumes it
        with self._api.errors():
            timeout = aiohttp.ClientWSTimeout(ws_close=CONNECT_SECONDS)
            async with self._api.session.ws_connect(
                f"{url.rstrip('/')}/?v=10&encoding=json", max_msg_size=_MAX_FRAME, timeout=timeout
            ) as ws:
                self._ws = ws
                if session is not None:
                    session.url = url
                try:
                    async with asyncio.timeout(_HELLO_SECONDS):
                        hello = await self._read(ws)
                    if hello.op != 10:
                        raise GatewayLost("Discord's gateway did not say hello.")
                    seconds = msgspec.json.decode(hello.d, type=_Hello).heartbeat_interval / 1000
                    await self._introduce(ws)
                    async with running(self._beat(ws, seconds), name="discord heartbeat"):
                        await self._receive(ws, on_event)
                except msgspec.MsgspecError:
                    raise GatewayLost("Discord's gateway sent what is not one of its frames.") from None
                finally:
                    self._ws = None
                    if not ws.closed:  # any code but 1000 and 1001 keeps the session for a resume
                        await ws.close(code=4000)
        raise AssertionError

    async def close(self) -> None:
        """End the connection, if there is one. The session can still be resumed."""
        if self._ws is not None:
            await self._ws.close(code=4000)

    async def _find_url(self) -> str:
        info = await self._api.call("GET", "/gateway/bot", GatewayLocation)
        limit = info.session_start_limit
        if limit.remaining < 1:
            # https://docs.discord.com/developers/events/gateway#session-start-limit-object
            await self._clock.sleep(limit.reset_after / 1000)
        return info.url

    async def _introduce(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        token, session = self._api.token, self.session
        if session is not None:
            await self._send(ws, 6, {"token": token, "session_id": session.id, "seq": session.seq})
            return
        properties = {"os": "linux", "browser": "talaria", "device": "talaria"}
        await self._send(ws, 2, {"token": token, "intents": INTENTS, "properties": properties})

    async def _receive(self, ws: aiohttp.ClientWebSocketResponse, on_event: OnEvent) -> None:
        while True:
            frame = await self._read(ws)
            match frame.op:
                case 0 if frame.t is not None and frame.s is not None:
                    if frame.t == "READY":
                        ready = msgspec.json.decode(frame.d, type=Ready)
                        self.session = GatewaySession(ready.session_id, ready.resume_gateway_url, frame.s)
                    await on_event(frame.t, frame.d, frame.s)
                    # Not before: an event that waits for room is not noted as pending yet.
                    if self.session is not None:
                        self.session.seq = max(self.session.seq, frame.s)
                case 1:
                    await self._send(ws, 1, self.session and self.session.seq)
                case 7:
                    raise GatewayLost("Discord asks for a new connection.")
                case 9:
                    if frame.d != b"true":
                        self.session = None
                    raise GatewayLost("Discord ended the session.")
                case 11:
                    self._is_answered = True
                case _:
                    pass

    async def _beat(self, ws: aiohttp.ClientWebSocketResponse, seconds: float) -> None:
        """Send heartbeats. A connection whose last one was not answered is dead, and is closed."""
        self._is_answered = True
        await self._clock.sleep(seconds * self._random.random())
        while self._is_answered:
            self._is_answered = False
            await self._send(ws, 1, self.session and self.session.seq)
            await self._clock.sleep(seconds)
        await ws.close(code=4000)

    async def _send(self, ws: aiohttp.ClientWebSocketResponse, op: int, data: Any) -> None:
        if not ws.closed:
            await ws.send_str(msgspec.json.encode({"op": op, "d": data}).decode())

    async def _read(self, ws: aiohttp.ClientWebSocketResponse) -> Frame:
        message = await ws.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return _decode(message.data)
        code = ws.close_code or 0
        if code == _BAD_TOKEN:
            raise NeedsOperator("Discord does not accept the token.", "Run `talaria connect discord`.")
        if code in _FINAL:
            raise NeedsOperator(_FINAL[code])
        if code in _FORGETS:
            self.session = None
        raise (
            PlatformUnanswered(f"Discord closed the connection ({code}).")
            if code
            else GatewayLost("The connection to Discord was lost.")
        )
