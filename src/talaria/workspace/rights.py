"""The calls of the system below a chat's folder: permissions, owners, and opening without links."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

PRIVATE_FOLDER = 0o700

_ONLY_PATH: int = getattr(os, "O_PATH", 0)  # of Linux alone
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def make_folder(name: str, parent: int | None = None, mode: int | None = PRIVATE_FOLDER) -> None:
    """Make a folder that belongs to this user alone, or to the owner of the folder it is in, whatever the
    umask says; with no `mode` as the umask says. Raises `OSError`."""
    os.mkdir(name, 0o777 if mode is None else mode, dir_fd=parent)
    owner = None if parent is None else new_owner(os.fstat(parent))
    set_folder_mode(name, mode, parent, owner)


def set_folder_mode(
    name: str, mode: int | None, parent: int | None = None, owner: tuple[int, int] | None = None
) -> None:
    """Set the permissions of a folder and its owner, if they are given. A link is not followed. Raises
    `OSError`."""
    # A name may lead elsewhere by now. Linux opens a folder without permissions only by O_PATH, and such a
    # descriptor takes a mode only by its path.
    descriptor = os.open(name, _FOLDER | _ONLY_PATH, dir_fd=parent)
    try:
        if owner is not None:
            os.chown(f"/proc/self/fd/{descriptor}" if _ONLY_PATH else descriptor, *owner)
        if mode is None or stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o777 == mode:
            return
        if _ONLY_PATH:
            Path(f"/proc/self/fd/{descriptor}").chmod(mode)
        else:
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def new_owner(status: os.stat_result) -> tuple[int, int] | None:
    """Return the user and group for a new file in the folder of this status; None to leave it as it is.

    A gateway that runs as root must not leave files that the chat's commands cannot change.
    """
    return (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid else None


def give(descriptor: int, owner: tuple[int, int] | None) -> None:
    """Give an open file to a user and a group, if they are told. Raises `OSError`."""
    if owner is not None:
        os.fchown(descriptor, *owner)


def keep_rights(descriptor: int, old: os.stat_result) -> None:
    """Give a file the owner and the permissions of the one that it replaces, as far as the gateway may."""
    mode = old.st_mode & 0o777
    try:
        os.fchown(descriptor, old.st_uid if os.geteuid() == 0 else -1, old.st_gid)
    except PermissionError:
        mode = mode & ~0o070 | (mode & 0o007) << 3  # what others may, and no more, in the gateway's group
    os.fchmod(descriptor, mode)


# -- openat2: opening a folder below another one by a call that follows no link

OpenBelow = Callable[[int, str], int]

_NUMBER = 437  # the same on every architecture
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@cache
def find_openat2() -> OpenBelow | None:
    """Return a function that opens the folder at a relative path below a descriptor; None if the kernel has
    no openat2 or does not permit it.

    The function returns a descriptor and raises `OSError`: `ELOOP` for a link anywhere in the path, and
    `EXDEV` for a path that leads out.
    """
    if not sys.platform.startswith("linux"):
        return None  # another system has another call under this number, or ends the process for it
    import ctypes  # noqa: PLC0415 - not everyone needs it, and it takes a while to load

    class OpenHow(ctypes.Structure):
        _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    how = OpenHow(_FLAGS, 0, _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
    syscall = ctypes.CDLL(None, use_errno=True).syscall

    def open_below(parent: int, path: str) -> int:
        while True:
            found = syscall(_NUMBER, parent, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
            if found >= 0:
                return int(found)
            code = ctypes.get_errno()
            if code not in (errno.EINTR, errno.EAGAIN):  # EAGAIN: a rename went on beside it
                raise OSError(code, os.strerror(code))

    root = os.open("/", _FLAGS)
    try:
        os.close(open_below(root, "."))
    except OSError:
        return None
    finally:
        os.close(root)
    return open_below
