"""Tokens with a name and a role, in SQL."""

from __future__ import annotations

from talaria.core.access import AddToken, NamedToken, Role, TokenHash
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import find_one

FIND = "SELECT name, role, created_at, expires_at, used_at FROM tokens WHERE hash = ?"
ALL = "SELECT name, role, created_at, expires_at, used_at FROM tokens ORDER BY created_at, name"
DROP_EXPIRED = "DELETE FROM tokens WHERE name = ? AND expires_at <= ?"
INSERT = """
INSERT INTO tokens (name, hash, role, created_at, expires_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO NOTHING
"""
REVOKE = "DELETE FROM tokens WHERE name = ? RETURNING name, role, created_at, expires_at, used_at"
SET_USED = "UPDATE tokens SET used_at = ? WHERE name = ?"


def find(db: Connection, token: TokenHash) -> NamedToken | None:
    """Read one row by key: what any process committed last. Expired tokens are found too."""
    return find_one(_token_from, db.execute(FIND, (token,)))


def listing(db: Connection) -> tuple[NamedToken, ...]:
    """Return all tokens, oldest first."""
    return tuple(map(_token_from, db.execute(ALL)))


def add(tx: Transaction, order: AddToken) -> NamedToken | None:
    """Add a token. Durable. Return None, having changed nothing, if an unexpired one has the name."""
    expires_at = None if order.seconds is None else tx.now + order.seconds
    tx.execute(DROP_EXPIRED, (order.name, tx.now))
    row = (order.name, order.hash, order.role.value, tx.now, expires_at)
    if not tx.execute(INSERT, row).rowcount:
        return None
    return NamedToken(order.name, order.role, tx.now, expires_at)


def revoke(tx: Transaction, name: str) -> NamedToken | None:
    """End a token. Durable. Return None if there was none."""
    return find_one(_token_from, tx.execute(REVOKE, (name,)))


def note_use(tx: Transaction, name: str) -> None:
    """Write down that the token was used now."""
    tx.execute(SET_USED, (tx.now, name))


def _token_from(row: tuple[str, str, float, float | None, float | None]) -> NamedToken:
    return NamedToken(row[0], Role(row[1]), row[2], row[3], row[4])
