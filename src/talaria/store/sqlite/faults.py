"""Failures of SQLite as `StoreError`: their kinds, and what a person can do about each."""

from __future__ import annotations

import errno
import secrets
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from talaria.core.errors import StoreDamaged, StoreError

# -- which SQLite this process runs on --------------------------------------------------------------------
# The `pysqlite3` wheel carries a current one. Python's own is the fallback; below 3.51.3 it has the WAL-
# reset bug, by which two processes on one file can corrupt it, so that only the holder of the home's lock
# may open the file.


if TYPE_CHECKING:
    import sqlite3 as driver
else:
    try:
        from pysqlite3 import dbapi2 as driver
    except ImportError:
        import sqlite3 as driver

__all__ = ["driver", "engine", "is_single_process_only"]

engine = f"sqlite {driver.sqlite_version}"
is_single_process_only: bool = driver.sqlite_version_info < (3, 51, 3)


# -- failures of SQLite as `StoreError`: their kinds, and what a person can do about each -----------------


RESTORE = (
    "Stop the gateway and restore a backup with `talaria restore FILE`; "
    "without one, keep a copy of the file before anything else is tried."
)
_PRIMARY_CODE = 0xFF  # the higher bits of an extended code say where it happened


class DiskFault(Enum):
    """The kinds of failure."""

    FULL = auto()
    READ_ONLY = auto()
    DAMAGED = auto()
    BUSY = auto()
    OTHER = auto()


# By SQLite's primary result code. (A member whose value is an empty tuple breaks in Python 3.11.2.)
_FAULTS = {
    5: DiskFault.BUSY,
    6: DiskFault.BUSY,
    8: DiskFault.READ_ONLY,
    11: DiskFault.DAMAGED,
    13: DiskFault.FULL,
    26: DiskFault.DAMAGED,
}


def kind_of(error: Exception) -> DiskFault:
    code = getattr(error, "sqlite_errorcode", None)
    return _FAULTS.get(code & _PRIMARY_CODE, DiskFault.OTHER) if isinstance(code, int) else DiskFault.OTHER


# The text and the hint of the error for each fault. Damage has its own error.
_FAILURES = {
    DiskFault.FULL: (
        "The disk of the database is full",
        "Make room on the disk; the gateway continues by itself.",
    ),
    DiskFault.READ_ONLY: (
        "The database can only be read",
        "Make its disk and folder writable; the gateway continues by itself.",
    ),
    DiskFault.BUSY: (
        "Another process keeps the database locked",
        "End the other program that has the file open.",
    ),
    DiskFault.OTHER: ("The database failed", "Run `talaria doctor` to look closer."),
}


_BY_ERRNO = {errno.EROFS: DiskFault.READ_ONLY, errno.ENOSPC: DiskFault.FULL, errno.EDQUOT: DiskFault.FULL}


def find_fault(folder: Path, size: int = 4096) -> DiskFault:
    """Return what is wrong with the disk of a folder, by writing a file of `size` bytes there. SQLite reports
    a disk that turned read-only as an I/O error like any other."""
    probe = folder / f".write-test-{secrets.token_hex(4)}"
    try:
        with probe.open("wb", buffering=0) as file:
            left = size
            while left > 0:  # a disk that is almost full takes a part
                left -= file.write(b"x" * left)
    except OSError as error:
        return _BY_ERRNO.get(error.errno or 0, DiskFault.OTHER)
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return DiskFault.OTHER


def storage_failure(error: Exception, folder: Path | None = None) -> StoreError:
    """Return the error for a failure of the disk, the file, or another process's lock.

    With the `folder` of the database, a failure that SQLite cannot name is looked into.
    """
    fault = kind_of(error)
    if fault is DiskFault.OTHER and folder is not None and isinstance(error, driver.Error):
        fault = find_fault(folder)
    if fault is DiskFault.DAMAGED:
        failure: StoreError = damaged(str(error))
    else:
        what, hint = _FAILURES[fault]
        failure = StoreError(f"{what}, and nothing was written: {error}.", hint)
    failure.__cause__ = error
    return failure


def hanging(seconds: float) -> StoreError:
    return StoreError(
        f"The disk of the database does not answer: a write has been waiting for {seconds:.0f} s.",
        "Look at the disk; the gateway continues by itself when the disk answers.",
    )


def slow(seconds: float) -> StoreError:
    return StoreError(
        f"The disk of the database is slow: the last write took {seconds:.1f} s.",
        "Look for what keeps the disk busy; the gateway continues by itself.",
    )


def damaged(finding: str) -> StoreDamaged:
    return StoreDamaged(f"The database is damaged and no longer written to: {finding}.", RESTORE)


def cannot_open(path: Path, error: driver.Error) -> StoreError:
    what = f"The database {path} cannot be used: {error}."
    match kind_of(error):
        case DiskFault.DAMAGED:
            return StoreDamaged(what, RESTORE)
        case DiskFault.FULL:
            return StoreError(what, "Make room on the disk that holds it.")
        case DiskFault.READ_ONLY:
            return StoreError(what, "Make its disk and folder writable for this user.")
        case _:
            return StoreError(
                what,
                "Check that its folder exists and can be written and that the file is a Talaria database; "
                "`talaria doctor` looks closer.",
            )
