"""`Scheduler`: one timer for the next instant of all jobs.

It sleeps until the earliest instant, which the store finds by index, so a stored job costs nothing until it
is due. The wall clock can jump and a machine can sleep, so it looks at the clock twice a minute. Several
schedulers may work on one store: each move is a transaction that one of them wins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import tzinfo
from typing import Final

import msgspec

from talaria.core.access import OWNER
from talaria.core.clock import Clock
from talaria.core.errors import HeadMoved, NotFound, StaleFence, StoreError, TalariaError
from talaria.core.failpoints import Failpoint, hit
from talaria.core.ids import ChatAddress, JobId, OwnerId
from talaria.core.jobs import (
    CLAIM_SECONDS,
    NOWHERE,
    AddJob,
    ClaimedSlot,
    ClaimSlots,
    EditJob,
    Every,
    Job,
    JobOrigin,
    JobPlan,
    JobState,
    Missed,
    RewindJob,
    SessionMode,
    SettleSlot,
    SlotState,
)
from talaria.core.ledger import Page
from talaria.core.tasks import finish, sleep_until_woken, stop
from talaria.core.turns import Sender
from talaria.core.units import parse_duration
from talaria.jobs.schedules import (
    is_lost,
    next_instant,
    plan_slots,
    replan,
    rules_version,
    zone_name,
    zone_of,
)
from talaria.jobs.settings import HeartbeatSettings, JobSettings
from talaria.observe.metrics import Metrics
from talaria.store.store import JobStore, Store

_log = logging.getLogger("talaria.jobs")

TICK_SECONDS = CLAIM_SECONDS / 2  # between two looks at the clock, and two renewals of claims
_LOOK_SECONDS = 300.0  # between two looks at the store, for jobs that another process has written
_BLOCKED_SECONDS = 2.0  # between two looks while slots wait for a run to end
_BATCH = 200
_RULES = "jobs.zones"  # the cursor with the rules by which the stored instants were computed


class Scheduler(msgspec.Struct, eq=False):
    """Starts the runs of jobs that have come. `run` goes on until it is cancelled.

    `start` makes the turn of a slot and returns once it is accepted, or settles the slot without a turn. The
    turn is accepted with `Accept.claim`, so that its end settles the slot in the finishing transaction. The
    scheduler renews the claim until `start` returns. `StaleFence` means that another process runs the slot.
    After any other exception the slot fails, with the error's text as its reason, and is tried again as the
    plan says.

    `sheds` tells whether runs have to wait now; reminders are sent all the same. On cancellation the claims
    of runs that have not begun are given back.
    """

    _jobs: JobStore
    _start_run: Callable[[ClaimedSlot], Awaitable[None]]
    _clock: Clock
    _owner: OwnerId
    settings: Callable[[], JobSettings]
    zone: tzinfo
    sheds: Callable[[], bool] = lambda: False
    metrics: Metrics | None = None
    _woken: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _starting: dict[asyncio.Task[None], ClaimedSlot] = {}

    async def run(self, look_too: Callable[[], Awaitable[None]] | None = None) -> None:
        """Look whenever something may be due. `look_too` is called before each look."""
        unwatch = self._jobs.bell.watch(self._woken.set)
        try:
            while True:
                self._woken.clear()
                if look_too is not None:
                    await look_too()
                await self._rest(await self.look())
        finally:
            unwatch()
            await self._let_go()

    async def look(self) -> float | None:
        """Write, claim and start everything that is due. Return the next instant, None if there is none."""
        await self._rewind()
        await self._advance()
        now = self._clock.now()
        following = await self._jobs.next_due(now)
        # A time that has passed is that of a claim which has become void.
        if (following is not None and following <= now) or await self._jobs.is_waiting(now):
            await self._claim()
            following = await self._jobs.next_due(now)
            if await self._jobs.is_waiting(now):
                blocked_until = now + _BLOCKED_SECONDS
                following = blocked_until if following is None else min(following, blocked_until)
        return following

    async def settle_started(self) -> None:
        """Wait until every run that was claimed here has its turn, or has failed to get one."""
        while self._starting:
            await asyncio.wait(tuple(self._starting))

    async def _rewind(self) -> None:
        """Set jobs back that have passed slots of the future."""
        now = self._clock.now()
        while ahead := await self._jobs.ahead_of(now, _BATCH):
            orders = []
            for job in ahead:
                zone = zone_of(job.plan, self.zone)
                if (instant := next_instant(job.plan.schedule, zone, now)) is not None:
                    orders.append(RewindJob(job.id, job.version, instant))
            if not await self._jobs.rewind(orders) or len(ahead) < _BATCH:
                return

    async def _advance(self) -> None:
        """Write the slots that are due. Those that were missed together are due at the same time, also if it
        takes several batches to write them."""
        now = self._clock.now()
        while True:
            jobs = await self._jobs.due(now, _BATCH)
            if not jobs:
                return
            lost = [job for job in jobs if is_lost(job.plan)]
            for job in lost:
                await self._pause(job, f"this machine has no time zone {job.plan.zone!r}")
            known = [job for job in jobs if job not in lost]
            plans = plan_slots(known, now, self.settings().late, self.zone)
            if not await self._jobs.advance(plans) and not lost:
                return
            hit(Failpoint.SLOTS_WRITTEN)

    async def _pause(self, job: Job, reason: str) -> None:
        _log.error("the job %s is paused: %s", job.id, reason)
        try:
            await self._jobs.edit(EditJob(job.id, job.version, job.plan, JobState.PAUSED, None, reason))
        except (HeadMoved, NotFound):  # a person, or another process, has changed it meanwhile
            _log.info("the job %s was changed meanwhile", job.id)

    async def _claim(self) -> None:
        while True:
            order = ClaimSlots(self._owner, 0 if self.sheds() else self.settings().max_running)
            claimed = await self._jobs.claim(order)
            for one in claimed:
                hit(Failpoint.SLOT_CLAIMED)
                if self.metrics is not None:
                    self.metrics.job_started(self._clock.now() - one.slot.due_at)
                task = asyncio.create_task(self._start(one), name=f"job {one.slot.id}")
                self._starting[task] = one
                task.add_done_callback(self._forget)
            if len(claimed) < order.limit:
                return

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._starting.pop(task, None)

    async def _start(self, claimed: ClaimedSlot) -> None:
        try:
            await self._start_run(claimed)
        except asyncio.CancelledError:
            await self._settle(claimed, SlotState.DUE, "")
            raise
        except StaleFence:
            _log.info("slot %s is run by another process", claimed.slot.id)
        except TalariaError as error:
            _log.warning("slot %s could not be run: %s", claimed.slot.id, error.user_text)
            await self._settle(claimed, SlotState.FAILED, error.user_text)
        except Exception:
            _log.exception("slot %s could not be run", claimed.slot.id)
            await self._settle(claimed, SlotState.FAILED, "an error of the gateway, see its log")

    async def _settle(self, claimed: ClaimedSlot, state: SlotState, reason: str) -> None:
        """End a slot that has no turn. One that has a turn is settled by it."""
        try:
            await finish(self._jobs.settle(SettleSlot(claimed.slot.claim, state, reason)))
        except StoreError as error:
            _log.info("slot %s is not settled here: %s", claimed.slot.id, error.user_text)

    async def _rest(self, until: float | None) -> None:
        """Sleep until an instant or until the bell rings. Claims are renewed meanwhile, and the store is
        looked at if the clock was set."""
        look_at, before = self._clock.elapsed() + _LOOK_SECONDS, self._clock.now()
        while not self._woken.is_set() and self._clock.elapsed() < look_at:
            now = self._clock.now()
            if (until is not None and until <= now) or now < before - 1:
                return
            before = now
            left = TICK_SECONDS if until is None else min(TICK_SECONDS, until - now)
            await sleep_until_woken(self._clock, left, self._woken)
            if self._starting:
                await self._jobs.renew([one.slot.claim for one in self._starting.values()])

    async def _let_go(self) -> None:
        await stop(*self._starting)


async def follow_rules(store: Store, clock: Clock, zone: tzinfo) -> None:
    """Compute the instants of all jobs anew if the rules of time zones, or the agent's zone, have changed
    since a scheduler last started on this store."""
    rules = f"{rules_version()} {zone_name(zone)}"
    known = await store.cursor(_RULES)
    if known == rules:
        return
    if known is not None:
        moved = await replan_all(store.jobs, clock, zone)
        _log.info("the rules of time zones have changed (%s); %d jobs have moved", rules, moved)
    await store.set_cursor(_RULES, rules)


async def replan_all(jobs: JobStore, clock: Clock, zone: tzinfo) -> int:
    """Compute the instants of all jobs anew, because the rules of time zones have changed since they were
    stored. Return how many have moved. A page at a time, so that other work goes on."""
    moved, page = 0, Page(_BATCH)
    while True:
        found = await jobs.listing(page)
        for job in found.items:
            if (edit := replan(job, zone, clock.now())) is not None:
                try:
                    await jobs.edit(edit)
                    moved += 1
                except TalariaError:
                    continue  # it was changed meanwhile, by the rules of today
        if found.next is None:
            return moved
        page = Page(_BATCH, found.next)


# -- the heartbeat: a job like any other, kept for the gateway's owner while `jobs.heartbeat.every` is ----


HEARTBEAT: Final = JobId("job_heartbeat")
_NO_LIMIT: Final = 1 << 30


async def keep_heartbeat(jobs: JobStore, clock: Clock, agent: str, settings: HeartbeatSettings) -> None:
    """Add, change or remove the job so that it is as configured. One that a person paused stays paused."""
    now = float(round(clock.now()))
    job = await jobs.find(HEARTBEAT)
    if not settings.every:
        if job is not None:
            await jobs.remove(HEARTBEAT)
        return
    seconds = round(parse_duration(settings.every).total_seconds())
    plan = JobPlan(
        settings.text,
        Every(seconds, now),
        "",
        name="heartbeat",
        session=SessionMode.SAME,
        to=settings.to or NOWHERE,
        missed=Missed.SKIP,
    )
    if job is None:
        chat = ChatAddress(agent, "http", "api", "heartbeat").key()
        origin = JobOrigin(OWNER, chat, Sender("api", "API", is_operator=True))
        await jobs.add(AddJob(HEARTBEAT, origin, plan, now + seconds, _NO_LIMIT))
        return
    old = job.plan.schedule
    if isinstance(old, Every) and old.seconds == seconds:
        plan = msgspec.structs.replace(plan, schedule=old)
    if plan != job.plan:
        next_at = None if job.state is JobState.PAUSED else now + seconds
        await jobs.edit(EditJob(HEARTBEAT, job.version, plan, job.state, next_at, "the job was edited"))
