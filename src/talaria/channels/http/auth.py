"""Access control of the HTTP API: Host and Origin, then the token or a browser's login; and logging in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from talaria.access.authorizer import Actor, Authorized, ChatKind, Ingress, KnownBy, authorize
from talaria.access.callers import HOME_CALLER, ApiCaller, Credential, RouteAccess
from talaria.access.logins import CODE_SECONDS, COOKIE_SECONDS, Logins
from talaria.access.tokens import TokenChecker
from talaria.channels.http.member_calls import MemberCalls
from talaria.channels.http.request import HttpError, RawHeaders, Request
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.shared_logins import ENDED_LOGINS, SharedLogins
from talaria.config.home import Home
from talaria.core.access import Role
from talaria.core.errors import BadRequest
from talaria.core.turns import Sender
from talaria.operations.operation import SMALL_BODY
from talaria.store.store import Store

_CLUSTER: Final = "/cluster/"
_LOGIN: Final = b"x-talaria-login"  # the second secret of a login
_SINGLE_HEADERS: Final = (b"host", b"origin", b"authorization", b"cookie", _LOGIN)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OWN_PAGE: Final = frozenset({None, b"same-origin", b"none"})  # none: a person typed the address
_COOKIE: Final = "talaria_login"
_MAX_COOKIES: Final = 20
_REQUESTED_METHOD: Final = b"access-control-request-method"
_CHALLENGE: Final = ((b"www-authenticate", b"Bearer"),)
_VARY: Final = (b"vary", b"origin")
# Without credentials * stands for every header but Authorization.
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, PATCH, DELETE"),
    (b"access-control-allow-headers", b"authorization, *"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED: Final = (b"access-control-expose-headers", b"*")


class Guard:
    """Decides whether a request may reach its handler. Never reads the body.

    A page of another site can make a browser call this address (DNS rebinding, forms). Its Host or its Origin
    gives it away, so both must be exactly ours. A browser sends the cookie by itself, and to every port of
    the host. So a call by cookie also needs the secret that only our own page has. The browser must name that
    page as well: such a call never comes from another page, and one that changes something has an origin.

    Pages from `origins` may call too, with a token only: for them a cookie is as good as none.

    Under `/cluster/` only other members may call, and they may call nothing else. A gateway that is alone has
    none.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        origins: Iterable[str],
        logins: Logins,
        tokens: TokenChecker,
        members: MemberCalls | None = None,
    ) -> None:
        named = [host.lower() for host in hosts]
        own = [f"{scheme}://{host}" for host in named for scheme in _DEFAULT_PORTS]
        for host in tuple(named):
            for scheme, port in _DEFAULT_PORTS.items():
                if host.endswith(port):  # browsers leave it out
                    named.append(host.removesuffix(port))
                    own.append(f"{scheme}://{host.removesuffix(port)}")
        self._hosts = frozenset(host.encode("latin-1") for host in named)
        self._own_origins = frozenset(origin.encode("latin-1") for origin in own)
        self._origins = frozenset(origin.lower().encode("latin-1") for origin in origins) - self._own_origins
        self._logins = logins
        self._tokens = tokens
        self._members = members

    async def check(self, request: Request, access: RouteAccess) -> None:
        """Set the request's caller. Raises `HttpError` (401, 403, 421) or `BadRequest` for a request that may
        not go on."""
        is_elsewhere = self._check_place(request)
        if access is RouteAccess.OPEN:
            if is_elsewhere and request.method not in _SAFE_METHODS:
                raise HttpError(
                    "wrong_origin",
                    "Only the gateway's own page can log in.",
                    "Pages of other origins send `Authorization: Bearer TOKEN`.",
                )
            return
        authorization = request.headers.get(b"authorization", b"")
        if self._members is not None and request.path.startswith(_CLUSTER):
            caller = await self._members.find(request, authorization)
        elif _is_bearer(authorization):
            caller = await self._find_token(authorization[7:].strip())
        elif is_elsewhere:
            raise _unauthorized("A page of another origin needs a token; no cookie counts there.")
        else:
            caller = self._find_login(request)
        request.caller = caller
        if not _may_call(caller, access):
            needed = " or ".join(f"`{role}`" for role in Role if role in access.roles)
            raise HttpError(
                "forbidden",
                f"This call needs the role {needed}, and {caller} has `{caller.role}`.",
                "Use a token with that role; `talaria token add NAME --role ROLE` makes one.",
            )

    def preflight(self, request: Request) -> Response | None:
        """Return the answer to a browser that asks whether a page of `origins` may make a call, or None if
        the request is another one. Raises what `check` raises for a wrong Host or Origin.

        The answer is the same for every path, so it tells nothing of the gateway.
        """
        if request.method != "OPTIONS" or _REQUESTED_METHOD not in request.headers:
            return None
        if not self._check_place(request):
            return None
        return Response(b"", 204, _PREFLIGHT)

    async def _find_token(self, given: bytes) -> ApiCaller:
        if self._logins.is_token(given):
            return HOME_CALLER
        token = await self._tokens.find(given)
        if token is None:
            raise _unauthorized("The token is wrong, or it was revoked.")
        if self._tokens.has_expired(token):
            raise _unauthorized(f"The token {token.name} has expired.")
        sender = Sender(f"token:{token.name}", token.name, is_operator=token.role is Role.OPERATE)
        return ApiCaller(Credential.TOKEN, token.name, token.role, sender)

    def _check_place(self, request: Request) -> bool:
        """Return whether a page of another origin calls, one of `origins`. Raises `HttpError` (403, 421) and
        `BadRequest`. The response tells the browser that the page may read it."""
        headers = request.headers
        if len(headers) != len(request.scope["headers"]):
            names = [name for name, _ in request.scope["headers"]]
            for name in _SINGLE_HEADERS:
                if names.count(name) > 1:
                    text = f"The header {name.decode().title()} was sent more than once."
                    raise BadRequest(text, "Send it once.")
        host = headers.get(b"host", b"").lower()
        if host not in self._hosts:
            raise HttpError(
                "wrong_host",
                f"This gateway does not answer to the name {host.decode('latin-1')!r}.",
                "Use the address that it printed at its start, or add this name:port to http.hosts.",
            )
        if self._origins:
            request.more_headers = (_VARY,)
        origin = headers.get(b"origin")
        if origin is None or origin.lower() in self._own_origins:
            return False
        if origin.lower() in self._origins:
            request.more_headers = ((b"access-control-allow-origin", origin), _EXPOSED, _VARY)
            return True
        raise HttpError(
            "wrong_origin",
            f"Pages from {origin.decode('latin-1')!r} may not call this gateway.",
            "Call it from its own page or from a program; http.hosts names further addresses of it, and "
            "http.origins names pages that may call it.",
        )

    def _find_login(self, request: Request) -> ApiCaller:
        cookies = _cookies(request)
        secret = request.header(_LOGIN) or ""
        name = next(filter(None, (self._logins.find(cookie, secret) for cookie in cookies)), None)
        if name is None:
            over = "This login is over." if secret else "A login's cookie alone opens nothing."
            raise _unauthorized(over if cookies else "This call needs the gateway's token.")
        is_own_page = request.headers.get(b"sec-fetch-site") in _OWN_PAGE
        if not is_own_page or (request.method not in _SAFE_METHODS and b"origin" not in request.headers):
            raise HttpError(
                "not_our_page",
                "A login's cookie is good for the gateway's own page only.",
                "Programs send `Authorization: Bearer TOKEN`; the token is in http.token in the home.",
            )
        return _login_caller(name)


