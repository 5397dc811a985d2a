"""The clock of the database, which all gateways on it share."""

from __future__ import annotations

import asyncio

from talaria.core.clock import Clock, SystemClock

_LONGEST_TRIP = 0.25  # seconds; a slower answer says too little about the time
_MOST_AGE = 60.0  # seconds after which a slow answer is better than none


class ServerClock:
    """Tells the database's time: this machine's clock of elapsed time, plus what the server's was ahead of it
    when it was last asked. It is wrong by half a round trip at most. This machine's wall clock has no part in
    it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._ahead: float | None = None
        self._asked_at = 0.0

    def now(self) -> float:
        return self._clock.elapsed() + (self._ahead or 0.0)

    def elapsed(self) -> float:
        return self._clock.elapsed()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def note(self, asked_at: float, told: float) -> None:
        """Take up the server's time, which was asked for at `asked_at` by `elapsed`."""
        now = self._clock.elapsed()
        trip = now - asked_at
        if self._ahead is None or trip <= _LONGEST_TRIP or now - self._asked_at > _MOST_AGE:
            self._ahead, self._asked_at = told - (asked_at + now) / 2, now
