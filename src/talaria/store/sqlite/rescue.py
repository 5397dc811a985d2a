"""A database whose files were deleted or replaced while they are open: noticing it, and saving the content.

A file that is deleted under a running process lives on without a name until the process closes it. SQLite
goes on writing to it and reports no error, so everything that it confirms is gone at the end of the process.
"""

from __future__ import annotations

import os
import secrets
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from talaria.core.errors import StoreError, StoreGone
from talaria.core.whole_files import sync
from talaria.store.sqlite.faults import driver

_RESCUED = "-rescued-"
_NOT_WRITTEN = "The database is no longer written to"
_SUFFIXES = ("", "-wal", "-shm")


class Loss(msgspec.Struct, frozen=True):
    """A file of the database that is not at its path any more. `is_replaced`: another file is there."""

    path: Path
    is_replaced: bool

    def __str__(self) -> str:
        return f"{self.path} was {'replaced by another file' if self.is_replaced else 'deleted'}"


class FileIdentity:
    """The files that an open connection uses: the database, its write-ahead log, and the log's index.

    The files are compared by name, because opening and closing the live database by any means but SQLite
    drops its locks. A file that is open keeps its inode number, so no new file can have the same one.
    """

    def __init__(self, path: Path) -> None:
        """Take the files as they are. To be called as soon as the connection has opened them."""
        self._names = [f"{path}{suffix}" for suffix in _SUFFIXES]
        self._known = [_identify(name) for name in self._names]

    def is_in_place(self) -> bool:
        """Return whether the database itself is at its path. Costs one call of `stat`."""
        try:
            return _identify(self._names[0]) == self._known[0]
        except OSError:
            return True

    def find_loss(self) -> Loss | None:
        """Return the first of the files that is gone or another one.

        A file that cannot be looked at for another reason counts as present: writing to it tells more.
        """
        for at, name in enumerate(self._names):
            try:
                found = _identify(name)
            except OSError:
                continue
            known = self._known[at]
            if found == known:
                continue
            if known is None:  # SQLite makes the log with the first write
                self._known[at] = found
                continue
            return Loss(Path(name), is_replaced=found is not None)
        return None


def _identify(name: str) -> tuple[int, int] | None:
    """Return device and inode of a file, None if there is none."""
    try:
        found = os.stat(name)  # noqa: PTH116 - a `Path` costs more than the call
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def gone(loss: Loss) -> StoreGone:
    return StoreGone(
        f"{_NOT_WRITTEN}: {loss} while the gateway runs.",
        "The gateway saves the content in a new file beside it; its log and `talaria doctor` name the file.",
    )


def save(connection: driver.Connection, path: Path, loss: Loss) -> tuple[StoreGone, Path]:
    """Save the content of a database whose files are lost. Return the error that says how to restore it, and
    the file that has the content now.

    If only the write-ahead log is lost, its content is moved to the database, which is whole then. Otherwise
    the content goes to a new file beside the database. Raises `driver.Error` or `OSError` if neither can be
    done.
    """
    what = f"{_NOT_WRITTEN}: {loss} while the gateway runs."
    if loss.path != path and _checkpoint(connection):
        return StoreGone(f"{what} Nothing is lost: {path} is whole.", "Restart the gateway."), path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = new_rescue(path)
    copy_into(connection, target)
    told = StoreGone(
        f"{what} Its content is saved in {target}. This restores it: {restore_command(target, path)}",
        "Stop the gateway before, and start it again afterwards.",
    )
    return told, target


def _checkpoint(connection: driver.Connection) -> bool:
    """Move the write-ahead log to the database, and return whether all of it was moved."""
    is_busy, size, moved = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
    return not is_busy and size == moved


def copy_into(connection: driver.Connection, target: Path) -> None:
    """Write a compact copy of the connection's database to the new file `target` (0600), and sync it.

    `VACUUM INTO` is one read transaction. Raises `driver.Error` or `OSError`; then there is no file.
    """
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        connection.execute("VACUUM INTO ?", (str(target),))
        for path in (target, target.parent):
            sync(path)
    except BaseException:
        with suppress(OSError):
            target.unlink(missing_ok=True)
        raise


# -- the saved files --------------------------------------------------------------------------------------


def new_rescue(path: Path) -> Path:
    """Return a new name beside the database for its saved content. Names sort by their time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return path.with_name(f"{path.stem}{_RESCUED}{stamp}-{secrets.token_hex(2)}.db")


def find_rescued(path: Path) -> Iterator[Path]:
    """Yield the files that hold saved content of this database, the newest first."""
    with suppress(OSError):
        yield from sorted(path.parent.glob(f"{path.stem}{_RESCUED}*.db"), reverse=True)


def restore_command(rescued: Path, path: Path) -> str:
    """Return the shell command that puts the saved content in the place of the database. A log of the lost
    database must not stay: SQLite would apply it to the restored one."""
    logs = shlex.join(f"{path}{suffix}" for suffix in _SUFFIXES[1:])
    return f"rm -f {logs} && mv {shlex.join([str(rescued), str(path)])}"


def find_unrestored(path: Path) -> StoreError | None:
    """Return the error for a database that is missing while its saved content is there: a start would make an
    empty database, as if nothing had been. None otherwise."""
    rescued = next(find_rescued(path), None)
    if rescued is None or path.exists():
        return None
    return StoreError(
        f"The database {path} is missing. It vanished under a running gateway, which saved its content "
        f"in {rescued}.",
        f"Restore it with `{restore_command(rescued, path)}`, or move that file away to start empty.",
    )
