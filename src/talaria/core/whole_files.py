"""Small files that are written as a whole, so that no reader sees a part of one, and locks between processes.

Everything here blocks and raises `OSError`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o600, *, is_durable: bool = True) -> None:
    """Replace the file as a whole, or not at all. A kill can leave a file whose name begins with a dot. With
    `is_durable` the content is on the disk before it gets the name."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        write_new(fresh, data, mode, is_durable=is_durable)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def write_new(path: Path, data: bytes, mode: int = 0o600, *, is_durable: bool = True) -> None:
    """Write a new file that has `mode` from its first byte on. Raises `FileExistsError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        if is_durable:
            file.flush()
            os.fsync(descriptor)


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_file(path: Path, *, waits: bool = True) -> Iterator[bool]:
    """Lock a file, which is created if it is missing, against all other threads and processes.

    Blocks while another one has the lock; without `waits` it yields False instead. The kernel releases the
    lock when its process ends.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)
