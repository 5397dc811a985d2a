"""The clock port. Tests use a fake clock that they advance themselves."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final, Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return the wall time in seconds since the epoch. It can jump."""
        ...

    def elapsed(self) -> float:
        """Return seconds that never jump and also count in suspend. Only differences have a meaning."""
        ...

    async def sleep(self, seconds: float) -> None: ...


HELD_SHARE: Final = 2 / 3
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks. `elapsed` is CLOCK_BOOTTIME where it exists, since leases must age in suspend."""

    now = staticmethod(time.time)
    elapsed = staticmethod(partial(time.clock_gettime, _BOOTTIME))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def held_until(asked_at: float, lease_seconds: float) -> float:
    """Return when the holder of a lease must stop: after two thirds of the lease, counted from when the last
    successful request for it *began*. The database frees the lease later, whatever the request took.

    Both times are those of `Clock.elapsed`.
    """
    return asked_at + lease_seconds * HELD_SHARE
