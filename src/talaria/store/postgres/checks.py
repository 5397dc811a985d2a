"""The checks of `talaria doctor` for a database of PostgreSQL. Read-only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg

from talaria.core.cluster import Member
from talaria.core.errors import StoreError
from talaria.core.problems import Problem, ok, problem, warn
from talaria.store.postgres.connections import connect, version_of
from talaria.store.postgres.faults import unprepared, unreachable
from talaria.store.postgres.pipeline import ConnectionCut
from talaria.store.postgres.schema import latest_version, read_version
from talaria.store.postgres.store import TIME
from talaria.store.settings import UNFINISHED_COPY, unfinished_copy
from talaria.store.sql.cluster import FIND_MEMBERS, member_from

_NAME = "postgresql"
_CLUSTER_SCHEMA = 22
_MOST_SKEW = 5.0  # seconds
_SPARE = 3  # connections that PostgreSQL keeps for its administrators
_BESIDE = 2  # connections: one for renewals, one for wake-ups
_RIGHTS = "SELECT has_schema_privilege(current_schema(), 'CREATE')"
_TABLES = """
SELECT coalesce(bool_and(has_table_privilege(name, 'SELECT') AND has_table_privilege(name, 'INSERT') AND
                         has_table_privilege(name, 'UPDATE') AND has_table_privilege(name, 'DELETE')), true),
       coalesce(bool_and(pg_has_role(tableowner, 'MEMBER')), true)
FROM (SELECT format('%I.%I', schemaname, tablename) AS name, tableowner FROM pg_tables
      WHERE schemaname = current_schema()) AS tables
"""
_ISOLATION = "SET default_transaction_isolation = 'read committed'"
_ISOLATION_NOW = "SELECT current_setting('transaction_isolation')"
_LIVING = "SELECT count(*) FROM members WHERE expires_at > extract(epoch FROM clock_timestamp())"
_IS_UNFINISHED = f"SELECT count(*) FROM cursors WHERE name = '{UNFINISHED_COPY}'"  # noqa: S608 - a constant
_SETTINGS = """
SELECT current_setting('max_connections')::int, current_setting('fsync'),
       current_setting('synchronous_commit')
"""


def check_postgres(url: str, connections: int) -> Iterator[Problem]:
    try:
        connection = connect(url)
    except StoreError as error:
        yield error.problem(_NAME)
        return
    except ConnectionCut as cut:
        yield unreachable(cut).problem(_NAME)
        return
    with connection:
        try:
            yield ok(_NAME, f"PostgreSQL {version_of(connection)}, {_describe_schema(connection)}.")
            yield from _check_whole(connection)
            yield from _check_pooler(connection)
            yield from _check_rights(connection)
            yield from _check_isolation(connection)
            yield from _check_clock(connection)
            yield from _check_settings(connection, connections)
        except StoreError as error:
            yield error.problem(_NAME)
        except psycopg.Error as error:
            yield unprepared(error).problem(_NAME)


def _describe_schema(connection: psycopg.Connection[Any]) -> str:
    current, latest = read_version(connection), latest_version()
    if not current:
        return "without Talaria's tables yet: the first start makes them"
    if current > latest:
        return f"schema {current}, one newer than this program, which continues beside newer gateways"
    return f"schema {current}" + ("" if current == latest else f", upgraded to {latest} at the next start")


def _check_whole(connection: psycopg.Connection[Any]) -> Iterator[Problem]:
    if read_version(connection) and _row(connection, _IS_UNFINISHED)[0]:
        yield unfinished_copy().problem(_NAME)


def _check_pooler(connection: psycopg.Connection[Any]) -> Iterator[Problem]:
    """A pooler gives its clients other numbers than those of the server's processes."""
    if _row(connection, "SELECT pg_backend_pid()")[0] != connection.info.backend_pid:
        text = "A pooler such as pgbouncer stands before the database; Talaria needs its session mode."
        yield warn(_NAME, text, "Set pool_mode = session for this database, or name the server itself.")


def _check_rights(connection: psycopg.Connection[Any]) -> Iterator[Problem]:
    if not _row(connection, _RIGHTS)[0]:
        user = connection.info.user
        text = f"The user {user} may not make tables in the database, which a start and an upgrade do."
        yield problem(_NAME, text, f"As its owner: GRANT CREATE ON SCHEMA public TO {user};")
    may_use, may_alter = _row(connection, _TABLES)
    if not may_use:
        text = f"The user {connection.info.user} may not read and write all tables of the database."
        yield problem(_NAME, text, "Let the user that made the tables serve, or grant it all rights on them.")
    elif not may_alter:
        text = f"The user {connection.info.user} does not own the tables, so an upgrade cannot change them."
        yield warn(_NAME, text, "Let their owner start the next version once, or make this user their owner.")


def _check_isolation(connection: psycopg.Connection[Any]) -> Iterator[Problem]:
    """Sessions of a gateway choose their isolation. Something between may not let them."""
    connection.execute(_ISOLATION)
    (isolation,) = _row(connection, _ISOLATION_NOW)
    if isolation != "read committed":
        text = f"Transactions run at {isolation!r}, and Talaria's cannot choose 'read committed'."
        yield problem(_NAME, text, "Look for a pooler or a proxy that keeps settings of sessions back.")


def _check_clock(connection: psycopg.Connection[Any]) -> Iterator[Problem]:
    ahead = _row(connection, TIME)[0] - time.time()
    if abs(ahead) > _MOST_SKEW:
        text = f"The clocks of this machine and the database differ by {abs(ahead):.0f} s."
        yield warn(_NAME, text, "Let both follow a time server; leases go by the database's clock.")


def _check_settings(connection: psycopg.Connection[Any], connections: int) -> Iterator[Problem]:
    most, fsync, commit = _row(connection, _SETTINGS)
    used = connections + max(2, connections // 2) + _BESIDE
    living = _row(connection, _LIVING)[0] if read_version(connection) >= _CLUSTER_SCHEMA else 0
    if used * max(1, living) + _SPARE > most:
        who = f"{living} gateways may open {used} connections each" if living > 1 else ""
        text = f"{who or f'A gateway may open {used} connections'}, and the server has {most} for all."
        yield warn(_NAME, text, "Lower store.connections, or raise max_connections of the server.")
    if fsync == "off":
        text = "The server runs with fsync = off: a power cut can damage the database."
        yield warn(_NAME, text, "Set fsync = on in postgresql.conf.")
    if commit == "off":
        text = (
            "The server has synchronous_commit = off; Talaria's own commits wait for its disk all the same."
        )
        yield ok(_NAME, text)


def _row(connection: psycopg.Connection[Any], sql: str) -> Any:
    row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return row


def read_members(url: str) -> list[Member]:
    """Return the members of the cluster that are alive; none if the database cannot be asked. Blocks."""
    try:
        with connect(url) as connection:
            if read_version(connection) < _CLUSTER_SCHEMA:
                return []
            (now,) = _row(connection, TIME)
            sql = FIND_MEMBERS.replace("?", "%s")
            return [member_from(row) for row in connection.execute(sql.encode(), (now,)).fetchall()]
    except (StoreError, ConnectionCut, psycopg.Error):
        return []  # `check_postgres` says why
