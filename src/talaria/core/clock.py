"""Time as a port, so that tests turn the hands themselves."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Wall time, in seconds since the epoch."""
        ...

    def elapsed(self) -> float:
        """Seconds that never jump and go on while the machine sleeps; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks. `elapsed` is CLOCK_BOOTTIME where there is one: leases must age in suspend."""

    def now(self) -> float:
        return time.time()

    def elapsed(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
