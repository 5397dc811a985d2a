"""Whether the database is whole: looked at after a process ended without closing it.

A kill leaves the file whole as long as the disk kept its promises, so the look is for the disk's sake. Small
files are looked at before anything is written, and a start on a damaged one is refused. With a file above
`LOOK_FIRST_BYTES` everybody would wait too long: the gateway opens, looks beside its work, and stops writing
when it finds damage.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from talaria.core.errors import StoreDamaged
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.faults import RESTORE

LOOK_FIRST_BYTES = 256 << 20
_STEPS_BETWEEN_GLANCES = 100_000


class Integrity(StrEnum):
    """What is known of the file since this process opened it."""

    CLEAN_END = "clean end"
    CHECKING = "checking"
    WHOLE = "whole"
    DAMAGED = "damaged"


def find_damage(db: driver.Connection, should_stop: Callable[[], bool] = lambda: False) -> str | None:
    """The first thing that is wrong, in SQLite's words, or None.

    Raises `driver.OperationalError` when `should_stop` said so in the middle.
    """
    db.set_progress_handler(lambda: int(should_stop()), _STEPS_BETWEEN_GLANCES)
    try:
        (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    finally:
        db.set_progress_handler(None, 0)
    return (
        None if verdict == "ok" else str(verdict).replace("\n", " ").removeprefix("*** in database main *** ")
    )


def refuse_damaged(db: driver.Connection, path: Path) -> None:
    """Raises `StoreDamaged`."""
    finding = find_damage(db)
    if finding is not None:
        raise StoreDamaged(f"The database {path} is damaged: {finding}.", RESTORE)
