"""The composition root: opens everything in order and nests the scopes.

home lock ⊃ store ⊃ models ⊃ workspaces ⊃ pool ⊃ turns ⊃ channels. Shutdown leaves the scopes from the inside
out: channels stop accepting, turns drain until the deadline and the rest stays resumable, agents are
released, and everything closes. Each scope also runs its background loops and follows changes of config.toml.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from talaria.access.budgets import Budgets
from talaria.access.pairing import PairingAdmin
from talaria.access.people import People
from talaria.agent.calling import Routes
from talaria.agent.compaction.engine import ContextEngine, open_engine
from talaria.agent.compaction.keeper import Compaction
from talaria.agent.context import NoteSource
from talaria.agent.side_calls import SideCalls
from talaria.agent.spec_resolver import SpecResolver
from talaria.agent.warm import AgentBuilder
from talaria.channels.descriptor import find_address, follow_people, pairing_channels
from talaria.cluster.leases import LeaseKeeper, LeaseTiming
from talaria.cluster.leash import remove_leash
from talaria.cluster.lone_gateway import LoneGateway
from talaria.cluster.overview import Overview
from talaria.cluster.roles import UPKEEP
from talaria.cluster_scope import ClusterScope, OwnFigures, join_others, make_uploads, work_together
from talaria.commands.extra import ExtraCommands
from talaria.config.home import Home
from talaria.config.load import Loaded, own_secrets
from talaria.config.reload import LiveSettings, Reloader
from talaria.config.secrets_file import home_environ
from talaria.config.settings import Settings
from talaria.config.shared_files import check_shared_files, read_mark
from talaria.config.trust import check_trusted
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import BadRequest, ConfigError
from talaria.core.gateway_part import GatewayPart, Parts, S
from talaria.core.ids import ChatKey, SessionId
from talaria.core.limits import Limits
from talaria.core.redaction import SecretRegistry
from talaria.core.slots import FairThreads
from talaria.core.tasks import run_loops, stop
from talaria.core.turns import Turn
from talaria.gateway import Gateway, OpenChannel, ServicePart, blame_plugins, open_hooks, plugin_commands
from talaria.model_scope import MODEL_KEYS, ModelScope, open_models
from talaria.models.catalog import fallback_chain
from talaria.models.known import Prices
from talaria.observe.health import GatewayPhase, Health
from talaria.observe.loop_watch import LoopWatch
from talaria.observe.metrics import Metrics, limit_metrics, pool_metrics, server_metrics
from talaria.parts import PARTS
from talaria.pool.pool import Pool
from talaria.search.index import LogIndex, open_index
from talaria.store.archive import drop_snapshots
from talaria.store.home_lock import HomeLock, lock_database
from talaria.store.part import StoreScope, find_engine
from talaria.store.settings import is_file
from talaria.store.store import Store
from talaria.store.watch import StoreWatch
from talaria.tools.execution import ToolRunner
from talaria.tools.part import ToolPart, ToolScope
from talaria.tools.tool import ToolSource
from talaria.tools.usage import USAGE_FILE, ToolUsage
from talaria.tools.workers import ToolWorkers
from talaria.turns.agents import Agents
from talaria.turns.crashes import RestartGuard
from talaria.turns.deletion import Deletions
from talaria.turns.delivery import Delivery
from talaria.turns.host_questions import HostQuestions
from talaria.turns.lease_watch import keep_leases
from talaria.turns.lifecycle import SessionLifecycle, reset_cutoff
from talaria.turns.memories import Memories
from talaria.turns.place_notes import keep_places
from talaria.turns.process_notes import ProcessNotes
from talaria.turns.sending import ChatSender
from talaria.turns.settings import TurnSettings
from talaria.turns.trust import FolderTrust, TurnTrust
from talaria.turns.turns import Turns
from talaria.workspace.chat_folders import ChatFolders
from talaria.workspace.checkpoints.checkpoints import FolderCheckpoints
from talaria.workspace.network import SessionNetworks
from talaria.workspace.sent_files import read_sent
from talaria.workspace.workspaces import ChatWorkspaces
from talaria.workspace_scope import open_workspaces

_log = logging.getLogger("talaria.app")


@dataclass(frozen=True, slots=True)
class _Start:
    """The values that a gateway is started with, and its objects that need no opening."""

    home: Home
    settings: Settings
    environ: Mapping[str, str]
    clock: Clock
    parts: Parts
    reloader: Reloader
    limits: Limits
    timing: LeaseTiming
    serves: bool
    secrets: SecretRegistry
    people: People
    metrics: Metrics = field(default_factory=Metrics)
    health: Health = field(default_factory=Health)

    @property
    def live(self) -> LiveSettings:
        return self.reloader.live

    def tool_scope(self, store: Store, index: LogIndex) -> ToolScope:
        home, people, secrets, of = self.home.path, self.people, self.secrets, self.current
        known = (home, self.environ, self.clock, people, of, store, secrets, index, self.zone)
        return ToolScope(
            *known,
            follow=self.live.follow,
            shared=self.settings.store.shared,
            is_own_secret=self.is_own_secret,
        )

    def is_own_secret(self, variable: str) -> bool:
        return own_secrets(self.live.settings)(variable)

    def current(self, part: GatewayPart[S]) -> S:
        return self.live.settings.of(part)

    @property
    def turn_settings(self) -> TurnSettings:
        settings = self.settings
        return TurnSettings.of(settings.agent, settings.sessions, settings.model.reasoning, self.zone)

    def leases(self, store: Store) -> AbstractAsyncContextManager[tuple[LeaseKeeper, LoopWatch]]:
        limits, metrics, health = self.limits, self.metrics, self.health
        blame = partial(blame_plugins, self.parts)
        return keep_leases(
            store, self.clock, self.timing, limits=limits, metrics=metrics, health=health, blame=blame
        )

    async def join(self, store: Store, keeper: LeaseKeeper, scopes: AsyncExitStack) -> ClusterScope | None:
        """Join the gateways on the same database, until the scopes are left. None if there can be none."""
        if not self.is_clustered:
            remove_leash(self.home.path)
            return None
        known = (store, self.clock, self.settings.cluster, self.home.path)
        shared = self.settings.store.shared
        files = "" if shared is None else read_mark(shared)
        joining = join_others(*known, environ=self.environ, keeper=keeper, files=files)
        return await scopes.enter_async_context(joining)

    @property
    def is_clustered(self) -> bool:
        """Whether other gateways may serve the database too."""
        return self.serves and not is_file(self.settings.store.url)

    def open_workspaces(
        self, threads: FairThreads, folders: ChatFolders, store: Store, trust: FolderTrust
    ) -> AbstractAsyncContextManager[tuple[ChatWorkspaces, SessionNetworks]]:
        async def chat_of(session_id: SessionId) -> ChatKey | None:
            session = await store.session(session_id)
            return None if session is None else session.chat_key

        return open_workspaces(
            self.home.path,
            self.live,
            self.environ,
            threads,
            folders,
            limits=self.limits,
            metrics=self.metrics,
            is_clustered=self.is_clustered,
            chat_of=chat_of,
            taint=trust.mark,
        )

    def chat_folders(self) -> ChatFolders:
        """Raises `ConfigError`."""
        settings = self.settings
        try:
            return ChatFolders(self.home.path, settings.agent.project, settings.store.shared)
        except BadRequest as error:
            raise ConfigError(f"agent.project: {error.user_text}", error.hint) from error

    def make_gateway(self, models: ModelScope, **opened: Any) -> Gateway:
        """Return the gateway of what was opened; `opened` are fields of `Gateway`."""
        return Gateway(
            home=self.home,
            settings=self.settings,
            environ=self.environ,
            clock=self.clock,
            providers=models.providers,
            local=models.local,
            catalog=models.catalog,
            metrics=self.metrics,
            health=self.health,
            limits=self.limits,
            secrets=self.secrets,
            reloader=self.reloader,
            people=self.people,
            started_at=self.clock.now(),
            parts=self.parts,
            **opened,
        )

    @property
    def zone(self) -> ZoneInfo | None:
        name = self.settings.agent.timezone
        return ZoneInfo(name) if name else None


@asynccontextmanager
async def open_gateway(
    home: Home,
    loaded: Loaded,
    environ: Mapping[str, str],
    clock: Clock | None = None,
    *,
    takes_up: Callable[[Turn], bool] = lambda turn: True,
    parts: Parts = PARTS,
    timing: LeaseTiming | None = None,
    serves: bool = True,
    secrets: SecretRegistry | None = None,
) -> AsyncIterator[Gateway]:
    """Open everything but the channels, recover, and accept messages. Leaving drains.

    Turns that earlier processes left are resumed if `takes_up` returns True for them. After several unclean
    ends turns run only after a pause; messages are accepted meanwhile. A gateway that `serves` refuses a
    database that another one serves. One that does not, inside a command, leaves the turns of the other alone
    and opens no service that needs it. `secrets` are taken out of everything that is said; those that the
    parts find are added to it. Raises `ConfigError` and `StoreError`, each with a hint.
    """
    settings, clock = loaded.settings, clock or SystemClock()
    if timing is None:  # one gateway on a file waits out a slow disk longer, because nobody takes over
        is_alone = is_file(settings.store.url)
        timing = LeaseTiming() if is_alone else LeaseTiming(settings.cluster.lease.total_seconds())
    environ = home_environ(home.path, environ)
    secrets = secrets or SecretRegistry(loaded.secrets)
    reloader = Reloader(home.path, environ, parts, LiveSettings(settings), clock, secrets=secrets)
    limits = Limits(settings.limits)
    people = follow_people(reloader.live, parts)
    start = _Start(home, settings, environ, clock, parts, reloader, limits, timing, serves, secrets, people)
    start.live.on(("limits",), tell=lambda new: start.limits.change(new.limits))
    start.metrics.watch(lambda: limit_metrics(start.limits.readings()))
    async with (
        _open_store(start) as (store, has_lock),
        open_models(home, reloader.live, environ, clock, limits=limits, metrics=start.metrics) as models,
        _open_turns(start, store, models, has_lock=has_lock) as gateway,
    ):
        place = "" if gateway.cluster is None else gateway.cluster.me.place
        guard = RestartGuard(store, clock, settings.shutdown.restart_pause.total_seconds(), place)
        start.health.watch("restarts", guard.trouble)
        starting: asyncio.Task[None] | None = None
        try:
            gateway.turns.hold()
            await gateway.turns.recover(takes_up)
            pause = await guard.seconds()
            if not pause:
                await guard.enter()
                start.health.enter(GatewayPhase.READY)
            starting = asyncio.create_task(_run_turns(start, gateway, guard, pause), name="start")
            yield gateway
        finally:
            start.health.enter(GatewayPhase.DRAINING)
            gateway.abandon_late()
            if starting is not None:
                await stop(starting)
            await gateway.turns.drain(settings.shutdown.deadline.total_seconds())
            await guard.leave()


async def _run_turns(start: _Start, gateway: Gateway, guard: RestartGuard, pause: float) -> None:
    """Let turns run: after the pause that follows unclean ends, and once the HTTP client is imported.

    Turns that need the client would hold the event loop until its import is done.
    """
    try:
        if pause:
            await guard.wait(pause)
            await guard.enter()
        await gateway.notes.open(gateway.turns.wake)
        await gateway.providers.warm()
    except Exception:  # a start that cannot be recorded is a start all the same
        _log.exception("the start was not as it should be")
    start.health.enter(GatewayPhase.READY)
    gateway.loop_watch.end_start()
    gateway.turns.release()
    gateway.tool_runner.start()


@asynccontextmanager
async def _open_store(start: _Start) -> AsyncIterator[tuple[Store, bool]]:
    """Open the store. Yield it, and whether this process has the lock of its database."""
    home, clock = start.home, start.clock
    home.prepare()
    if (url := start.settings.store.url) and is_file(url):
        check_trusted(home, home.find_database(url))
    if (loss := home.find_loss(url)) is not None:
        raise loss
    if (shared := start.settings.store.shared) is not None:
        check_shared_files(home, shared)
    with HomeLock(home.path) as lock, ExitStack() as locks:
        has_lock = is_file(url) and locks.enter_context(
            lock_database(home.find_database(url), home.path, is_required=start.serves)
        )
        drop_snapshots(home.path)
        engine = find_engine(start.parts, url)
        scope = StoreScope(home.database, clock, is_suspect=lock.follows_crash)
        async with engine.open(scope, start.settings.of(engine)) as store:
            watch = StoreWatch(store, lock, clock)
            start.health.watch("store", watch.trouble)
            async with run_loops(clock, {"store": watch.run}):
                yield store, has_lock


async def _open_sources(
    start: _Start, scope: ToolScope, scopes: AsyncExitStack
) -> tuple[list[ToolSource], ContextEngine]:
    """Open the sources of tools, and the context engine, which may bring some too."""
    settings = start.settings
    sources = [
        await scopes.enter_async_context(part.open(scope, settings.of(part)))
        for part in start.parts
        if isinstance(part, ToolPart)
    ]
    engine = await open_engine(scopes, start.parts, lambda part: part.open(scope, settings.of(part)))
    return sources + ([] if engine.tools is None else [engine.tools]), engine


@asynccontextmanager
async def _open_agents(
    start: _Start,
    scope: ToolScope,
    models: ModelScope,
    workspaces: ChatWorkspaces,
    workers: ToolWorkers,
    *,
    trust: FolderTrust,
) -> AsyncIterator[Agents]:
    """Open the warm pool, and what agents need to answer: tools, specs, models, money."""
    settings, clock, live, metrics = start.settings, start.clock, start.live, start.metrics
    store = scope.store
    async with AsyncExitStack() as scopes:
        sources, engine = await _open_sources(start, scope, scopes)
        checkpoints = FolderCheckpoints(start.home.path, workers.threads)
        runner = ToolRunner(
            sources,
            settings.tools,
            metrics,
            workers,
            start.secrets,
            checkpoints=checkpoints,
            trust=partial(TurnTrust, store, trust),
            clock=clock,
            usage=ToolUsage(start.home.path / USAGE_FILE),
        )
        metrics.watch(lambda: server_metrics(runner.servers()))
        live.on(("tools",), tell=lambda new: runner.enable(new.tools.enabled, new.tools.search_above))
        memories = Memories(sources, start.people, runner, store, start.turn_settings)
        scopes.push_async_callback(memories.close)
        known = (settings.agent, models.catalog, models.providers, lambda: runner.tools)
        specs = SpecResolver(*known, memory=memories.prompt, offer=runner.offer, skills=runner.section)
        live.on(
            *MODEL_KEYS, ("tools", "enabled"), ("agent", "prompt"), tell=lambda new: specs.change(new.agent)
        )
        budgets = Budgets(
            settings.budgets,
            partial(models.catalog.price, Prices(settings.prices).find),
            store,
            metrics=metrics,
            clock=clock,
            zone=start.zone,
        )

        def change_money(new: Settings) -> None:
            budgets.change(new.budgets, partial(models.catalog.price, Prices(new.prices).find))

        live.on(("budgets",), ("prices",), tell=change_money)
        builder = AgentBuilder(store, models.providers, workspaces)
        pool = Pool(builder, settings.pool.limits, clock)
        scopes.push_async_callback(pool.drain)
        live.on(("pool",), tell=lambda new: pool.change_limits(new.pool.limits))
        metrics.watch(lambda: pool_metrics(pool.stats().reading()))
        fallbacks, abilities = fallback_chain(settings.model), models.catalog.abilities
        routes = Routes(models.providers, builder, clock, random.random, fallbacks, abilities)
        await scopes.enter_async_context(run_loops(clock, {"pool": pool.run}))
        downloads, secrets = models.local.downloads, start.secrets
        calls = SideCalls(
            models.providers, models.catalog, budgets, store, metrics, secrets, lambda: live.settings.context
        )
        compaction = Compaction(store, calls, specs.refresh_memory, engine)
        agents = Agents(pool, specs, routes, runner, budgets, metrics, compaction, downloads, secrets)
        agents = replace(agents, folder_trust=trust)
        commands = ExtraCommands(partial(plugin_commands, start.parts), runner.commands)
        yield replace(agents, memories=memories, commands=commands)


@asynccontextmanager
async def _open_turns(
    start: _Start, store: Store, models: ModelScope, *, has_lock: bool
) -> AsyncIterator[Gateway]:
    """Open everything around turns: workspaces, agents, sessions and delivery."""
    home, clock = start.home, start.clock
    async with AsyncExitStack() as scopes:
        workers = ToolWorkers(start.limits)
        scopes.callback(workers.threads.close)
        folders, turn_settings = start.chat_folders(), start.turn_settings
        trust = FolderTrust(store.taints, folders.find_project, clock)
        opening = start.open_workspaces(workers.threads, folders, store, trust)
        workspaces, networks = await scopes.enter_async_context(opening)
        notes = ProcessNotes(store, workspaces.processes, turn_settings, clock)
        scopes.push_async_callback(notes.close)
        index = await scopes.enter_async_context(open_index(home.path, store.recall, clock, start.zone))
        sender = _make_sender(start, store, turn_settings, folders)
        scope = replace(start.tool_scope(store, index), sender=sender)
        opening_agents = _open_agents(start, scope, models, workspaces, workers, trust=trust)
        agents = await scopes.enter_async_context(opening_agents)
        sources: list[NoteSource] = [notes, *([agents.memories] if agents.memories else [])]
        hooks = await open_hooks(scopes, start.parts)
        agents = replace(agents, notes=sources, hooks=hooks, job_desk=lambda: gateway.job_desk())  # noqa: PLW0108
        overview: Overview | None = None
        sessions = _make_lifecycle(start, store, workspaces, agents, lambda: overview)
        scopes.push_async_callback(sessions.drain)
        keeper, watch = await scopes.enter_async_context(start.leases(store))
        cluster = await start.join(store, keeper, scopes)
        membership = None if cluster is None else cluster.membership
        place = "" if membership is None else membership.here.own_place
        if membership is not None:
            sources.append(
                await scopes.enter_async_context(keep_places(membership, store, workspaces, notes))
            )
        uploads = make_uploads(cluster, folders, clock, workers)
        hosts, known = _host_questions(start), (store, keeper, agents, sessions, turn_settings)
        standing = membership or LoneGateway(store, clock, keeper, has_lock=has_lock)
        turns = Turns(*known, load=watch.load, hosts=hosts, uploads=uploads, cluster=standing)
        networks.use_asker(turns.hosts.ask)
        delivery = _make_delivery(start, store, turns, folders)
        sender.use(turns.live, delivery.written)
        loops = _turn_loops(start, turns, delivery, sessions, sender)
        await scopes.enter_async_context(run_loops(clock, loops))
        channels: dict[str, OpenChannel] = {}
        if cluster is not None:
            figures = OwnFigures(keeper, agents.pool, start.metrics, start.health, channels)
            overview = await scopes.enter_async_context(work_together(cluster, figures, turns, delivery))
        gateway = start.make_gateway(
            models,
            store=store,
            pool=agents.pool,
            turns=turns,
            sessions=sessions,
            pairing=PairingAdmin(store.pairings, pairing_channels(start.parts)),
            deletions=Deletions(store, clock, sessions, folders, index.forget, place=place),
            search=index,
            workspaces=workspaces,
            networks=networks,
            delivery=delivery,
            sender=sender,
            notes=notes,
            budgets=agents.budgets,
            uploads=uploads,
            loop_watch=watch,
            tool_runner=agents.tool_runner,
            cluster=membership,
            overview=overview,
            peers=None if cluster is None else cluster.peers,
            channels=channels,
        )
        await _open_services(scopes, gateway, serves=start.serves)
        yield gateway


async def _open_services(scopes: AsyncExitStack, gateway: Gateway, *, serves: bool) -> None:
    for part in gateway.parts:
        if isinstance(part, ServicePart) and (serves or not part.needs_serve):
            await scopes.enter_async_context(part.open(gateway, gateway.settings.of(part)))


def _turn_loops(
    start: _Start, turns: Turns, delivery: Delivery, sessions: SessionLifecycle, sender: ChatSender
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the loops that run beside the turns."""
    return {
        "delivery": delivery.run,
        "sending": sender.run,
        "deadlines": turns.watch,
        "orphans": turns.here.run,
        "answers": turns.requests.run,
        "expiry": sessions.run,
        "config": start.reloader.run,
    }


