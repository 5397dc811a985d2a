"""The locks of a home and of a database: one process at a time owns a home, one gateway a database."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from talaria.core.clock import Clock
from talaria.core.errors import StoreDamaged, StoreError, StoreLocked
from talaria.core.ledger import Integrity
from talaria.core.tasks import every
from talaria.store.store import Store

# -- the file system that a path is on, and whether a database may live there -----------------------------
# SQLite's WAL needs shared memory and locks that all users of the file see. Network and host-shared file
# systems fake or lose them, and a database there is corrupted sooner or later.


MOUNTINFO = Path("/proc/self/mountinfo")

SHARED_FILESYSTEMS = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fuse.ceph", "fuse.cephfs",
        "fuse.davfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.grpcfuse",
        "fuse.juicefs", "fuse.osxfs", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs", "fuse.sshfs",
        "fuse.vmhgfs-fuse", "fuse.weed", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
        "ocfs2", "orangefs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
    }
)  # fmt: skip


def filesystem_type(path: PurePath, mountinfo: str) -> str:
    """Return the type of the mount that an absolute, resolved `path` is on; '' when no mount holds it.

    If several mounts have the same mount point, the last one listed hides the others.
    """
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5:
            continue
        mount_point = PurePath(_unescape(fields[4]))
        depth = len(mount_point.parts)
        if depth >= best and path.is_relative_to(mount_point):
            best, found = depth, right.split(" ", 1)[0]
    return found


def refuse_shared_filesystem(path: PurePath, mountinfo: str) -> None:
    """Raise `StoreError` if SQLite cannot keep its promises at `path`."""
    kind = filesystem_type(path, mountinfo)
    if kind in SHARED_FILESYSTEMS:
        raise StoreError(
            f"{path} is on a shared file system ({kind}), where a SQLite database gets corrupted.",
            "Put the home on a local disk with --home or TALARIA_HOME.",
        )


def check_filesystem(folder: Path) -> None:
    """Raise `StoreError` if the folder is on a shared file system. Where the mounts of this machine cannot be
    read, nothing is refused."""
    try:
        mountinfo = MOUNTINFO.read_text(errors="surrogateescape")
    except OSError:
        return
    refuse_shared_filesystem(folder.resolve(), mountinfo)


def _unescape(field: str) -> str:
    r"""Mount points write space, tab, newline and backslash as `\040` and so on."""
    head, *rest = field.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


# -- the locks of a home and of a database: one process at a time owns a home, one gateway a database -----


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


# -- watches over the database beside the gateway's work: after a crash, and while it cannot be written ---


_log = logging.getLogger("talaria.store")
TELL_SECONDS = 0.25
LOOK_SECONDS = 1.0
PROBE_SECONDS = 2.0


class StoreWatch:
    """Checks a suspect database once, looks every second whether its files are there, tries a write every few
    seconds while writes fail, and logs when trouble begins, changes and ends.

    The health check must turn good again by itself: while it is bad, no client may write.
    """

    def __init__(self, store: Store, lock: HomeLock, clock: Clock) -> None:
        self._store = store
        self._lock = lock
        self._clock = clock
        self._told = ""

    def trouble(self) -> str | None:
        """Return why the store cannot be written, for `Health`; None when it can."""
        trouble = self._store.trouble
        return None if trouble is None else trouble.user_text

    async def run(self) -> None:
        """Watch until cancelled. A disk that hangs holds up the look and the probe, but not the telling."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(every(self._clock, TELL_SECONDS, self._tell), name="store-trouble")
            tasks.create_task(every(self._clock, LOOK_SECONDS, self._store.look), name="store-files")
            await self._verify()
            tasks.create_task(every(self._clock, PROBE_SECONDS, self._probe), name="store-probe")

    async def _verify(self) -> None:
        if self._store.integrity is Integrity.CHECKING:
            _log.warning("the last process ended without closing the database, which is looked at now")
            if (finding := await self._store.verify()) is not None:
                _log.error("the database is damaged and only read from now on; restore a backup: %s", finding)
        if self._store.integrity is Integrity.WHOLE:
            if self._lock.follows_crash:
                _log.info("the last process ended without closing the database; it is whole")
            self._lock.mark_checked()

    async def _tell(self) -> None:
        """Log trouble that begins, changes its kind, or ends. Its number of seconds is no change."""
        trouble = self._store.trouble
        kind = "" if trouble is None else trouble.user_text.partition(":")[0]
        if kind == self._told:
            return
        self._told = kind
        if trouble is None:
            _log.info("the store can be written again")
        else:
            _log.error("the store has trouble: %s", trouble)

    async def _probe(self) -> None:
        trouble = self._store.trouble
        if trouble is None or isinstance(trouble, StoreDamaged):
            return
        try:
            await self._store.probe()
        except StoreError as error:
            _log.debug("the store still cannot be written: %s", error)
