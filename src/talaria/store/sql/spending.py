"""Money in SQL: reservations, checked and made in one transaction; what calls cost; and what was spent."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from typing import Any

from talaria.core.ids import TurnId
from talaria.core.ledger import Commit
from talaria.core.messages import TokenUsage
from talaria.core.spending import (
    QUARTER_SECONDS,
    CapUsage,
    Overrun,
    Reserve,
    Scope,
    Spending,
    SpendingQuery,
    Spent,
    find_overrun,
)
from talaria.store.sql import rules
from talaria.store.sql.executor import Connection, Transaction

# -- reserving --------------------------------------------------------------------------------------------

FIND_HOLDER = "SELECT lease_owner, lease_fence, lease_expires, spent FROM sessions WHERE id = ?"


def _sum(column: str, condition: str = "") -> str:
    """A sum as a whole number; PostgreSQL's own would be a decimal."""
    return f"CAST(coalesce(sum({column}){condition and f' FILTER (WHERE {condition})'}, 0) AS BIGINT)"


SUM_RESERVED = f"""
SELECT {_sum("amount")}, {_sum("amount", "user_id = ?")}, {_sum("amount", "session_id = ?")}
FROM reservations WHERE NOT (turn_id = ? AND n = ?)
"""
SUM_SPENT = f"SELECT {_sum('cost')}, {_sum('cost', 'user_id = ?')} FROM spending WHERE quarter >= ?"
SET_ASIDE = """
INSERT INTO reservations (turn_id, n, session_id, user_id, owner, amount) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (turn_id, n) DO UPDATE SET owner = excluded.owner, amount = excluded.amount
"""


def reserve(tx: Transaction, order: Reserve) -> Overrun | None:
    row = tx.execute(FIND_HOLDER, (order.session_id,)).fetchone()
    if row is None:
        raise rules.no_session(order.session_id)
    owner, fence, expires, session_spent = row
    if fence != order.fence or not expires:
        raise rules.stale_fence(order.session_id)
    key = (order.turn_id, order.n)
    reserved = tx.execute(SUM_RESERVED, (order.user, order.session_id, *key)).fetchone()
    spent = tx.execute(SUM_SPENT, (order.user, int(order.since // QUARTER_SECONDS))).fetchone()
    spent += (session_spent,)
    usage = {scope: CapUsage(spent[i], reserved[i]) for i, scope in enumerate(Scope)}
    overrun = find_overrun(order, usage)
    if overrun is None:
        tx.execute(SET_ASIDE, (*key, order.session_id, order.user, owner, order.amount))
    return overrun


# -- settling ---------------------------------------------------------------------------------------------

_COUNTS = ("input", "cached", "output", "reasoning", "stored", "cost")


def _add(table: str, *columns: str) -> str:
    return ", ".join(f"{column} = {table}.{column} + excluded.{column}" for column in columns)


INSERT_USAGE = f"""
INSERT INTO usage (turn_id, n, provider, model, {", ".join(_COUNTS)}, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, -1), ?)
ON CONFLICT (turn_id, n, provider, model) DO UPDATE SET {_add("usage", "calls", *_COUNTS)}
"""
ADD_TO_QUARTER = f"""
INSERT INTO spending (quarter, user_id, calls, {", ".join(_COUNTS)}, unpriced)
VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (quarter, user_id) DO UPDATE SET {_add("spending", "calls", *_COUNTS, "unpriced")}
"""
ADD_TO_SESSION = "UPDATE sessions SET spent = spent + ? WHERE id = ?"
RELEASE_STEP = "DELETE FROM reservations WHERE turn_id = ? AND n = ?"
RELEASE_TURN = "DELETE FROM reservations WHERE turn_id = ?"
RELEASE_OTHERS = "DELETE FROM reservations WHERE owner <> ?"
RELEASE_OWN = "DELETE FROM reservations WHERE owner = ?"


def settle(tx: Transaction, turn_id: TurnId, order: Commit) -> None:
    """Record the usage and the cost of the calls in a turn's commit, and release their reservations."""
    quarter = int(tx.now // QUARTER_SECONDS)
    for call in order.usage:
        tokens = call.tokens
        counts = (tokens.input, tokens.cached, tokens.output, tokens.reasoning, tokens.stored)
        cost = -1 if call.cost is None else call.cost
        tx.execute(INSERT_USAGE, (turn_id, call.n, call.provider, call.model, *counts, cost, tx.now))
        tx.execute(ADD_TO_QUARTER, (quarter, call.user, *counts, max(0, cost), int(cost < 0)))
        if cost > 0:
            tx.execute(ADD_TO_SESSION, (cost, order.session_id))
        if order.end is None and not order.ask:
            tx.execute(RELEASE_STEP, (turn_id, call.n))
    if order.end is not None or order.ask:
        tx.execute(RELEASE_TURN, (turn_id,))


# -- reading ----------------------------------------------------------------------------------------------

_SUMS = ", ".join(map(_sum, ("calls", *_COUNTS)))
_UNPRICED = _sum("calls", "cost IS NULL")
USED_BY_TURN = f"SELECT {_SUMS}, {_UNPRICED} FROM usage WHERE turn_id = ?"
USED_BY_SESSION = f"""
SELECT {_SUMS}, {_UNPRICED} FROM usage WHERE turn_id IN (SELECT id FROM turns WHERE session_id = ?)
"""
USED_BY_USER = f"SELECT {_SUMS}, {_sum('unpriced')} FROM spending WHERE quarter >= ? AND user_id = ?"
USED_BY_ALL = f"SELECT {_SUMS}, {_sum('unpriced')} FROM spending WHERE quarter >= ?"
ALL_RESERVED = f"SELECT {_sum('amount')} FROM reservations"


def spending(db: Connection, whose: SpendingQuery) -> Spending:
    quarter = int(whose.since // QUARTER_SECONDS)
    (reserved,) = db.execute(ALL_RESERVED).fetchone()
    return Spending(
        _spent(db.execute(USED_BY_SESSION, (whose.session_id,)).fetchone()),
        _spent(db.execute(USED_BY_USER, (quarter, whose.user)).fetchone()),
        _spent(db.execute(USED_BY_ALL, (quarter,)).fetchone()),
        reserved,
    )


def spent_by_turn(db: Connection, turn_id: TurnId) -> Spent:
    return _spent(db.execute(USED_BY_TURN, (turn_id,)).fetchone())


def _spent(row: Any) -> Spent:
    calls, *tokens, cost, unpriced = row
    return Spent(calls, TokenUsage(*tokens), cost, unpriced)
