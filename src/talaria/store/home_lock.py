"""The locks of a home and of a database: one process at a time owns a home, one gateway a database."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from talaria.core.errors import StoreError, StoreLocked

LOCK_NAME = "talaria.lock"
_UNCHECKED = b"unchecked\n"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class HomeLock:
    """`flock` on `talaria.lock`, which holds the owner's pid for people to read.

    The kernel releases the lock when its owner dies, however it dies. The file itself stays: if it were
    removed, two processes could lock two files of the same name. An owner that leaves in good order empties
    the file, so a file that is not empty means that its owner was killed. That is remembered until an owner
    has checked the database and calls `mark_checked`.
    """

    def __init__(self, home: Path, *, database: Path | None = None) -> None:
        """With `database`, lock that file instead, which may be in another home. The database of a home has
        the home's own lock."""
        self._home = home
        self._database = database
        self._path = home / LOCK_NAME if database is None else database_lock(database)
        self._handle: int | None = None
        self._follows_crash = False

    @property
    def follows_crash(self) -> bool:
        """Whether an earlier owner was killed and the database was not checked since."""
        return self._follows_crash

    def mark_checked(self) -> None:
        self._follows_crash = False

    def acquire(self) -> None:
        """Raises `StoreLocked` when another process has the lock, `StoreError` when the home is unusable."""
        if self._handle is not None:
            return
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error, "used") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_pid(handle)
            os.close(handle)
            raise self._locked_by(holder) from None
        except OSError as error:
            os.close(handle)
            raise self._unusable(error, "locked") from error
        self._follows_crash = os.fstat(handle).st_size > 0
        try:
            _rewrite(handle, f"{os.getpid()}\n".encode())
        except OSError as error:
            os.close(handle)
            raise self._unusable(error, "used") from error
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                with suppress(OSError):  # the pid stays, and says as much
                    _rewrite(handle, _UNCHECKED if self._follows_crash else b"")
            finally:
                os.close(handle)

    def __enter__(self) -> HomeLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _unusable(self, error: OSError, how: str) -> StoreError:
        if error.errno in _NO_ROOM:
            what = f"home {self._home}" if self._database is None else f"database {self._database}"
            return StoreError(
                f"The disk of the {what} is full, so it cannot be {how}: {error.strerror}.",
                "Make room on that disk, then try again.",
            )
        if self._database is not None:
            return StoreError(
                f"The database {self._database} cannot be {how}: {self._path}: {error.strerror}.",
                "Check that its folder exists, is on a local disk and can be written, or name another "
                "database in [store] url.",
            )
        if error.errno == errno.EROFS:
            hint = "Make its disk writable (mount -o remount,rw), or name"
        elif how == "used":
            hint = "Make the folder writable for this user, or name"
        else:
            hint = "Put the home on a local disk: name"
        return StoreError(
            f"The home {self._home} cannot be {how}: {error.strerror}.",
            f"{hint} another with --home or TALARIA_HOME.",
        )

    def _locked_by(self, pid: int | None) -> StoreLocked:
        who = "Another process" if pid is None else f"Another process (pid {pid})"
        stop = "Stop it first" if pid is None else f"Stop it first (kill {pid})"
        if self._database is not None:
            return StoreLocked(
                f"{who} serves the database {self._database}; two on one would take each other's turns.",
                f"{stop}, or name another database in [store] url.",
            )
        return StoreLocked(
            f"{who} is using the home {self._home}; two on one database would get in each other's way.",
            f"{stop}, or name another home with --home or TALARIA_HOME.",
        )


def database_lock(database: Path) -> Path:
    """Return the lock of a database: `talaria.lock` for `talaria.db`, so that a home's lock is its own."""
    lock = database.with_suffix(".lock")
    return lock if lock != database else database.with_name(f"{database.name}.lock")


@contextmanager
def lock_database(database: Path, home: Path, *, is_required: bool = True) -> Iterator[bool]:
    """Lock a database, under the lock of the home. Yield whether this process has the lock.

    Raises `StoreLocked` if another process has it and it `is_required`, else yields False.
    """
    if database_lock(database).resolve() == (home / LOCK_NAME).resolve():
        yield True
        return
    lock = HomeLock(home, database=database)
    try:
        lock.acquire()
    except StoreLocked:
        if is_required:
            raise
        yield False
        return
    try:
        lock.mark_checked()
        yield True
    finally:
        lock.release()


def _rewrite(handle: int, content: bytes) -> None:
    """Replace the content of a lock. If the disk is full, the old content stays."""
    if content:
        os.pwrite(handle, content, 0)
    os.ftruncate(handle, len(content))


def _read_pid(handle: int) -> int | None:
    text = os.pread(handle, 32, 0).strip()
    return int(text) if text.isdigit() else None
