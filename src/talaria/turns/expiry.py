"""Sessions that end by themselves: a pure rule of when, and the sweep that ends them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time, timedelta, tzinfo

from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.core.ports import Store
from talaria.core.tasks import finish
from talaria.turns.settings import SessionSettings


def reset_cutoff(settings: SessionSettings, now: float, zone: tzinfo | None) -> float:
    """A session that was last used before this moment has expired; 0 when sessions never do.

    `zone` None is the machine's own. A daily time that a change of clocks leaves out counts as the moment
    behind the gap; one that comes twice counts the first time.
    """
    cutoff = 0.0
    if settings.reset in ("idle", "both"):
        cutoff = max(cutoff, now - settings.idle_after.total_seconds())
    if settings.reset in ("daily", "both"):
        cutoff = max(cutoff, _latest_daily(time.fromisoformat(settings.daily_at), now, zone))
    return cutoff


def _latest_daily(at: time, now: float, zone: tzinfo | None) -> float:
    today = datetime.fromtimestamp(now, zone).date()
    for days in range(3):
        moment = datetime.combine(today - timedelta(days=days), at, zone).timestamp()
        if moment <= now:
            return moment
    raise AssertionError("one of the last three days had this time")


class Expiry:
    """Ends what has expired, also when nobody writes. A session of which a turn runs or waits is never it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cutoff: Callable[[], float],
        on_end: Callable[[SessionId], None],
        sweep_seconds: float = 60.0,
    ) -> None:
        """`on_end` is called once for each session that ends here."""
        self._store = store
        self._clock = clock
        self._cutoff = cutoff
        self._on_end = on_end
        self._sweep_seconds = sweep_seconds

    async def run(self) -> None:
        while True:
            await self.sweep()
            await self._clock.sleep(self._sweep_seconds)

    async def sweep(self) -> int:
        """How many ended."""
        total = 0
        cutoff = self._cutoff()
        while cutoff and (ended := await finish(self._end_some(cutoff))):
            total += ended
        return total

    async def _end_some(self, cutoff: float) -> int:
        ended = await self._store.end_unused(cutoff)
        for session_id in ended:
            self._on_end(session_id)
        return len(ended)
