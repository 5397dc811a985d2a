"""Refuses to open a live database file except through SQLite.

POSIX locks belong to the process: when any descriptor of a file is closed, all locks that the process has on
that file are gone, and two writers can corrupt it. SQLite opens its files in C, which no audit event tells,
so each `open` that Python reports for a database that is open in this process is a fault. Python's own
`sqlite3` brings a second copy of SQLite, which is the same fault when the store runs on another.
"""

from __future__ import annotations

import os
import sys

from talaria.store.sqlite.faults import driver

_DESCRIPTORS = "/proc/self/fd"
_ENDINGS = (".db", ".db-wal", ".db-shm", "?mode=ro", "?mode=rwc")


class DatabaseGuard:
    """`faults` lists the refused opens, for tests whose code swallows the exception."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def install(self) -> None:
        if os.path.isdir(_DESCRIPTORS):
            sys.addaudithook(self._watch)

    def _watch(self, event: str, arguments: tuple[object, ...]) -> None:
        # Every audit event of the process comes through here, so the cheapest check is first.
        if event != "open" and event != "sqlite3.connect":
            return
        path = arguments[0]
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str) or not path.endswith(_ENDINGS):
            return
        if event == "sqlite3.connect":
            if driver.__name__.startswith("sqlite3"):
                return
            path = path.removeprefix("file:").partition("?")[0]
        if _is_live(os.path.realpath(path)):
            self.faults.append(f"{event} of the live database {path}")
            raise PermissionError(self.faults[-1])


def _is_live(path: str) -> bool:
    """Return whether this process has the database of this path open. Other threads may change that."""
    database = path.removesuffix("-wal").removesuffix("-shm")
    for name in os.listdir(_DESCRIPTORS):
        try:
            if os.readlink(f"{_DESCRIPTORS}/{name}") == database:
                return True
        except OSError:
            continue
    return False
