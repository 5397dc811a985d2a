"""A Slack server behind real HTTP and WebSockets: `SlackServer`, or `python -m talaria.testing.slack_server`.

It serves the Web API, Socket Mode and file transfers, posts to a request URL (the Events API), enforces the
platform's rules, records every call, and fails on demand. Another process controls it with JSON:

  POST /_control/say     {"user": "U7", "text": "hello", "channel"?: "C1", "thread"?: TS}   a person writes
  POST /_control/press   {"user": "U7", "ts": TS, "label": "Approve", "channel"?: "C1"}     presses a button
  GET  /_control/chats                                                all conversations with their messages
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp import web

from talaria.testing.fake_server import ChangeNotifier, print_and_wait
from talaria.testing.slack_platform import APP, Json, SlackPerson, SlackPlatform, SlackRefusal

BOT_TOKEN = "xoxb-fake-token-for-tests"  # noqa: S105 - of a fake
APP_TOKEN = "xapp-fake-token-for-tests"  # noqa: S105 - of a fake
SIGNING_SECRET = "fake-signing-secret"  # noqa: S105 - of a fake
DEFAULT_PORT = 8768
MAX_RECORDED = 20_000
MAX_SOCKETS = 10  # https://docs.slack.dev/apis/events-api/using-socket-mode
_RETRY_PAUSE = 0.02  # Slack retries at once, after 1 minute and after 5 minutes


class SlackFaultKind(StrEnum):
    RATE_LIMIT = "rate_limit"  # 429 with Retry-After
    ERROR = "error"  # `ok: false` with this error
    STATUS = "status"  # a status with an empty body
    HTML = "html"  # a proxy's error page
    HANG = "hang"
    CUT_BEFORE = "cut_before"  # the connection breaks, and nothing happened
    CUT_AFTER = "cut_after"  # the connection breaks, but the call was carried out
    HOLD = "hold"  # the call is carried out, and answered when `released` is set


@dataclass(slots=True)
class SlackFault:
    kind: SlackFaultKind
    times: int = 1
    error: str = "fatal_error"
    status: int = 503
    retry_after: int = 1


@dataclass(frozen=True, slots=True)
class SlackCall:
    method: str
    given: Json


@dataclass(slots=True, eq=False)
class PendingEvent:
    """An event until the app has acknowledged it. Slack makes a new envelope for each attempt."""

    kind: str
    payload: Json
    number: int
    attempts: int = 0
    id: str = ""


@dataclass(slots=True, eq=False)
class Socket:
    number: int
    connection: web.WebSocketResponse
    transport: asyncio.Transport | None
    unacknowledged: dict[str, PendingEvent] = field(default_factory=dict)
    is_leaving: bool = False  # it was told to refresh, and gets no more events


class SlackServer(ChangeNotifier):
    """Serves inside its `async with` block. `platform` holds people, conversations and messages."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, ack_seconds: float = 3.0) -> None:
        super().__init__()
        self._host, self._port = host, port
        self._ack_seconds = ack_seconds
        self._faults: defaultdict[str, deque[SlackFault]] = defaultdict(deque)
        self._runner: web.AppRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._tickets: set[str] = set()
        self._numbers = 0  # of sockets
        self._events = 0
        self._turn = 0  # of the sockets, which get events in turn
        self._sending: PendingEvent | None = None  # to the request URL
        self.platform = SlackPlatform()
        self.platform.on_event = self._arrived
        self.queue: deque[PendingEvent] = deque()  # not sent yet, or to be sent again
        self.sockets: dict[int, Socket] = {}
        self.calls: deque[SlackCall] = deque(maxlen=MAX_RECORDED)
        self.wrong_acks: list[Json] = []  # of envelopes that this socket did not get
        self.is_socket_mode = True
        self.request_url = ""  # of the Events API; used while Socket Mode is off
        self.posted: list[int] = []  # the statuses of the request URL's responses
        self.twice = False  # each event is sent to two sockets, or twice to one
        self.is_shuffled = False  # events that come again come newest first
        self.delay = 0.0  # seconds before each event is sent
        self.released = asyncio.Event()  # lets go of answers held by `SlackFaultKind.HOLD`

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def api_url(self) -> str:
        return f"{self.url}/api"

    def person(self, id: str, name: str = "Ada") -> SlackPerson:
        return self.platform.person(id, name)

    def fail(self, method: str, fault: SlackFault) -> None:
        """Let the next `fault.times` calls of the method (`*`: any) fail. Faults queue up."""
        self._faults[method].append(fault)

    def count(self, method: str) -> int:
        return sum(call.method == method for call in self.calls)

    @property
    def unacknowledged(self) -> list[PendingEvent]:
        """Events that Slack would send again after a restart of the app, oldest first."""
        sent = [each for socket in self.sockets.values() for each in socket.unacknowledged.values()]
        return sent + ([self._sending] if self._sending else []) + list(self.queue)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/api/{method}", self._serve)
        app.router.add_get("/link/", self._serve_socket)
        app.router.add_get("/files-pri/{id}/download/{name}", self._serve_file)
        app.router.add_post("/upload/v1/{id}", self._take_upload)
        app.router.add_route("*", "/_control/{order}", self._control)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.platform.files_url = self.url
        self._tasks = [asyncio.create_task(run(), name="fake Slack") for run in (self._send, self._post)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.cut()
        await self._runner.cleanup()

    # -- the Web API ----------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        given = await _read(request)
        self.calls.append(SlackCall(method, given))
        fault = self._take_fault(method)
        if fault is not None and fault.kind not in (SlackFaultKind.CUT_AFTER, SlackFaultKind.HOLD):
            self.notify()
            return await self._fail(request, fault)
        try:
            answer = self._answer(method, request.headers.get("Authorization", ""), given)
        except SlackRefusal as refusal:
            answer = refusal.answer
        self.notify()
        if fault is not None and fault.kind is SlackFaultKind.HOLD:
            await self.released.wait()
        elif fault is not None:
            return _cut(request)
        return _json(answer, headers={"x-oauth-scopes": self.platform.scopes})

    def _answer(self, method: str, authorization: str, given: Json) -> Json:
        """https://docs.slack.dev/authentication/tokens: each method takes one kind of token."""
        token = authorization.removeprefix("Bearer ")
        if not token:
            raise SlackRefusal("not_authed")
        if token not in (BOT_TOKEN, APP_TOKEN):
            raise SlackRefusal("invalid_auth")
        if (token == APP_TOKEN) != (method == "apps.connections.open") and method != "auth.test":
            raise SlackRefusal("not_allowed_token_type")
        if method != "apps.connections.open":
            return self.platform.call(method, given)
        ticket = self.platform.new_id("ticket")
        self._tickets.add(ticket)
        return {"ok": True, "url": f"ws://{self._host}:{self._port}/link/?ticket={ticket}&app_id={APP}"}

    def _take_fault(self, method: str) -> SlackFault | None:
        for name in (method, "*"):
            faults = self._faults[name]
            if faults:
                faults[0].times -= 1
                return faults.popleft() if faults[0].times <= 0 else faults[0]
        return None

    async def _fail(self, request: web.Request, fault: SlackFault) -> web.StreamResponse:
        match fault.kind:
            case SlackFaultKind.RATE_LIMIT:  # https://docs.slack.dev/apis/web-api/rate-limits
                headers = {"Retry-After": str(fault.retry_after)}
                return _json({"ok": False, "error": "ratelimited"}, 429, headers)
            case SlackFaultKind.ERROR:
                return _json({"ok": False, "error": fault.error})
            case SlackFaultKind.HANG:
                await asyncio.Event().wait()
                raise AssertionError
            case SlackFaultKind.CUT_BEFORE:
                return _cut(request)
            case SlackFaultKind.HTML:
                page = "<html><h1>502 Bad Gateway</h1></html>"
                return web.Response(status=502, text=page, content_type="text/html")
            case _:
                return web.Response(status=fault.status)

    async def _serve_file(self, request: web.Request) -> web.StreamResponse:
        """https://docs.slack.dev/reference/objects/file-object: without the token or its scope, Slack answers
        with a page to log in, and status 200."""
        is_allowed = request.headers.get("Authorization") == f"Bearer {BOT_TOKEN}"
        if not is_allowed or "files:read" not in self.platform.scopes.split(","):
            return web.Response(text="<html>Sign in to Slack</html>", content_type="text/html")
        found = self.platform.files.get(request.match_info["id"])
        self.calls.append(SlackCall("file", {"id": request.match_info["id"]}))
        if found is None:
            return web.Response(status=404)
        return web.Response(body=found[1], content_type="application/octet-stream")

    async def _take_upload(self, request: web.Request) -> web.StreamResponse:
        """files.getUploadURLExternal: the address takes the bytes of the promised length, without a token."""
        data = await request.read()
        self.calls.append(SlackCall("upload", {"length": len(data)}))
        is_taken = self.platform.receive_upload(request.match_info["id"], data)
        return web.Response(text=f"OK - {len(data)}", status=200 if is_taken else 400)

    # -- Socket Mode: https://docs.slack.dev/apis/events-api/using-socket-mode ------------------------------

    async def _serve_socket(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:  # each address is for one connection
            return web.Response(status=403)
        self._tickets.remove(ticket)
        connection = web.WebSocketResponse(heartbeat=None)
        await connection.prepare(request)
        if not self.is_socket_mode:
            await connection.send_json({"type": "disconnect", "reason": "link_disabled", "debug_info": {}})
            await connection.close()
            return connection
        self._numbers += 1
        socket = Socket(self._numbers, connection, request.transport)
        self.sockets[socket.number] = socket
        info = {"app_id": APP}
        hello = {"type": "hello", "num_connections": len(self.sockets), "connection_info": info}
        await connection.send_json(hello | {"debug_info": {"approximate_connection_time": 3600}})
        self.notify()
        try:
            if len(self.sockets) > MAX_SOCKETS:
                await connection.send_json({"type": "disconnect", "reason": "too_many_websockets"})
            else:
                await self._listen(socket)
        finally:
            del self.sockets[socket.number]
            self._return(socket.unacknowledged.values())
            self.notify()
        return connection

    async def _listen(self, socket: Socket) -> None:
        async for message in socket.connection:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            said = msgspec.json.decode(message.data)
            envelope = socket.unacknowledged.pop(said.get("envelope_id", ""), None)
            if envelope is None:
                self.wrong_acks.append(said)
            self.notify()

    def _arrived(self, kind: str, payload: Json) -> None:
        for _ in range(2 if self.twice else 1):
            self.repeat(kind, payload, attempts=0)

    async def _send(self) -> None:
        """Send events to the open sockets in turn, each until it is acknowledged."""
        while True:
            await self.until(lambda: bool(self.queue and self._open_sockets()))
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.queue and (open_ones := self._open_sockets()):
                self._turn += 1
                await self._hand_over(open_ones[self._turn % len(open_ones)], self.queue.popleft())

    async def _hand_over(self, socket: Socket, envelope: PendingEvent) -> None:
        envelope.id = self.platform.new_id("envelope")
        sent: Json = {"envelope_id": envelope.id, "type": envelope.kind, "payload": envelope.payload}
        sent |= {"accepts_response_payload": envelope.kind != "events_api"}
        if envelope.attempts:
            sent |= {"retry_attempt": envelope.attempts, "retry_reason": "timeout"}
        envelope.attempts += 1
        socket.unacknowledged[envelope.id] = envelope
        try:
            await socket.connection.send_json(sent)
        except ConnectionError:
            socket.is_leaving = True
            self._expire(socket, envelope.id)
            return
        asyncio.get_running_loop().call_later(self._ack_seconds, self._expire, socket, envelope.id)

    def _expire(self, socket: Socket, envelope_id: str) -> None:
        """Send an event again that was not acknowledged in time."""
        if (envelope := socket.unacknowledged.pop(envelope_id, None)) is not None:
            self._return([envelope])
            self.notify()

    def _return(self, envelopes: Iterable[PendingEvent]) -> None:
        """Only events are sent again: https://docs.slack.dev/apis/events-api#retries. A press or a command is
        lost, and its person sees that the app did not answer. Slack promises no order; here the oldest event
        comes first, unless `is_shuffled`."""
        events = [each for each in envelopes if each.kind == "events_api"]
        self.queue = deque(
            sorted((*events, *self.queue), key=lambda each: each.number, reverse=self.is_shuffled)
        )

    def _open_sockets(self) -> list[Socket]:
        return [each for each in self.sockets.values() if not each.is_leaving]

    async def refresh(self) -> None:
        """Ask all sockets to reconnect, as Slack does every few hours. They stay open, without new events."""
        for socket in list(self.sockets.values()):
            socket.is_leaving = True
            info = {"reason": "refresh_requested", "debug_info": {"host": "fake"}}
            await socket.connection.send_json({"type": "disconnect", **info})

    async def cut(self) -> None:
        """Break all sockets without a word."""
        for socket in list(self.sockets.values()):
            if socket.transport is not None:
                socket.transport.abort()
        await self.until(lambda: not self.sockets, 5)

    def repeat(self, kind: str, payload: Json, attempts: int = 1) -> None:
        """Send an event again that was acknowledged: Slack missed the acknowledgement."""
        self._events += 1
        self.queue.append(PendingEvent(kind, payload, self._events, attempts))
        self.notify()

    # -- the Events API: https://docs.slack.dev/apis/events-api/using-http-request-urls ---------------------

    async def _post(self) -> None:
        async with aiohttp.ClientSession() as client:
            while True:
                await self.until(lambda: bool(self.request_url and not self.is_socket_mode and self.queue))
                self._sending = self.queue.popleft()
                status, _ = await self.post_once(client, self._sending)
                self.posted.append(status)
                envelope, self._sending = self._sending, None
                if status != 200:
                    self._return([envelope])
                self.notify()
                if status != 200:
                    await asyncio.sleep(_RETRY_PAUSE)

    async def post_once(self, client: aiohttp.ClientSession, envelope: PendingEvent) -> tuple[int, bytes]:
        """Post one event, signed: https://docs.slack.dev/authentication/verifying-requests-from-slack"""
        kind, body = encoded(envelope)
        headers = {"Content-Type": kind, **signed(body)}
        if envelope.attempts:
            headers |= {"X-Slack-Retry-Num": str(envelope.attempts), "X-Slack-Retry-Reason": "http_error"}
        envelope.attempts += 1
        timeout = aiohttp.ClientTimeout(total=self._ack_seconds)
        try:
            async with client.post(self.request_url, data=body, headers=headers, timeout=timeout) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError):
            return 0, b""

    # -- control by another process -------------------------------------------------------------------------

    async def _control(self, request: web.Request) -> web.StreamResponse:
        order, platform = request.match_info["order"], self.platform
        body: Json = await request.json() if request.can_read_body else {}
        person = self.person(str(body.get("user", "U7")), str(body.get("name", "Ada")))
        place = platform.conversation(str(body["channel"])) if "channel" in body else person.dm
        match order:
            case "say" if str(body["text"]).startswith("/talaria"):
                answer: Any = person.commands(str(body["text"]).removeprefix("/talaria").strip(), place)
            case "say":
                answer = person.says(str(body["text"]), place, body.get("thread"))
            case "press":
                answer = person.presses(place.messages[str(body["ts"])], str(body["label"]), place)
            case "chats":
                answer = {
                    each.id: [
                        {"ts": one.ts, "text": one.shown, "by_bot": one.by_bot, "edits": one.edits}
                        | {"thread": one.thread_ts, "buttons": [label for label, _ in one.buttons]}
                        for one in each.messages.values()
                    ]
                    for each in platform.conversations.values()
                }
            case _:
                return _json({"ok": False, "error": f"no order {order}"}, 404)
        return _json(answer)


def encoded(envelope: PendingEvent) -> tuple[str, bytes]:
    """Return the content type and the body of a request to the request URL."""
    body = msgspec.json.encode(envelope.payload)
    if envelope.kind == "events_api":
        return "application/json", body
    form = {"payload": body.decode()} if envelope.kind == "interactive" else envelope.payload
    return "application/x-www-form-urlencoded", urlencode(form).encode()


def signed(body: bytes, secret: str = SIGNING_SECRET, at: float | None = None) -> dict[str, str]:
    """Return the headers with which Slack proves a request."""
    stamp = str(int(time.time() if at is None else at))
    digest = hmac.new(secret.encode(), b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={digest}"}


async def _read(request: web.Request) -> Json:
    """Read the arguments of a form, in which lists and objects are JSON. Reading methods take no other body:
    https://docs.slack.dev/apis/web-api/#post-bodies"""
    given: Json = {key: value for key, value in (await request.post()).items() if isinstance(value, str)}
    for key in ("blocks", "files") & given.keys():
        try:
            given[key] = msgspec.json.decode(given[key])
        except msgspec.DecodeError:
            given[key] = None
    return given


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.close()
    return web.Response(status=500)


async def _run(arguments: argparse.Namespace) -> None:
    async with SlackServer(arguments.host, arguments.port) as server:
        tokens = f"the tokens are {BOT_TOKEN} and {APP_TOKEN}"
        greeting = f"Fake Slack at {server.url}; api_url is {server.api_url}, and {tokens}"
        if not sys.stdin.isatty():
            await print_and_wait(greeting)
            return
        from talaria.testing.slack_prompt import run_prompt  # noqa: PLC0415 - it needs this module

        with suppress(asyncio.CancelledError):  # an interrupt
            await run_prompt(server, greeting)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m talaria.testing.slack_server",
        description="A Slack server for trying the Slack channel without Slack, with a prompt on a terminal.",
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 picks a free one")
    arguments = parser.parse_args()
    try:
        asyncio.run(_run(arguments))
    except OSError as error:
        where = f"{arguments.host}:{arguments.port}"
        parser.exit(1, f"slack_server: cannot listen on {where}: {os.strerror(error.errno or 0)}\n")


if __name__ == "__main__":
    main()
