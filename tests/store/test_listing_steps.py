"""Listings and reservations take as many steps with ten thousand sessions as with a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from talaria.core.delegates import TreeCap
from talaria.core.ids import ChatKey, Fence, SessionId, TurnId
from talaria.core.ledger import Page
from talaria.core.spending import Cap, Reserve, Scope, SpendingQuery
from talaria.store.sql import queries, spending
from talaria.store.sql.executor import Connection, Transaction
from talaria.store.sqlite.database import open_memory
from talaria.store.sqlite.faults import driver

NUMBERS = "WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < ?)"
SESSIONS = f"""
{NUMBERS}
INSERT INTO sessions (id, chat_key, created_at, updated_at, epoch, seq, title, ephemeral)
SELECT 'ses_' || i, CASE WHEN i <= 10 THEN 'agent:main:test:dm:small' ELSE 'agent:main:test:dm:large' END,
    i, i, 0, 1, 'Title', 0 FROM numbers
"""
TURNS = f"""
{NUMBERS}
INSERT INTO turns (id, chat_key, session_id, state, inbound, accepted_at, command, scope, digest)
SELECT 'turn_' || i, 'agent:main:test:dm:one', 'ses_' || i, 'running', '{{}}', i, '', '', '' FROM numbers
"""
SETTLE = "UPDATE turns SET state = CASE position % 3 WHEN 0 THEN 'failed' ELSE 'done' END WHERE position > 5"
USAGE = f"""
{NUMBERS}
INSERT INTO usage (turn_id, n, provider, model, input, cached, output, reasoning, at)
SELECT 'turn_' || i, 1, 'p', 'm', 1, 0, 1, 0, i FROM numbers
"""
SPENT = f"""
{NUMBERS}
INSERT INTO spending SELECT 'test:' || i, 5, 1, 1, 0, 1, 0, 0, 1, 0, 0 FROM numbers
UNION ALL SELECT '*', 5, 1, 1, 0, 1, 0, 0, 1, 0, 0
"""
LEASE = "UPDATE sessions SET lease_fence = 1, lease_expires = 9e9 WHERE id = 'ses_3'"
CAPS = tuple(Cap(scope, 100) for scope in Scope if scope is not Scope.RUN)
TREE = TreeCap(TurnId("turn_3"), TurnId("turn_3"), 100)
RESERVE = Reserve(
    *(SessionId("ses_3"), Fence(1), TurnId("turn_3"), 1, "test:3", 5, 0.0, CAPS),
    trees=((TREE, TREE.within(ChatKey("agent:main:test:dm:one"))),),
)

LISTINGS: dict[str, Callable[[Connection], object]] = {
    "/api/status and /metrics": queries.counts,
    "/api/status, the money": lambda db: spending.spending(db, SpendingQuery(SessionId(""), "", 0.0)),
    "/sessions in a chat with few": lambda db: queries.summary(db, SessionId("ses_3")),
    "/sessions in a chat with many": lambda db: queries.summary(db, SessionId("ses_15")),
    "a reservation": lambda db: spending.reserve(Transaction(db.execute), RESERVE),
    "GET /api/sessions": lambda db: queries.sessions(db, Page(limit=5)),
    "GET /api/sessions, a later page": lambda db: queries.sessions(db, Page(limit=5, after="8~ses_8")),
}


@contextmanager
def filled(sessions: int) -> Iterator[driver.Connection]:
    """A database with so many sessions, all but ten in one chat, a turn for each, five of them running."""
    connection = open_memory()
    for statement in (SESSIONS, TURNS, USAGE, SPENT):
        connection.execute(statement, (sessions,))
    connection.execute(SETTLE)
    connection.execute(LEASE)
    yield connection
    connection.close()


def count_steps(connection: driver.Connection, listing: Callable[[Connection], object]) -> int:
    """Count the instructions that SQLite's virtual machine takes for a listing."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(step, 1)
    try:
        listing(connection)
    finally:
        connection.set_progress_handler(None, 1)
    return steps


@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_takes_as_many_steps_in_a_large_database(name: str) -> None:
    with filled(20) as small, filled(10_000) as large:
        few, many = (count_steps(database, LISTINGS[name]) for database in (small, large))
    assert few > 20
    assert many <= few * 1.1, f"{few} steps with 20 sessions, {many} with 10,000"


def test_the_counts_are_those_of_the_rows() -> None:
    with filled(20) as connection:
        sessions, turns, *_ = queries.counts(connection)
        assert (sessions, turns) == (20, counted(connection))
        connection.execute("DELETE FROM turns WHERE session_id < 'ses_2'")
        connection.execute("DELETE FROM sessions WHERE id < 'ses_2'")
        sessions, turns, *_ = queries.counts(connection)
        assert (sessions, turns) == (9, counted(connection))
        assert turns["done"] > 0 and turns["failed"] > 0 and turns["running"] > 0


def counted(connection: driver.Connection) -> dict[str, int]:
    rows = dict(connection.execute("SELECT state, count(*) FROM turns GROUP BY state").fetchall())
    return {state: rows.get(state, 0) for state in queries.counts(connection)[1]}
