"""The HTTP API as an ASGI application: its routes, and the boundary where exceptions become responses."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from talaria.access.logins import Logins
from talaria.channels.http.auth import Guard, LoginApi
from talaria.channels.http.openai_api import OpenAiApi
from talaria.channels.http.operator_api import OperatorApi
from talaria.channels.http.request import ClientDisconnected, HttpError, Receive, Request, Scope, Send
from talaria.channels.http.response import EventStream, Response, StreamTiming, error_response, not_found
from talaria.channels.http.session_api import FileApi, SessionApi
from talaria.channels.http.settings import HttpSettings
from talaria.channels.http.turn_api import TurnApi
from talaria.channels.web.pages import PageFiles
from talaria.core.errors import StoreError, TalariaError
from talaria.gateway import Gateway, Webhook
from talaria.observe.metrics import Metrics

_log = logging.getLogger("talaria.http")

Handler = Callable[[Request], Awaitable[Response | EventStream]]

_CLIENT_GONE = 499  # the status of a request whose client left, in the metrics


def create_app(
    gateway: Gateway, settings: HttpSettings, logins: Logins, hosts: frozenset[str], timing: StreamTiming
) -> HttpApp:
    """Return the API of a gateway. `hosts` are the exact Host headers that are let in.

    Patterns are tried in this order, so the busy ones come first.
    """
    turns, openai = TurnApi(gateway, settings, timing), OpenAiApi(gateway, settings, timing)
    sessions, files = SessionApi(gateway), FileApi(gateway, settings)
    operator, login, pages = OperatorApi(gateway), LoginApi(logins, gateway.store), PageFiles()
    routes: dict[str, dict[str, Handler]] = {
        "/api/sessions/{x}/messages": {"POST": turns.send},
        "/v1/chat/completions": {"POST": openai.complete},
        "/api/turns/{id}": {"GET": turns.show},
        "/api/turns/{id}/events": {"GET": turns.events},
        "/api/turns/{id}/cancel": {"POST": turns.cancel},
        "/api/sessions": {"GET": sessions.list},
        "/api/sessions/{x}": {"GET": sessions.show},
        "/api/sessions/{x}/entries": {"GET": sessions.entries},
        "/api/sessions/{x}/end": {"POST": sessions.end},
        "/api/files": {"POST": files.upload},
        "/api/files/{id}": {"GET": files.show},
        "/v1/models": {"GET": openai.models},
        "/api/login": {"POST": login.log_in},
        "/api/login/codes": {"POST": login.new_code},
        "/api/logout": {"POST": login.log_out},
        "/api/pairings": {"GET": operator.pairings},
        "/api/pairings/approve": {"POST": operator.approve},
        "/api/pairings/revoke": {"POST": operator.revoke},
        "/api/pairings/invite": {"POST": operator.invite},
        "/api/pool": {"GET": operator.pool},
        "/api/status": {"GET": operator.status},
        "/api/backup": {"POST": operator.backup},
        "/healthz": {"GET": operator.healthz},
        "/readyz": {"GET": operator.readyz},
        "/metrics": {"GET": operator.metrics},
        "/": {"GET": pages.index},
        "/assets/{name}": {"GET": pages.asset},
    }
    return HttpApp(routes, Guard(hosts, logins), gateway.metrics, gateway.webhooks)


class HttpApp:
    """The ASGI application.

    `webhooks`, by path, are outside the guard: each proves by a secret of its own who calls. The mapping is
    read at each request, so a channel may add its webhook later.
    """

    def __init__(
        self,
        routes: Mapping[str, Mapping[str, Handler]],
        guard: Guard,
        metrics: Metrics,
        webhooks: Mapping[str, Webhook],
    ) -> None:
        self._guard = guard
        self._metrics = metrics
        self._webhooks = webhooks
        self._paths = {path: handlers for path, handlers in routes.items() if "{" not in path}
        self._patterns = [
            (re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)).fullmatch, path, handlers)
            for path, handlers in routes.items()
            if "{" in path
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the HTTP channel does not speak {scope['type']}")
        request = Request(scope, receive, send)
        try:
            status = await self._respond(request)
        except (ClientDisconnected, asyncio.CancelledError):
            # The task is cancelled only by a server that stops; it has closed the connection already.
            status = _CLIENT_GONE
        self._metrics.request_answered(request.route, status)

    async def _respond(self, request: Request) -> int:
        """Send the response and return its status."""
        response: Response | EventStream
        try:
            webhook = self._webhooks.get(request.path)
            if webhook is None:
                self._guard.check(request)
                handlers = self._find(request)
            else:
                request.route, handlers = request.path, {"POST": partial(_receive, webhook)}
            response = await _handler(request, handlers)(request)
            await response.send(request)
        except ClientDisconnected:
            raise
        except Exception as error:
            if isinstance(error, StoreError) or not isinstance(error, TalariaError):
                _log.exception("%s %s failed", request.method, request.route)
            response = error_response(error)
            if not request.has_started:  # otherwise the stream ends here, visibly cut
                await response.send(request)
        return response.status

    def _find(self, request: Request) -> Mapping[str, Handler]:
        """Return the handlers of the path by method, none for an unknown path; set `route` and `params`."""
        request.route = "unknown"
        if (handlers := self._paths.get(request.path)) is not None:
            request.route = request.path
            return handlers
        for match, route, handlers in self._patterns:
            if (matched := match(request.path)) is not None:
                request.route, request.params = route, matched.groupdict()
                return handlers
        return {}


def _handler(request: Request, handlers: Mapping[str, Handler]) -> Handler:
    handler = handlers.get("GET" if request.method == "HEAD" else request.method)
    if handler is not None:
        return handler
    if not handlers:
        raise not_found(request)
    allow = ", ".join(sorted({*handlers, "HEAD"} if "GET" in handlers else handlers))
    raise HttpError(
        "wrong_method",
        f"{request.path} does not know {request.method}.",
        f"It knows {allow}.",
        ((b"allow", allow.encode()),),
    )


async def _receive(webhook: Webhook, request: Request) -> Response:
    if not webhook.is_genuine(request.headers):
        raise HttpError("forbidden", "This address is for a chat platform only.", "")
    await webhook.receive(await request.body(webhook.max_body))
    return Response(b"{}")
