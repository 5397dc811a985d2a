"""The engine that the store runs on: opening a store, and looking at a database that is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from talaria.core.clock import Clock
from talaria.core.jobs import Job
from talaria.core.ledger import Page
from talaria.store.sql import jobs, queries, rules
from talaria.store.sqlite.database import checked_reader, open_writer
from talaria.store.sqlite.driver import driver, is_single_process_only
from talaria.store.sqlite.faults import DiskFault, find_fault, storage_failure
from talaria.store.sqlite.rescue import find_rescued, find_unrestored, restore_command
from talaria.store.sqlite.schema import latest_version
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import Store

__all__ = ["find_unrestored"]  # from the engine, for other packages


@asynccontextmanager
async def open_store(path: Path, clock: Clock, *, is_suspect: bool = False) -> AsyncIterator[Store]:
    """Open the database and close it at the end. A missing one is made, an older one migrated.

    The caller holds the home's lock. `is_suspect` tells that the last process did not close the database.
    Raises `StoreError` for a shared file system, an unusable folder, a file that is no Talaria database, a
    damaged one, and one newer than this program.
    """
    async with await SqliteStore.open(path, clock, is_suspect=is_suspect) as store:
        yield store


class EngineDescription(msgspec.Struct, frozen=True):
    """The engine of this process. `schema` is the version that it writes; `warning` says what is wrong with
    the engine, and then `package` is the one to install."""

    name: str
    version: str
    schema: int
    warning: str = ""
    package: str = ""


def has_room(folder: Path, size: int) -> bool:
    """Return False if the disk of a folder is too full for a file of `size` bytes, which is tried."""
    return find_fault(folder, size) is not DiskFault.FULL


def describe_engine() -> EngineDescription:
    version, schema = driver.sqlite_version, latest_version()
    if not is_single_process_only:
        return EngineDescription("SQLite", version, schema)
    warning = (
        f"SQLite {version} can damage a file that several processes use (fixed in 3.51.3), "
        "so only one may open it."
    )
    return EngineDescription("SQLite", version, schema, warning, "pysqlite3")


class RescuedDatabase(msgspec.Struct, frozen=True):
    """The saved content of a database whose file vanished under a gateway, and the command that restores
    it."""

    path: Path
    command: str


def find_rescue(path: Path) -> RescuedDatabase | None:
    """Return the newest saved content of the database at `path`."""
    rescued = next(find_rescued(path), None)
    return None if rescued is None else RescuedDatabase(rescued, restore_command(rescued, path))


class DatabaseStatus(msgspec.Struct, frozen=True):
    """A closed database. Its turns and replies are counted only if its `schema` is this program's."""

    schema: int
    unsettled: int = 0
    unsent: int = 0


def inspect_database(path: Path) -> DatabaseStatus:
    """Look at a database that no process has open. Read-only.

    Raises `StoreError` for one that is damaged or newer than this program, `ForeignDatabase` for one of
    another program.
    """
    with checked_reader(path) as (connection, schema):
        if schema != latest_version():
            return DatabaseStatus(schema)
        _, turns, unsent, _ = queries.counts(connection)
        return DatabaseStatus(schema, sum(turns[state] for state in rules.UNSETTLED), sum(unsent.values()))


def read_jobs(path: Path, limit: int) -> Sequence[Job]:
    """Return the unfinished jobs of a database that no process has open and that `inspect_database` has
    looked at; none of one with an older schema. Read-only. Raises `StoreError`."""
    with checked_reader(path, is_whole=True) as (connection, schema):
        if schema != latest_version():
            return ()
        return jobs.listing(connection, Page(limit), is_unfinished=True).items


def read_places(path: Path) -> Mapping[str, str]:
    """Return the keys of the chats in a snapshot that have files in one home only, each with the id of that
    home. Read-only. Raises `StoreError`."""
    with checked_reader(path, is_whole=True) as (connection, schema):
        return dict(connection.execute(_PLACES).fetchall()) if schema >= _FIRST_WITH_PLACES else {}


def move_chats(path: Path, old: str, new: str) -> None:
    """Let the chats that have files in one home have them in another, in a database that no process has open.
    An older database is migrated. Raises `StoreError`."""
    connection = open_writer(path)
    try:
        connection.execute("UPDATE chats SET place = ? WHERE place = ?", (new, old))
    except driver.Error as error:
        raise storage_failure(error, path.parent) from error
    finally:
        connection.close()


_FIRST_WITH_PLACES = 22
_PLACES = "SELECT chat_key, place FROM chats WHERE place <> '' ORDER BY chat_key"
