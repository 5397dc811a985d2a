"""The settings of the C library's allocator for a process that runs for months."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_LARGE_BYTES: Final = 512 << 10  # more than the buffer that asyncio reads a socket with
_SLACK_BYTES: Final = 8 << 20
_ARENAS: Final = 2


def return_large_blocks() -> bool:
    """Have the allocator give each block from 512 KiB on back to the system when it is freed.

    By itself glibc learns to keep larger and larger blocks, and holds up to twice the memory that is in use
    once long transcripts have come and gone. Return False where the C library has no such settings.
    """
    import ctypes  # noqa: PLC0415 - costs a start some milliseconds

    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        wanted = {_MMAP_THRESHOLD: _LARGE_BYTES, _TRIM_THRESHOLD: _SLACK_BYTES, _ARENA_MAX: _ARENAS}
        answers = [mallopt(key, value) for key, value in wanted.items()]
        return all(answers)
    return False
