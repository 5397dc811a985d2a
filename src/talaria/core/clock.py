"""The clock port. Tests use a fake clock that they advance themselves."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return the wall time in seconds since the epoch. It can jump."""
        ...

    def elapsed(self) -> float:
        """Return seconds that never jump and also count in suspend. Only differences have a meaning."""
        ...

    async def sleep(self, seconds: float) -> None: ...


_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks. `elapsed` is CLOCK_BOOTTIME where it exists, since leases must age in suspend."""

    now = staticmethod(time.time)
    elapsed = staticmethod(partial(time.clock_gettime, _BOOTTIME))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
