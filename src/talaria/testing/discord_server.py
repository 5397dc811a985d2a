"""A Discord behind real HTTP and a WebSocket: `DiscordServer`, or `python -m talaria.testing.discord_server`.

It enforces the platform's rules, records every call, and fails on demand. It has a page on which a person
types and presses buttons. Another process controls it with JSON:

  POST /_control/say     {"user": 7, "text": "hello", "channel"?: "ID"}    a user writes; returns the message
  POST /_control/press   {"user": 7, "channel": "ID", "message": "ID", "label": "Deny"}
  GET  /_control/chats                                                     all channels with their messages
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict, deque
from dataclasses import dataclass, field
from enum import StrEnum
from html import escape
from types import TracebackType
from typing import Any, Self

from aiohttp import WSMsgType, web

from talaria.testing.discord_platform import (
    APPLICATION_ID,
    BOT_ID,
    GUILD_ID,
    DiscordPerson,
    DiscordPlatform,
    DiscordRefusal,
    DiscordRoom,
    Json,
)
from talaria.testing.fake_server import ChangeNotifier, print_and_wait

TOKEN = "fake.discord.token-for-tests"  # noqa: S105 - of a fake
DEFAULT_PORT = 8768
_MESSAGE_CONTENT = 1 << 15
_REACTIONS = (1 << 13, 1 << 10)  # the intents for private chats and for servers
_MAX_PAYLOAD = 4096  # events/gateway#sending-events
_MAX_RECORDED = 20_000
_HEARTBEAT_MS = 41_250


class DiscordFaultKind(StrEnum):
    STATUS = "status"  # answer with `status`, `code` and `retry_after`
    CUT_BEFORE = "cut_before"  # the connection breaks, and nothing happened
    CUT_AFTER = "cut_after"  # the connection breaks, but the call was carried out
    HOLD = "hold"  # the call is carried out, and answered when `released` is set


@dataclass(slots=True)
class DiscordFault:
    kind: DiscordFaultKind
    times: int = 1
    status: int = 500
    code: int = 0
    retry_after: float = 1.0
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class DiscordCall:
    verb: str
    path: str
    body: Any


class _Socket(web.WebSocketResponse):
    """Knows which side has closed it."""

    is_closed_here = False

    async def close(self, *, code: int = 1000, message: bytes = b"", drain: bool = True) -> bool:
        self.is_closed_here = self.is_closed_here or self.close_code is None
        return await super().close(code=code, message=message, drain=drain)


@dataclass(slots=True)
class _Session:
    id: str
    intents: int = 0
    seq: int = 0
    events: list[Json] = field(default_factory=list)
    socket: web.WebSocketResponse | None = None


class DiscordServer(ChangeNotifier):
    """Serves inside its `async with` block. `platform` has people, channels and messages."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, token: str = TOKEN) -> None:
        super().__init__()
        self._host, self._port = host, port
        self.token = token
        self.platform = DiscordPlatform()
        self.platform.on_event = self.dispatch
        self.calls: deque[DiscordCall] = deque(maxlen=_MAX_RECORDED)
        self.released = asyncio.Event()
        self.acknowledges = True  # whether heartbeats are answered
        self.heartbeat_ms = _HEARTBEAT_MS
        self.session: _Session | None = None
        self.identified = 0
        self.resumed = 0
        self.delayed: list[Json] = []  # with `holds_events`: events that are not sent yet
        self.holds_events = False
        self._sessions: dict[str, _Session] = {}
        self._faults: defaultdict[str, deque[DiscordFault]] = defaultdict(deque)
        self._runner: web.AppRunner | None = None
        self._sends: set[asyncio.Task[None]] = set()
        self._outgoing: asyncio.Queue[tuple[web.WebSocketResponse, Json]] = asyncio.Queue()

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}/api/v10"

    def person(self, id: int, name: str = "Ada", *, is_bot: bool = False) -> DiscordPerson:
        return self.platform.person(id, name, is_bot=is_bot)

    def fail(self, call: str, fault: DiscordFault) -> None:
        """Let the next `fault.times` calls fail. `call` is a verb and the last word of a path that is not an
        id, such as "POST messages"."""
        self._faults[call].append(fault)

    def count(self, call: str) -> int:
        return sum(_name(each.verb, each.path) == call for each in self.calls)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_get("/gateway/", self._gateway)
        app.router.add_get("/_files/{id}/{name}", self._file)
        app.router.add_route("*", "/api/v10/{path:.*}", self._serve)
        app.router.add_post("/_control/{what}", self._control)
        app.router.add_get("/_control/chats", self._chats)
        app.router.add_get("/", self._page)
        app.router.add_post("/", self._act)
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.platform.file_url = f"http://{self._host}:{self._port}"
        self._pump = asyncio.create_task(self._send_events(), name="fake discord events")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        for session in self._sessions.values():
            if session.socket is not None:
                await session.socket.close(code=1001)
        assert self._runner is not None
        await self._runner.cleanup()

    # -- events ---------------------------------------------------------------------------------------------

    def dispatch(self, name: str, data: Json) -> None:
        """Send an event to the current session; one without a connection gets it when it resumes."""
        self.notify()
        if self.session is None:
            return
        session = self.session
        needed = _REACTIONS[int("guild_id" in data)] if name == "MESSAGE_REACTION_ADD" else 0
        if needed & ~session.intents:  # events/gateway#list-of-intents
            return
        session.seq += 1
        frame = {"op": 0, "t": name, "s": session.seq, "d": json.loads(json.dumps(data))}
        session.events.append(frame)
        if self.holds_events:
            self.delayed.append(frame)
        elif session.socket is not None:
            self._outgoing.put_nowait((session.socket, frame))

    def repeat(self, frames: int = 1) -> None:
        """Send the last events once more, as after a resume from an earlier number."""
        assert self.session is not None and self.session.socket is not None
        for frame in self.session.events[-frames:]:
            self._outgoing.put_nowait((self.session.socket, frame))

    def release_events(self, *, is_reversed: bool = False) -> None:
        """Send the events that were held, in order or out of order."""
        assert self.session is not None and self.session.socket is not None
        self.holds_events = False
        for frame in reversed(self.delayed) if is_reversed else self.delayed:
            self._outgoing.put_nowait((self.session.socket, frame))
        self.delayed.clear()

    async def cut(self, code: int = 4000, *, forgets: bool = False) -> None:
        """Close the connection. With `forgets`, the session cannot be resumed and receives nothing more."""
        session = self.session
        if session is None:
            return
        if forgets:
            self.forget_sessions()
        if session.socket is not None:
            await session.socket.close(code=code)

    def forget_sessions(self) -> None:
        """Let no session be resumed any more."""
        self._sessions.clear()
        self.session = None

    def ask(self, op: int, data: Any = None) -> None:
        """Send opcode 1 (heartbeat), 7 (reconnect) or 9 (invalid session)."""
        assert self.session is not None and self.session.socket is not None
        self._outgoing.put_nowait((self.session.socket, {"op": op, "d": data}))
        if op == 9 and not data:
            self._sessions.clear()

    async def _send_events(self) -> None:
        while True:
            socket, frame = await self._outgoing.get()
            if not socket.closed:
                try:
                    await socket.send_str(json.dumps(frame))
                except ConnectionError:
                    continue

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        """events/gateway#connection-lifecycle"""
        socket = _Socket()
        await socket.prepare(request)
        if request.query.get("v") != "10" or request.query.get("encoding") != "json":
            await socket.close(code=4012)
            return socket
        await socket.send_str(json.dumps({"op": 10, "d": {"heartbeat_interval": self.heartbeat_ms}}))
        session: _Session | None = None
        async for message in socket:
            if message.type is not WSMsgType.TEXT or len(message.data) > _MAX_PAYLOAD:
                await socket.close(code=4002)
                break
            try:
                frame = json.loads(message.data)
                op, data = frame["op"], frame["d"]
            except (ValueError, KeyError, TypeError):
                await socket.close(code=4002)
                break
            if op == 1:
                if self.acknowledges:
                    await socket.send_str('{"op": 11, "d": null}')
            elif op == 2 and session is None:
                session = await self._identify(socket, data)
            elif op == 6 and session is None:
                session = await self._resume(socket, data)
            else:
                await socket.close(code=4005 if op == 2 else 4003 if session is None else 4001)
            self.notify()
        if session is not None and session.socket is socket:
            session.socket = None
            # A bot that closes with one of these codes ends its session (events/gateway, disconnecting).
            if not socket.is_closed_here and socket.close_code in (1000, 1001):
                self._sessions.pop(session.id, None)
        self.notify()
        return socket

    async def _identify(self, socket: web.WebSocketResponse, data: Json) -> _Session | None:
        """events/gateway-events#identify"""
        if data.get("token") != self.token:
            await socket.close(code=4004)
            return None
        if data.get("intents", 0) & _MESSAGE_CONTENT and not self.platform.has_message_content:
            await socket.close(code=4014)
            return None
        if not isinstance(data.get("properties"), dict):
            await socket.close(code=4002)
            return None
        self.identified += 1
        session = _Session(f"session-{self.identified}", data["intents"], socket=socket)
        if self.session is not None and (old := self.session.socket) is not None:
            await old.close(code=4000)
        self._sessions[session.id] = self.session = session
        ready = {
            "v": 10,
            "user": self.platform.user_json(BOT_ID),
            "guilds": [{"id": GUILD_ID, "unavailable": True}],
            "session_id": session.id,
            "resume_gateway_url": f"ws://{self._host}:{self._port}/gateway",
            "application": {"id": APPLICATION_ID, "flags": 0},
        }
        self.dispatch("READY", ready)
        self.dispatch("GUILD_CREATE", {"id": GUILD_ID, "premium_tier": self.platform.premium_tier})
        return session

    async def _resume(self, socket: web.WebSocketResponse, data: Json) -> _Session | None:
        """events/gateway#resuming"""
        session = self._sessions.get(data.get("session_id", ""))
        if data.get("token") != self.token:
            await socket.close(code=4004)
            return None
        if session is None:
            await socket.send_str('{"op": 9, "d": false}')
            return None
        if not 0 <= data.get("seq", -1) <= session.seq:
            await socket.close(code=4007)
            return None
        if session.socket is not None and not session.socket.closed:
            await session.socket.close(code=4000)
        self.resumed += 1
        session.socket, self.session = socket, session
        for frame in session.events:
            if frame["s"] > data["seq"]:
                self._outgoing.put_nowait((socket, frame))
        self.dispatch("RESUMED", {})
        return session

    # -- REST -----------------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        verb, path = request.method, "/" + request.match_info["path"]
        try:
            body, file = await _read(request)
        except (ValueError, KeyError):
            return _error(DiscordRefusal(400, 50109, "The request body contains invalid JSON."))
        self.calls.append(DiscordCall(verb, path, body))
        fault = self._next_fault(_name(verb, path))
        if fault is not None and fault.kind is DiscordFaultKind.CUT_BEFORE:
            return _cut(request)
        if fault is not None and fault.kind is DiscordFaultKind.STATUS:
            self.notify()
            return _faulty(fault)
        try:
            self._check_headers(request, path, body is not None and file is None)
            answer = self._answer(verb, path, request, body, file)
        except DiscordRefusal as refusal:
            self.notify()
            return _error(refusal)
        self.notify()
        if fault is not None and fault.kind is DiscordFaultKind.CUT_AFTER:
            return _cut(request)
        if fault is not None:
            await self.released.wait()
        return web.Response(status=204) if answer is None else web.json_response(answer)

    def _check_headers(self, request: web.Request, path: str, has_json: bool) -> None:
        """reference#authentication and reference#user-agent"""
        if (
            not path.startswith("/interactions")
            and request.headers.get("Authorization") != f"Bot {self.token}"
        ):
            raise DiscordRefusal(401, 0, "401: Unauthorized")
        if not request.headers.get("User-Agent", "").startswith("DiscordBot ("):
            raise DiscordRefusal(403, 40333, "internal network error")
        if has_json and request.content_type != "application/json":
            raise DiscordRefusal(400, 50109, "The request body contains invalid JSON.")

    def _answer(  # noqa: PLR0911, PLR0912 - a table of the calls
        self, verb: str, path: str, request: web.Request, body: Any, file: tuple[str, bytes] | None
    ) -> Any:
        platform, parts = self.platform, path.strip("/").split("/")
        match (verb, *parts):
            case ("GET", "users", "@me"):
                return platform.user_json(BOT_ID)
            case ("GET", "applications", "@me"):
                return {"id": APPLICATION_ID, "flags": 1 << 19 if platform.has_message_content else 0}
            case ("GET", "gateway", "bot"):
                limit = {"total": 1000, "remaining": 999, "reset_after": 1000, "max_concurrency": 1}
                url = f"ws://{self._host}:{self._port}/gateway"
                return {"url": url, "shards": 1, "session_start_limit": limit}
            case ("POST", "users", "@me", "channels"):
                if (person := platform.people.get(str(body.get("recipient_id")))) is None:
                    raise DiscordRefusal(400, 50033, "Invalid Recipient(s)")
                return platform.private(person).json()
            case ("GET", "channels", id):
                return platform.find(id).json()
            case ("GET", "guilds", id) if id == GUILD_ID:
                return {"id": GUILD_ID, "premium_tier": platform.premium_tier}
            case ("GET", "channels", id, "messages"):
                query = request.query
                return platform.history(id, query.get("after", "0"), int(query.get("limit", "50")))
            case ("POST", "channels", id, "messages"):
                return platform.message_json(platform.send(id, body, file))
            case ("PATCH", "channels", id, "messages", message):
                return platform.message_json(platform.edit(id, message, body))
            case ("POST", "channels", id, "typing"):
                platform.find(id)
                return None
            case ("POST", "channels", id, "messages", message, "threads"):
                return platform.open_thread(id, message, body).json()
            case ("PUT", "applications", id, "commands") if id == APPLICATION_ID:
                platform.set_commands(body)
                return body
            case ("POST", "interactions", _, token, "callback"):
                platform.answer(token, body)
                return None
            case _:
                raise DiscordRefusal(404, 0, "404: Not Found")

    def _next_fault(self, call: str) -> DiscordFault | None:
        for faults in (self._faults[call], self._faults["*"]):
            if faults:
                fault = faults[0]
                fault.times -= 1
                if fault.times <= 0:
                    faults.popleft()
                return fault
        return None

    async def _file(self, request: web.Request) -> web.Response:
        if "Authorization" in request.headers or request.match_info["id"] not in self.platform.files:
            return web.Response(status=404)  # a token that is sent to the file host has leaked
        return web.Response(body=self.platform.files[request.match_info["id"]][1])

    # -- trying by hand -------------------------------------------------------------------------------------

    async def _control(self, request: web.Request) -> web.Response:
        given = await request.json()
        person = self.person(given["user"])
        channel = self.platform.channels.get(str(given.get("channel", ""))) or self.platform.private(person)
        if request.match_info["what"] == "press":
            token = person.presses(channel.messages[given["message"]], given["label"])
            return web.json_response({"token": token})
        return web.json_response(self.platform.message_json(person.says(given["text"], channel)))

    async def _chats(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                channel.id: [self.platform.message_json(message) for message in channel.messages.values()]
                for channel in self.platform.channels.values()
            }
        )

    async def _page(self, request: web.Request) -> web.Response:
        shown = "".join(map(_channel_html, self.platform.channels.values()))
        return web.Response(text=_PAGE.format(shown=shown), content_type="text/html")

    async def _act(self, request: web.Request) -> web.Response:
        form = {key: str(value) for key, value in (await request.post()).items()}
        channel = self.platform.channels[form["channel"]]
        person = self.person(int(channel.recipient or 7))
        if "label" in form:
            person.presses(channel.messages[form["message"]], form["label"])
        elif form["text"].startswith("/"):
            name, _, text = form["text"][1:].partition(" ")
            person.runs(name, text, channel)
        elif form["text"].strip():
            person.says(form["text"].replace("@bot", f"<@{BOT_ID}>"), channel)
        raise web.HTTPSeeOther("/")


