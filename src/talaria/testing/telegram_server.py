"""A Bot API server behind real HTTP: `TelegramServer`, or `python -m talaria.testing.telegram_server`.

It enforces the platform's rules (offsets, lengths, formatting), records every call, and fails on demand.
Another process controls it with JSON:

  POST /_control/say     {"user": 7, "text": "hello", "chat"?: -5}    a user writes; returns the message
  GET  /_control/chats                                                all chats with their messages
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
from talaria.testing.telegram_platform import (
    Files,
    Json,
    TelegramPlatform,
    TelegramRefusal,
    TelegramUser,
    bad_request,
)

TOKEN = "4200:fake-token-for-tests"  # noqa: S105 - of a fake
DEFAULT_PORT = 8767
MAX_RECORDED = 20_000
_WEBHOOK_RETRY_SECONDS = 0.02
_NESTED = frozenset(
    {"reply_markup", "allowed_updates", "reply_parameters", "commands", "entities", "caption_entities"}
)
_IN_USE = (
    "Conflict: can't use getUpdates method while webhook is active; "
    "use deleteWebhook to delete the webhook first"
)
_TERMINATED = (
    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
)


class FaultKind(StrEnum):
    STATUS = "status"  # answer with `status` and `body`
    HTML = "html"  # a proxy's error page
    HANG = "hang"
    CUT_BEFORE = "cut_before"  # the connection breaks, and nothing happened
    CUT_AFTER = "cut_after"  # the connection breaks, but the call was carried out
    HOLD = "hold"  # the call is carried out, and answered when `released` is set


@dataclass(slots=True)
class TelegramFault:
    kind: FaultKind
    times: int = 1
    status: int = 500
    body: Json | None = None


@dataclass(frozen=True, slots=True)
class BotApiCall:
    method: str
    params: Json


@dataclass(slots=True)
class WebhookState:
    url: str = ""
    secret: str = ""
    last_error: str = ""


class TelegramServer(ChangeNotifier):
    """Serves inside its `async with` block. `platform` holds users, chats and updates."""

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
        self._faults: defaultdict[str, deque[TelegramFault]] = defaultdict(deque)
        self._runner: web.AppRunner | None = None
        self._pusher: asyncio.Task[None] | None = None
        self.token = token
        self.webhook = WebhookState()
        self.platform = TelegramPlatform()
        self.platform.on_update = self.notify
        self.calls: deque[BotApiCall] = deque(maxlen=MAX_RECORDED)
        self.polls = 0  # open long polls
        self.conflicts = 0  # polls that a newer one ended
        self.pushed: list[int] = []  # the statuses of the webhook's responses
        self.released = asyncio.Event()  # lets go of answers held by `FaultKind.HOLD`

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    def person(self, id: int, first_name: str = "Ada", username: str = "") -> TelegramUser:
        return self.platform.person(id, first_name, username)

    def fail(self, method: str, fault: TelegramFault) -> None:
        """Let the next `fault.times` calls of the method (`*`: any) fail. Faults queue up."""
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
            return _refuse(TelegramRefusal(401, "Unauthorized"))
        params, files = await _read(request)
        self.calls.append(BotApiCall(method, params))
        fault = self._take_fault(method)
        if fault is not None and fault.kind not in (FaultKind.CUT_AFTER, FaultKind.HOLD):
            self.notify()
            return await self._fail(request, fault)
        try:
            result = await self._answer(method.lower(), params, files)
        except TelegramRefusal as refusal:
            response = _refuse(refusal)
        else:
            response = _json({"ok": True, "result": result})
        self.notify()
        if fault is not None and fault.kind is FaultKind.HOLD:
            await self.released.wait()
            return response
        return _cut(request) if fault is not None else response

    async def _answer(self, method: str, params: Json, files: Files) -> Any:
        match method:
            case "getupdates":
                return await self._get_updates(params)
            case "setwebhook":
                self.webhook = WebhookState(str(params.get("url", "")), str(params.get("secret_token", "")))
                self._allow(params)
                return True
            case "deletewebhook":
                self.webhook = WebhookState()
                if params.get("drop_pending_updates"):
                    self.platform.queue.clear()
                return True
            case "getwebhookinfo":
                info = {"url": self.webhook.url, "pending_update_count": len(self.platform.queue)}
                error = self.webhook.last_error
                return info | ({"last_error_message": error} if error else {})
            case _:
                return self.platform.call(method, params, files)

    async def _get_updates(self, params: Json) -> list[Json]:
        """Long-poll for updates. A newer poll ends an older one with an error, as on Telegram."""
        if self.webhook.url:
            raise TelegramRefusal(409, _IN_USE)
        self._poll += 1
        mine = self._poll
        self._allow(params)
        self.platform.confirm(int(params.get("offset", 0)))
        self.polls += 1
        self.notify()
        try:
            platform = self.platform
            await self.until(
                lambda: bool(platform.queue or platform.repeated or self._poll != mine),
                float(params.get("timeout", 0)),
            )
        finally:
            self.polls -= 1
        if self._poll != mine:
            self.conflicts += 1
            raise TelegramRefusal(409, _TERMINATED)
        return self.platform.batch(min(100, max(1, int(params.get("limit", 100)))))

    def _allow(self, params: Json) -> None:
        if "allowed_updates" in params:
            self.platform.allowed = frozenset(params["allowed_updates"]) or None

    def _take_fault(self, method: str) -> TelegramFault | None:
        for name in (method.lower(), "*"):
            faults = self._faults[name]
            if faults:
                faults[0].times -= 1
                return faults.popleft() if faults[0].times <= 0 else faults[0]
        return None

    async def _fail(self, request: web.Request, fault: TelegramFault) -> web.StreamResponse:
        match fault.kind:
            case FaultKind.HANG:
                await asyncio.Event().wait()
                raise AssertionError
            case FaultKind.CUT_BEFORE:
                return _cut(request)
            case FaultKind.HTML:
                page = "<html><h1>502 Bad Gateway</h1></html>"
                return web.Response(status=502, text=page, content_type="text/html")
            case _:
                description = f"scripted {fault.status}"
                body = fault.body or {"ok": False, "error_code": fault.status, "description": description}
                return _json(body, fault.status)

    async def _serve_file(self, request: web.Request) -> web.StreamResponse:
        found = self.platform.files.get(request.match_info["path"])
        if request.match_info["token"] != self.token or found is None:
            return _refuse(TelegramRefusal(404, "Not Found"))
        self.calls.append(BotApiCall("file", {"path": request.match_info["path"]}))
        return web.Response(body=found[1], content_type="application/octet-stream")

    # -- the webhook ----------------------------------------------------------------------------------------

    async def _push(self) -> None:
        """Post updates to the webhook one by one, each until it is accepted."""
        platform = self.platform
        async with aiohttp.ClientSession() as client:
            while True:
                await self.until(lambda: bool(self.webhook.url and (platform.queue or platform.repeated)))
                update = (platform.repeated or platform.queue)[0]
                status = await self._hand_over(client, update)
                self.pushed.append(status)
                if status == 200:
                    self.webhook.last_error = ""
                    if platform.repeated:
                        platform.repeated.pop(0)
                    else:
                        platform.confirm(update["update_id"] + 1)
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

    # -- control by another process -------------------------------------------------------------------------

    async def _control(self, request: web.Request) -> web.StreamResponse:
        order = request.match_info["order"]
        body: Json = await request.json() if request.can_read_body else {}
        match order:
            case "say":
                person = self.person(int(body["user"]), str(body.get("name", "Ada")))
                chat = self.platform.group(int(body["chat"])) if "chat" in body else None
                answer: Any = person.says(str(body["text"]), chat)
            case "chats":
                answer = {
                    chat.id: [
                        {"id": one.id, "text": one.text, "by_bot": one.by_bot, "edits": one.edits}
                        for one in chat.messages.values()
                    ]
                    for chat in self.platform.chats.values()
                }
            case _:
                return _refuse(TelegramRefusal(404, f"Not Found: no order {order}"))
        return _json(answer)


async def _read(request: web.Request) -> tuple[Json, dict[str, tuple[str, bytes]]]:
    """Read the parameters from the query, JSON or a form."""
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
                raise bad_request(f"can't parse {key} JSON object") from None
    return params, files


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _refuse(refusal: TelegramRefusal) -> web.Response:
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
