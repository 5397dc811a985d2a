"""Small files that are written as a whole, so that no reader sees a part of one."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the file as a whole, or not at all."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(6)}")
    try:
        write_new(fresh, data, mode)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


@contextmanager
def changing_files(folder: Path) -> Iterator[None]:
    """Let one writer at a time, of all threads and processes, read files of this folder and replace them.
    Blocks while another one does. Raises `OSError`."""
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a new file that has `mode` from its first byte on. Raises `FileExistsError`."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
