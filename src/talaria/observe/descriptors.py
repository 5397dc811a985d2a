"""The file descriptors of this process: how many it may open, and how many are open."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST: Final = 65_536  # a larger limit costs programs that close all descriptors one by one
_FOLDERS: Final = (Path("/proc/self/fd"), Path("/dev/fd"))


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open, at most `MOST`."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if soft == resource.RLIM_INFINITY else min(soft, MOST)


def raise_descriptor_limit() -> int:
    """Raise the limit of this process as far as the system lets it, and return it. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY:
        return MOST
    while most > soft:
        with suppress(ValueError, OSError):  # some systems, such as macOS, have a lower limit than they tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            break
        most //= 2
    return descriptor_limit()


def count_descriptors() -> int:
    """Return how many descriptors are open, or 0 where the system does not tell."""
    for folder in _FOLDERS:
        with suppress(OSError):
            return sum(1 for _ in folder.iterdir()) - 1  # without the one that lists them
    return 0