_PAGE = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="3">
<title>Fake Discord</title>
<style>body {{ font: 15px sans-serif; max-width: 50em; margin: 2em auto }} pre {{ white-space: pre-wrap }}
section {{ border: 1px solid #ccc; padding: 0 1em 1em; margin: 1em 0 }} form {{ display: inline }}</style>
<h1>Fake Discord</h1><p>Write as Ada. In the server channel, mention the bot with @bot. The page loads again
every three seconds.</p>{shown}"""


def _channel_html(channel: DiscordRoom) -> str:
    kind = {0: "Server channel", 1: "Private chat", 11: "Thread"}[channel.type]
    rows = []
    for message in channel.messages.values():
        buttons = "".join(
            f'<form method="post"><input type="hidden" name="channel" value="{channel.id}">'
            f'<input type="hidden" name="message" value="{message.id}">'
            f'<button name="label" value="{escape(label)}">{escape(label)}</button></form> '
            for label, _ in message.buttons
        )
        who = "bot" if message.by_bot else "Ada"
        rows.append(
            f"<p><b>{who}</b></p><pre>{escape(message.text)} {escape(message.file_name)}</pre>{buttons}"
        )
    say = (
        f'<form method="post"><input type="hidden" name="channel" value="{channel.id}">'
        '<input name="text" size="60" autofocus> <button>Send</button></form>'
    )
    return f"<section><h2>{kind} {channel.id}</h2>{''.join(rows)}{say}</section>"


async def _read(request: web.Request) -> tuple[Any, tuple[str, bytes] | None]:
    """Return the JSON of a request, and the file of a form: reference#uploading-files"""
    if request.content_type == "multipart/form-data":
        form = await request.post()
        upload = form["files[0]"]
        assert isinstance(upload, web.FileField)
        payload: Any = form["payload_json"]  # bytes, as it has a media type
        return json.loads(payload), (upload.filename, upload.file.read())
    data = await request.read()
    return (json.loads(data) if data else None), None


def _name(verb: str, path: str) -> str:
    words = [part for part in path.split("?", maxsplit=1)[0].split("/") if part and not part.isdigit()]
    return f"{verb} {words[-1] if words else ''}"


def _error(refusal: DiscordRefusal) -> web.Response:
    return web.json_response({"code": refusal.code, "message": refusal.message}, status=refusal.status)


def _faulty(fault: DiscordFault) -> web.Response:
    """topics/rate-limits#exceeding-a-rate-limit"""
    if fault.status != 429:
        return web.json_response({"code": fault.code, "message": "A fault."}, status=fault.status)
    headers = {"Retry-After": str(fault.retry_after), "X-RateLimit-Scope": "user"}
    if fault.is_global:
        headers["X-RateLimit-Global"] = "true"
    body = {
        "message": "You are being rate limited.",
        "retry_after": fault.retry_after,
        "global": fault.is_global,
    }
    return web.json_response(body, status=429, headers=headers)


def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def _main(port: int) -> None:
    async with DiscordServer(port=port) as server:
        server.platform.private(server.person(7, "Ada"))
        server.platform.channel()
        page = server.url.removesuffix("/api/v10")
        await print_and_wait(
            f"A fake Discord. Its page, to type and press buttons: {page}\n"
            f"Connect a gateway to it: echo {server.token} | talaria connect discord --wait 0 "
            f"--api-url {server.url}\n"
            "then: talaria config set channels.discord.allowed 7"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A fake Discord for trying the channel by hand.")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    asyncio.run(_main(parser.parse_args().port))