def _login_caller(name: str) -> ApiCaller:
    return ApiCaller(Credential.LOGIN, name, Role.OPERATE, HOME_CALLER.sender)


def _may_call(caller: ApiCaller, access: RouteAccess) -> bool:
    actor = Actor("http", caller.sender.id, ChatKind.PRIVATE, caller.sender.id)
    verdict = authorize(actor, Ingress.API, KnownBy.TOKEN, caller.role, access.roles)
    return isinstance(verdict, Authorized)


def _is_bearer(authorization: bytes) -> bool:
    """Return False for another scheme, such as one that a proxy in front of the gateway asked for."""
    return authorization[:7].lower() == b"bearer "


def _unauthorized(text: str) -> HttpError:
    return HttpError(
        "unauthorized",
        text,
        "Send `Authorization: Bearer TOKEN`; the token is in http.token in the gateway's home, and "
        "`talaria token add` makes others. `talaria open` logs a browser in.",
        _CHALLENGE,
    )


# -- logging in -------------------------------------------------------------------------------------------


class LoginBody(msgspec.Struct):
    code: str


class LoginSecret(msgspec.Struct, frozen=True):
    """The second secret of a login, which is valid for so many seconds. The first one is the cookie."""

    secret: str
    seconds: int


class LoginCode(msgspec.Struct, frozen=True):
    code: str
    seconds: float


