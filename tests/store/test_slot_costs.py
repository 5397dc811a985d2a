"""The work of a claim grows with the number of due slots, not with its square. Tests count steps and rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from contracts.store_orders import START
from talaria.core.ids import ChatKey, JobId, OwnerId
from talaria.core.jobs import AddJob, AdvanceJob, ClaimSlots, Cron, JobOrigin, JobPlan, NewSlot, Overlap
from talaria.core.turns import Sender
from talaria.store.sql import jobs, slots
from talaria.store.sql.executor import Transaction
from talaria.store.sqlite.database import open_memory

FEW, MANY = 200, 1600
Execute = Callable[..., Any]


def fill(execute: Execute, count: int) -> Transaction:
    """Write two jobs with slots of the last hour: one that skips overlaps, and one that queues. The first
    slot of each runs."""
    tx = Transaction(execute)
    tx.now = START
    origin = JobOrigin("ada", ChatKey("agent:main:http:api:home"), Sender("u1"))
    for overlap in (Overlap.SKIP, Overlap.QUEUE):
        plan, key = JobPlan("water", Cron("* * * * *"), "UTC", overlap=overlap), JobId(f"job_{overlap}")
        jobs.add(tx, AddJob(key, origin, plan, START, 10))
        written = tuple(NewSlot(START - number, START - number) for number in range(count, 0, -1))
        slots.advance(tx, [AdvanceJob(key, 1, START, START + 60, written)])
        execute(slots.CLAIM_SLOT, ("own_me", START, key, START - count))
    return tx


def sqlite_steps(count: int) -> int:
    """Count the steps of SQLite's machine in one claim, in thousands."""
    connection, steps = open_memory(), [0]

    def note() -> int:
        steps[0] += 1
        return 0

    tx = fill(connection.execute, count)
    connection.set_progress_handler(note, 1000)
    claimed = slots.claim(tx, ClaimSlots(OwnerId("own_me"), 9))
    connection.set_progress_handler(None, 0)
    assert claimed == []
    assert slots.skipped(connection, 0) == {"an earlier run had not ended": count - 1}
    connection.close()
    return steps[0]


def test_sqlite_claims_in_linear_time() -> None:
    assert sqlite_steps(MANY) < 2 * MANY / FEW * max(1, sqlite_steps(FEW))


def postgres_rows(db: psycopg.Connection[Any], count: int) -> int:
    """Count the rows that PostgreSQL visits in the statements of a claim that look at all due slots."""

    def execute(sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        return db.execute(sql.replace("%", "%%").replace("?", "%s"), parameters)

    execute("TRUNCATE jobs, slots")
    fill(execute, count)
    execute("ANALYZE jobs, slots")
    visited = 0
    for sql, parameters in (
        (slots.SKIP_OVERLAPPING, (START, START)),
        (slots.FIND_DUE_SLOTS, (START, 50)),
    ):
        ((found,),) = execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters).fetchall()
        visited += _visited(found[0]["Plan"])
    return visited


def _visited(node: dict[str, Any]) -> int:
    seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(seen * node["Actual Loops"]) + sum(map(_visited, node.get("Plans", ())))


def test_postgresql_claims_in_linear_time(postgres_database: str) -> None:
    with psycopg.connect(postgres_database) as db:
        few, many = postgres_rows(db, FEW), postgres_rows(db, MANY)
        db.rollback()
    assert many < 2 * MANY / FEW * few


@pytest.mark.parametrize("statement", [slots.SKIP_OVERLAPPING, slots.FIND_DUE_SLOTS])
def test_no_slot_that_is_over_is_visited(statement: str) -> None:
    connection = open_memory()
    plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * statement.count("?")).fetchall()
    connection.close()
    assert not [row[3] for row in plan if "sqlite_autoindex_slots" in row[3] or "PRIMARY KEY" in row[3]]
