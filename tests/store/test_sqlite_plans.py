"""Every statement finds its rows by an index, or is named here with the tables that it scans."""

from __future__ import annotations

from store.sql_statements import STATEMENTS
from talaria.store.sqlite.database import open_memory

SCANS = {
    # People ask for these, or they happen once in a process's life.
    "queries.COUNTS": {"counts"},
    "queries.COUNT_UNSENT": {"outbox"},
    "queries.FIND_BY_KEY": {"turns"},
    "queries.FIND_BY_REPLY": {"outbox"},
    "queries.FIND_BY_SHOWN": {"turns"},
    "queries.RECENT": {"turns"},  # from the newest on
    "queries.RECENT_REQUESTS": {"turns"},  # from the newest on, those of a few minutes
    "slots.COUNT_JOBS": {"jobs"},
    "slots.COUNT_SLOTS": {"slots"},  # the open ones
    "slots.IS_OPEN": {"slots"},  # the first of them
    "delivery.DUE_AT_ONCE": {"outbox"},
    "leases.EXPIRE_OTHERS": {"sessions"},
    "leases.FORGIVE_OWN": {"sessions"},
    "leases.FORGIVE_OTHERS": {"sessions"},
    "leases.YIELD_LEASES": {"sessions"},
    # A chat gets another id once in its life, if ever.
    "delivery.MOVE_CHAT[2]": {"turns"},
    "delivery.MOVE_CHAT[3]": {"outbox"},
    # Once a minute, over the index of what is unsent.
    "delivery.EXPIRE": {"outbox"},
    # Over the indexes of what is unsent, and of what failed.
    "queries.UNSENT_REPLIES": {"outbox"},
    "queries.FAILED_REPLIES": {"outbox"},
    # Nearly always empty.
    "retention.FIND_DELETION": {"deletions"},
    "retention.FIND_REMOVALS": {"removals"},
    "announcements.FIND_SESSIONS": {"announcements"},
    # Gateways and their roles: a few rows.
    "cluster.DROP_OLD": {"members"},
    "cluster.END_ROLES": {"roles"},
    "cluster.FIND_MEMBERS": {"members"},
    "cluster.FIND_MEMBER_OF": {"m"},
    "cluster.FIND_PRESENT_PLACES": {"members"},
    "cluster.FIND_ROLES": {"roles"},
    # Small tables: calls under way, people, their open requests, specs.
    "spending.ADD_TO_QUARTER": {"2-ROW"},  # the values to insert
    "spending.ALL_RESERVED": {"reservations"},
    "spending.TAKE_OF_OTHERS": {"reservations"},
    "spending.TAKE_OF_OWNER": {"reservations"},
    "spending.SUM_MONEY": {"reservations", "r", "s"},  # r and s: their one row each
    "spending.SPENT_BY_TREE": {"CONSTANT"},  # the one row of the sum
    "spending.RESERVED_BY_TREE": {"CONSTANT"},
    "spending.USED_BY_TREE": {"CONSTANT"},
    "pairing.ALL_PAIRED": {"paired"},
    "pairing.ALL_REQUESTS": {"pairing_requests"},
    "pairing.DROP_EXPIRED": {"pairing_requests"},
    "pairing.DROP_LINK_CODES": {"link_codes"},
    "pairing.LINKS": {"linked_identities"},
    "retention.FIND_UNUSED_PREFIXES": {"prefixes"},
    "retention.FIND_UNUSED_SPECS": {"specs"},
}


def test_statements_scan_no_table_but_those_they_may() -> None:
    connection = open_memory()
    wrong = {}
    for name, sql in STATEMENTS.items():
        plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?")).fetchall()
        details = [row[3] for row in plan]
        scanned = {detail.split()[1] for detail in details if detail.startswith("SCAN")}
        if scanned != SCANS.get(name, set()):
            wrong[name] = details
    connection.close()
    assert wrong == {}


def test_there_are_statements_to_look_at() -> None:
    assert len(STATEMENTS) > 100
    assert set(SCANS) <= set(STATEMENTS)