class LoginApi:
    """`/api/login` and `/api/logout`."""

    def __init__(self, logins: Logins, store: Store, shared: SharedLogins | None, home: Home) -> None:
        """`shared` are the logins of a cluster."""
        self._home = home
        self._logins = logins
        self._store = store
        self._shared = shared

    async def log_in(self, request: Request) -> Response:
        """Exchange the code of a link for a cookie and the secret that goes with it."""
        body = await request.json(LoginBody, SMALL_BODY)
        login = self._logins.redeem(body.code)
        if login is None and self._shared is not None:
            login = await self._shared.redeem(body.code)
        if login is None:
            raise HttpError(
                "bad_code",
                f"This code was used, is older than {CODE_SECONDS / 60:g} minutes, or was never given.",
                "`talaria open` makes a new link.",
            )
        await asyncio.to_thread(self._home.login_page(body.code).unlink, missing_ok=True)
        request.caller, request.call.about = _login_caller(self._logins.find(*login) or ""), ""
        headers = _set_cookie(request, login.cookie, COOKIE_SECONDS)
        return json_response(LoginSecret(login.secret, COOKIE_SECONDS), headers=headers)

    async def log_out(self, request: Request) -> Response:
        """End the login for good, so that a copy of its cookie is void too."""
        request.call.about = ""
        secret = request.header(_LOGIN) or ""
        for cookie in _cookies(request):
            if not self._logins.find(cookie, secret):
                continue
            if self._shared is not None:
                await self._shared.end(cookie)
            else:
                await self._store.set_cursor(ENDED_LOGINS, self._logins.end(cookie))
        return Response(b"", 204, _set_cookie(request, "", 0))

    async def new_code(self, request: Request) -> Response:
        """Make a code. Needs the home's own token: a login that could make codes would never end, and a login
        that another token made would outlive that token."""
        if request.caller.credential is not Credential.HOME:
            raise HttpError(
                "token_needed",
                "Only the home's own token can log a browser in.",
                "Run `talaria open` on the gateway's machine.",
            )
        return json_response(LoginCode(self._logins.new_code(), CODE_SECONDS), 201)


def _cookies(request: Request) -> list[str]:
    """Return the login cookies. There may be several: another server on this host may have set one too."""
    header, wanted = request.header(b"cookie") or "", _cookie_name(request) + "="
    found: list[str] = []
    at = header.find(wanted)
    while at >= 0 and len(found) < _MAX_COOKIES:
        end = header.find(";", at)
        end = len(header) if end < 0 else end
        if at == 0 or header[at - 1] in "; ":
            found.append(header[at + len(wanted) : end].strip())
        at = header.find(wanted, end)
    return found


def _cookie_name(request: Request) -> str:
    """Return a name with the port: browsers keep cookies by host, and two gateways may share a host."""
    port = (request.header(b"host") or "").rpartition(":")[2]
    return f"{_COOKIE}_{port}" if port.isdecimal() else _COOKIE


def _set_cookie(request: Request, value: str, seconds: int) -> RawHeaders:
    """`Secure` is set if the page came over TLS, which its origin tells behind a proxy too."""
    secure = "; Secure" if (request.header(b"origin") or "").startswith("https:") else ""
    text = f"{_cookie_name(request)}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return ((b"set-cookie", text.encode()), (b"cache-control", b"no-store"))
