"""The engines of the store as parts of the gateway: SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ConfigError
from talaria.core.installation import check_extra, has_extra, install_extra
from talaria.core.jobs import Job
from talaria.core.ledger import Page
from talaria.core.problems import Problem, install_command, ok, problem, warn
from talaria.core.settings import Examination, GatewayPart, Parts, S
from talaria.store.settings import (
    UNFINISHED_COPY,
    StoreSettings,
    find_database,
    is_file,
    is_postgres,
    unfinished_copy,
)
from talaria.store.sql import jobs, queries, rules
from talaria.store.sqlite.database import checked_reader, open_writer
from talaria.store.sqlite.faults import DiskFault, driver, find_fault, is_single_process_only, storage_failure
from talaria.store.sqlite.rescue import find_rescued, find_unrestored, restore_command
from talaria.store.sqlite.schema import latest_version
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import Store

if TYPE_CHECKING:
    from talaria.core.cluster import Member
    from talaria.store.store import Store


@dataclass(frozen=True, slots=True)
class StoreScope:
    """The arguments for opening an engine of the store. The caller holds the home's lock. `is_suspect` is
    True if the last process did not close the database. An engine without a URL keeps the database at
    `default_path`."""

    default_path: Path
    clock: Clock
    is_suspect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePart(GatewayPart[S]):
    """An engine that the store can run on. The gateway opens the first one that serves `store.url`."""

    serves: Callable[[str], bool]
    open: Callable[[StoreScope, S], AbstractAsyncContextManager[Store]]


def find_engine(parts: Parts, url: str) -> StorePart[Any]:
    """Return the first engine of the list that serves `store.url`. Raise `ConfigError` if there is none."""
    for part in parts:
        if isinstance(part, StorePart) and part.serves(url):
            return part
    scheme = url.partition(":")[0]
    raise ConfigError(f"No engine of the store serves {scheme}: URLs.", "Change store.url in config.toml.")


@asynccontextmanager
async def _open(scope: StoreScope, settings: StoreSettings) -> AsyncIterator[Store]:

    path = find_database(settings.url, scope.default_path)
    async with open_store(path, scope.clock, is_suspect=scope.is_suspect) as store:
        await _check_whole(store)
        yield store


async def _check_whole(store: Store) -> None:
    if await store.cursor(UNFINISHED_COPY) is not None:
        raise unfinished_copy()


async def _examine(examination: Examination[StoreSettings]) -> AsyncIterator[Problem]:

    if not is_file(examination.settings.url):
        return
    engine = describe_engine()
    name = engine.name.lower()
    if engine.warning:
        yield warn(name, engine.warning, "", install_command(engine.package))
    else:
        yield ok(name, f"{engine.name} {engine.version}.")


SQLITE: Final = StorePart(
    name="sqlite",
    table=("store",),
    settings=StoreSettings,
    is_required=True,
    serves=lambda url: not url or url.startswith("sqlite:"),
    open=_open,
    findings=_examine,
)


@asynccontextmanager
async def _open_postgres(scope: StoreScope, settings: StoreSettings) -> AsyncIterator[Store]:
    check_extra("postgres", "store.url names PostgreSQL, which")
    from talaria.store.postgres.store import PostgresStore  # noqa: PLC0415 - psycopg is for this engine only

    async with await PostgresStore.open(settings.url, scope.clock, connections=settings.connections) as store:
        await _check_whole(store)
        yield store


async def _examine_postgres(examination: Examination[StoreSettings]) -> AsyncIterator[Problem]:
    settings = examination.settings
    if not is_postgres(settings.url):
        return
    if not has_extra("postgres"):
        text = "store.url names PostgreSQL, and psycopg is not installed."
        yield problem("postgresql", text, "", install_extra("postgres"))
        return
    from talaria.store.postgres.checks import check_postgres  # noqa: PLC0415 - psycopg is for this engine only

    for finding in await asyncio.to_thread(lambda: list(check_postgres(settings.url, settings.connections))):
        yield finding


POSTGRES: Final = StorePart(
    name="postgres",
    table=("store",),
    settings=StoreSettings,
    is_required=True,
    serves=is_postgres,
    open=_open_postgres,
    findings=_examine_postgres,
)


def find_members(url: str) -> list[Member]:
    """Return the gateways that serve the database of this URL together; none on SQLite. Blocks."""
    if not is_postgres(url) or not has_extra("postgres"):
        return []
    from talaria.store.postgres.checks import read_members  # noqa: PLC0415 - psycopg is for this engine only

    return read_members(url)


# -- the engine that the store runs on: opening a store, and looking at a database that is closed ---------


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
