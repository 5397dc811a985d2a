"""Protection against crashes: a quarantine for turns, a guard against fast restarts, and the end of a wedged
process."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from threading import Timer
from typing import NoReturn

import msgspec

from talaria.cluster.leases import LeaseKeeper, LeaseTiming
from talaria.core.backoff import Backoff
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import Poisoned, StoreError
from talaria.core.ids import OwnerId, new_owner_id
from talaria.core.ledger import BLAMED, blamed_turns
from talaria.core.limits import Limits
from talaria.core.tasks import Tasks, run_loops
from talaria.core.turns import Turn
from talaria.observe.health import Health
from talaria.observe.logs import write_queued
from talaria.observe.loop_watch import Holder, LoopWatch
from talaria.observe.metrics import Metrics
from talaria.store.store import Store, ThreadOrders
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.states import LiveState

_log = logging.getLogger("talaria.turns")
_restarts_log = logging.getLogger("talaria.restarts")
MAX_CRASHES = 3
"""A turn is given up after so many attempts that ended with their process."""
_SUSPECT_AFTER = MAX_CRASHES - 1
WATCHED_SECONDS = 3.0
_ALONE = "quarantine"  # the cursor with the suspect that started alone last


def is_suspect(turn: Turn) -> bool:
    """Return whether the turn will be given up after one more crash."""
    return crashes_of(turn) >= _SUSPECT_AFTER


def crashes_of(turn: Turn) -> int:
    return turn.attempts - turn.forgiven


class Quarantine:
    """Finds the turn that takes the process down without blaming the turns that ran beside it.

    Suspects start one at a time. A suspect that has run for `WATCHED_SECONDS` is cleared: its crashes no
    longer count. Then the next suspect may start. So a further crash meets only the turn that caused it, and
    the suspects behind it have not started. A turn that held the event loop is never cleared.

    The store notes whether a suspect starts alone, for the text if it crashes again.
    """

    def __init__(self, store: Store, clock: Clock, live: LiveTurns) -> None:
        self._store = store
        self._clock = clock
        self._live = live
        self._turnstile = asyncio.Lock()
        self._tasks = Tasks()
        self._alone: LiveTurn | None = None
        live.observe(self._note_company)

    async def enter(self, live: LiveTurn) -> None:
        """Wait while another suspect is watched; return at once for a turn that is no suspect.

        If the caller is cancelled, nothing is held. Raises `StoreError`; nothing is held then either.
        """
        if not is_suspect(live.turn) or crashes_of(live.turn) >= MAX_CRASHES:
            return  # it may run beside others, or it will not run at all
        await self._turnstile.acquire()
        try:
            is_alone = all(_cannot_run_beside(live, other) for other in self._live)
            await self._store.set_cursor(_ALONE, live.turn.id if is_alone else "")
        except BaseException:
            self._turnstile.release()
            raise
        self._alone = live if is_alone else None
        _log.warning("turn %s was running during earlier crashes, so it starts alone", live.turn.id)
        watching = self._tasks.start(self._watch(live), f"quarantine {live.turn.id}")
        watching.add_done_callback(self._let_next_in)

    async def verdict(self, turn: Turn) -> Poisoned:
        """Return why a turn is given up. Only a turn that crashed alone, or held the loop, is blamed."""
        tried, other_form = f"This message was tried {MAX_CRASHES} times", "Send it in another form."
        if turn.id in blamed_turns(await self._store.cursor(BLAMED)):
            return Poisoned(
                f"{tried}, it held up the whole gateway until that had to restart, and is not tried again.",
                other_form,
            )
        if await self._store.cursor(_ALONE) == turn.id:
            return Poisoned(
                f"{tried}, the gateway went down each time, in the end with no other message beside it, and "
                "it is not tried again.",
                other_form,
            )
        return Poisoned(
            f"{tried}, and each time the gateway went down or was held up before the answer was done; this "
            "message need not be the cause, but it is not tried again by itself.",
            "Send it again.",
        )

    def _let_next_in(self, watch: asyncio.Task[None]) -> None:
        self._alone = None
        self._turnstile.release()

    def _note_company(self, opened: LiveTurn) -> None:
        if self._alone is not None and not _cannot_run_beside(self._alone, opened):
            self._alone = None
            self._tasks.start(self._forget_alone(), "quarantine company")

    async def _forget_alone(self) -> None:
        try:
            await self._store.set_cursor(_ALONE, "")
        except StoreError as error:
            _log.error("it could not be noted that a suspect has company: %s", error)

    async def _watch(self, live: LiveTurn) -> None:
        """Clear the turn once it has run for long enough. A turn that waits for its lease does not run."""
        try:
            while (left := WATCHED_SECONDS - live.running_seconds()) > 0:
                timer = asyncio.ensure_future(self._clock.sleep(left))
                try:
                    await asyncio.wait((timer, live.settled), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    timer.cancel()
                if live.state.is_over or live.state is LiveState.PARKED:
                    return
            if live.turn.id not in blamed_turns(await self._store.cursor(BLAMED)):
                await self._store.forgive(live.turn.id)
        except StoreError as error:
            _log.error("turn %s could not be cleared: %s", live.turn.id, error)


def _cannot_run_beside(suspect: LiveTurn, other: LiveTurn) -> bool:
    """Return whether `other` does not run while `suspect` is watched: another suspect, a turn behind it in
    its chat, or one that waits for a person."""
    return (
        is_suspect(other.turn)
        or other.turn.chat_key == suspect.turn.chat_key
        or other.state is LiveState.PARKED
    )


WEDGED_STATUS = 70
"""The exit status of a process that left because its event loop was held for too long."""
_LAST_WORDS_SECONDS = 2.0


def leave_wedged(
    store: ThreadOrders,
    owner: OwnerId,
    seconds: float,
    holder: Holder | None,
    *,
    tell: Callable[[Holder, float], None] = lambda holder, seconds: None,
    last_words: float = _LAST_WORDS_SECONDS,
) -> NoReturn:
    """End this process at once, as `kill -9` would. Called in a thread, because the event loop is held.

    If a turn held the loop, the attempt counts for this turn only. Otherwise it counts for all that ran. The
    database and the log get `last_words` seconds each. The process also ends if the loop holds their locks.
    `tell` is told the holder, if it is known.
    """
    Timer(3 * last_words, os._exit, (WEDGED_STATUS,)).start()
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
        if holder is not None:
            tell(holder, seconds)
        if turn_id is not None:
            store.blame(owner, turn_id, last_words)
    except (StoreError, OSError) as error:
        _log.error("%s could not be blamed: %s", turn_id or "the holder", error)
    finally:
        write_queued(last_words)
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
    whatever kind, does not count as another unclean one. Of several gateways on one database, each counts
    the starts in its own `place`.
    """

    def __init__(self, store: Store, clock: Clock, longest: float, place: str = "") -> None:
        self._cursor = f"{_CURSOR}:{place}" if place else _CURSOR
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
        await self._store.set_cursor(self._cursor, msgspec.json.encode(starts[-_KEPT:]).decode())

    async def leave(self) -> None:
        """Forget all starts, after a clean end."""
        await self._store.set_cursor(self._cursor, "[]")

    async def _recent(self) -> list[float]:
        now = self._clock.now()
        try:
            starts = _decode(await self._store.cursor(self._cursor) or "[]")
        except msgspec.DecodeError:
            return []
        return [start for start in starts if now - _WINDOW < start <= now]


