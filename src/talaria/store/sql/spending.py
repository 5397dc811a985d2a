"""Money in SQL: reservations, checked and made in one transaction; what calls cost; and what was spent."""

# ruff: noqa: S608 (statements are put together from constant column lists only)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from talaria.core.delegates import TreeCap
from talaria.core.ids import OwnerId, SessionId, TurnId
from talaria.core.ledger import Commit, SideCharge, UsageWrite
from talaria.core.messages import TokenUsage
from talaria.core.spending import (
    MOST_COUNTED,
    QUARTER_SECONDS,
    Cap,
    CapUsage,
    Overrun,
    Reserve,
    Scope,
    Spending,
    SpendingQuery,
    Spent,
    bounded,
    find_overrun,
)
from talaria.store.sql import locks, rules
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sql.rows import key_bounds

# -- reserving --------------------------------------------------------------------------------------------

FIND_HOLDER = "SELECT lease_owner, lease_fence, lease_expires, spent FROM sessions WHERE id = ?"


def _sum(column: str, condition: str = "") -> str:
    """A sum as a whole number; PostgreSQL's own would be a decimal."""
    return f"CAST(coalesce(sum({column}){condition and f' FILTER (WHERE {condition})'}, 0) AS BIGINT)"


EVERYONE = "*"  # the user under whom the spending of all users is added up; ids of users have a colon
# A single statement, so that a call which is settled meanwhile counts once: as reserved or as spent.
SUM_MONEY = f"""
SELECT s.by_all, s.by_user, r.for_all, r.for_user, r.for_session
FROM (SELECT {_sum("amount")} AS for_all, {_sum("amount", "user_id = ?")} AS for_user,
             {_sum("amount", "session_id = ?")} AS for_session
      FROM reservations) AS r,
     (SELECT {_sum("cost", "user_id <> ?")} AS by_all, {_sum("cost", "user_id = ?")} AS by_user
      FROM spending WHERE user_id IN ('{EVERYONE}', ?) AND quarter >= ?) AS s
"""
_BELOW = """
SELECT t.id FROM sessions s JOIN turns t ON t.session_id = s.id WHERE s.chat_key >= ? AND s.chat_key < ?
"""


# Of a turn, and of all turns of the chats below it.
SPENT_BY_TREE = f"""
SELECT (SELECT {_sum("cost")} FROM usage WHERE turn_id = ?)
     + (SELECT {_sum("cost")} FROM usage WHERE turn_id IN ({_BELOW}))
"""
RESERVED_BY_TREE = f"""
SELECT (SELECT {_sum("amount")} FROM reservations WHERE turn_id = ?)
     + (SELECT {_sum("amount")} FROM reservations WHERE turn_id IN ({_BELOW}))
"""
FIND_SPENT = "SELECT spent FROM sessions WHERE id = ?"
SET_ASIDE = """
INSERT INTO reservations (
    turn_id, n, attempt, session_id, user_id, owner, provider, model, input, output, amount
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (turn_id, n, attempt) DO UPDATE SET amount = reservations.amount + excluded.amount
"""


