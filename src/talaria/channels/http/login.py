"""`/api/login`: a link's code for a cookie, a new code for who has the token, and out again."""

from __future__ import annotations

from typing import Final

import msgspec

from talaria.access.logins import CODE_SECONDS, COOKIE_SECONDS, Logins
from talaria.channels.http.answers import Answer, Reply, json_answer
from talaria.channels.http.calls import Call
from talaria.channels.http.errors import RawHeaders, Refused
from talaria.core.ports import Store

ENDED: Final = "logins.ended"  # the name under which the store keeps them
_COOKIE: Final = "talaria_login"
_LARGEST: Final = 4096


class _Login(msgspec.Struct):
    code: str


_LOGIN = msgspec.json.Decoder(_Login)


class LoginRoutes:
    def __init__(self, logins: Logins, store: Store) -> None:
        self._logins = logins
        self._store = store

    async def log_in(self, call: Call) -> Reply:
        given = await call.json(_LOGIN, _LARGEST)
        cookie = self._logins.redeem(given.code)
        if cookie is None:
            raise Refused(
                401,
                "bad_code",
                f"This code was used, is older than {CODE_SECONDS / 60:g} minutes, or was never given.",
                "`talaria open` (in a clone: `./dev open`) makes a new link.",
            )
        return Answer(b"", 204, _set_cookie(call, cookie, COOKIE_SECONDS))

    async def log_out(self, call: Call) -> Reply:
        """Also where the cookie was copied to."""
        for cookie in filter(self._logins.is_cookie, cookies_of(call)):
            await self._store.set_cursor(ENDED, self._logins.end(cookie))
        return Answer(b"", 204, _set_cookie(call, "", 0))

    async def new_code(self, call: Call) -> Reply:
        """For the token alone: a cookie that could make codes would never end."""
        if not is_bearer(call.headers.get(b"authorization", b"")):
            raise Refused(
                403,
                "token_needed",
                "A login from a browser cannot make another one.",
                "Run `talaria open` on the gateway's machine.",
            )
        return json_answer({"code": self._logins.new_code(), "seconds": CODE_SECONDS}, 201)


def is_bearer(authorization: bytes) -> bool:
    """Not what a proxy in front of us asked for."""
    return authorization[:7].lower() == b"bearer "


def cookies_of(call: Call) -> list[str]:
    """Another server on this host may have set one of the same name."""
    pairs = [pair.strip().partition("=") for pair in (call.header(b"cookie") or "").split(";")]
    return [value for name, _, value in pairs if name == _cookie_name(call)]


def _cookie_name(call: Call) -> str:
    """With the port, because browsers keep cookies by host alone and two gateways may share one."""
    port = (call.header(b"host") or "").rpartition(":")[2]
    return f"{_COOKIE}_{port}" if port.isdecimal() else _COOKIE


def _set_cookie(call: Call, value: str, seconds: int) -> RawHeaders:
    """`Secure` where the page came over TLS, which its origin tells also behind a proxy."""
    secure = "; Secure" if (call.header(b"origin") or "").startswith("https:") else ""
    text = f"{_cookie_name(call)}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
    return ((b"set-cookie", text.encode()), (b"cache-control", b"no-store"))
