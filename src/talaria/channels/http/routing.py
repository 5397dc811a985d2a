"""The HTTP API as an ASGI application: its routes, and the boundary where exceptions become responses."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

from talaria.access.audit import AuditLog
from talaria.access.logins import Logins
from talaria.access.tokens import TokenChecker
from talaria.channels.http.auth import Guard, LoginApi
from talaria.channels.http.callers import RouteAccess
from talaria.channels.http.feed_api import FeedApi
from talaria.channels.http.file_api import FileApi
from talaria.channels.http.openai_api import OpenAiApi
from talaria.channels.http.openai_errors import is_openai_path
from talaria.channels.http.operator_api import OperatorApi
from talaria.channels.http.request import ClientDisconnected, HttpError, Receive, Request, Scope, Send
from talaria.channels.http.response import (
    AnyResponse,
    Response,
    StreamTiming,
    error_response,
    nothing_at,
)
from talaria.channels.http.responses_api import ResponseApi
from talaria.channels.http.session_api import SessionApi
from talaria.channels.http.settings import HttpSettings
from talaria.channels.http.turn_api import TurnApi
from talaria.channels.web.pages import PageFiles
from talaria.core.errors import StoreError, TalariaError
from talaria.gateway import Gateway, Webhook
from talaria.observe.metrics import Metrics

_log = logging.getLogger("talaria.http")

Handler = Callable[[Request], Awaitable[AnyResponse]]

_LOG_SECONDS = 10.0
_CLIENT_GONE = 499  # the status of a request whose client left, in the metrics


class ApiRoute(NamedTuple):
    """The handler of a method on a path, and the roles that may call it.

    A call with an `action` is audited if it operates, or if its handler says what it is about: a login, or
    the chat of another caller.
    """

    handle: Handler
    access: RouteAccess
    action: str = ""


Routes = Mapping[str, Mapping[str, ApiRoute]]
_UNKNOWN: Final[Mapping[str, ApiRoute]] = {}


def create_app(
    gateway: Gateway, settings: HttpSettings, logins: Logins, hosts: frozenset[str], timing: StreamTiming
) -> HttpApp:
    """Return the API of a gateway. `hosts` are the exact Host headers that are let in.

    Patterns are tried in this order, so the busy ones come first.
    """
    turns, openai = TurnApi(gateway, settings, timing), OpenAiApi(gateway, settings, timing)
    sessions, files = SessionApi(gateway), FileApi(gateway, settings)
    login, pages = LoginApi(logins, gateway.store), PageFiles()
    open_, all_ = RouteAccess.OPEN, RouteAccess.ALL
    chat, operate = RouteAccess.CHAT, RouteAccess.OPERATE
    routes: dict[str, dict[str, ApiRoute]] = {
        "/api/sessions/{x}/messages": {"POST": ApiRoute(turns.send, chat, "message.send")},
        "/v1/chat/completions": {"POST": ApiRoute(openai.complete, chat, "message.send")},
        **_response_routes(ResponseApi(gateway, settings, timing)),
        "/api/turns": {"GET": ApiRoute(turns.list, all_)},
        "/api/events": {"GET": ApiRoute(FeedApi(gateway, timing).events, all_)},
        "/api/turns/{id}": {"GET": ApiRoute(turns.show, all_, "turn.read")},
        "/api/turns/{id}/events": {"GET": ApiRoute(turns.events, all_, "turn.read")},
        "/api/turns/{id}/cancel": {"POST": ApiRoute(turns.cancel, chat, "turn.cancel")},
        "/api/sessions": {"GET": ApiRoute(sessions.list, all_)},
        "/api/sessions/{x}": {
            "GET": ApiRoute(sessions.show, all_, "session.read"),
            "DELETE": ApiRoute(sessions.delete, chat, "session.delete"),
        },
        "/api/sessions/{x}/entries": {"GET": ApiRoute(sessions.entries, all_, "session.read")},
        "/api/sessions/{x}/files": {"GET": ApiRoute(sessions.files, all_, "session.read")},
        "/api/sessions/{x}/end": {"POST": ApiRoute(sessions.end, chat, "session.end")},
        "/api/files": {"POST": ApiRoute(files.upload, chat)},
        "/api/files/{id}": {"GET": ApiRoute(files.show, all_, "file.read")},
        "/v1/models": {"GET": ApiRoute(openai.models, all_)},
        "/v1/models/{model}": {"GET": ApiRoute(openai.model, all_)},
        "/api/login": {"POST": ApiRoute(login.log_in, open_, "login")},
        "/api/login/codes": {"POST": ApiRoute(login.new_code, operate, "login.code")},
        "/api/logout": {"POST": ApiRoute(login.log_out, all_, "logout")},
        **_operator_routes(OperatorApi(gateway)),
        "/": {"GET": ApiRoute(pages.index, open_)},
        "/assets/{name}": {"GET": ApiRoute(pages.asset, open_)},
    }
    guard = Guard(hosts, settings.origins, logins, TokenChecker(gateway.store.tokens, gateway.clock))
    return HttpApp(routes, guard, AuditLog(gateway.clock), gateway.metrics, gateway.webhooks)


def _operator_routes(operator: OperatorApi) -> dict[str, dict[str, ApiRoute]]:
    open_, read, operate = RouteAccess.OPEN, RouteAccess.READ, RouteAccess.OPERATE
    return {
        "/api/pairings": {"GET": ApiRoute(operator.pairings, operate)},
        "/api/pairings/approve": {"POST": ApiRoute(operator.approve, operate, "pair.approve")},
        "/api/pairings/revoke": {"POST": ApiRoute(operator.revoke, operate, "pair.revoke")},
        "/api/pairings/invite": {"POST": ApiRoute(operator.invite, operate, "pair.invite")},
        "/api/tokens": {
            "GET": ApiRoute(operator.tokens, operate),
            "POST": ApiRoute(operator.add_token, operate, "token.add"),
        },
        "/api/tokens/revoke": {"POST": ApiRoute(operator.revoke_token, operate, "token.revoke")},
        "/api/pool": {"GET": ApiRoute(operator.pool, read)},
        "/api/status": {"GET": ApiRoute(operator.status, read)},
        "/api/models/{name}/fetch": {"POST": ApiRoute(operator.fetch_model, operate, "model.fetch")},
        "/api/backup": {"POST": ApiRoute(operator.backup, operate, "backup")},
        "/healthz": {"GET": ApiRoute(operator.healthz, open_)},
        "/readyz": {"GET": ApiRoute(operator.readyz, open_)},
        "/metrics": {"GET": ApiRoute(operator.metrics, read)},
    }


def _response_routes(responses: ResponseApi) -> dict[str, dict[str, ApiRoute]]:
    all_, chat = RouteAccess.ALL, RouteAccess.CHAT
    return {
        "/v1/responses": {"POST": ApiRoute(responses.create, chat, "message.send")},
        "/v1/responses/{id}": {
            "GET": ApiRoute(responses.show, all_, "response.read"),
            "DELETE": ApiRoute(responses.delete, chat, "response.delete"),
        },
        "/v1/responses/{id}/cancel": {"POST": ApiRoute(responses.cancel, chat, "response.cancel")},
        "/v1/responses/{id}/input_items": {"GET": ApiRoute(responses.list_input, all_, "response.read")},
    }


class HttpApp:
    """The ASGI application.

    `webhooks`, by path, are outside the guard: each proves by a secret of its own who calls. The mapping is
    read at each request, so a channel may add its webhook later.
    """

    def __init__(
        self,
        routes: Routes,
        guard: Guard,
        audit: AuditLog,
        metrics: Metrics,
        webhooks: Mapping[str, Webhook],
    ) -> None:
        self._guard = guard
        self._audit = audit
        self._metrics = metrics
        self._webhooks = webhooks
        # In each round of the event loop, one request of a stranger begins at most.
        self._strangers = asyncio.Lock()
        self.routes = routes
        self._failures: dict[tuple[str, type[Exception]], tuple[float, int]] = {}
        self._paths = {path: methods for path, methods in routes.items() if "{" not in path}
        self._patterns = [
            (re.compile(re.sub(r"{(\w+)}", _part, path)).fullmatch, path, methods)
            for path, methods in routes.items()
            if "{" in path
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the HTTP channel does not speak {scope['type']}")
        request = Request(scope, receive, send)
        if request.connection is not None and not request.connection.is_trusted:
            async with self._strangers:
                await asyncio.sleep(0)
        try:
            status = await self._respond(request)
        except (ClientDisconnected, asyncio.CancelledError):
            # The task is cancelled only by a server that stops; it has closed the connection already.
            status = _CLIENT_GONE
        finally:
            request.end()
        self._metrics.request_answered(request.route, status)

    async def _respond(self, request: Request) -> int:
        """Send the response and return its status."""
        response: AnyResponse
        try:
            response = await self._handle(request)
            await response.send(request)
        except ClientDisconnected:
            raise
        except Exception as error:
            if isinstance(error, StoreError) or not isinstance(error, TalariaError):
                self._log_failure(request, error)
            response = error_response(error, is_openai=is_openai_path(request.path))
            if not request.has_started:  # otherwise the stream ends here, visibly cut
                await response.send(request)
        return response.status

    def _log_failure(self, request: Request, error: Exception) -> None:
        """Log an error, with its traceback, at most every ten seconds for each kind and route."""
        key, now = (request.route, type(error)), time.monotonic()
        logged_at, hidden = self._failures.get(key, (-math.inf, 0))
        if now - logged_at < _LOG_SECONDS:
            self._failures[key] = (logged_at, hidden + 1)
            return
        self._failures[key] = (now, 0)
        more = f", and {hidden} times since it was last logged" if hidden else ""
        _log.exception("%s %s (%s) failed%s", request.method, request.route, request.id.decode(), more)

    async def _handle(self, request: Request) -> AnyResponse:
        if (webhook := self._webhooks.get(request.path)) is not None:
            return await _receive(webhook, request)
        if request.method == "OPTIONS" and (allowed := self._guard.preflight(request)) is not None:
            return allowed
        pattern, methods = self._find(request)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            await self._guard.check(request, _access(methods))
            request.route = pattern
            raise _unknown(request, methods)
        try:
            await self._guard.check(request, route.access)
            request.route = pattern
            response = await route.handle(request)
        except Exception as error:
            self._note(route, request, error.type if isinstance(error, TalariaError) else "internal")
            raise
        self._note(route, request, "done")
        return response

    def _note(self, route: ApiRoute, request: Request, result: str) -> None:
        """Write the audit line of a call. Callers that proved nothing leave no line, so they fill no log."""
        is_refused = result == "forbidden"
        operates = route.access is RouteAccess.OPERATE or request.about is not None
        if not (route.action and request.has_caller and (operates or is_refused)):
            return
        address = request.scope.get("client") or ("",)
        line = (route.action, str(request.caller), str(address[0]), request.about or "", result)
        if result != "done" or request.method in ("GET", "HEAD"):
            self._audit.note_hourly(*line)
        else:
            self._audit.note(*line)

    def _find(self, request: Request) -> tuple[str, Mapping[str, ApiRoute]]:
        """Return the pattern of the path and its routes by method, none for an unknown path; set `params`."""
        if (methods := self._paths.get(request.path)) is not None:
            return request.path, methods
        for match, pattern, methods in self._patterns:
            if (matched := match(request.path)) is not None:
                request.params = matched.groupdict()
                return pattern, methods
        return "unknown", _UNKNOWN


def _part(name: re.Match[str]) -> str:
    """Return the pattern for a part of a path. The names of models have slashes."""
    return f"(?P<{name[1]}>{'.+' if name[1] == 'model' else '[^/]+'})"


def _access(methods: Mapping[str, ApiRoute]) -> RouteAccess:
    """Return what the guard asks for before it tells that a path or method does not exist: a caller of any
    role, or nothing on a path that is open to everybody."""
    is_open = any(other.access is RouteAccess.OPEN for other in methods.values())
    return RouteAccess.OPEN if is_open else RouteAccess.ALL


def _unknown(request: Request, methods: Collection[str]) -> TalariaError:
    if not methods:
        return nothing_at(request)
    allow = ", ".join(sorted({*methods, "HEAD"} if "GET" in methods else methods))
    return HttpError(
        "wrong_method",
        f"{request.path} does not know {request.method}.",
        f"It knows {allow}.",
        ((b"allow", allow.encode()),),
    )


async def _receive(webhook: Webhook, request: Request) -> Response:
    request.route = request.path
    if request.method != "POST":
        raise _unknown(request, ["POST"])
    if not webhook.is_genuine(request.headers):
        raise HttpError("forbidden", "This address is for a chat platform only.", "")
    request.trust()
    await webhook.receive(await request.body(webhook.max_body))
    return Response(b"{}\n")
