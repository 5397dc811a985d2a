"""How callers of the HTTP API prove who they are: tokens with a role, and logins of browsers."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from talaria.core.access import AddToken, NamedToken, Role, TokenHash, is_token_name
from talaria.core.clock import Clock
from talaria.core.errors import BadRequest, NotFound, StoreError

if TYPE_CHECKING:
    from talaria.store.store import Tokens


_PREFIX: Final = "talaria_"  # for people and programs that look for secrets in text
_RANDOM_BYTES: Final = 32
_LENGTH: Final = len(_PREFIX) + 43
MAX_SECONDS: Final = 100 * 366 * 86_400.0
_USE_SECONDS: Final = 3600.0  # a use is written down at most once in this time


class FreshToken(msgspec.Struct, frozen=True):
    """A token that was just made. `secret` is not stored and cannot be shown again."""

    secret: str
    token: NamedToken


def hash_token(secret: bytes) -> TokenHash:
    return TokenHash(hashlib.sha256(b"talaria token " + secret).hexdigest())


class TokenAdmin:
    """The operator's commands for tokens; the command line and the HTTP API both use them."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def tokens(self) -> tuple[NamedToken, ...]:
        """Return all tokens, oldest first, also those that have expired."""
        return await self._tokens.listing()

    async def add_token(self, name: str, role: Role, seconds: float | None = None) -> FreshToken:
        """Make a token, which expires after `seconds` if given. Raises `BadRequest` for a bad name, the name
        of another token, or a time that is no time."""
        if not is_token_name(name):
            raise BadRequest(
                f"{name[:80]!r} is no name for a token.",
                "A name has 1 to 40 letters, digits, dots, dashes and underscores.",
            )
        if seconds is not None and not 0 < seconds <= MAX_SECONDS:
            raise BadRequest(
                "A token cannot expire in no time, nor in more than a hundred years.",
                "Leave the time out for a token that never expires.",
            )
        secret = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        token = await self._tokens.add(AddToken(name, role, hash_token(secret.encode()), seconds))
        if token is None:
            raise BadRequest(
                f"There is a token {name} already.",
                f"Choose another name, or end that one with `talaria token revoke {name}`.",
            )
        return FreshToken(secret, token)

    async def revoke_token(self, name: str) -> NamedToken:
        """End a token, from the next call on. A turn that it started continues. Raises `NotFound`."""
        token = await self._tokens.revoke(name)
        if token is None:
            raise NotFound(f"There is no token {name[:80]}.", "`talaria token list` shows the tokens.")
        return token


class TokenChecker:
    """Finds the token that a caller presents. It is read at each call, so a revocation counts at once."""

    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._noted: dict[str, float] = {}  # when the use of a token was last written down by this process

    def has_expired(self, token: NamedToken) -> bool:
        return token.has_expired(self._clock.now())

    async def find(self, secret: bytes) -> NamedToken | None:
        """Return the token, also one that has expired; None if there is none. For a text that cannot be a
        token nothing is read. Raises `StoreError` if the store cannot be read."""
        if len(secret) != _LENGTH or not secret.startswith(_PREFIX.encode()):
            return None
        token = await self._tokens.find(hash_token(secret))
        if token is not None and not self.has_expired(token):
            await self._note_use(token)
        return token

    async def _note_use(self, token: NamedToken) -> None:
        """Write the use down. A store that cannot be written does not keep the caller out."""
        now = self._clock.now()
        if now - max(token.used_at or 0.0, self._noted.get(token.name, 0.0)) < _USE_SECONDS:
            return
        self._noted[token.name] = now
        with suppress(StoreError):
            await self._tokens.note_use(token.name)


# -- credentials of the HTTP API: the gateway's token, and for browsers a code that becomes two secrets ---


