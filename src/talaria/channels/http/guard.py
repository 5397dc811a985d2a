"""Access control of the HTTP API: Host and Origin, then the token or a login cookie, then the body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from talaria.access.authorizer import Actor, Authorized, ChatKind, Ingress, Membership, authorize
from talaria.access.logins import Logins
from talaria.channels.http.answers import refusal
from talaria.channels.http.calls import Call
from talaria.channels.http.errors import Refused
from talaria.channels.http.login import cookies_of, is_bearer
from talaria.observe.metrics import Metrics

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/api/login"})
ASSETS = "/assets/"
REFUSED = "refused"
_CALLER = Actor("http", "api", ChatKind.PRIVATE, "api")
_ONCE = (b"host", b"origin", b"authorization", b"cookie")
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_HARMLESS = frozenset({"GET", "HEAD"})
_OWN_PAGE = frozenset({None, b"same-origin", b"none"})  # none: the address was typed


class Guard:
    """Lets a call through to `app` as `scope["call"]`, or answers why not.

    A page of another site can make a browser call this address (DNS rebinding, forms): its Host or its Origin
    gives it away, so both must be exactly ours. A browser sends the cookie by itself, so with it alone only
    our own page may call, and what changes something must name its origin. `hooks` are paths that platforms
    call: each has a secret of its own to prove who calls, and gets its calls as they come.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str],
        logins: Logins,
        metrics: Metrics,
        hooks: Mapping[str, ASGIApp] | None = None,
    ) -> None:
        self._app = app
        named = [host.lower() for host in hosts]
        origins = [f"{scheme}://{host}" for host in named for scheme in _USUAL_PORTS]
        for host in tuple(named):
            for scheme, port in _USUAL_PORTS.items():
                if host.endswith(port):  # which browsers leave out
                    named.append(host.removesuffix(port))
                    origins.append(f"{scheme}://{host.removesuffix(port)}")
        self._hosts = frozenset(host.encode("latin-1") for host in named)
        self._origins = frozenset(origin.encode("latin-1") for origin in origins)
        self._logins = logins
        self._metrics = metrics
        self._hooks = dict(hooks or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the HTTP channel does not speak {scope['type']}")
        call = Call(scope, receive, send)
        if (hook := self._hooks.get(scope["path"])) is not None:
            scope["call"] = call
            await hook(scope, receive, send)
            return
        error = self._place_objection(call) or self._caller_objection(call)
        if error is None:
            scope["call"] = call
            await self._app(scope, receive, send)
            return
        self._metrics.request_answered(REFUSED, error.status)
        await refusal(error).respond(call)

    def _place_objection(self, call: Call) -> Refused | None:
        headers, given = call.headers, call.scope["headers"]
        if len(headers) != len(given):
            names = [name for name, _ in given]
            for name in _ONCE:
                if names.count(name) > 1:
                    return Refused(
                        400,
                        "bad_request",
                        f"The header {name.decode().title()} was sent more than once.",
                        "Send it once.",
                    )
        host = headers.get(b"host", b"").lower()
        if host not in self._hosts:
            return Refused(
                421,
                "wrong_host",
                f"This gateway does not answer to the name {host.decode('latin-1')!r}.",
                "Use the address that it printed at its start, or add this name:port to http.hosts.",
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.lower() not in self._origins:
            return Refused(
                403,
                "wrong_origin",
                f"Pages from {origin.decode('latin-1')!r} may not call this gateway.",
                "Call it from its own page or from a program; http.hosts names further addresses of it.",
            )
        return None

    def _caller_objection(self, call: Call) -> Refused | None:
        headers, path = call.headers, call.scope["path"]
        if path in OPEN_PATHS or path.startswith(ASSETS):
            return None
        authorization = headers.get(b"authorization", b"")
        if is_bearer(authorization):
            is_token = self._logins.is_token(authorization[7:].strip())
            return None if _may_call(is_token) else _unauthorized("The token is wrong.")
        return self._cookie_objection(call)

    def _cookie_objection(self, call: Call) -> Refused | None:
        cookies = cookies_of(call)
        if not _may_call(any(map(self._logins.is_cookie, cookies))):
            return _unauthorized("This login is over." if cookies else "This call needs the gateway's token.")
        is_ours = call.headers.get(b"sec-fetch-site") in _OWN_PAGE
        if is_ours and (call.method in _HARMLESS or b"origin" in call.headers):
            return None
        return Refused(
            403,
            "not_our_page",
            "A login's cookie is good for the gateway's own page only.",
            "Programs send `Authorization: Bearer TOKEN` instead; the token is in http.token in the home.",
        )


def _may_call(is_ours: bool) -> bool:
    membership = Membership.TOKEN if is_ours else Membership.UNKNOWN
    return isinstance(authorize(_CALLER, Ingress.API, membership), Authorized)


def _unauthorized(what: str) -> Refused:
    return Refused(
        401,
        "unauthorized",
        what,
        "Send `Authorization: Bearer TOKEN`; the token is in http.token in the gateway's home. "
        "`talaria open` logs a browser in.",
        ((b"www-authenticate", b"Bearer"),),
    )
