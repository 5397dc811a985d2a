"""A gateway without sockets: the real turns, pool and agent over a store and the scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from talaria.agent.bound_tools import ToolBench
from talaria.agent.settings import AgentSettings
from talaria.agent.specs import SpecResolver
from talaria.agent.warm import AgentBuilder
from talaria.cluster.leases import LeaseKeeper
from talaria.core.clock import Clock, SystemClock
from talaria.core.ids import ChatAddress, ChatKey, new_owner_id
from talaria.core.messages import Text
from talaria.core.ports import Store
from talaria.core.turns import Inbound, Sender, Turn
from talaria.models.catalog import Catalog
from talaria.models.settings import ModelSettings
from talaria.observe.metrics import Metrics
from talaria.pool.policy import PoolLimits
from talaria.pool.pool import Pool
from talaria.testing.scripted_model import ScriptedModel, ScriptedModels
from talaria.tools.registry import builtin_registry
from talaria.tools.settings import ToolSettings
from talaria.tools.toolset import ToolSet
from talaria.turns.intake import Receipt
from talaria.turns.live import LiveTurns
from talaria.turns.parts import Parts
from talaria.turns.turns import Turns

LIMITS = PoolLimits(max_agents=8, idle_ttl=3600, max_bytes=1 << 20)


def chat(name: str = "one") -> ChatKey:
    return ChatAddress("main", "test", "dm", name).key()


def inbound(text: str, name: str = "one", *, key: str | None = None, model: str | None = None) -> Inbound:
    return Inbound(chat(name), Sender("tester"), (Text(text),), key=key, model=model)


@dataclass(slots=True)
class Rig:
    """`turns` with everything around it; `start` begins another life over the same store."""

    store: Store
    turns: Turns
    parts: Parts
    pool: Pool
    model: ScriptedModel
    live: LiveTurns
    keeper: LeaseKeeper

    async def submit(self, text: str, name: str = "one", **more: str) -> Receipt:
        return await self.turns.submit(inbound(text, name, **more))

    async def say(self, text: str, name: str = "one", **more: str) -> Turn:
        """Submit and wait for the end."""
        return await self.turns.wait(await self.submit(text, name, **more))


@asynccontextmanager
async def start(
    store: Store,
    folder: Path,
    *,
    clock: Clock | None = None,
    model: ScriptedModel | None = None,
    settings: ModelSettings | None = None,
    limits: PoolLimits = LIMITS,
    max_steps: int = 20,
    tools: Callable[[ToolSet], ToolSet] = lambda tools: tools,
    agent: AgentSettings | None = None,
    cutoff: Callable[[float], float] = lambda now: 0.0,
) -> AsyncIterator[Rig]:
    """Recovered and accepting; leaving drains at once and leaves what runs resumable."""
    clock = clock or SystemClock()
    models = ScriptedModels(model)
    metrics, live = Metrics(), LiveTurns()
    settings = settings or ModelSettings("scripted", "scripted")
    catalog = Catalog(settings, {"fast": "scripted/fast"}, providers=("scripted",))
    tool_settings = ToolSettings()
    toolset = tools(builtin_registry(tool_settings).resolve(tool_settings.enabled))
    bench = ToolBench(toolset, tool_settings, metrics, lambda key: folder)
    builder = AgentBuilder(store, models)
    pool = Pool(builder, limits, clock)
    keeper = LeaseKeeper(store, clock, new_owner_id(), 30.0)
    parts = Parts(
        store=store,
        models=models,
        builder=builder,
        specs=SpecResolver(agent or AgentSettings(), catalog, models, toolset),
        pool=pool,
        keeper=keeper,
        clock=clock,
        metrics=metrics,
        live=live,
        bind_tools=bench.bind,
        stamp=lambda at: "2026-11-15 20:10 UTC",
        cutoff=lambda: cutoff(clock.now()),
        on_end=pool.release,
        agent_name="main",
        tool_names=toolset.names,
        max_steps=max_steps,
        reasoning=None,
    )
    turns = Turns(parts)
    await turns.recover()
    try:
        yield Rig(store, turns, parts, pool, models.model, live, keeper)
    finally:
        await turns.drain(0)
        assert len(live) == 0
        assert len(keeper) == 0
        assert pool.stats().busy == 0
        assert models.model.busy == 0
