"""A gateway without sockets: the real turns, pool and agent over a store and the scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import MISSING, dataclass, fields
from datetime import UTC
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from support.ledger_rules import check_store
from support.prefixes import check_prefixes
from support.scripted_model import ScriptedModel, ScriptedModels
from talaria.access.budgets import Budgets
from talaria.access.settings import BudgetSettings
from talaria.agent.calling import Routes
from talaria.agent.compaction.engine import ContextEngine, SummaryEngine
from talaria.agent.compaction.keeper import Compaction
from talaria.agent.settings import AgentSettings, ContextSettings
from talaria.agent.side_calls import SideCalls
from talaria.agent.spec_resolver import SpecResolver
from talaria.agent.warm import AgentBuilder
from talaria.cluster.following import PeerClient, PeerTiming
from talaria.cluster.leases import LeaseKeeper
from talaria.cluster.membership import LoneGateway, Membership
from talaria.commands.command import ExtraCommand
from talaria.config.home import Home
from talaria.config.reload import LiveSettings, Reloader
from talaria.config.settings import Settings
from talaria.core.clock import Clock, SystemClock
from talaria.core.cluster import Here, Member
from talaria.core.hooks import Hooks
from talaria.core.ids import ChatAddress, ChatKey, PlaceId, new_owner_id
from talaria.core.messages import Text
from talaria.core.redaction import SecretRegistry
from talaria.core.turns import Inbound, Sender, Turn
from talaria.gateway import Gateway
from talaria.models.catalog import Catalog, fallback_chain
from talaria.models.known import Abilities, Prices, PriceSettings
from talaria.models.local.downloads import WeightsDownloads
from talaria.models.settings import ModelSettings
from talaria.models.wire import Models
from talaria.observe.loop_watch import Load
from talaria.observe.metrics import Metrics
from talaria.parts import builtin_tools
from talaria.pool.policy import PoolLimits
from talaria.pool.pool import Pool
from talaria.search.index import SIDE_FILE, LogIndex
from talaria.store.store import Store
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.tools.execution import ToolRunner
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import ToolSource
from talaria.tools.toolset import Family, ToolSet
from talaria.turns.agents import Agents
from talaria.turns.delivery import Delivery, FindPicture, find_no_picture
from talaria.turns.followed import FollowedTurns
from talaria.turns.lifecycle import Deletions, SessionLifecycle
from talaria.turns.live import LiveTurn, LiveTurns
from talaria.turns.questions import HostQuestions
from talaria.turns.settings import Busy, DeliverySettings, TurnSettings
from talaria.turns.slash import ExtraCommands
from talaria.turns.trust import FolderTrust, TurnTrust
from talaria.turns.turns import Turns
from talaria.workspace.checkpoints.checkpoints import FolderCheckpoints
from talaria.workspace.folder import Folder, chat_folder
from talaria.workspace.quota import FolderQuota
from talaria.workspace.uploads import Uploads
from talaria.workspace.workspaces import ChatWorkspaces

CONTEXT = ContextSettings()
LIMITS = PoolLimits(max_agents=8, idle_ttl=3600, max_bytes=1 << 20)


def chat(name: str = "one") -> ChatKey:
    return ChatAddress("main", "test", "dm", name).key()


def inbound(text: str, name: str = "one", *, key: str | None = None, model: str | None = None) -> Inbound:
    return Inbound(chat(name), Sender("tester"), (Text(text),), key=key, model=model)


@dataclass(slots=True)
class Rig:
    """`turns` with everything around it; `start` begins another life over the same store."""

    store: Store
    clock: Clock
    metrics: Metrics
    turns: Turns
    pool: Pool
    model: ScriptedModel
    live: LiveTurns
    keeper: LeaseKeeper
    sessions: SessionLifecycle
    workspaces: FakeWorkspaces
    delivery: Delivery
    side_calls: SideCalls
    cluster: Membership | None = None

    def gateway(self, home: Path, folder_of: Callable[[ChatKey], Path] | None = None, **more: Any) -> Gateway:
        """What a channel sees of it; what this rig does not have is missing."""
        settings = Settings()
        given = {
            "home": Home(home),
            "settings": settings,
            "environ": {},
            "clock": self.clock,
            "store": self.store,
            "pool": self.pool,
            "turns": self.turns,
            "deletions": Deletions(
                self.store,
                self.clock,
                self.sessions,
                folder_of or partial(chat_folder, home),
                (index := LogIndex(home / SIDE_FILE, self.store.recall, self.clock)).forget,
            ),
            "search": index,
            "delivery": self.delivery,
            "metrics": self.metrics,
            "uploads": Uploads(home / "files", partial(chat_folder, home), self.clock),
            "secrets": (secrets := SecretRegistry()),
            "reloader": Reloader(home, {}, (), LiveSettings(settings), self.clock, secrets=secrets),
            "workspaces": ChatWorkspaces(home),
            "started_at": 0.0,
        }
        absent = dict.fromkeys(
            field.name
            for field in fields(Gateway)
            if field.default is MISSING and field.default_factory is MISSING
        )
        return Gateway(**{**absent, **given, **more})

    async def submit(self, text: str, name: str = "one", **more: str) -> LiveTurn:
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
    sources: Sequence[ToolSource] = (),
    agent: AgentSettings | None = None,
    cutoff: Callable[[float], float] = lambda now: 0.0,
    workspaces: FakeWorkspaces | None = None,
    models: Models | None = None,
    draw: Callable[[], float] = lambda: 0.5,
    busy: Busy = Busy.QUEUE,
    turn_seconds: float = 0.0,
    delivery_settings: DeliverySettings | None = None,
    find_picture: FindPicture = find_no_picture,
    random: Random | None = None,
    budgets: BudgetSettings | None = None,
    prices: Mapping[str, PriceSettings] | None = None,
    abilities: Mapping[str, Abilities] | None = None,
    arrivals: WeightsDownloads | None = None,
    takes_up: Callable[[Turn], bool] = lambda turn: True,
    load: Load | None = None,
    secrets: SecretRegistry | None = None,
    is_held: bool = False,
    tool_settings: ToolSettings | None = None,
    checkpoints: FolderCheckpoints | None = None,
    quota: FolderQuota | None = None,
    context: ContextSettings = CONTEXT,
    engine: ContextEngine | None = None,
    commands: Sequence[ExtraCommand] = (),
    hooks: Hooks | None = None,
    place: str = "",
) -> AsyncIterator[Rig]:
    """Recovered and accepting; leaving drains at once and leaves what runs resumable. With a `place` it is a
    member of a cluster."""
    clock = clock or SystemClock()
    model = model or ScriptedModel()
    models = models or ScriptedModels(model)
    metrics = Metrics()
    settings = settings or ModelSettings("scripted", "scripted")
    chain = fallback_chain(settings)
    known = {"scripted", settings.provider, *(choice.provider for choice in chain)}
    catalog = Catalog(settings, {"fast": "scripted/fast"}, providers=known, abilities=abilities)
    builtin = Family("built-in", tools(builtin_tools(ToolSettings())).tools)
    enabled = replace(tool_settings or ToolSettings(), enabled=("built-in",))
    trust = FolderTrust(store.taints, lambda key: None, clock)
    tool_runner = ToolRunner(
        [builtin, *sources],
        enabled,
        metrics,
        checkpoints=checkpoints,
        trust=partial(TurnTrust, store, trust),
        clock=clock,
    )
    workspaces = workspaces or FakeWorkspaces(lambda key: folder)
    builder = AgentBuilder(store, models, workspaces)
    pool = Pool(builder, limits, clock)
    sessions = SessionLifecycle(
        store, clock, workspaces, pool.release, lambda: cutoff(clock.now()), hooks=hooks
    )
    keeper = LeaseKeeper(store, clock, new_owner_id(), 30.0)
    money = Budgets(
        budgets or BudgetSettings(), Prices(prices).find, store, metrics=metrics, clock=clock, zone=UTC
    )
    secrets = secrets or SecretRegistry()
    side_calls = SideCalls(models, catalog, money, store, metrics, secrets, lambda: context)
    agents = Agents(
        pool=pool,
        specs=SpecResolver(
            agent or AgentSettings(), catalog, models, lambda: tool_runner.tools, offer=tool_runner.offer
        ),
        routes=Routes(models, builder, clock, draw, chain, catalog.abilities),
        tool_runner=tool_runner,
        budgets=money,
        compaction=Compaction(store, side_calls, engine=engine or SummaryEngine()),
        metrics=metrics,
        pending=arrivals,
        secrets=secrets,
        commands=ExtraCommands(lambda: commands),
        hooks=hooks,
        folder_trust=trust,
    )
    turn_settings = TurnSettings("main", max_steps, turn_seconds, busy, zone=UTC)
    uploads = Uploads(folder / "uploads", lambda key: folder, clock, quota=quota)
    cluster = None
    if place:
        me = Member(keeper.owner, PlaceId(place), "boot", "host", "", "1.0", 1, clock.now())
        here = Here(keeper.owner, me.place)
        cluster = Membership(store.cluster, clock, keeper, me, here)
        await cluster.join()
    live = LiveTurns(clock, metrics, hooks)
    followed = None
    if cluster is not None:
        peers = PeerClient("token", PeerTiming(), now=clock.now)
        followed = FollowedTurns(store, cluster.store, live, peers, cluster.owner)
    delivery = Delivery(
        store,
        live,
        delivery_settings or DeliverySettings(),
        lambda key, path: Folder(folder).read(Folder(folder).resolve(path)),
        random,
        find_picture=find_picture,
    )
    turns = Turns(
        store,
        keeper,
        agents,
        sessions,
        turn_settings,
        load=load,
        uploads=uploads,
        live=live,
        hosts=HostQuestions(store, live, clock, send=delivery.show_host_question),
        cluster=cluster or LoneGateway(store, clock, keeper, has_lock=True),
        followed=followed,
    )
    if is_held:
        turns.hold()
    await turns.recover(takes_up)
    try:
        places = (workspaces, delivery, side_calls)
        yield Rig(store, clock, metrics, turns, pool, model, live, keeper, sessions, *places, cluster)
    finally:
        await turns.drain(0)
        if cluster is not None:
            await cluster.leave()
        assert len(live) == 0
        assert len(keeper) == 0
        assert pool.stats().busy == 0
        await sessions.drain()
        await pool.drain()
        assert not workspaces.held, "a handle was not given back"
        assert model.busy == 0
        await check_store(store, keeper.owner)
        await check_prefixes(store, model)