def reserve(tx: Transaction, order: Reserve) -> Overrun | None:
    """Set the amount aside if every cap allows it, in one transaction.

    Returns the first cap that forbids it, and nothing is set aside then; None otherwise. Raises
    `StaleFence`, `NotFound`.
    """
    locks.session(tx, order.session_id)
    locks.names(tx, "money", *_shared_scopes(order))
    row = tx.execute(FIND_HOLDER, (order.session_id,)).fetchone()
    if row is None:
        raise rules.no_session(order.session_id)
    owner, fence, expires, session_spent = row
    if order.fence is None:
        owner = order.owner
    elif fence != order.fence or not expires:
        raise rules.stale_fence(order.session_id)
    account = order.account or order.session_id
    if account != order.session_id:
        found = tx.execute(FIND_SPENT, (account,)).fetchone()
        session_spent = found[0] if found is not None else 0
    user, today = order.user, int(order.since // QUARTER_SECONDS)
    sums = tx.execute(SUM_MONEY, (user, account, user, user, user, today)).fetchone()
    scopes = (Scope.DAY, Scope.USER, Scope.SESSION)
    spent, reserved = (*sums[:2], session_spent), sums[2:]
    usage = {scope: CapUsage(spent[i], reserved[i]) for i, scope in enumerate(scopes)}
    used = [(Cap(Scope.RUN, cap.limit), _used_by_tree(tx, cap, within)) for cap, within in order.trees]
    used += [(cap, usage[cap.scope]) for cap in order.caps]
    overrun = find_overrun(order, used)
    if overrun is None:
        whose = (order.turn_id, order.n, order.attempt, account, order.user, owner)
        what = (order.provider, order.model, order.input, order.output, order.amount)
        tx.execute(SET_ASIDE, (*whose, *what))
    return overrun


def _used_by_tree(tx: Transaction, cap: TreeCap, within: str) -> CapUsage:
    (reserved,) = tx.execute(RESERVED_BY_TREE, (cap.turn_id, *key_bounds(within))).fetchone()
    return CapUsage(cap.spent + spent_by_tree(tx, cap.turn_id, within), reserved)


def spent_by_tree(db: Connection | Transaction, turn_id: TurnId, within: str) -> int:
    """Return what a turn has cost, with the turns of the chats whose keys begin with `within`."""
    return int(db.execute(SPENT_BY_TREE, (turn_id, *key_bounds(within))).fetchone()[0])


def _shared_scopes(order: Reserve) -> list[str]:
    """Return the scopes with a cap that several sessions spend from. The session's lock covers the others."""
    scopes = {cap.scope for cap in order.caps}
    shared = [EVERYONE] * (Scope.DAY in scopes) + [order.user] * (Scope.USER in scopes)
    return [*shared, order.tree] if order.tree else shared


# -- settling ---------------------------------------------------------------------------------------------

_COUNTS = ("input", "cached", "output", "reasoning", "stored", "cost")


def _add(table: str, *columns: str) -> str:
    return ", ".join(f"{column} = {table}.{column} + excluded.{column}" for column in columns)


INSERT_USAGE = f"""
INSERT INTO usage (turn_id, n, provider, model, {", ".join(_COUNTS)}, estimated, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(CAST(? AS BIGINT), -1), ?, ?)
ON CONFLICT (turn_id, n, provider, model) DO UPDATE SET {_add("usage", "calls", *_COUNTS, "estimated")}
"""
_QUARTER = "(?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_TO_QUARTER = f"""
INSERT INTO spending (user_id, quarter, calls, {", ".join(_COUNTS)}, unpriced, estimated)
VALUES {_QUARTER}, {_QUARTER}
ON CONFLICT (user_id, quarter) DO UPDATE SET {_add("spending", "calls", *_COUNTS, "unpriced", "estimated")}
"""
ADD_TO_SESSION = "UPDATE sessions SET spent = spent + ? WHERE id = ?"
HAS_TURN = "SELECT 1 FROM turns WHERE id = ? AND session_id = ?"
RELEASE = "DELETE FROM reservations WHERE turn_id = ? AND n = ? AND attempt = ?"
_LEFT = "session_id, turn_id, n, attempt, user_id, provider, model, input, output, amount"
TAKE_OF_TURN = f"DELETE FROM reservations WHERE turn_id = ? RETURNING {_LEFT}"
TAKE_OF_OTHERS = f"DELETE FROM reservations WHERE owner <> ? RETURNING {_LEFT}"
TAKE_OF_OWNER = f"DELETE FROM reservations WHERE owner = ? RETURNING {_LEFT}"


def settle(tx: Transaction, turn_id: TurnId, order: Commit, *, has_reserved: bool) -> None:
    """Record the usage and the cost of the calls in a turn's commit in place of their reservations, if it
    `has_reserved` any.

    When the turn ends or is parked, every other reservation of it is spent.
    """
    settled = list(order.unsent)
    for call in order.usage:
        _record(tx, order.session_id, turn_id, call)
        settled.append((call.n, call.attempt))
    if not has_reserved:
        return
    if order.end is not None or order.ask or order.delegates:
        charge_turn(tx, turn_id, settled)
        return
    for n, attempt in settled:
        tx.execute(RELEASE, (turn_id, n, attempt))


def charge(tx: Transaction, order: SideCharge) -> None:
    """Record how a call beside turns ended, in place of its reservation. Raises `NotFound` if the turn is
    gone."""
    locks.session(tx, order.session_id)
    if tx.execute(HAS_TURN, (order.turn_id, order.session_id)).fetchone() is None:
        raise rules.no_turn(order.turn_id)
    settled = order.unsent
    if order.usage is not None:
        _record(tx, order.session_id, order.turn_id, order.usage)
        settled = (order.usage.n, order.usage.attempt)
    if settled is not None:
        tx.execute(RELEASE, (order.turn_id, *settled))


def charge_turn(tx: Transaction, turn_id: TurnId, settled: Sequence[tuple[int, int]] = ()) -> None:
    """Remove the reservations of a turn. Those that are not `settled` are spent."""
    left = tx.execute(TAKE_OF_TURN, (turn_id,)).fetchall()
    _charge(tx, [row for row in left if (row[2], row[3]) not in settled])


def charge_others(tx: Transaction, owner: OwnerId) -> None:
    """Spend the reservations of all owners but this one, which are dead."""
    _charge(tx, tx.execute(TAKE_OF_OTHERS, (owner,)).fetchall())


def charge_own(tx: Transaction, owner: OwnerId) -> None:
    """Spend the reservations of an owner that leaves its turns."""
    _charge(tx, tx.execute(TAKE_OF_OWNER, (owner,)).fetchall())


def _charge(tx: Transaction, left: Sequence[Any]) -> None:
    """Record calls whose outcome is unknown as if they had cost all that was reserved for them."""
    for session_id, turn_id, n, attempt, user, provider, model, sent, planned, amount in left:
        tokens = TokenUsage(sent, output=planned)
        _record(
            tx,
            session_id,
            turn_id,
            UsageWrite(n, provider, model, tokens, amount, user, attempt, is_estimate=True),
        )


def _record(tx: Transaction, session_id: SessionId, turn_id: TurnId, call: UsageWrite) -> None:
    tokens, estimated = bounded(call.tokens), int(call.is_estimate)
    counts = (tokens.input, tokens.cached, tokens.output, tokens.reasoning, tokens.stored)
    cost = -1 if call.cost is None else min(call.cost, MOST_COUNTED)
    tx.execute(INSERT_USAGE, (turn_id, call.n, call.provider, call.model, *counts, cost, estimated, tx.now))
    session_id = call.account or session_id
    used = (int(tx.now // QUARTER_SECONDS), *counts, max(0, cost), int(cost < 0), estimated)
    tx.execute(ADD_TO_QUARTER, (call.user, *used, EVERYONE, *used))
    if cost > 0:
        tx.execute(ADD_TO_SESSION, (cost, session_id))


# -- reading ----------------------------------------------------------------------------------------------

_SUMS = ", ".join(map(_sum, ("calls", *_COUNTS)))
_UNPRICED = _sum("calls", "cost IS NULL")
USED_BY_TURN = f"SELECT {_SUMS}, {_UNPRICED}, {_sum('estimated')} FROM usage WHERE turn_id = ?"
USED_BY_TREE = f"""
SELECT {_SUMS}, {_UNPRICED}, {_sum("estimated")} FROM usage
WHERE turn_id IN (SELECT CAST(? AS TEXT) UNION ALL {_BELOW})
"""
USED_BY_SESSION = f"""
SELECT {_SUMS}, {_UNPRICED}, {_sum("estimated")}
FROM usage WHERE turn_id IN (SELECT id FROM turns WHERE session_id = ?)
"""
USED_BY_USER = f"""
SELECT {_SUMS}, {_sum("unpriced")}, {_sum("estimated")} FROM spending WHERE user_id = ? AND quarter >= ?
"""
ALL_RESERVED = f"SELECT {_sum('amount')} FROM reservations"


def spending(db: Connection, whose: SpendingQuery) -> Spending:
    quarter = int(whose.since // QUARTER_SECONDS)
    (reserved,) = db.execute(ALL_RESERVED).fetchone()
    user, everyone = (
        _spent(db.execute(USED_BY_USER, (user, quarter)).fetchone()) for user in (whose.user, EVERYONE)
    )
    return Spending(
        _spent(db.execute(USED_BY_SESSION, (whose.session_id,)).fetchone()),
        user,
        everyone,
        reserved,
    )


def spent_by_turn(db: Connection, turn_id: TurnId) -> Spent:
    return _spent(db.execute(USED_BY_TURN, (turn_id,)).fetchone())


def spent_with_delegates(db: Connection, turn_id: TurnId, within: str) -> Spent:
    """Return what the turn and the turns of the chats below it have used."""
    return _spent(db.execute(USED_BY_TREE, (turn_id, *key_bounds(within))).fetchone())


def _spent(row: Any) -> Spent:
    calls, *tokens, cost, unpriced, estimated = row
    return Spent(calls, TokenUsage(*tokens), cost, unpriced, estimated)
