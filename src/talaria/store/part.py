"""The engines of the store as parts of the gateway: SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from talaria.core.clock import Clock
from talaria.core.errors import ConfigError
from talaria.core.gateway_part import Examination, GatewayPart, Parts, S
from talaria.core.installation import check_extra, has_extra, install_extra
from talaria.core.problems import Problem, install_command, ok, problem, warn
from talaria.store.settings import (
    UNFINISHED_COPY,
    StoreSettings,
    find_database,
    is_file,
    is_postgres,
    unfinished_copy,
)

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
    from talaria.store.engines import open_store  # noqa: PLC0415 - heavy

    path = find_database(settings.url, scope.default_path)
    async with open_store(path, scope.clock, is_suspect=scope.is_suspect) as store:
        await _check_whole(store)
        yield store


async def _check_whole(store: Store) -> None:
    if await store.cursor(UNFINISHED_COPY) is not None:
        raise unfinished_copy()


async def _examine(examination: Examination[StoreSettings]) -> AsyncIterator[Problem]:
    from talaria.store.engines import describe_engine  # noqa: PLC0415

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
