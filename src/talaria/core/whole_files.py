"""Small files that are written as a whole, so that no reader sees a part of one."""

from __future__ import annotations

import os
import secrets
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


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a new file that has `mode` from its first byte on. Raises `FileExistsError`."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
