"""The database file: opening it, looking whether it is whole, copying it.

SQLite alone opens the file. POSIX locks belong to the process, so opening and closing the live file by any
other means would silently drop all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import quote

from talaria.core.errors import StoreDamaged, StoreError
from talaria.store.home_lock import check_filesystem
from talaria.store.sqlite.faults import RESTORE, cannot_open, driver, storage_failure
from talaria.store.sqlite.rescue import copy_into, find_unrestored
from talaria.store.sqlite.schema import check_version, latest_version, migrate

BUSY_TIMEOUT_SECONDS = 5.0
# A file up to this size is looked at before anything is written to it; for a larger one that takes too long.
LOOK_FIRST_BYTES = 256 << 20
_CACHED_STATEMENTS = 256
_STEPS_BETWEEN_CHECKS = 100_000  # of SQLite's virtual machine, until `should_stop` is asked again

_COMMON = (
    "PRAGMA mmap_size = 0",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA temp_store = MEMORY",
    # With large caches memory grows with the database, and turns cost no less: the system keeps pages too.
    "PRAGMA cache_size = -1024",
)
_WRITER = (
    "PRAGMA cache_size = -2048",
    # About 8 MB of WAL between checkpoints; a file that grew in a busy hour shrinks back to 32 MB.
    "PRAGMA wal_autocheckpoint = 2000",
    "PRAGMA journal_size_limit = 33554432",
)


def open_writer(path: Path, *, look_first: bool = False, on_create: str = "") -> driver.Connection:
    """Return the migrated database, made if there is none, together with `on_create`. With `look_first` it
    must be whole.

    Raises `StoreError`, also for a missing file whose saved content waits to be restored, and `StoreDamaged`
    for a damaged file.
    """
    check_filesystem(path.parent)
    if (loss := find_unrestored(path)) is not None:
        raise loss
    try:
        connection = _connect(path, "rwc")
        try:
            _prepare(connection, path, look_first, on_create)
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
    """Return a migrated database in memory. It is gone with its connection, which any thread may close."""
    connection = _connect_to_memory()
    _empty().backup(connection)
    return connection


@cache
def _empty() -> driver.Connection:
    """Databases in memory are copied from this one: a copy takes microseconds, migrating milliseconds."""
    connection = _connect_to_memory()
    migrate(connection, Path(":memory:"))
    return connection


def _connect_to_memory() -> driver.Connection:
    return driver.connect(
        ":memory:", isolation_level=None, cached_statements=_CACHED_STATEMENTS, check_same_thread=False
    )


def _connect(path: Path, mode: str) -> driver.Connection:
    # Each thread opens and closes its own connection.
    return driver.connect(
        f"file:{quote(str(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        cached_statements=_CACHED_STATEMENTS,
    )


def _prepare(connection: driver.Connection, path: Path, look_first: bool, on_create: str) -> None:
    for pragma in _COMMON:
        connection.execute(pragma)
    if path.stat().st_size == 0:
        # Before the WAL is made, which takes its mode from the file.
        path.chmod(0o600)
    elif look_first:
        _refuse_damaged(connection, path)
    migrate(connection, path, on_create)
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"The database {path} cannot use a write-ahead log (it offers {mode!r}).",
            "Put the home on a local disk with --home or TALARIA_HOME.",
        )
    for pragma in _WRITER:
        connection.execute(pragma)
    connection.execute("SELECT 1 FROM sqlite_schema").fetchone()  # makes the log and its index


@contextmanager
def checked_reader(path: Path, *, is_whole: bool = False) -> Iterator[tuple[driver.Connection, int]]:
    """Open a database that no other process uses, and yield a connection and its schema's version.

    Raises `StoreError` for a database that is damaged, of another program, or newer than this program. With
    `is_whole` it was looked through for damage before.
    """
    try:
        connection = open_reader(path)
        try:
            version = check_version(connection, path, latest_version())
            if not is_whole:
                _refuse_damaged(connection, path)
            yield connection, version
        finally:
            connection.close()
    except driver.Error as error:
        raise cannot_open(path, error) from error


# -- damage -----------------------------------------------------------------------------------------------


def find_damage(db: driver.Connection, should_stop: Callable[[], bool] = lambda: False) -> str | None:
    """Return the first damage of the file in SQLite's words, None for a whole file.

    Raises `driver.OperationalError` when `should_stop` returned true meanwhile.
    """
    db.set_progress_handler(lambda: int(should_stop()), _STEPS_BETWEEN_CHECKS)
    try:
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    finally:
        db.set_progress_handler(None, 0)
    return (
        None if verdict == "ok" else str(verdict).replace("\n", " ").removeprefix("*** in database main *** ")
    )


def _refuse_damaged(db: driver.Connection, path: Path) -> None:
    finding = find_damage(db)
    if finding is not None:
        raise StoreDamaged(f"The database {path} is damaged: {finding}.", RESTORE)


def make_single_file(path: Path) -> None:
    """Move the write-ahead log of a closed database into its file, which can then be read alone. Raises
    `driver.Error`."""
    connection = _connect(path, "rw")
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        if mode != "delete":
            raise driver.OperationalError(f"the journal mode stays {mode}")
    finally:
        connection.close()


# -- copies -----------------------------------------------------------------------------------------------


def copy_database(source: Path, target: Path, should_stop: Callable[[], bool] = lambda: False) -> None:
    """Write a compact copy of the database as of one moment, while others read and write it.

    `VACUUM INTO` is one read transaction that reads every page. The write-ahead log cannot be emptied
    meanwhile, and grows with what others write. Raises `StoreError`; then there is no copy.
    """
    try:
        connection = open_reader(source)
        try:
            connection.set_progress_handler(lambda: int(should_stop()), _STEPS_BETWEEN_CHECKS)
            copy_into(connection, target)
        finally:
            connection.close()
    except driver.Error as error:
        if should_stop():
            raise StoreError("The copy was not finished: the store closed.", "Try again.") from error
        raise storage_failure(error) from error
