"""The leases of a process and the watch over its event loop, which are opened together: a loop that is held
for too long gives its leases up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from talaria.cluster.leases import LeaseKeeper, LeaseTiming
from talaria.core.clock import Clock, SystemClock
from talaria.core.ids import new_owner_id
from talaria.core.limits import Limits
from talaria.core.tasks import run_loops
from talaria.observe.health import Health
from talaria.observe.loop_watch import Holder, LoopWatch
from talaria.observe.metrics import Metrics
from talaria.store.store import Store
from talaria.turns.crashes import leave_wedged


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