# -- the leases of a process and the watch over its event loop, which are opened together -----------------


@asynccontextmanager
async def keep_leases(
    store: Store,
    clock: Clock,
    timing: LeaseTiming,
    *,
    limits: Limits,
    metrics: Metrics,
    health: Health,
    blame: Callable[[Holder, float], None] = lambda holder, seconds: None,
) -> AsyncIterator[tuple[LeaseKeeper, LoopWatch]]:
    """Watch the event loop, and renew leases in a thread. A thread follows no clock but the system's.

    `blame` is called in a thread with the code that held the loop for long, and for how many seconds.
    """
    keeper = LeaseKeeper(store, clock, new_owner_id(), timing.lease_seconds)
    leave = partial(leave_wedged, store.from_thread, keeper.owner, timing.wedged_seconds, tell=blame)
    loop = asyncio.get_running_loop()

    def on_blocked(holder: Holder, seconds: float) -> None:
        loop.run_in_executor(None, blame, holder, seconds)

    watch = LoopWatch(
        limits,
        metrics,
        on_wedged=leave,
        wedged_seconds=timing.wedged_seconds,
        on_blocked=on_blocked,
    )
    health.watch("loop", watch.load.trouble)
    if not isinstance(clock, SystemClock):
        async with run_loops(clock, {"leases": keeper.run}):
            yield keeper, watch
        return
    watch.begin_start()
    watch.start()
    try:
        renewing = partial(keeper.run_beside, store.from_thread, lambda: not watch.is_wedged)
        async with run_loops(clock, {"leases": renewing}):
            yield keeper, watch
    finally:
        watch.stop()
