"""Opening the database file: how its connections are set up, and what is said when that fails.

SQLite alone opens the file. POSIX locks belong to the process, so opening and closing the live file by any
other means would silently drop all of them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from urllib.parse import quote

from talaria.core.errors import StoreError
from talaria.store.filesystems import check_filesystem
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.faults import cannot_open
from talaria.store.sqlite.integrity import refuse_damaged
from talaria.store.sqlite.schema import migrate

BUSY_TIMEOUT_SECONDS = 5.0
_CACHED_STATEMENTS = 256

_COMMON = (
    "PRAGMA mmap_size = 0",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA temp_store = MEMORY",
)
_WRITER = (
    "PRAGMA cache_size = -8192",
    # About 8 MB of WAL between checkpoints; a file that grew in a busy hour shrinks back to 32 MB.
    "PRAGMA wal_autocheckpoint = 2000",
    "PRAGMA journal_size_limit = 33554432",
)


def open_writer(path: Path, *, look_first: bool = False) -> driver.Connection:
    """The migrated database, made if there is none; with `look_first` not before it was found whole.

    Raises `StoreError`, and `StoreDamaged` when it is not.
    """
    check_filesystem(path.parent)
    try:
        connection = _connect(path, "rwc")
        try:
            _prepare(connection, path, look_first)
        except BaseException:
            connection.close()
            raise
    except driver.Error as error:
        raise cannot_open(path, error) from error
    return connection


def open_reader(path: Path) -> driver.Connection:
    connection = _connect(path, "ro")
    for pragma in _COMMON:
        connection.execute(pragma)
    return connection


def open_memory() -> driver.Connection:
    """A migrated database of its own, gone with its connection, which may be closed from any thread."""
    connection = _connect_to_memory()
    _empty().backup(connection)
    return connection


@cache
def _empty() -> driver.Connection:
    """What databases in memory are copied from: a copy takes microseconds, and migrating milliseconds."""
    connection = _connect_to_memory()
    migrate(connection, Path(":memory:"))
    return connection


def _connect_to_memory() -> driver.Connection:
    return driver.connect(
        ":memory:", isolation_level=None, cached_statements=_CACHED_STATEMENTS, check_same_thread=False
    )


def _connect(path: Path, mode: str) -> driver.Connection:
    # The writer's connection is closed by its own thread, as are the readers': no thread shares one.
    return driver.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        cached_statements=_CACHED_STATEMENTS,
    )


def _prepare(connection: driver.Connection, path: Path, look_first: bool) -> None:
    for pragma in _COMMON:
        connection.execute(pragma)
    if path.stat().st_size == 0:
        # Before the WAL is made, which takes its mode from the file.
        path.chmod(0o600)
    elif look_first:
        refuse_damaged(connection, path)
    migrate(connection, path)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"The database {path} cannot use a write-ahead log (it offers {mode!r}).",
            "Put the home on a local disk with --home or TALARIA_HOME.",
        )
    for pragma in _WRITER:
        connection.execute(pragma)
