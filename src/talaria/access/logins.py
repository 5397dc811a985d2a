"""Credentials of the HTTP API: the gateway's token, and for browsers a login code that becomes a cookie."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

from talaria.core.clock import Clock

CODE_SECONDS: Final = 600.0
COOKIE_SECONDS: Final = 30 * 24 * 3600
_ALPHABET: Final = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"  # no two characters that look alike
_CODE_LENGTH: Final = 16
_MAX_CODES: Final = 16


class Logins:
    """Checks the token and cookies, and exchanges codes for cookies.

    Codes are kept in memory only: a restart voids unused ones. A cookie is signed with a key derived from the
    token, so it outlives a restart. It is void after its login has ended or the token has changed.
    """

    def __init__(self, token: str, clock: Clock) -> None:
        if not token:
            raise ValueError("the HTTP channel needs a token")
        self._token = token.encode()
        self._key = hmac.digest(self._token, b"talaria login cookie", "sha256")
        self._clock = clock
        self._codes: dict[bytes, float] = {}
        self._ended: set[str] = set()  # claims of logins that were ended before they expired

    def is_token(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self._token)

    def new_code(self) -> str:
        """Return a code that can be redeemed once, within ten minutes. The oldest unused codes make room."""
        code = "".join(secrets.choice(_ALPHABET) for _ in range(_CODE_LENGTH))
        while len(self._codes) >= _MAX_CODES:
            del self._codes[next(iter(self._codes))]
        self._codes[_digest(code)] = self._clock.elapsed() + CODE_SECONDS
        return code

    def redeem(self, code: str) -> str | None:
        """Use a code up and return the value of the login cookie; None if the code is wrong or expired."""
        good_until = self._codes.pop(_digest(code.strip().upper()), None)
        if good_until is None or self._clock.elapsed() >= good_until:
            return None
        return self._sign(f"{int(self._clock.now()) + COOKIE_SECONDS}.{secrets.token_urlsafe(12)}")

    def is_cookie(self, cookie: str) -> bool:
        claim, _, _ = cookie.rpartition(".")
        if not hmac.compare_digest(self._sign(claim).encode(), cookie.encode()):
            return False
        return self._is_current(claim) and claim not in self._ended

    def end(self, cookie: str) -> str:
        """End the login of a valid cookie. Return all ended logins, for `restore` after a restart."""
        self._ended.add(cookie.rpartition(".")[0])
        self._ended = set(filter(self._is_current, self._ended))
        return "\n".join(self._ended)

    def restore(self, ended: str) -> None:
        self._ended.update(ended.splitlines())

    def _is_current(self, claim: str) -> bool:
        return self._clock.now() < int(claim.partition(".")[0])

    def _sign(self, claim: str) -> str:
        return f"{claim}.{hmac.new(self._key, claim.encode(), 'sha256').hexdigest()}"


def link(address: str, code: str) -> str:
    """Return the address that logs a browser in. Browsers do not send the part behind the # to any server."""
    return f"{address}/#code={code}"


def _digest(code: str) -> bytes:
    """Return the key under which a code is kept. Its lookup time tells nothing about a code."""
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
