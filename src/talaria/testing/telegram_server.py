"""A Bot API server behind real HTTP: `TelegramServer`, or `python -m talaria.testing.telegram_server`.

It enforces the platform's rules (offsets, lengths, formatting), records every call and can be told to
misbehave. From another process, people write and read with JSON:

  POST /_control/say     {"user": 7, "text": "hello", "chat"?: -5}    someone writes; answers the message
  GET  /_control/chats                                                what every chat shows now
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections import defaultdict, deque
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp import web

from talaria.testing.fake_server import ChangeNotifier, print_and_wait
from talaria.testing.telegram_world import Files, Json, Person, Refusal, World, bad

TOKEN = "4200:fake-token-for-tests"  # noqa: S105 - of a fake
DEFAULT_PORT = 8767
MAX_RECORDED = 20_000
_WEBHOOK_RETRY_SECONDS = 0.02
_NESTED = frozenset({"reply_markup", "allowed_updates", "reply_parameters", "commands", "entities"})
_IN_USE = (
    "Conflict: can't use getUpdates method while webhook is active; "
    "use deleteWebhook to delete the webhook first"
)
_TERMINATED = (
    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
)


class Misdeed(StrEnum):
    STATUS = "status"  # answer with `status` and `body`
    HTML = "html"  # a proxy's error page
    HANG = "hang"
    CUT_BEFORE = "cut_before"  # the connection is lost, nothing happened
    CUT_AFTER = "cut_after"  # the connection is lost, and it did happen
    HOLD = "hold"  # it did happen, and the answer comes when `released` is set


@dataclass(slots=True)
class Fault:
    kind: Misdeed
    times: int = 1
    status: int = 500
    body: Json | None = None


@dataclass(frozen=True, slots=True)
class Called:
    method: str
    params: Json


@dataclass(slots=True)
class Webhook:
    url: str = ""
    secret: str = ""
    last_error: str = ""


class TelegramServer(ChangeNotifier):
    """Serves from `async with` until its end. `world` is the platform behind it."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str = TOKEN,
    ) -> None:
        super().__init__()
        self._host, self._port = host, port
        self._poll = 0
        self._faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self._runner: web.AppRunner | None = None
        self._pusher: asyncio.Task[None] | None = None
        self.token = token
        self.webhook = Webhook()
        self.world = World()
        self.world.on_update = self.notify
        self.calls: deque[Called] = deque(maxlen=MAX_RECORDED)
        self.polls = 0  # open now
        self.pushed: list[int] = []  # the statuses that the webhook answered
        self.released = asyncio.Event()  # lets answers go that `Misdeed.HOLD` held

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def person(self, id: int, first_name: str = "Ada", username: str = "") -> Person:
        return self.world.person(id, first_name, username)

    def fail(self, method: str, fault: Fault) -> None:
        """The next `fault.times` calls of the method (`*`: of any) go wrong; later orders queue up."""
        self._faults[method.lower()].append(fault)

    def count(self, method: str) -> int:
        return sum(call.method.lower() == method.lower() for call in self.calls)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/bot{token}/{method}", self._serve)
        app.router.add_get("/file/bot{token}/{path}", self._serve_file)
        app.router.add_route("*", "/_control/{order}", self._control)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self._pusher = asyncio.create_task(self._push(), name="fake webhook")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        assert self._pusher is not None
        self._pusher.cancel()
        await asyncio.wait((self._pusher,))
        await self._runner.cleanup()

    # -- calls ----------------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        if request.match_info["token"] != self.token:
            return _refuse(Refusal(401, "Unauthorized"))
        params, files = await _read(request)
        self.calls.append(Called(method, params))
        fault = self._take_fault(method)
        if fault is not None and fault.kind not in (Misdeed.CUT_AFTER, Misdeed.HOLD):
            self.notify()
            return await self._misbehave(request, fault)
        try:
            result = await self._answer(method.lower(), params, files)
        except Refusal as refusal:
            response = _refuse(refusal)
        else:
            response = _json({"ok": True, "result": result})
        self.notify()
        if fault is not None and fault.kind is Misdeed.HOLD:
            await self.released.wait()
            return response
        return _cut(request) if fault is not None else response

    async def _answer(self, method: str, params: Json, files: Files) -> Any:
        match method:
            case "getupdates":
                return await self._get_updates(params)
            case "setwebhook":
                self.webhook = Webhook(str(params.get("url", "")), str(params.get("secret_token", "")))
                self._allow(params)
                return True
            case "deletewebhook":
                self.webhook = Webhook()
                if params.get("drop_pending_updates"):
                    self.world.queue.clear()
                return True
            case "getwebhookinfo":
                info = {"url": self.webhook.url, "pending_update_count": len(self.world.queue)}
                error = self.webhook.last_error
                return info | ({"last_error_message": error} if error else {})
            case _:
                return self.world.call(method, params, files)

    async def _get_updates(self, params: Json) -> list[Json]:
        """The newest poller wins; the one before it is sent away."""
        if self.webhook.url:
            raise Refusal(409, _IN_USE)
        self._poll += 1
        mine = self._poll
        self._allow(params)
        self.world.confirm(int(params.get("offset", 0)))
        self.polls += 1
        self.notify()
        try:
            world = self.world
            await self.until(
                lambda: bool(world.queue or world.strays or self._poll != mine),
                float(params.get("timeout", 0)),
            )
        finally:
            self.polls -= 1
        if self._poll != mine:
            raise Refusal(409, _TERMINATED)
        return self.world.batch(min(100, max(1, int(params.get("limit", 100)))))

    def _allow(self, params: Json) -> None:
        if "allowed_updates" in params:
            self.world.allowed = frozenset(params["allowed_updates"]) or None

    def _take_fault(self, method: str) -> Fault | None:
        for name in (method.lower(), "*"):
            faults = self._faults[name]
            if faults:
                faults[0].times -= 1
                return faults.popleft() if faults[0].times <= 0 else faults[0]
        return None

    async def _misbehave(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        match fault.kind:
            case Misdeed.HANG:
                await asyncio.Event().wait()
                raise AssertionError
            case Misdeed.CUT_BEFORE:
                return _cut(request)
            case Misdeed.HTML:
                page = "<html><h1>502 Bad Gateway</h1></html>"
                return web.Response(status=502, text=page, content_type="text/html")
            case _:
                description = f"scripted {fault.status}"
                body = fault.body or {"ok": False, "error_code": fault.status, "description": description}
                return _json(body, fault.status)

    async def _serve_file(self, request: web.Request) -> web.StreamResponse:
        found = self.world.files.get(request.match_info["path"])
        if request.match_info["token"] != self.token or found is None:
            return _refuse(Refusal(404, "Not Found"))
        self.calls.append(Called("file", {"path": request.match_info["path"]}))
        return web.Response(body=found[1], content_type="application/octet-stream")

    # -- the webhook ----------------------------------------------------------------------------------------

    async def _push(self) -> None:
        """Hands updates to the webhook one by one, each until it is taken."""
        async with aiohttp.ClientSession() as client:
            while True:
                await self.until(lambda: bool(self.webhook.url and (self.world.queue or self.world.strays)))
                update = (self.world.strays or self.world.queue)[0]
                status = await self._hand_over(client, update)
                self.pushed.append(status)
                if status == 200:
                    self.webhook.last_error = ""
                    if self.world.strays:
                        self.world.strays.pop(0)
                    else:
                        self.world.confirm(update["update_id"] + 1)
                else:
                    self.webhook.last_error = f"Wrong response from the webhook: {status}"
                self.notify()
                if status != 200:
                    await asyncio.sleep(_WEBHOOK_RETRY_SECONDS)

    async def _hand_over(self, client: aiohttp.ClientSession, update: Json) -> int:
        headers = {"X-Telegram-Bot-Api-Secret-Token": self.webhook.secret} if self.webhook.secret else {}
        try:
            async with client.post(self.webhook.url, json=update, headers=headers) as response:
                return response.status
        except aiohttp.ClientError:
            return 0

    # -- another process drives -----------------------------------------------------------------------------

    async def _control(self, request: web.Request) -> web.StreamResponse:
        order = request.match_info["order"]
        body: Json = await request.json() if request.can_read_body else {}
        match order:
            case "say":
                person = self.person(int(body["user"]), str(body.get("name", "Ada")))
                chat = self.world.group(int(body["chat"])) if "chat" in body else None
                answer: Any = person.says(str(body["text"]), chat)
            case "chats":
                answer = {
                    chat.id: [
                        {"id": one.id, "text": one.text, "by_bot": one.by_bot, "edits": one.edits}
                        for one in chat.messages.values()
                    ]
                    for chat in self.world.chats.values()
                }
            case _:
                return _refuse(Refusal(404, f"Not Found: no order {order}"))
        return _json(answer)


async def _read(request: web.Request) -> tuple[Json, dict[str, tuple[str, bytes]]]:
    """Parameters from the query, JSON or a form, as the platform takes them."""
    params: Json = dict(request.query)
    files: dict[str, tuple[str, bytes]] = {}
    if request.content_type == "application/json":
        params |= await request.json()
    elif request.can_read_body:
        for key, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                files[key] = (value.filename, value.file.read())
            else:
                params[key] = value
    for key in _NESTED & params.keys():
        if isinstance(params[key], str):
            try:
                params[key] = msgspec.json.decode(params[key])
            except msgspec.DecodeError:
                raise bad(f"can't parse {key} JSON object") from None
    return params, files


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _refuse(refusal: Refusal) -> web.Response:
    body: Json = {"ok": False, "error_code": refusal.code, "description": refusal.description}
    return _json(body | ({"parameters": refusal.parameters} if refusal.parameters else {}), refusal.code)


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.close()
    return web.Response(status=500)


async def _run(arguments: argparse.Namespace) -> None:
    async with TelegramServer(arguments.host, arguments.port, token=arguments.token) as server:
        await print_and_wait(f"Fake Bot API at {server.url}; the token is {server.token}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m talaria.testing.telegram_server",
        description="A Bot API server for trying the Telegram channel without Telegram.",
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 picks a free one")
    parser.add_argument("--token", default=TOKEN, help="the bot's token (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        asyncio.run(_run(arguments))
    except OSError as error:
        where = f"{arguments.host}:{arguments.port}"
        parser.exit(1, f"telegram_server: cannot listen on {where}: {os.strerror(error.errno or 0)}\n")


if __name__ == "__main__":
    main()
