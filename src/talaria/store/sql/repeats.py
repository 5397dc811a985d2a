"""Messages that come again under one of several names, in SQL. See `Accept.names`."""

# ruff: noqa: S608 (statements are put together from constants only)

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.errors import RepeatedMessage
from talaria.core.ids import TurnId
from talaria.core.ledger import MessageName
from talaria.store.sql import rules
from talaria.store.sql.executor import Transaction

FIND = "SELECT turn_id FROM repeats WHERE scope = ? AND key = ? AND until > ?"
KEEP = """
INSERT INTO repeats (scope, key, turn_id, until) VALUES (?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET turn_id = excluded.turn_id, until = excluded.until
"""
FIND_OLD = f"SELECT scope, key FROM repeats WHERE until <= ? LIMIT {rules.BATCH}"
DROP = "DELETE FROM repeats WHERE scope = ? AND key = ?"


def check(tx: Transaction, scope: str, names: Sequence[MessageName]) -> None:
    """Raise `RepeatedMessage` if a message had one of these names."""
    for name in names:
        if (row := tx.execute(FIND, (scope, name.key, tx.now)).fetchone()) is not None:
            text = f"The message was accepted before, as {row[0]}."
            raise RepeatedMessage(text, "Nothing is left to do.", turn_id=row[0])


def keep(tx: Transaction, scope: str, names: Sequence[MessageName], turn_id: TurnId) -> None:
    """Remember the names of a message, and forget some that have run out."""
    for name in names:
        tx.execute(KEEP, (scope, name.key, turn_id, tx.now + name.seconds))
    for row in tx.execute(FIND_OLD, (tx.now,)).fetchall():
        tx.execute(DROP, row)
