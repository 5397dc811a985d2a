"""What OAuth logins gave, in SQL. One process at a time renews a grant, under a fence that only grows."""

from __future__ import annotations

import msgspec

from talaria.core.access import OAuthClient, OAuthGrant, OAuthTokens
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import find_one

COLUMNS = "name, client, access, refresh, expires_at, problem, fence"
FIND = f"SELECT {COLUMNS} FROM oauth_grants WHERE name = ?"  # noqa: S608 - no value
SAVE = """
INSERT INTO oauth_grants (name, client, access, refresh, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET client = excluded.client, access = excluded.access,
    refresh = excluded.refresh, expires_at = excluded.expires_at, problem = '',
    fence = oauth_grants.fence + 1, claimed_until = 0
"""
CLAIM = f"""
UPDATE oauth_grants SET fence = fence + 1, claimed_until = ?
WHERE name = ? AND access = ? AND problem = '' AND claimed_until <= ? RETURNING {COLUMNS}
"""  # noqa: S608 - no value
RENEW = """
UPDATE oauth_grants SET access = ?, refresh = ?, expires_at = ?, claimed_until = 0
WHERE name = ? AND fence = ? AND access = ?
"""
GIVE_UP = "UPDATE oauth_grants SET problem = ?, claimed_until = 0 WHERE name = ? AND fence = ? AND access = ?"
FORGET = "DELETE FROM oauth_grants WHERE name = ?"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(OAuthClient).decode


def find(db: Connection, name: str) -> OAuthGrant | None:
    return find_one(_grant_from, db.execute(FIND, (name,)))


def save(tx: Transaction, name: str, client: OAuthClient, tokens: OAuthTokens) -> None:
    """Keep what a login gave, in place of what an earlier one gave. Durable."""
    row = (name, _encode(client).decode(), tokens.access, tokens.refresh, _expiry(tx, tokens))
    tx.execute(SAVE, row)


def claim(tx: Transaction, name: str, access: str, seconds: float) -> OAuthGrant | None:
    """Take the right to renew these tokens, for so long. Return None if they were renewed already, if another
    process has the right, or if they cannot be renewed. Durable: the old fence ends here."""
    return find_one(_grant_from, tx.execute(CLAIM, (tx.now + seconds, name, access, tx.now)))


def renew(tx: Transaction, grant: OAuthGrant, tokens: OAuthTokens) -> bool:
    """Write renewed tokens. Durable. Return False, having changed nothing, if the right was lost."""
    row = (tokens.access, tokens.refresh or grant.refresh, _expiry(tx, tokens), *_right(grant))
    return bool(tx.execute(RENEW, row).rowcount)


def give_up(tx: Transaction, grant: OAuthGrant, problem: str) -> None:
    """Give the right back. With a problem the tokens are not renewed any more. Durable."""
    tx.execute(GIVE_UP, (problem, *_right(grant)))


def forget(tx: Transaction, name: str) -> None:
    """Delete a grant. Durable."""
    tx.execute(FORGET, (name,))


def _expiry(tx: Transaction, tokens: OAuthTokens) -> float | None:
    return None if tokens.seconds is None else tx.now + tokens.seconds


def _right(grant: OAuthGrant) -> tuple[str, int, str]:
    """The right of a claim. A login that was forgotten begins its fence anew, with another token."""
    return grant.name, grant.fence, grant.access


def _grant_from(row: tuple[str, str, str, str, float | None, str, int]) -> OAuthGrant:
    name, client, access, refresh, expires_at, problem, fence = row
    return OAuthGrant(name, _decode(client), access, refresh, expires_at, problem, fence)
