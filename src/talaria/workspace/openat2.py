"""Opening a folder below another by one call of Linux that follows no link: openat2."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache

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