def _make_delivery(start: _Start, store: Store, turns: Turns, folders: ChatFolders) -> Delivery:
    read, settings = partial(read_sent, folders), start.settings.delivery
    delivery = Delivery(store, turns.live, settings, read, limits=start.limits)
    turns.hosts.use_messages(delivery.show_host_question)
    return delivery


def _make_sender(start: _Start, store: Store, settings: TurnSettings, folders: ChatFolders) -> ChatSender:
    address_of = partial(find_address, start.parts, start.current, settings.agent_name)
    return ChatSender(store, settings, address_of, folders, secrets=start.secrets, clock=start.clock)


def _host_questions(start: _Start) -> Callable[..., HostQuestions]:
    """Return what makes the questions about hosts, of a store, live turns and a clock."""
    asks = start.settings.tools.approvals != "never"
    return partial(HostQuestions, asks=asks, allow_always=start.reloader.allow_host)


def _make_lifecycle(
    start: _Start,
    store: Store,
    workspaces: ChatWorkspaces,
    agents: Agents,
    overview: Callable[[], Overview | None],
) -> SessionLifecycle:
    def cutoff() -> float:
        return reset_cutoff(start.live.settings.sessions, store.clock.now(), start.zone)

    def is_in_charge() -> bool:
        return (seen := overview()) is None or seen.own_roles.has(UPKEEP)

    release, hooks = agents.pool.release, agents.hooks
    known = (store, start.clock, workspaces, release, cutoff)
    return SessionLifecycle(*known, hooks=hooks, is_in_charge=is_in_charge)
