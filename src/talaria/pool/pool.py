"""The warm pool: agents in memory, leased one turn at a time.

An agent is busy while it is leased. State changes between awaits only; while a slot is BUILDING or BUSY, its
holder may build or catch up. Every agent that leaves goes through `_forget`: the slot and the counters change
first, then the closer lets the agent give back what it holds, beside the turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from talaria.agent.warm import AgentBuilder, WarmAgent
from talaria.core.clock import Clock
from talaria.core.entries import Revision
from talaria.core.ids import ChatKey, SessionId, SpecId
from talaria.core.tasks import Closer
from talaria.observe.metrics import PoolCounters, PoolReading
from talaria.pool.policy import AgentState, AgentView, Cause, PoolLimits, plan_eviction

if TYPE_CHECKING:
    from talaria.workspace.workspaces import ChatWorkspace

_log = logging.getLogger("talaria.pool")
RELEASE_SECONDS = 5.0
_QUIET_SECONDS = 60.0  # an episode over the cap is over when the pool was within it for so long


class Wanted(msgspec.Struct, frozen=True):
    """The agent that a turn needs: of this session, under this spec, at this revision or later."""

    session_id: SessionId
    chat_key: ChatKey
    spec_id: SpecId
    revision: Revision


class AgentStats(msgspec.Struct, frozen=True):
    session_id: SessionId
    chat_key: ChatKey
    state: AgentState
    bytes: int
    idle_seconds: float
    revision: str


class PoolStats(msgspec.Struct, frozen=True):
    """`closing` counts agents that left and still give back what they held, `dropped` those that did not
    finish that in time, since the start."""

    cap: int
    size: int
    busy: int
    building: int
    bytes: int
    max_bytes: int
    agents: tuple[AgentStats, ...]
    counters: PoolCounters
    closing: int
    dropped: int

    def reading(self) -> PoolReading:
        """Return the figures for the metrics."""
        return PoolReading(self.size, self.busy, self.building, self.bytes, self.counters)


class _Slot:
    """The place of one session's agent. `agent` is None only while it is being built."""

    __slots__ = ("agent", "chat_key", "is_leaving", "last_used", "rebuilt", "size", "state", "waiters")

    def __init__(self, chat_key: ChatKey, now: float) -> None:
        self.chat_key = chat_key
        self.state = AgentState.BUILDING
        self.agent: WarmAgent | None = None
        self.last_used = now
        self.size = 0
        self.is_leaving = False
        self.rebuilt = ""  # the reason of the last rebuild
        self.waiters: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class _Lease:
    """The context manager of a lease. A class, because a generator would cost more than the lease itself."""

    __slots__ = ("_pool", "_slot", "_wanted")

    def __init__(self, pool: Pool, wanted: Wanted) -> None:
        self._pool = pool
        self._wanted = wanted
        self._slot: _Slot | None = None

    async def __aenter__(self) -> WarmAgent:
        slot = self._slot = await self._pool._take(self._wanted)
        assert slot.agent is not None
        return slot.agent

    async def __aexit__(self, *_: object) -> None:
        assert self._slot is not None
        self._pool._give_back(self._wanted.session_id, self._slot)


