"""Every statement of the store finds its rows by an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from talaria.store.sqlite import orders, outbox, queries, spending, upkeep
from talaria.store.sqlite.connection import open_writer

# Counting is asked for by people, and reclaiming happens once at start.
MAY_SCAN = {"COUNT_TURNS", "COUNT_SESSIONS", "COUNT_UNSENT", "EXPIRE_OTHERS"}
# Giving leases back happens once at the end, and giving up old mail once a minute over what is unsent.
MAY_SCAN |= {"FORGIVE", "YIELD_LEASES", "EXPIRE", "DUE_AT_ONCE"}
# A chat gets another id once in its life, if ever.
MAY_SCAN_TURNS = {"MOVE_CHAT"}
# Reservations are no more than there are calls under way.
MAY_SCAN |= {"SUM_RESERVED", "ALL_RESERVED", "RELEASE_OTHERS", "RELEASE_OWN"}


def statements() -> Iterator[tuple[str, str]]:
    for module in (orders, outbox, queries, spending, upkeep):
        for name, value in vars(module).items():
            if name.isupper() and not name.startswith("_") and "COLUMNS" not in name:
                found = value if isinstance(value, tuple) else (value,)
                yield from ((name, sql) for sql in found if isinstance(sql, str))


STATEMENTS = sorted(set(statements()))


@pytest.mark.parametrize(("name", "sql"), STATEMENTS, ids=lambda value: value if value.isupper() else "")
def test_statement_finds_its_rows_by_an_index(tmp_path: Path, name: str, sql: str) -> None:
    connection = open_writer(tmp_path / "talaria.db")
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?")).fetchall()
    connection.close()
    details = [row[3] for row in plan]
    if name in MAY_SCAN_TURNS:
        return
    if name in MAY_SCAN:
        assert not any("SCAN" in detail and "INDEX" not in detail for detail in details if "turns" in detail)
    else:
        assert not any(detail.startswith("SCAN") for detail in details), details


def test_there_are_statements_to_look_at() -> None:
    assert len(STATEMENTS) > 40
