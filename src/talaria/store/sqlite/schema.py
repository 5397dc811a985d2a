"""The schema's version and the way to it: numbered files, each applied once, all in one transaction.

A new database gets what these files come to, in one statement for each table and index.
"""

# ruff: noqa: S608 (names of our own tables)

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from talaria.core.errors import ForeignDatabase, StoreError
from talaria.store.sqlite.faults import driver

_FOLDER = Path(__file__).parent / "migrations"

# Marks the file as ours ("TALA"), so that another program's database is never written to.
APPLICATION_ID = 0x54414C41


def latest_version() -> int:
    return max(number for number, _ in _migrations())


def migrate(connection: driver.Connection, path: Path, on_create: str = "") -> int:
    """Bring the database to this program's version, and return that version. `on_create` is executed in the
    transaction that creates the tables.

    Raises `StoreError`, having changed nothing, for a database that is newer than this program or that
    belongs to another one.
    """
    latest = latest_version()
    if check_version(connection, path, latest) == latest:
        return latest
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Read again: another process may have migrated while this one waited for the lock.
        current = check_version(connection, path, latest)
        for statement in _missing(current) if current else _whole_schema():
            connection.execute(statement)
        if on_create and not current:
            connection.execute(on_create)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {latest}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return latest


def check_version(connection: driver.Connection, path: Path, latest: int) -> int:
    """Return the database's version.

    Raises `ForeignDatabase` for a database of another program, `StoreError` for one newer than `latest`.
    """
    (current,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (current or application or tables):
        raise ForeignDatabase(
            f"{path} is a database of another program.", "Move it away, or name another file in [store] url."
        )
    if current > latest:
        raise StoreError(
            f"{path} was written by a newer Talaria (schema {current}; this one knows {latest}).",
            "Upgrade this program, or restore a backup from before the upgrade.",
        )
    return int(current)


def _migrations() -> list[tuple[int, Path]]:
    return sorted((int(file.name[:4]), file) for file in _FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql"))


def _missing(current: int) -> Iterator[str]:
    """Return the statements that a database of version `current` lacks."""
    for number, file in _migrations():
        if number > current:
            yield from _statements(file.read_text(encoding="utf-8"))


@cache
def _whole_schema() -> tuple[str, ...]:
    """Return the statements that make a new database. The numbered files would take ten times as long: each
    change of a table reads all that stands there again."""
    connection = driver.connect(":memory:", isolation_level=None)
    try:
        for statement in _missing(0):
            connection.execute(statement)
        made = connection.execute(
            "SELECT sql, type, name FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        rows: list[str] = []
        for _, kind, name in made:
            if kind == "table" and (found := connection.execute(f"SELECT * FROM {name}").fetchall()):
                quoted = ["(" + ", ".join(_quote(connection, value) for value in row) + ")" for row in found]
                rows.append(f"INSERT INTO {name} VALUES {', '.join(quoted)}")
        return (*(sql for sql, _, _ in made), *rows)
    finally:
        connection.close()


def _quote(connection: driver.Connection, value: object) -> str:
    (quoted,) = connection.execute("SELECT quote(?)", (value,)).fetchone()
    return str(quoted)


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements. `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if driver.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        raise ValueError(f"unfinished statement in a migration: {statement!r}")
