"""Logging browsers in: `/api/login` and `/api/logout`, the cookie, and the logins of a cluster.

A login that one gateway of a cluster made or ended counts at all of them. They have the same token of the
API, from which logins are derived. The code of a link is known to the gateway that made it, and the proxy in
front of the gateways may bring it to another one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from talaria.access.callers import HOME_CALLER, ApiCaller, Credential
from talaria.access.credentials import (
    CODE_SECONDS,
    COOKIE_SECONDS,
    BrowserLogin,
    Logins,
    digest_of_code,
    is_code,
)
from talaria.channels.http.request import HttpError, RawHeaders, Request
from talaria.channels.http.response import Response, json_response
from talaria.cluster.following import PeerClient, PeerUnreachable
from talaria.cluster.membership import Membership
from talaria.config.home import Home
from talaria.core.access import Role
from talaria.core.cluster import Wake
from talaria.core.errors import StoreError
from talaria.core.tasks import sleep_until_woken
from talaria.gateway import Gateway
from talaria.operations.operation import SMALL_BODY
from talaria.store.store import Store

LOGIN_HEADER: Final = b"x-talaria-login"  # the second secret of a login
_COOKIE: Final = "talaria_login"
_MAX_COOKIES: Final = 20
ENDED_LOGINS: Final = "logins.ended"  # the store's cursor that keeps them
LOGIN_PATH: Final = "/cluster/login"
_LOOK_SECONDS: Final = 10.0
_log = logging.getLogger("talaria.cluster")


class LoginBody(msgspec.Struct):
    code: str


class LoginSecret(msgspec.Struct, frozen=True):
    """The second secret of a login, which is valid for so many seconds. The first one is the cookie."""

    secret: str
    seconds: int


class LoginCode(msgspec.Struct, frozen=True):
    code: str
    seconds: float


def login_caller(name: str) -> ApiCaller:
    return ApiCaller(Credential.LOGIN, name, Role.OPERATE, HOME_CALLER.sender)


class LoginApi:
    """`/api/login` and `/api/logout`."""

    def __init__(
        self,
        logins: Logins,
        store: Store,
        shared: SharedLogins | None,
        home: Home,
        base_path: str = "",
    ) -> None:
        """`shared` are the logins of a cluster. The cookie is sent below `base_path` alone."""
        self._path = base_path + "/"
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
        request.caller, request.call.about = login_caller(self._logins.find(*login) or ""), ""
        headers = _set_cookie(request, login.cookie, COOKIE_SECONDS, self._path)
        return json_response(LoginSecret(login.secret, COOKIE_SECONDS), headers=headers)

    async def log_out(self, request: Request) -> Response:
        """End the login for good, so that a copy of its cookie is void too."""
        request.call.about = ""
        secret = request.header(LOGIN_HEADER) or ""
        for cookie in login_cookies(request):
            if not self._logins.find(cookie, secret):
                continue
            if self._shared is not None:
                await self._shared.end(cookie)
            else:
                await self._store.set_cursor(ENDED_LOGINS, self._logins.end(cookie))
        return Response(b"", 204, _set_cookie(request, "", 0, self._path))

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


def login_cookies(request: Request) -> list[str]:
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


def _set_cookie(request: Request, value: str, seconds: int, path: str) -> RawHeaders:
    """`Secure` is set if the page came over TLS, which its origin tells behind a proxy too."""
    secure = "; Secure" if (request.header(b"origin") or "").startswith("https:") else ""
    text = (
        f"{_cookie_name(request)}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    )
    return ((b"set-cookie", text.encode()), (b"cache-control", b"no-store"))


# -- logins of a cluster ----------------------------------------------------------------------------------


class MemberLogin(msgspec.Struct, frozen=True):
    """The two secrets of a login that another member made."""

    cookie: str
    secret: str


def share_logins(gateway: Gateway, logins: Logins) -> SharedLogins | None:
    """Return the logins of the gateway's cluster; None if the gateway is alone."""
    if gateway.peers is None or gateway.cluster is None:
        return None
    return SharedLogins(logins, gateway.store, gateway.peers, gateway.cluster)


class SharedLogins:
    def __init__(self, logins: Logins, store: Store, peers: PeerClient, own: Membership) -> None:
        self._logins = logins
        self._store = store
        self._peers = peers
        self._own = own
        self._asking = asyncio.Lock()  # strangers send codes too
        self._woken = asyncio.Event()
        own.on_wake(Wake.MEMBERS, self._woken.set)

    async def redeem(self, code: str) -> BrowserLogin | None:
        """Use up a code that another member made; None if there is none. Raises `StoreError`."""
        if not is_code(code):
            return None
        async with self._asking:
            now = self._store.clock.now()
            for member in await self._store.cluster.members():
                if member.owner == self._own.owner or not member.url or not member.is_alive(now):
                    continue
                try:
                    # The code itself would let whoever has a row in the table log in first.
                    body = msgspec.json.encode({"digest": digest_of_code(code).hex()})
                    async with self._peers.call(member, "POST", LOGIN_PATH, "operate", data=body):
                        return self._logins.new_login()
                except PeerUnreachable:
                    continue
        return None

    async def run(self) -> None:
        """Learn which logins were ended elsewhere, until cancelled."""
        while True:
            self._woken.clear()
            try:
                await self.learn()
            except StoreError as error:
                _log.debug("ended logins were not read: %s", error)
            await sleep_until_woken(self._store.clock, _LOOK_SECONDS, self._woken)

    async def end(self, cookie: str) -> None:
        """End the login of a cookie that is known here. Raises `StoreError`."""
        self._logins.end(cookie)
        await self.learn()
        self._own.wake(Wake.MEMBERS)

    async def learn(self) -> None:
        """Read the ended logins, and write those that are missing there: two members may have written at
        once. Raises `StoreError`."""
        kept = await self._store.cursor(ENDED_LOGINS) or ""
        self._logins.restore(kept)
        if self._logins.ended - set(kept.splitlines()):
            await self._store.set_cursor(ENDED_LOGINS, "\n".join(sorted(self._logins.ended)))