CODE_SECONDS: Final = 600.0
CODE_MARK: Final = "/#code="
COOKIE_SECONDS: Final = 30 * 24 * 3600
_ALPHABET: Final = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"  # no two characters that look alike
_CODE_LENGTH: Final = 16
_MAX_CODES: Final = 16
_COOKIE_LENGTHS: Final = range(90, 100)  # a text of another length is not looked at
_ID_LENGTH: Final = 6


class BrowserLogin(NamedTuple):
    """The two secrets of a login. The browser keeps the cookie and sends it to every port of the host. The
    page keeps `secret` in its own storage, which belongs to one port."""

    cookie: str
    secret: str


class Logins:
    """Checks the token and logins, and exchanges codes for logins.

    Codes are kept in memory only: a restart voids unused ones. Both secrets of a login are made from one
    claim, with keys derived from the token, so a login outlives a restart, and neither secret can be made
    from the other. A login is void after it was ended or the token has changed.
    """

    def __init__(self, token: str, clock: Clock) -> None:
        if not token:
            raise ValueError("the HTTP channel needs a token")
        self._token = token.encode()
        self._key = hmac.digest(self._token, b"talaria login cookie", "sha256")
        self._page_key = hmac.digest(self._token, b"talaria login page", "sha256")
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
        self._codes[digest_of_code(code)] = self._clock.elapsed() + CODE_SECONDS
        return code

    def redeem(self, code: str) -> BrowserLogin | None:
        """Use a code up and return the login; None if the code is wrong or expired."""
        return self.new_login() if self.use_code(digest_of_code(code)) else None

    def use_code(self, digest: bytes) -> bool:
        """Use up the code that has this digest. Return whether it was made here and has not expired."""
        good_until = self._codes.pop(digest, None)
        return good_until is not None and self._clock.elapsed() < good_until

    def new_login(self) -> BrowserLogin:
        claim = f"{int(self._clock.now()) + COOKIE_SECONDS}.{secrets.token_urlsafe(12)}"
        return BrowserLogin(f"{claim}.{_sign(self._key, claim)}", _sign(self._page_key, claim))

    def find(self, cookie: str, secret: str) -> str | None:
        """Return the public id of the login that has these two secrets; None if there is none."""
        if len(cookie) not in _COOKIE_LENGTHS:
            return None
        claim, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(_sign(self._key, claim).encode(), signature.encode()):
            return None
        if not hmac.compare_digest(_sign(self._page_key, claim).encode(), secret.encode()):
            return None
        if not self._is_current(claim) or claim in self._ended:
            return None
        return claim.partition(".")[2][:_ID_LENGTH]

    def end(self, cookie: str) -> str:
        """End the login of a cookie that `find` knows. Return all ended logins, for `restore` after a
        restart."""
        self._ended.add(cookie.rpartition(".")[0])
        self._ended = set(filter(self._is_current, self._ended))
        return "\n".join(self._ended)

    @property
    def ended(self) -> frozenset[str]:
        """The claims of logins that were ended and would not have expired yet."""
        return frozenset(filter(self._is_current, self._ended))

    def restore(self, ended: str) -> None:
        self._ended.update(ended.splitlines())

    def _is_current(self, claim: str) -> bool:
        return self._clock.now() < int(claim.partition(".")[0])


def link(address: str, code: str) -> str:
    """Return the address that logs a browser in. Browsers do not send the part behind the # to any server."""
    return f"{address}{CODE_MARK}{code}"


def is_code(text: str) -> bool:
    """Return whether a text has the form of a code."""
    code = text.strip().upper()
    return len(code) == _CODE_LENGTH and all(character in _ALPHABET for character in code)


def _sign(key: bytes, claim: str) -> str:
    return hmac.digest(key, claim.encode(), "sha256").hex()


def digest_of_code(code: str) -> bytes:
    """Return the key under which a code is kept. Its lookup time tells nothing about a code, and a
    reader of the digest cannot find the code."""
    return hashlib.sha256(code.strip().upper().encode("utf-8", "surrogatepass")).digest()
