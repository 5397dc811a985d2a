"""Protection against crashes: a quarantine for turns, a guard against fast restarts, and the end of a wedged
process."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.errors import StoreError
from talaria.core.ids import OwnerId
from talaria.core.store_ports import Store, ThreadStore
from talaria.core.turns import Turn
from talaria.observe.logs import write_queued
from talaria.observe.loop_watch import Holder
from talaria.turns.live import LiveTurn
from talaria.turns.states import LiveState

_log = logging.getLogger("talaria.turns")
_restarts_log = logging.getLogger("talaria.restarts")
MAX_CRASHES = 3
"""A turn is given up after so many attempts that ended with their process."""
_SUSPECT_AFTER = MAX_CRASHES - 1
WATCHED_SECONDS = 3.0


def is_suspect(turn: Turn) -> bool:
    """Return whether the turn will be given up after one more crash."""
    return turn.attempts - turn.forgiven >= _SUSPECT_AFTER


class Quarantine:
    """Finds the turn that takes the process down without blaming the turns that ran beside it.

    Suspects start one at a time. A suspect that still runs after `WATCHED_SECONDS` is cleared: its crashes no
    longer count. Then the next suspect may start. So a further crash meets only the turn that caused it, and
    the suspects behind it have not started.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._turnstile = asyncio.Lock()
        self._watches: set[asyncio.Task[None]] = set()

    async def enter(self, live: LiveTurn) -> None:
        """Wait while another suspect is watched; return at once for a turn that is no suspect.

        If the caller is cancelled, nothing is held.
        """
        if not is_suspect(live.turn):
            return
        await self._turnstile.acquire()
        _log.warning("turn %s was running during earlier crashes, so it starts alone", live.turn.id)
        watch = asyncio.create_task(self._watch(live), name=f"quarantine {live.turn.id}")
        self._watches.add(watch)
        watch.add_done_callback(self._let_next_in)

    def drain(self) -> None:
        """Stop watching; nothing is started any more."""
        for watch in list(self._watches):
            watch.cancel()

    def _let_next_in(self, watch: asyncio.Task[None]) -> None:
        self._watches.discard(watch)
        self._turnstile.release()

    async def _watch(self, live: LiveTurn) -> None:
        timer = asyncio.ensure_future(self._clock.sleep(WATCHED_SECONDS))
        try:
            await asyncio.wait((timer, live.settled), return_when=asyncio.FIRST_COMPLETED)
            if not live.state.is_over and live.state is not LiveState.PARKED:
                await self._store.forgive(live.turn.id)
        except StoreError as error:
            _log.error("turn %s could not be cleared: %s", live.turn.id, error)
        finally:
            timer.cancel()


WEDGED_STATUS = 70
"""The exit status of a process that left because its event loop was held for too long."""
_LAST_WORDS_SECONDS = 2.0


def leave_wedged(store: ThreadStore, owner: OwnerId, seconds: float, holder: Holder | None) -> NoReturn:
    """End this process at once, as `kill -9` would. Called in a thread, because the event loop is held.

    If a turn held the loop, the attempt counts for this turn only. Otherwise it counts for all that ran.
    """
    turn_id = None if holder is None else holder.turn_id
    _log.critical(
        "the event loop was held for %g s, so the gateway leaves with status %d; the next start takes its "
        "turns up. Held by %s",
        seconds,
        WEDGED_STATUS,
        holder,
        extra={} if turn_id is None else {"turn_id": turn_id},
    )
    try:
        if turn_id is not None:
            store.blame(owner, turn_id, _LAST_WORDS_SECONDS)
    except StoreError as error:
        _log.error("turn %s could not be blamed: %s", turn_id, error)
    finally:
        write_queued(_LAST_WORDS_SECONDS)
        os._exit(WEDGED_STATUS)


_CURSOR = "restarts"
_WINDOW = 600.0
_FREE_STARTS = 3
_FIRST_PAUSE = 1.0
_KEPT = 20
_decode = msgspec.json.Decoder(list[float]).decode


def pause_before(starts: Sequence[float], now: float, longest: float) -> float:
    """Return the seconds to wait after starts at these times, none of which ended cleanly.

    Three starts within ten minutes are free; then the pause is one second, and doubles up to `longest`.
    """
    recent = sum(now - _WINDOW < start <= now for start in starts)
    return Backoff(_FIRST_PAUSE, longest).pause(recent - _FREE_STARTS + 1)


class RestartGuard:
    """Lets a gateway that dies again and again wait longer before each start, and says why.

    Every start is recorded when its turns begin to run, and a clean end deletes the record. So a full disk, a
    lack of memory or an eager supervisor is not met a hundred times a minute. An end during the pause, of
    whatever kind, does not count as another unclean one.
    """

    def __init__(self, store: Store, clock: Clock, longest: float) -> None:
        self._store = store
        self._clock = clock
        self._longest = longest
        self._reason: str | None = None

    def trouble(self) -> str | None:
        """Return why turns do not run yet, for `Health`; None if there is no pause."""
        return self._reason

    async def seconds(self) -> float:
        """Return how long this start has to wait before its turns run."""
        starts = await self._recent()
        return pause_before(starts, self._clock.now(), self._longest)

    async def wait(self, seconds: float) -> None:
        count = len(await self._recent())
        self._reason = (
            f"the last {count} starts within ten minutes did not end cleanly, so turns wait {seconds:g} s "
            "before they run; messages are accepted"
        )
        _restarts_log.warning(
            "%s. The log before each end has the cause; shutdown.restart_pause sets the longest wait.",
            self._reason,
        )
        await self._clock.sleep(seconds)
        self._reason = None

    async def enter(self) -> None:
        """Record this start, before its turns run."""
        starts = [*await self._recent(), self._clock.now()]
        await self._store.set_cursor(_CURSOR, msgspec.json.encode(starts[-_KEPT:]).decode())

    async def leave(self) -> None:
        """Forget all starts, after a clean end."""
        await self._store.set_cursor(_CURSOR, "[]")

    async def _recent(self) -> list[float]:
        now = self._clock.now()
        try:
            starts = _decode(await self._store.cursor(_CURSOR) or "[]")
        except msgspec.DecodeError:
            return []
        return [start for start in starts if now - _WINDOW < start <= now]
