"""Whether the gateway is ready, and the reasons why it is not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from talaria.core.errors import StoreError

T = TypeVar("T")

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STORE_SECONDS: Final = 2.0  # to wait for the database
_STORE_SECONDS_IN_TROUBLE: Final = 0.25


class GatewayPhase(StrEnum):
    """The phases of a gateway, in order. A gateway never returns to an earlier phase."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Readiness(msgspec.Struct, frozen=True):
    """The answer of /readyz, with the reasons that only /api/status shows. `troubles` names the checks that
    report one."""

    is_ready: bool
    phase: GatewayPhase
    reasons: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


_ORDER = tuple(GatewayPhase)
_REASONS = {
    GatewayPhase.STARTING: "turns do not run yet",
    GatewayPhase.DRAINING: "the gateway is shutting down",
}


class Health:
    """The gateway is ready in the phase `ready` while no check reports trouble."""

    def __init__(self) -> None:
        self._phase = GatewayPhase.STARTING
        self._checks: dict[str, Callable[[], str | None]] = {}
        self._answers: dict[str, Any] = {}

    @property
    def phase(self) -> GatewayPhase:
        return self._phase

    def enter(self, phase: GatewayPhase) -> None:
        """Move on to `phase`. An earlier phase is ignored, so that a late start cannot undo a drain."""
        if _ORDER.index(phase) > _ORDER.index(self._phase):
            self._phase = phase

    def watch(self, name: str, check: Callable[[], str | None]) -> None:
        """Add a check. `readiness` calls it; it returns its trouble, or None."""
        self._checks[name] = check

    def readiness(self) -> Readiness:
        reasons = [_REASONS[self._phase]] if self._phase in _REASONS else []
        found = ((name, check()) for name, check in sorted(self._checks.items()))
        troubles = {name: trouble for name, trouble in found if trouble is not None}
        reasons += [f"{name}: {trouble}" for name, trouble in troubles.items()]
        return Readiness(not reasons, self._phase, tuple(reasons), tuple(troubles))

    async def ask_store(self, name: str, ask: Callable[[], Awaitable[T]], first: T) -> T:
        """Return the database's answer. If the database does not answer in time or fails, return its last
        answer under this name, or `first` if there is none. The wait is short while there is trouble."""
        seconds = _STORE_SECONDS if self.readiness().is_ready else _STORE_SECONDS_IN_TROUBLE
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(seconds):
                self._answers[name] = await ask()
        known: T = self._answers.get(name, first)
        return known


def read_rss() -> int:
    """Return the resident bytes of this process, or 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


# -- the settings of the C library's allocator for a process that runs for months -------------------------


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


# -- the file descriptors of this process: how many it may open, and how many are open --------------------


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
