"""What the runners work with, in one place; wired in `app`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from talaria.access.budgets import Budgets
from talaria.agent.calling import Routes
from talaria.agent.context import TurnTools
from talaria.agent.specs import SpecResolver
from talaria.agent.warm import AgentBuilder, WarmAgent
from talaria.cluster.leases import LeaseKeeper
from talaria.core.clock import Clock
from talaria.core.events import Event
from talaria.core.ids import SessionId
from talaria.core.messages import Part, UserMessage
from talaria.core.ports import Models, PendingModels, Store
from talaria.core.turns import Turn
from talaria.observe.metrics import Metrics
from talaria.pool.pool import Pool
from talaria.turns.arriving import NOTHING_COMES
from talaria.turns.busy import Busy
from talaria.turns.live import LiveTurn, LiveTurns


@dataclass(frozen=True, slots=True)
class Parts:
    """`bind_tools` gives a turn the tools of its agent; `stamp` writes a time as models read it; sessions
    last used before `cutoff` have expired; `on_end` hears of each that ends, `on_live` of each
    turn that comes to life here. Of what others left unsettled, `takes_up` says what is taken up unasked."""

    store: Store
    models: Models
    routes: Routes
    builder: AgentBuilder
    specs: SpecResolver
    pool: Pool
    keeper: LeaseKeeper
    budgets: Budgets
    clock: Clock
    metrics: Metrics
    live: LiveTurns
    bind_tools: Callable[[Turn, WarmAgent, Callable[[Event], None]], TurnTools | None]
    stamp: Callable[[float], str]
    cutoff: Callable[[], float]
    on_end: Callable[[SessionId], None]
    on_live: Callable[[LiveTurn], None]
    agent_name: str
    max_steps: int
    turn_seconds: float
    busy: Busy
    reasoning: str | None
    arrivals: PendingModels = NOTHING_COMES
    takes_up: Callable[[Turn], bool] = lambda turn: True

    def user_message(self, said: tuple[Part, ...], at: float) -> UserMessage | None:
        """What the model reads of a message that was accepted at `at`."""
        return UserMessage(said, stamp=self.stamp(at)) if said else None
