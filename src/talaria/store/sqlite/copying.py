"""A copy of the database as of one moment, while others read and write it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from talaria.core.errors import StoreError
from talaria.store.sqlite.connection import open_reader
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.faults import storage_failure

_STEPS_BETWEEN_GLANCES = 100_000


def copy_database(source: Path, target: Path, should_stop: Callable[[], bool] = lambda: False) -> None:
    """`VACUUM INTO`: one read transaction, so it is of one moment, and every page is read and written anew.

    The write-ahead log cannot be emptied meanwhile and grows with what others write. Raises `StoreError`;
    then there is no copy.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection: driver.Connection | None = None
    try:
        connection = open_reader(source)
        connection.set_progress_handler(lambda: int(should_stop()), _STEPS_BETWEEN_GLANCES)
        connection.execute("VACUUM INTO ?", (str(target),))
        _sync(target)
    except driver.Error as error:
        target.unlink(missing_ok=True)
        if should_stop():
            raise StoreError("The copy was not finished: the store closed.", "Try again.") from error
        raise storage_failure(error) from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        if connection is not None:
            connection.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
