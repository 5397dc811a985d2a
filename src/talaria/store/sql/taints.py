"""Orders and queries of tainted folders, in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from talaria.core.trust import FolderName, Taint
from talaria.store.sql.executor import Connection, Transaction

MARK = "INSERT INTO tainted_folders (folder, since, source) VALUES (?, ?, ?) ON CONFLICT (folder) DO NOTHING"
FIND = "SELECT since, source FROM tainted_folders WHERE folder = ?"
CLEAR = "DELETE FROM tainted_folders WHERE folder = ?"


def mark(tx: Transaction, folders: Sequence[FolderName], at: float, source: str) -> None:
    for folder in sorted(folders):  # one order for all, so that two orders cannot wait for each other
        tx.execute(MARK, (folder, at, source))


def find(db: Connection, folders: Sequence[FolderName]) -> Taint | None:
    rows = [row for folder in folders if (row := db.execute(FIND, (folder,)).fetchone()) is not None]
    return Taint(*min(rows)) if rows else None


def clear(tx: Transaction, folders: Sequence[FolderName]) -> None:
    for folder in sorted(folders):
        tx.execute(CLEAR, (folder,))
