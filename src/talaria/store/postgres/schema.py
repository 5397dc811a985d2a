"""The schema's version and the way to it: numbered files, each applied once, all in one transaction.

The numbers are those of SQLite's files. The first file is the whole schema as SQLite has it after that many.

Gateways of two versions can serve one database for one step, so that they can be upgraded one after another.
A file whose first line is `-- compatible_from: N` only adds to the schema, so that programs from the schema N
on go on. Without that line, older programs cannot serve the database any more. N never decreases: it is at
least that of the file before.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from talaria.core.errors import ForeignDatabase, StoreError
from talaria.core.text import clean_line

_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x54414C41  # "TALA"
_COMPATIBLE = re.compile(rb"-- compatible_from: (\d+)\n")
_HAS_MARK = "SELECT to_regclass('talaria_schema') IS NOT NULL"
_HAS_TABLES = "SELECT to_regclass('sessions') IS NOT NULL OR to_regclass('turns') IS NOT NULL"

_OLDEST_PROGRAM = "SELECT compatible_from FROM talaria_schema"  # by its schema, that can serve the database
_HAS_MEMBERS = "SELECT to_regclass('members') IS NOT NULL"
_OLD_MEMBERS = """
SELECT host, version, schema FROM members
WHERE schema < %s AND expires_at > extract(epoch FROM clock_timestamp()) ORDER BY host, started_at
"""


def migrations() -> list[tuple[int, Path]]:
    return sorted((int(file.name[:4]), file) for file in _FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql"))


def latest_version() -> int:
    return migrations()[-1][0]


def compatible_from(number: int, file: Path) -> int:
    """Return the oldest program, by its schema, that can serve a database after this file."""
    found = _COMPATIBLE.match(file.read_bytes())
    return int(found[1]) if found else number


def migrate(connection: psycopg.Connection[Any], on_create: str = "") -> int:
    """Bring the database to this program's version at least, and return this program's. `on_create` is
    executed in the transaction that creates the tables.

    Raises `StoreError`, having changed nothing, for a database that is too new for this program, that belongs
    to another one, or that gateways serve which could not go on. Gateways that start at the same time wait
    for each other.
    """
    if read_version(connection) >= latest_version():
        return latest_version()
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        current = read_version(connection)  # another gateway may have migrated meanwhile
        steps = [(number, file) for number, file in migrations() if number > current]
        oldest = max((compatible_from(number, file) for number, file in steps), default=0)
        is_new = not current
        if steps and current:
            _check_members(connection, oldest)
        for number, file in steps:
            connection.execute(file.read_bytes())
            current = number
        if on_create and is_new:
            connection.execute(on_create.encode())
        if steps:
            connection.execute(
                "UPDATE talaria_schema SET version = %s, compatible_from = %s", [current, oldest]
            )
    return latest_version()


def _check_members(connection: psycopg.Connection[Any], oldest: int) -> None:
    """Refuse a migration that a gateway at work could not go on with."""
    if not _ask(connection, _HAS_MEMBERS):
        return
    rows = connection.execute(_OLD_MEMBERS, [oldest]).fetchall()
    if rows:
        texts = (f"{host} (Talaria {version}, schema {schema})" for host, version, schema in rows)
        named = ", ".join(map(clean_line, texts))
        raise StoreError(
            f"This version changes the database in a way that older gateways cannot follow: {named}.",
            "Stop them first: gateways that run follow one schema at a time.",
        )


def read_version(connection: psycopg.Connection[Any]) -> int:
    """Return the database's version, 0 for an empty one. It may be one that this program does not know yet.

    Raises `ForeignDatabase` for a database of another program, `StoreError` for one that is too new.
    """
    if not _ask(connection, _HAS_MARK):
        if _ask(connection, _HAS_TABLES):
            raise ForeignDatabase(
                "The database of store.url has tables of another program.",
                "Make a database for Talaria alone (createdb talaria), and name it in [store] url.",
            )
        return 0
    latest, current = latest_version(), int(_ask(connection, "SELECT version FROM talaria_schema"))
    if current > latest and int(_ask(connection, _OLDEST_PROGRAM) or current) > latest:
        raise StoreError(
            f"The database was written by a newer Talaria (schema {current}; this one knows {latest}).",
            "Upgrade this program, or restore a backup from before the upgrade.",
        )
    return current


def _ask(connection: psycopg.Connection[Any], sql: LiteralString) -> Any:
    row = connection.execute(sql).fetchone()
    assert row is not None
    return row[0]
