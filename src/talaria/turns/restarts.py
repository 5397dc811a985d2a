"""A gateway that dies again and again: it waits longer before each start, and says why.

Every start is noted, and a clean end forgets them all. A start that follows several which did not end
cleanly waits before it takes up turns, so that whatever kills it (a full disk, a lack of memory, a supervisor
in a hurry) is not met a hundred times a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from talaria.core.clock import Clock
from talaria.core.ports import Store

_log = logging.getLogger("talaria.restarts")
_CURSOR = "restarts"
_WINDOW = 600.0
_FREE_STARTS = 3
_KEPT = 20
_decode = msgspec.json.Decoder(list[float]).decode


def pause_before(starts: Sequence[float], now: float, longest: float) -> float:
    """Seconds to wait, after starts at these times that all ended badly: none for three within ten minutes,
    then one second, and twice as long each time up to `longest`."""
    recent = sum(now - _WINDOW < start <= now for start in starts)
    return min(longest, 2.0 ** (recent - _FREE_STARTS)) if recent >= _FREE_STARTS else 0.0


class RestartGuard:
    """`enter` before turns are taken up, `leave` after a clean end."""

    def __init__(self, store: Store, clock: Clock, longest: float) -> None:
        self._store = store
        self._clock = clock
        self._longest = longest

    async def enter(self) -> None:
        now = self._clock.now()
        starts = [start for start in await self._read() if now - _WINDOW < start <= now][-_KEPT:]
        await self._store.set_cursor(_CURSOR, msgspec.json.encode([*starts, now]).decode())
        seconds = pause_before(starts, now, self._longest)
        if seconds:
            _log.warning(
                "the last %d starts within ten minutes did not end cleanly, so this one waits %g s before it "
                "takes up turns. The log before each end has the cause; shutdown.restart_pause sets how long "
                "it waits at most.",
                len(starts),
                seconds,
            )
            await self._clock.sleep(seconds)

    async def leave(self) -> None:
        await self._store.set_cursor(_CURSOR, "[]")

    async def _read(self) -> list[float]:
        try:
            return _decode(await self._store.cursor(_CURSOR) or "[]")
        except msgspec.DecodeError:
            return []
