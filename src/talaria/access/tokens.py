"""Tokens with a name and a role: making, listing, revoking and checking them."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from talaria.core.access import Role
from talaria.core.clock import Clock
from talaria.core.errors import BadRequest, NotFound, StoreError
from talaria.core.tokens import AddToken, NamedToken, TokenHash, is_token_name

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
        """End a token, from the next call on. A turn that it began goes on. Raises `NotFound`."""
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