class Pool:
    """`async with pool.lease(wanted) as agent:` is the API.

    A leased agent is never released: `release` and `drain` of a busy one take effect when its lease ends.
    A failed turn keeps its agent; a failed or cancelled build leaves nothing behind.
    """

    def __init__(self, builder: AgentBuilder, limits: PoolLimits, clock: Clock) -> None:
        self._builder = builder
        self._limits = limits
        self._clock = clock
        self._slots: OrderedDict[SessionId, _Slot] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._within_cap_since: float | None = -_QUIET_SECONDS  # None while over it
        self._closer = Closer(clock, RELEASE_SECONDS, "the agent", _log)
        self.counters = PoolCounters()

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<Pool {stats.size}/{stats.cap} agents, {stats.busy} busy, {stats.bytes} bytes>"

    def lease(self, wanted: Wanted) -> _Lease:
        """Lease the session's agent exclusively, built or caught up to `wanted.revision`.

        Entering waits while another turn has the agent. It raises what building raises; nothing is held then.
        """
        return _Lease(self, wanted)

    def release(self, session_id: SessionId) -> None:
        """Let the agent leave memory: now if it is idle, at the end of its lease otherwise."""
        slot = self._slots.get(session_id)
        if slot is None:
            return
        slot.is_leaving = True
        if slot.state is AgentState.IDLE:
            self._release([session_id])

    async def drain(self) -> None:
        """Release idle agents now, and busy ones when their leases end. Return when the released agents have
        given back what they held, or were dropped."""
        for session_id in list(self._slots):
            self.release(session_id)
        await self._closer.drain()

    def change_limits(self, limits: PoolLimits) -> None:
        """Use other limits from now on. Idle agents beyond them leave now, busy ones after their lease."""
        self._limits = limits
        self.sweep()

    def sweep(self) -> int:
        """Apply the limits now and return how many agents left."""
        return self._evict()

    async def run(self) -> None:
        """Sweep regularly, until cancelled."""
        while True:
            await self._clock.sleep(min(30.0, max(1.0, self._limits.idle_ttl / 4)))
            self.sweep()

    def stats(self) -> PoolStats:
        now = self._clock.elapsed()
        agents = tuple(
            AgentStats(
                session_id,
                slot.chat_key,
                slot.state,
                slot.agent.size if slot.agent else 0,
                round(now - slot.last_used, 3) if slot.state is AgentState.IDLE else 0.0,
                str(slot.agent.revision) if slot.agent else "",
            )
            for session_id, slot in self._slots.items()
        )
        states = [agent.state for agent in agents]
        return PoolStats(
            cap=self._limits.max_agents,
            size=len(agents),
            busy=states.count(AgentState.BUSY),
            building=states.count(AgentState.BUILDING),
            bytes=sum(agent.bytes for agent in agents),
            max_bytes=self._limits.max_bytes,
            agents=agents,
            counters=msgspec.structs.replace(self.counters),
            closing=len(self._closer),
            dropped=self._closer.dropped,
        )

    def give_back(self, workspace: ChatWorkspace) -> None:
        """Release a handle that was opened without an agent, as that of an agent is released: the caller does
        not wait, and a failure is only logged."""
        self._closer.close(workspace.session_id, workspace.release)

    def describe(self, session_id: SessionId) -> str:
        """Return a text for people about the session's agent; empty if the pool has none."""
        slot = self._slots.get(session_id)
        if slot is None or slot.agent is None:
            return ""
        rebuilt = f", rebuilt because {slot.rebuilt}" if slot.rebuilt else ""
        return f"warm at revision {slot.agent.revision}, {slot.agent.size} bytes{rebuilt}"

    # -- taking ---------------------------------------------------------------------------------------------

    async def _take(self, wanted: Wanted) -> _Slot:
        while (slot := self._slots.get(wanted.session_id)) is not None:
            if slot.state is AgentState.IDLE:
                slot.state = AgentState.BUSY
                self._touch(wanted.session_id, slot)
                await self._reconcile(wanted, slot)
                return slot
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            slot.waiters.append(waiter)
            await waiter
        slot = _Slot(wanted.chat_key, self._clock.elapsed())
        self._slots[wanted.session_id] = slot
        await self._build(wanted, slot)
        self.counters.builds += 1
        self._settle()
        return slot

    async def _build(self, wanted: Wanted, slot: _Slot) -> None:
        slot.state = AgentState.BUILDING
        try:
            agent = await self._builder.build(wanted.session_id, wanted.spec_id, wanted.chat_key)
        except BaseException:
            del self._slots[wanted.session_id]
            slot.wake()
            raise
        slot.agent = agent
        slot.state = AgentState.BUSY
        self._resize(slot)

    async def _reconcile(self, wanted: Wanted, slot: _Slot) -> None:
        """Bring the agent of a slot that was just taken to what is wanted. If that fails, give it back."""
        agent = slot.agent
        assert agent is not None
        try:
            reason = self._outdated(agent, wanted)
            is_behind = not reason and agent.revision.seq < wanted.revision.seq
            if is_behind:
                await self._builder.catch_up(agent)
        except BaseException:
            self._give_back(wanted.session_id, slot)
            raise
        if reason:
            _log.info("rebuilding the agent of %s: %s", wanted.session_id, reason)
            slot.rebuilt = reason
            self._forget(slot)
            await self._build(wanted, slot)
            assert slot.agent is not None
            slot.agent.cache_sample = agent.cache_sample
            self.counters.rebuilds += 1
        elif is_behind:
            self.counters.catchups += 1
            self._resize(slot)
        else:
            self.counters.hits += 1

    def _outdated(self, agent: WarmAgent, wanted: Wanted) -> str:
        """Return why the agent must be rebuilt; empty if it can be reused or caught up."""
        if agent.pinned.id != wanted.spec_id:
            return "its spec changed"
        if agent.revision.epoch != wanted.revision.epoch:
            return "its history was rewritten"
        if agent.revision.seq > wanted.revision.seq:
            return "it was ahead of the store"
        if agent.credential != self._builder.credential(agent.pinned):
            return "the provider's credential changed"
        return ""

    # -- giving back ----------------------------------------------------------------------------------------

    def _give_back(self, session_id: SessionId, slot: _Slot) -> None:
        slot.state = AgentState.IDLE
        self._touch(session_id, slot)
        self._resize(slot)
        if slot.is_leaving:
            self._release([session_id])
        else:
            self._settle()
        slot.wake()

    def _touch(self, session_id: SessionId, slot: _Slot) -> None:
        slot.last_used = self._clock.elapsed()
        self._slots.move_to_end(session_id)

    def _resize(self, slot: _Slot) -> None:
        size = slot.agent.size if slot.agent is not None else 0
        self._bytes += size - slot.size
        slot.size = size

    # -- leaving --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Apply the limits after an insert or a lease's end. Within the limits it costs three comparisons."""
        if len(self._slots) > self._limits.max_agents or self._bytes > self._limits.max_bytes:
            self._evict()
            return
        self._note_over_cap(0)
        oldest = next(iter(self._slots.values()), None)
        if oldest is not None and self._clock.elapsed() - oldest.last_used > self._limits.idle_ttl:
            self._evict()

    def _evict(self) -> int:
        views = [
            AgentView(session_id, slot.last_used, slot.size, slot.state)
            for session_id, slot in self._slots.items()
        ]
        plan = plan_eviction(views, self._limits, self._clock.elapsed())
        for eviction in plan.evictions:
            match eviction.cause:
                case Cause.IDLE:
                    self.counters.evicted_idle += 1
                case Cause.CAP:
                    self.counters.evicted_cap += 1
                case Cause.BYTES:
                    self.counters.evicted_bytes += 1
        self._release(eviction.session_id for eviction in plan.evictions)
        self._note_over_cap(plan.over_cap)
        return len(plan.evictions)

    def _note_over_cap(self, by: int) -> None:
        """Log once per episode that the pool exceeds its cap: under steady load every lease crosses it."""
        since = self._within_cap_since
        if by == 0:
            if since is None:
                self._within_cap_since = self._clock.elapsed()
        elif since is not None:
            self._within_cap_since = None
            if self._clock.elapsed() - since >= _QUIET_SECONDS:
                _log.warning(
                    "the pool is over its cap of %d by %d: all candidates are busy",
                    self._limits.max_agents,
                    by,
                )

    def _release(self, session_ids: Iterable[SessionId]) -> None:
        for session_id in session_ids:
            slot = self._slots.pop(session_id)
            self._forget(slot)
            slot.wake()

    def _forget(self, slot: _Slot) -> None:
        agent, slot.agent = slot.agent, None
        self._resize(slot)
        if agent is not None:
            self.counters.released += 1
            self._closer.close(agent.session_id, agent.release)
