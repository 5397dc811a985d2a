"""The schema's version and the way to it: numbered files, each applied once, all in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from talaria.core.errors import ForeignDatabase, StoreError
from talaria.store.sqlite.driver import driver

_FOLDER = Path(__file__).parent / "migrations"

# Marks the file as ours ("TALA"), so that another program's database is never written to.
APPLICATION_ID = 0x54414C41


def latest_version() -> int:
    return max(number for number, _ in _migrations())


def migrate(connection: driver.Connection, path: Path) -> int:
    """Bring the database to this program's version, and return that version.

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
        for number, file in _migrations():
            if number > current:
                for statement in _statements(file.read_text(encoding="utf-8")):
                    connection.execute(statement)
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
