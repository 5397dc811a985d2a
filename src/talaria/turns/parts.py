"""What the runners work with, in one place; wired in `app`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from talaria.agent.loop import TurnTools
from talaria.agent.specs import SpecResolver
from talaria.agent.warm import AgentBuilder
from talaria.cluster.leases import LeaseKeeper
from talaria.core.clock import Clock
from talaria.core.ids import SessionId
from talaria.core.messages import Part, UserMessage
from talaria.core.ports import Models, Store
from talaria.core.turns import Turn
from talaria.observe.metrics import Metrics
from talaria.pool.pool import Pool
from talaria.turns.live import LiveTurns


@dataclass(frozen=True, slots=True)
class Parts:
    """`bind_tools` gives a turn the tools of these names; `stamp` writes a time as models read it; sessions
    last used before `cutoff` have expired; `on_end` hears of each that ends."""

    store: Store
    models: Models
    builder: AgentBuilder
    specs: SpecResolver
    pool: Pool
    keeper: LeaseKeeper
    clock: Clock
    metrics: Metrics
    live: LiveTurns
    bind_tools: Callable[[Turn, tuple[str, ...]], TurnTools]
    stamp: Callable[[float], str]
    cutoff: Callable[[], float]
    on_end: Callable[[SessionId], None]
    agent_name: str
    tool_names: tuple[str, ...]
    max_steps: int
    reasoning: str | None

    def user_message(self, said: tuple[Part, ...], at: float) -> UserMessage | None:
        """What the model reads of a message that was accepted at `at`."""
        return UserMessage(said, stamp=self.stamp(at)) if said else None
