"""Which warm agents leave the pool: a pure function of what the pool holds.

Rules, in this order:
- idle limit: idle for longer than `idle_ttl`, never while leased;
- count cap: only the oldest `n − max_agents` are candidates, and of those only the idle ones go. A busy agent
  among them is skipped, and no newer agent goes instead, so the pool may exceed its cap while turns run;
- byte budget: idle ones go, oldest first, until what remains fits.
An agent that is being built does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import msgspec

from talaria.core.ids import SessionId
from talaria.core.units import Size


class AgentState(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    BUILDING = "building"


class AgentView(msgspec.Struct, frozen=True):
    """`last_used` is set when a lease starts and when it ends."""

    session_id: SessionId
    last_used: float
    size: int
    state: AgentState


class PoolLimits(msgspec.Struct, frozen=True):
    max_agents: int
    idle_ttl: float
    max_bytes: int


class Cause(StrEnum):
    IDLE = "idle"
    CAP = "cap"
    BYTES = "bytes"


class Eviction(msgspec.Struct, frozen=True):
    session_id: SessionId
    cause: Cause


class EvictionPlan(msgspec.Struct, frozen=True):
    """`over_cap` is by how many agents the pool exceeds its cap after the evictions."""

    evictions: tuple[Eviction, ...]
    over_cap: int


def plan_eviction(views: Iterable[AgentView], limits: PoolLimits, now: float) -> EvictionPlan:
    held = sorted(
        (view for view in views if view.state is not AgentState.BUILDING), key=lambda view: view.last_used
    )
    evictions: list[Eviction] = []

    def keep_after(cause: Cause, leaving: set[SessionId]) -> list[AgentView]:
        evictions.extend(Eviction(view.session_id, cause) for view in held if view.session_id in leaving)
        return [view for view in held if view.session_id not in leaving]

    held = keep_after(
        Cause.IDLE,
        {
            view.session_id
            for view in held
            if view.state is AgentState.IDLE and now - view.last_used > limits.idle_ttl
        },
    )
    excess = held[: max(0, len(held) - limits.max_agents)]
    held = keep_after(Cause.CAP, {view.session_id for view in excess if view.state is AgentState.IDLE})
    over_cap = max(0, len(held) - limits.max_agents)

    surplus = sum(view.size for view in held) - limits.max_bytes
    leaving: set[SessionId] = set()
    for view in held:
        if surplus <= 0:
            break
        if view.state is AgentState.IDLE:
            leaving.add(view.session_id)
            surplus -= view.size
    keep_after(Cause.BYTES, leaving)
    return EvictionPlan(tuple(evictions), over_cap)


# -- `[pool]`: how many warm agents may stay in memory ----------------------------------------------------


class PoolSettings(msgspec.Struct, frozen=True):
    """`max_bytes` bounds the transcript bytes of all warm agents together."""

    max_agents: Annotated[int, msgspec.Meta(ge=1)] = 128
    idle_ttl: timedelta = timedelta(hours=1)
    max_bytes: Size = Size(256 << 20)

    @property
    def limits(self) -> PoolLimits:
        return PoolLimits(self.max_agents, self.idle_ttl.total_seconds(), self.max_bytes)
