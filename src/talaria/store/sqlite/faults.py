"""What a failing database means: which kind of failure it is, and the words for each."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from talaria.core.errors import StoreDamaged, StoreError
from talaria.store.sqlite.driver import driver

RESTORE = (
    "Stop the gateway and restore a backup with `talaria restore FILE`; "
    "without one, keep a copy of the file before anything else is tried."
)
_PRIMARY_CODE = 0xFF  # the rest of an extended code says where it happened


class Fault(Enum):
    """SQLite's primary result codes, as far as people can do something about them."""

    FULL = (13,)
    READ_ONLY = (8,)
    DAMAGED = (11, 26)
    BUSY = (5, 6)
    OTHER = ()


_FAULTS = {code: fault for fault in Fault for code in fault.value}


def fault_of(error: Exception) -> Fault:
    code = getattr(error, "sqlite_errorcode", None)
    return _FAULTS.get(code & _PRIMARY_CODE, Fault.OTHER) if isinstance(code, int) else Fault.OTHER


# What happened and what to do. Damage has its own error.
_FAILURES = {
    Fault.FULL: (
        "The disk of the database is full",
        "Make room on the disk; the gateway goes on by itself.",
    ),
    Fault.READ_ONLY: (
        "The database can only be read",
        "Make its disk and folder writable; the gateway goes on by itself.",
    ),
    Fault.BUSY: (
        "Another process keeps the database locked",
        "End the other program that has the file open.",
    ),
    Fault.OTHER: ("The database failed", "Run `talaria doctor` to look closer."),
}


def storage_failure(error: Exception) -> StoreError:
    """A failure below the store's rules: the disk, the file, another process's lock."""
    fault = fault_of(error)
    if fault is Fault.DAMAGED:
        failure: StoreError = damaged(str(error))
    else:
        what, hint = _FAILURES[fault]
        failure = StoreError(f"{what}, and nothing was written: {error}.", hint)
    failure.__cause__ = error
    return failure


def damaged(finding: str) -> StoreDamaged:
    return StoreDamaged(f"The database is damaged and no longer written to: {finding}.", RESTORE)


def cannot_open(path: Path, error: driver.Error) -> StoreError:
    what = f"The database {path} cannot be used: {error}."
    match fault_of(error):
        case Fault.DAMAGED:
            return StoreDamaged(what, RESTORE)
        case Fault.FULL:
            return StoreError(what, "Make room on the disk that holds it.")
        case Fault.READ_ONLY:
            return StoreError(what, "Make its disk and folder writable for this user.")
        case _:
            return StoreError(
                what,
                "Check that its folder exists and can be written and that the file is a Talaria database; "
                "`talaria doctor` looks closer.",
            )
