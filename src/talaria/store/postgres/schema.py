"""The schema's version and the way to it: numbered files, each applied once, all in one transaction.

The numbers are those of SQLite's files. The first file is the whole schema as SQLite has it after that many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, LiteralString

import psycopg

from talaria.core.errors import ForeignDatabase, StoreError

_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x54414C41  # "TALA"
_HAS_MARK = "SELECT to_regclass('talaria_schema') IS NOT NULL"
_HAS_TABLES = "SELECT to_regclass('sessions') IS NOT NULL OR to_regclass('turns') IS NOT NULL"


def migrations() -> list[tuple[int, Path]]:
    return sorted((int(file.name[:4]), file) for file in _FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql"))


def latest_version() -> int:
    return migrations()[-1][0]


def migrate(connection: psycopg.Connection[Any]) -> int:
    """Bring the database to this program's version, and return that version.

    Raises `StoreError`, having changed nothing, for a database that is newer than this program or that
    belongs to another one. Gateways that start at the same time wait for each other.
    """
    latest = latest_version()
    if read_version(connection) == latest:
        return latest
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        current = read_version(connection)  # another gateway may have migrated meanwhile
        for number, file in migrations():
            if number > current:
                connection.execute(file.read_bytes())
        connection.execute("UPDATE talaria_schema SET version = %s", [latest])
    return latest


def read_version(connection: psycopg.Connection[Any]) -> int:
    """Return the database's version, 0 for an empty one.

    Raises `ForeignDatabase` for a database of another program, `StoreError` for one newer than this.
    """
    if not _ask(connection, _HAS_MARK):
        if _ask(connection, _HAS_TABLES):
            raise ForeignDatabase(
                "The database of store.url has tables of another program.",
                "Make a database for Talaria alone (createdb talaria), and name it in [store] url.",
            )
        return 0
    latest, current = latest_version(), int(_ask(connection, "SELECT version FROM talaria_schema"))
    if current > latest:
        raise StoreError(
            f"The database was written by a newer Talaria (schema {current}; this one knows {latest}).",
            "Upgrade this program, or restore a backup from before the upgrade.",
        )
    return current


def _ask(connection: psycopg.Connection[Any], sql: LiteralString) -> Any:
    row = connection.execute(sql).fetchone()
    assert row is not None
    return row[0]
