"""Orders and queries of tainted folders, in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from talaria.core.sessions import PROJECT, FolderName, Taint, overlap
from talaria.store.sql.executor import Connection, Transaction

MARK = "INSERT INTO tainted_folders (folder, since, source) VALUES (?, ?, ?) ON CONFLICT (folder) DO NOTHING"
FIND = "SELECT folder, since, source FROM tainted_folders WHERE folder = ?"
FIND_PROJECTS = "SELECT folder, since, source FROM tainted_folders WHERE folder >= ? AND folder < ?"
CLEAR = "DELETE FROM tainted_folders WHERE folder = ?"
_PROJECTS = (PROJECT, PROJECT[:-1] + chr(ord(PROJECT[-1]) + 1))  # few, so all of them are compared


def mark(tx: Transaction, folders: Sequence[FolderName], at: float, source: str) -> None:
    """Mark the folders as tainted. The first mark of a folder stays. Durable."""
    for folder in sorted(folders):  # one order for all, so that two orders cannot wait for each other
        tx.execute(MARK, (folder, at, source))


def find(db: Connection, folders: Sequence[FolderName]) -> Taint | None:
    """Return the oldest taint of folders that overlap with these; None if there is none."""
    return min((taint for _, taint in _overlapping(db, folders)), key=lambda taint: taint.since, default=None)


def clear(tx: Transaction, folders: Sequence[FolderName]) -> None:
    """Forget every taint of folders that overlap with these, because a person said so. Durable."""
    for folder in sorted(name for name, _ in _overlapping(tx, folders)):
        tx.execute(CLEAR, (folder,))


def _overlapping(
    db: Connection | Transaction, folders: Sequence[FolderName]
) -> Iterator[tuple[FolderName, Taint]]:
    for folder in folders:
        is_project = folder.startswith(PROJECT)
        rows = db.execute(FIND_PROJECTS, _PROJECTS) if is_project else db.execute(FIND, (folder,))
        for name, since, source in rows.fetchall():
            if overlap(folder, name):
                yield name, Taint(since, source)
