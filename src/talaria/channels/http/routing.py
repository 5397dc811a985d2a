"""The HTTP API as an ASGI application: finds the route of a request, turns exceptions into responses."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

from talaria.access.callers import AuditLog, RouteAccess
from talaria.channels.http.description import Call
from talaria.channels.http.errors import error_response, is_anthropic_path, nothing_at
from talaria.channels.http.guard import Guard
from talaria.channels.http.request import ClientDisconnected, HttpError, Receive, Request, Scope, Send
from talaria.channels.http.response import AnyResponse, Response
from talaria.core.errors import StoreError, TalariaError
from talaria.gateway import Webhook
from talaria.observe.metrics import Metrics

_log = logging.getLogger("talaria.http")

Handler = Callable[[Request], Awaitable[AnyResponse]]

_LOG_SECONDS = 10.0
_CLIENT_GONE = 499  # the status of a request whose client left, in the metrics


class ApiRoute(NamedTuple):
    """The handler of a method on a path, the roles that may call it, and its description.

    A call with an `action` is audited if it operates, or if its handler says what it is about: a login, or
    the chat of another caller.
    """

    handle: Handler
    access: RouteAccess
    call: Call
    action: str = ""


Routes = Mapping[str, Mapping[str, ApiRoute]]
_WELL_KNOWN: Final = "/.well-known/"  # clients look for OAuth here, and take anything but a 404 for it
_UNKNOWN: Final[Mapping[str, ApiRoute]] = {}


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
        *,
        base_path: str = "",
    ) -> None:
        """`base_path` is `http.base_path`, which a path may begin with."""
        self._base_path = base_path
        self._guard = guard
        self._audit = audit
        self._metrics = metrics
        self._webhooks = webhooks
        # In each round of the event loop, one request of a stranger begins at most.
        self._strangers = asyncio.Lock()  # held by the one that begins in the next round
        self._is_round_taken = False
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
        if self._base_path and request.path.startswith(self._base_path + "/"):
            request.path = request.path[len(self._base_path) :]
        if request.connection is not None and not request.connection.is_trusted:
            if self._is_round_taken or self._strangers.locked():
                async with self._strangers:
                    await asyncio.sleep(0)
            self._is_round_taken = True
            asyncio.get_running_loop().call_soon(self._end_round)
        try:
            status = await self._respond(request)
        except (ClientDisconnected, asyncio.CancelledError):
            # The task is cancelled only by a server that stops; it has closed the connection already.
            status = _CLIENT_GONE
        finally:
            request.end()
        self._metrics.request_answered(request.route, status)

    def _end_round(self) -> None:
        self._is_round_taken = False

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
            request.has_anthropic_id = is_anthropic_path(request.path)
            response = error_response(error, request.path, request.id.decode())
            if not request.has_started:  # otherwise the stream ends here, visibly cut
                await response.send(request)
        return response.status

    def _log_failure(self, request: Request, error: Exception) -> None:
        """Log an error at most every ten seconds for each kind and route: in its own words if they say what
        to do, as for a full disk, else with its traceback."""
        key, now = (request.route, type(error)), time.monotonic()
        logged_at, hidden = self._failures.get(key, (-math.inf, 0))
        if now - logged_at < _LOG_SECONDS:
            self._failures[key] = (logged_at, hidden + 1)
            return
        self._failures[key] = (now, 0)
        more = f", and {hidden} times since it was last logged" if hidden else ""
        is_explained = isinstance(error, TalariaError) and bool(error.hint)
        why, trace = (f": {error}", None) if is_explained else ("", error)
        called = request.method, request.route, request.id.decode()
        _log.error("%s %s (%s) failed%s%s", *called, more, why, exc_info=trace)

    async def _handle(self, request: Request) -> AnyResponse:
        if self._base_path and request.path == self._base_path:
            return Response(b"", 308, ((b"location", f"{self._base_path}/".encode()),))
        if (webhook := self._webhooks.get(request.path)) is not None:
            return await _receive(webhook, request)
        if request.method == "OPTIONS" and (allowed := self._guard.preflight(request)) is not None:
            return allowed
        pattern, methods = self._find(request)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            is_lookup = request.path.startswith(_WELL_KNOWN)
            await self._guard.check(request, RouteAccess.OPEN if is_lookup else _access(methods))
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
        if not (route.action and request.has_caller):
            return
        is_refused, about = result == "forbidden", request.call.about
        if not (is_refused or route.access is RouteAccess.OPERATE or about is not None):
            return
        address = request.scope.get("client") or ("",)
        line = (route.action, str(request.caller), str(address[0]), about or "", result)
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
    caller = request.connection.address if request.connection is not None else ""
    max_body, is_proved = webhook.admit(request.headers, caller)
    if is_proved:
        request.trust()
    if request.headers.get(b"content-encoding", b"identity").lower() != b"identity":
        # A signature is made over the bytes as they are sent.
        raise HttpError("unsupported_media_type", "The body is compressed.", "Send it as it is.")
    body = bytes(await request.body(max_body))
    status, answer = await webhook.receive(request.headers, body, caller)
    return Response(answer, status)
