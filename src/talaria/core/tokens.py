"""Tokens with a name and a role, for programs that call the HTTP API.

The store has the hash of a token only, so a copy of the database lets no caller in. All times are of the
store's clock.
"""

from __future__ import annotations

import re
from typing import NewType

import msgspec

from talaria.core.access import Role

TokenHash = NewType("TokenHash", str)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")


def is_token_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


class NamedToken(msgspec.Struct, frozen=True):
    """A token without its secret. `used_at` is its last use, to the hour; None if it was never used."""

    name: str
    role: Role
    created_at: float
    expires_at: float | None = None
    used_at: float | None = None

    def has_expired(self, now: float) -> bool:
        return self.expires_at is not None and now >= self.expires_at


class AddToken(msgspec.Struct, frozen=True):
    """Let the token with this hash in. An expired token of the same name is replaced."""

    name: str
    role: Role
    hash: TokenHash
    seconds: float | None = None
