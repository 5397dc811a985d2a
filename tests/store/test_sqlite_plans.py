"""Every statement of the store finds its rows by an index."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from talaria.store.sqlite import orders, outbox, pairing, queries, questions, retention, spending, upkeep
from talaria.store.sqlite.connection import open_memory

# Counting is asked for by people, and reclaiming happens once at start.
MAY_SCAN = {"COUNT_TURNS", "COUNT_SESSIONS", "COUNT_UNSENT", "EXPIRE_OTHERS"}
# Giving leases back happens once at the end, and giving up old mail once a minute over what is unsent.
MAY_SCAN |= {"FORGIVE", "YIELD_LEASES", "EXPIRE", "DUE_AT_ONCE"}
# A chat gets another id once in its life, if ever.
MAY_SCAN_TURNS = {"MOVE_CHAT"}
# Reservations are no more than there are calls under way.
MAY_SCAN |= {"SUM_RESERVED", "ALL_RESERVED", "RELEASE_OTHERS", "RELEASE_OWN"}
# Specs and prefixes are few: those that nobody has are looked for among all.
MAY_SCAN |= {"FIND_UNUSED_SPECS", "FIND_UNUSED_PREFIXES"}


def statements() -> Iterator[tuple[str, str]]:
    for module in (orders, outbox, pairing, queries, questions, retention, spending, upkeep):
        for name, value in vars(module).items():
            for sql in value if isinstance(value, tuple) else (value,):
                if isinstance(sql, str) and sql.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
                    yield name, sql


STATEMENTS = sorted(set(statements()))


@pytest.mark.parametrize(("name", "sql"), STATEMENTS, ids=lambda value: value if value.isupper() else "")
def test_statement_finds_its_rows_by_an_index(name: str, sql: str) -> None:
    connection = open_memory()
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
