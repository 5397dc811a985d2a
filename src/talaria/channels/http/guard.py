"""Access control of the HTTP API: Host and Origin, then the token, a browser's login, or the signature of
another gateway of the cluster, for which answers are signed too."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from talaria.access.authorizer import Actor, Authorized, ChatKind, Ingress, KnownBy, authorize
from talaria.access.callers import HOME_CALLER, ApiCaller, Credential, RouteAccess
from talaria.access.credentials import Logins, TokenChecker
from talaria.channels.http.login_api import LOGIN_HEADER, login_caller, login_cookies
from talaria.channels.http.request import HttpError, Message, Request, Send
from talaria.channels.http.response import Response
from talaria.cluster.signing import (
    MAC_HEADER,
    ROLE_HEADER,
    SIGNED_FROM,
    AnswerSigner,
    BadSignature,
    CallVerifier,
    ClusterKey,
)
from talaria.core.access import Role
from talaria.core.cluster import Member
from talaria.core.errors import BadRequest
from talaria.core.ids import OwnerId
from talaria.core.turns import Sender

_CLUSTER: Final = "/cluster/"
_SINGLE_HEADERS: Final = (b"host", b"origin", b"authorization", b"x-api-key", b"cookie", LOGIN_HEADER)
_API_KEY: Final = b"x-api-key"  # the header in which clients of Anthropic's API send their key
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OWN_PAGE: Final = frozenset({None, b"same-origin", b"none"})  # none: a person typed the address
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
        elif (key := request.headers.get(_API_KEY)) is not None:
            caller = await self._find_token(key.strip())
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
        cookies = login_cookies(request)
        secret = request.header(LOGIN_HEADER) or ""
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
        return login_caller(name)


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


# -- calls of other gateways ------------------------------------------------------------------------------


class MemberCalls:
    """Finds the caller of a call by another gateway.

    A gateway of an older version sends the cluster token itself. That is accepted while a gateway that cannot
    sign its calls is alive, and its answers are not signed.
    """

    def __init__(
        self,
        token: str,
        own: OwnerId,
        now: Callable[[], float],
        members: Callable[[], Awaitable[Sequence[Member]]],
    ) -> None:
        self._token = token.encode()
        self._key = ClusterKey(token)
        self._verifier = CallVerifier(self._key, own, now)
        self._now = now
        self._members = members

    async def find(self, request: Request, authorization: bytes) -> ApiCaller:
        """Return the caller for whom the gateway calls. From now on the request's body is compared with its
        signature, and its answer is signed. Raises `HttpError` (401) and `BadRequest`."""
        given = request.header(ROLE_HEADER.encode()) or ""
        query: bytes = request.scope["query_string"]
        target = request.scope["raw_path"] + (b"?" + query if query else b"")
        try:
            if authorization[:7].lower() == b"bearer ":
                await self._check_older(authorization[7:].strip())
            else:
                credential, path = authorization.decode("latin-1"), target.decode("latin-1")
                call = self._verifier.verify(credential, request.method, path, given)
                request.signed_digest = bytes.fromhex(call.digest)
                request.send = _signing(request.send, AnswerSigner(self._key, call.nonce))
        except BadSignature as error:
            raise HttpError(
                "unauthorized",
                f"Only gateways of the same cluster may call this, and {error}.",
                "Give all gateways the same token, in the variable that cluster.token_env names.",
                ((b"www-authenticate", b"Bearer"),),
            ) from None
        try:
            role = Role(given)
        except ValueError:
            roles = ", ".join(Role)
            text = "The role of the caller for whom the gateway calls is missing, or is none."
            raise BadRequest(text, f"Send it in the header {ROLE_HEADER}: {roles}.") from None
        return ApiCaller(Credential.MEMBER, "", role, Sender("member", "Member"))

    async def _check_older(self, given: bytes) -> None:
        if not hmac.compare_digest(given, self._token):
            raise BadSignature("the token is not theirs")
        living = [member for member in await self._members() if member.is_alive(self._now())]
        if not any(member.schema < SIGNED_FROM for member in living):
            raise BadSignature("no gateway of an older version, which would send the token, is alive")


def _signing(send: Send, signer: AnswerSigner) -> Send:
    """Return `send` for an answer whose head and pieces are signed."""
    has_body = True

    async def send_signed(message: Message) -> None:
        nonlocal has_body
        if message["type"] == "http.response.start":
            has_body = message["status"] not in (204, 304)
            headers = [header for header in message["headers"] if header[0] != b"content-length"]
            texts = [
                (name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in headers
            ]
            mac = signer.head(message["status"], texts)
            message = {**message, "headers": [*headers, (MAC_HEADER.encode(), mac.encode())]}
        elif message["type"] == "http.response.body" and has_body:
            is_last = not message.get("more_body", False)
            message = {**message, "body": signer.piece(bytes(message.get("body", b"")), is_last=is_last)}
        await send(message)

    return send_signed
