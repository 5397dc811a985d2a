"""The composition root: builds the objects of a gateway, leaf first, and nests their scopes.

home lock ⊃ store ⊃ models ⊃ workspaces ⊃ pool ⊃ turns ⊃ channels. Shutdown leaves the scopes from the inside
out: channels stop accepting, turns drain until the deadline and the rest stays resumable, agents are
released, and everything closes. Each scope also runs its background loops and follows changes of config.toml.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from talaria.access.authorizer import PairingAdmin
from talaria.access.budgets import Budgets
from talaria.access.people import People
from talaria.agent.calling import Routes
from talaria.agent.compaction.engine import open_engine
from talaria.agent.compaction.keeper import Compaction
from talaria.agent.context import NoteSource
from talaria.agent.side_calls import SideCalls
from talaria.agent.spec_resolver import SpecResolver
from talaria.agent.warm import AgentBuilder
from talaria.channels.descriptor import find_address, follow_people, pairing_channels
from talaria.cluster.leases import LeaseKeeper, LeaseTiming
from talaria.cluster.membership import JoinedCluster, LoneGateway, Membership, join_cluster
from talaria.cluster.overview import Overview, open_overview
from talaria.cluster.places import LEASH_FILE, remove_leash
from talaria.cluster.roles import UPKEEP
from talaria.config.home import Home, check_trusted, home_environ
from talaria.config.load import Loaded, own_secrets
from talaria.config.reload import LiveSettings, Reloader
from talaria.config.settings import Settings
from talaria.config.shared_files import check_shared_files, read_mark
from talaria.core.clock import Clock, SystemClock
from talaria.core.cluster import MemberFigures, Wake
from talaria.core.errors import BadRequest, ConfigError
from talaria.core.ids import SessionId
from talaria.core.limits import Limits
from talaria.core.redaction import SecretRegistry
from talaria.core.settings import GatewayPart, KeyPath, Parts, S
from talaria.core.tasks import run_loops, stop
from talaria.core.turns import Turn
from talaria.gateway import (
    Gateway,
    OpenChannel,
    ServicePart,
    blame_plugins,
    make_job_desk,
    open_hooks,
    plugin_commands,
)
from talaria.memory.memories import Memories
from talaria.models.catalog import Catalog, fallback_chain, providers_in_use
from talaria.models.discovery import MODEL_LISTS_FILE, ModelLists
from talaria.models.known import Prices
from talaria.models.local.local_endpoint import LocalEndpoint, open_local
from talaria.models.providers import Providers
from talaria.observe.health import GatewayPhase, Health, read_rss
from talaria.observe.metrics import (
    Metrics,
    endpoint_metrics,
    limit_metrics,
    network_metrics,
    pool_metrics,
    server_metrics,
)
from talaria.parts import PARTS
from talaria.pool.pool import Pool
from talaria.search.index import open_index
from talaria.skills.pins import readable_folders
from talaria.store.archive import drop_snapshots
from talaria.store.home_lock import HomeLock, StoreWatch, lock_database
from talaria.store.part import StoreScope, find_engine
from talaria.store.settings import is_file
from talaria.store.store import Store
from talaria.tools.execution import ToolRunner
from talaria.tools.part import ToolPart, ToolScope
from talaria.tools.settings import command_environ
from talaria.tools.tool_search import USAGE_FILE, ToolUsage
from talaria.tools.workers import ToolWorkers
from talaria.turns.agents import Agents
from talaria.turns.crashes import RestartGuard, keep_leases
from talaria.turns.delegates import open_delegates
from talaria.turns.delivery import Delivery
from talaria.turns.feed import OtherFeeds, note_job
from talaria.turns.followed import FollowedTurns
from talaria.turns.joined_identities import JoinedIdentities
from talaria.turns.lifecycle import Deletions, SessionLifecycle, reset_cutoff
from talaria.turns.live import LiveTurns
from talaria.turns.notes import ProcessNotes, keep_places
from talaria.turns.questions import HostQuestions
from talaria.turns.sending import ChatSender
from talaria.turns.settings import TurnSettings
from talaria.turns.slash import ExtraCommands
from talaria.turns.trust import FolderTrust, TurnTrust
from talaria.turns.turns import Turns
from talaria.workspace.browser.browsers import SessionBrowsers
from talaria.workspace.checkpoints.checkpoints import FolderCheckpoints
from talaria.workspace.member_uploads import ChatFileRoutes, MemberUploads
from talaria.workspace.network import SessionNetworks
from talaria.workspace.places import ChatFolders
from talaria.workspace.sandbox.choice import Sandboxes
from talaria.workspace.sandbox.command import ProcessLimits
from talaria.workspace.shell import SessionCommands
from talaria.workspace.uploads import Uploads, read_sent
from talaria.workspace.workspaces import ChatWorkspaces

if TYPE_CHECKING:
    from talaria.core.hooks import Hooks  # with plug-ins only

_log = logging.getLogger("talaria.app")
_MODEL_KEYS: tuple[KeyPath, ...] = (("providers",), ("aliases",), ("model", "provider"), ("model", "name"))
_MOST_TROUBLE = 300  # characters that other gateways are told


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

    @property
    def zone(self) -> ZoneInfo | None:
        name = self.settings.agent.timezone
        return ZoneInfo(name) if name else None

    @property
    def turn_settings(self) -> TurnSettings:
        settings = self.settings
        return TurnSettings.of(settings.agent, settings.sessions, settings.model.reasoning, self.zone)

    @property
    def is_clustered(self) -> bool:
        """Whether other gateways may serve the database too."""
        return self.serves and not is_file(self.settings.store.url)

    def current(self, part: GatewayPart[S]) -> S:
        return self.live.settings.of(part)

    def is_own_secret(self, variable: str) -> bool:
        return own_secrets(self.live.settings)(variable)


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
    start.live.on(("limits",), tell=lambda new: limits.change(new.limits))
    start.metrics.watch(lambda: limit_metrics(limits.readings()))
    async with (
        _open_store(start) as (store, has_lock),
        _open_models(start) as models,
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
    """Let turns run, after the pause that follows unclean ends."""
    try:
        if pause:
            await guard.wait(pause)
            await guard.enter()
        await gateway.notes.open(gateway.turns.wake)
    except Exception:  # a start that cannot be recorded is a start all the same
        _log.exception("the start was not as it should be")
    start.health.enter(GatewayPhase.READY)
    gateway.loop_watch.end_start()
    gateway.turns.release()
    gateway.tool_runner.start()


# -- store ------------------------------------------------------------------------------------------------


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


# -- models -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Models:
    providers: Providers
    local: LocalEndpoint
    catalog: Catalog


@asynccontextmanager
async def _open_models(start: _Start) -> AsyncIterator[_Models]:
    """Open the providers, the built-in model and the catalog of names, and follow changes of their
    settings."""
    settings, clock = start.settings, start.clock
    local = open_local(settings.local, start.environ, clock)
    async with Providers(
        settings.providers, start.environ, clock, local=local, limits=start.limits
    ) as providers:
        providers.follow(settings.model)
        start.metrics.watch(lambda: endpoint_metrics(providers.readings()))
        in_use = (*providers_in_use(settings.model, settings.aliases), *settings.providers)
        model_lists = ModelLists(providers, clock, in_use, start.home.path / MODEL_LISTS_FILE)
        catalog = Catalog(
            settings.model,
            settings.aliases,
            providers=providers.known,
            agents=(settings.agent.name,),
            config_path=str(start.home.config),
            abilities=settings.models,
            model_lists=model_lists,
            built_in_models=providers.built_in_models,
            built_in_default=local.default_model,
        )

        def change(new: Settings) -> None:
            providers.change(new.providers)
            providers.follow(new.model)
            model_lists.change()
            catalog.change(new.model, new.aliases, providers.known, providers.built_in_models)

        start.live.on(*_MODEL_KEYS, tell=change)
        loops = {"model lists": model_lists.run, "weights": local.downloads.run, "built-in model": local.run}
        async with run_loops(clock, loops):
            yield _Models(providers, local, catalog)


# -- workspaces -------------------------------------------------------------------------------------------


def _chat_folders(start: _Start) -> ChatFolders:
    """Raises `ConfigError`."""
    settings = start.settings
    try:
        return ChatFolders(start.home.path, settings.agent.project, settings.store.shared)
    except BadRequest as error:
        raise ConfigError(f"agent.project: {error.user_text}", error.hint) from error


@asynccontextmanager
async def _open_workspaces(
    start: _Start,
    store: Store,
    workers: ToolWorkers,
    folders: ChatFolders,
    hosts: HostQuestions,
    *,
    trust: FolderTrust,
) -> AsyncIterator[tuple[ChatWorkspaces, SessionNetworks]]:
    """Open the files, shells, processes and networks of sessions. Leaving ends no session.

    What a command loads from the network is untrusted, so it taints the folders of its chat before the first
    byte arrives.
    """
    home, tools = start.home.path, start.settings.tools

    async def taint_chat(session_id: SessionId) -> None:
        chat_key = workspaces.borrower(session_id)
        if chat_key is None and (session := await store.session(session_id)) is not None:
            chat_key = session.chat_key
        if chat_key is not None:
            await trust.mark(chat_key, "network")

    networks = SessionNetworks(
        home,
        lambda: start.live.settings.network,
        threads=workers.threads,
        ask=hosts.ask,
        count=start.metrics.command_connected,
        on_reach=taint_chat,
    )
    start.metrics.watch(lambda: network_metrics(networks.reading()))
    sandboxes = Sandboxes(tools.sandbox, home, folders.shared)
    browsers = SessionBrowsers(
        home,
        sandboxes,
        workers.threads,
        settings=lambda: start.live.settings.browser,
        network=lambda: start.live.settings.network,
        count=start.metrics.command_connected,
    )
    commands = SessionCommands(
        sandboxes,
        partial(command_environ, tools, start.environ),
        ProcessLimits(tools.command_memory, tools.command_processes),
        networks,
        workers.threads,
        readable=partial(readable_folders, home),
        leash=home / LEASH_FILE if start.is_clustered else None,
    )
    workspaces = ChatWorkspaces(home, (networks,), commands, folders, start.limits, browsers=browsers)
    try:
        await networks.resume()
        yield workspaces, networks
    finally:
        await workspaces.close()


# -- agents -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_agents(
    start: _Start,
    scope: ToolScope,
    models: _Models,
    workspaces: ChatWorkspaces,
    workers: ToolWorkers,
    *,
    membership: Membership | None,
    trust: FolderTrust,
    notes: Sequence[NoteSource],
    hooks: Hooks | None,
) -> AsyncIterator[Agents]:
    """Open the warm pool, and what agents need to answer: tools, specs, models, money."""
    settings, clock, live, metrics = start.settings, start.clock, start.live, start.metrics
    store, providers, catalog = scope.store, models.providers, models.catalog
    async with AsyncExitStack() as scopes:
        sources = [
            await scopes.enter_async_context(part.open(scope, settings.of(part)))
            for part in start.parts
            if isinstance(part, ToolPart)
        ]
        engine = await open_engine(scopes, start.parts, lambda part: part.open(scope, settings.of(part)))
        if engine.tools is not None:
            sources.append(engine.tools)
        runner = ToolRunner(
            sources,
            settings.tools,
            metrics,
            workers,
            start.secrets,
            checkpoints=FolderCheckpoints(start.home.path, workers.threads),
            trust=partial(TurnTrust, store, trust),
            clock=clock,
            usage=ToolUsage(start.home.path / USAGE_FILE),
        )
        metrics.watch(lambda: server_metrics(runner.servers()))
        live.on(("tools",), tell=lambda new: runner.use(new.tools))
        memories = Memories(sources, start.people, runner, store, start.turn_settings.stamp)
        scopes.push_async_callback(memories.close)
        specs = SpecResolver(
            settings.agent,
            catalog,
            providers,
            lambda: runner.tools,
            memory=memories.prompt,
            offer=runner.offer,
            skills=runner.section,
            agents=settings.agents,
        )
        live.on(
            *_MODEL_KEYS,
            *(("tools", "enabled"), ("agent", "prompt"), ("agents",)),
            tell=lambda new: specs.change(new.agent, new.agents),
        )
        identities = JoinedIdentities(start.people, store, membership)
        await scopes.enter_async_context(identities.open())
        budgets = Budgets(
            settings.budgets,
            partial(catalog.price, Prices(settings.prices).find),
            store,
            metrics=metrics,
            clock=clock,
            zone=start.zone,
        )

        def change_money(new: Settings) -> None:
            budgets.change(new.budgets, partial(catalog.price, Prices(new.prices).find))

        live.on(("budgets",), ("prices",), tell=change_money)
        builder = AgentBuilder(store, providers, workspaces)
        pool = Pool(builder, settings.pool.limits, clock)
        scopes.push_async_callback(pool.drain)
        live.on(("pool",), tell=lambda new: pool.change_limits(new.pool.limits))
        metrics.watch(lambda: pool_metrics(pool.stats().reading()))
        routes = Routes(
            providers, builder, clock, random.random, fallback_chain(settings.model), catalog.abilities
        )
        await scopes.enter_async_context(run_loops(clock, {"pool": pool.run}))
        calls = SideCalls(
            providers, catalog, budgets, store, metrics, start.secrets, lambda: live.settings.context
        )
        yield Agents(
            pool=pool,
            specs=specs,
            routes=routes,
            tool_runner=runner,
            budgets=budgets,
            metrics=metrics,
            compaction=Compaction(store, calls, specs.refresh_memory, engine),
            pending=models.local.downloads,
            secrets=start.secrets,
            notes=(*notes, memories),
            memories=memories,
            job_desk=partial(
                make_job_desk,
                store.jobs,
                start.people,
                clock,
                timezone=settings.agent.timezone,
                settings=lambda: live.settings.jobs,
                check_model=catalog.resolve,
            ),
            commands=ExtraCommands(partial(plugin_commands, start.parts), runner.commands),
            hooks=hooks,
            folder_trust=trust,
            identities=identities,
        )


# -- other gateways ---------------------------------------------------------------------------------------


@asynccontextmanager
async def _join(start: _Start, store: Store, keeper: LeaseKeeper) -> AsyncIterator[JoinedCluster | None]:
    """Join the gateways on the same database. Yields None if there can be none. Raises `ConfigError` if this
    gateway cannot serve beside those that are there."""
    if not start.is_clustered:
        remove_leash(start.home.path)
        yield None
        return
    shared = start.settings.store.shared
    async with join_cluster(
        store,
        start.clock,
        keeper,
        start.settings.cluster,
        start.home.path,
        environ=start.environ,
        files="" if shared is None else read_mark(shared),
    ) as joined:
        yield joined


def _file_routes(cluster: JoinedCluster, store: Store) -> ChatFileRoutes:
    """Return the ways to the files of chats that other members have."""
    own = cluster.membership
    return ChatFileRoutes(own.store, cluster.peers, own.here, store.clock, own.chats.claim)


def _make_uploads(
    start: _Start, store: Store, cluster: JoinedCluster | None, folders: ChatFolders, workers: ToolWorkers
) -> Uploads:
    make = Uploads if cluster is None else partial(MemberUploads, routes=_file_routes(cluster, store))
    return make(folders.files, folders, start.clock, workers.threads, workers.quota)


@asynccontextmanager
async def _work_together(
    cluster: JoinedCluster,
    store: Store,
    delivery: Delivery,
    health: Health,
    metrics: Metrics,
    *,
    measure: Callable[[], MemberFigures],
) -> AsyncIterator[Overview]:
    """Share roles and the sending of replies with the other members while the context is open, and watch
    them. `measure` returns what this gateway tells the others of itself."""
    own = cluster.membership
    own.on_wake(Wake.OUTBOX, delivery.wake)
    async with open_overview(own, store.clock, cluster.token, measure, cluster.peers) as overview:
        delivery.share(
            lambda: own.wake(Wake.OUTBOX),
            store.clock.now,
            overview.own_roles.has_channel,
            _file_routes(cluster, store).read,
        )
        health.watch("cluster", overview.trouble)
        metrics.watch_cluster(own.me.place, overview.reading)
        yield overview


# -- turns ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_turns(
    start: _Start, store: Store, models: _Models, *, has_lock: bool
) -> AsyncIterator[Gateway]:
    """Open everything around turns: workspaces, agents, sessions and delivery."""
    home, settings, clock = start.home, start.settings, start.clock
    turn_settings, folders = start.turn_settings, _chat_folders(start)
    async with AsyncExitStack() as scopes:
        enter = scopes.enter_async_context

        # The live turns, and what is said to people beside them.
        hooks = await open_hooks(scopes, start.parts)
        live = LiveTurns(clock, start.metrics, hooks)
        delivery = Delivery(
            store,
            live,
            settings.delivery,
            partial(read_sent, folders),
            limits=start.limits,
            find_picture=lambda session_id, tool: workspaces.picture(session_id, tool),  # noqa: PLW0108 - below
        )
        hosts = HostQuestions(
            store,
            live,
            clock,
            settings=lambda: start.live.settings.tools,
            allow_always=start.reloader.allow_host,
            send=delivery.show_host_question,
        )
        sender = ChatSender(
            store,
            turn_settings,
            partial(find_address, start.parts, start.current, turn_settings.agent_name),
            folders,
            secrets=start.secrets,
            clock=clock,
            live=live,
            wake=delivery.written,
        )

        # Folders, shells, processes and networks for tools.
        workers = ToolWorkers(start.limits)
        scopes.callback(workers.threads.close)
        trust = FolderTrust(store.taints, folders.find_project, clock)
        workspaces, networks = await enter(
            _open_workspaces(start, store, workers, folders, hosts, trust=trust)
        )
        notes = ProcessNotes(store, workspaces.processes, turn_settings, clock)
        scopes.push_async_callback(notes.close)
        index = await enter(open_index(home.path, store.recall, clock, start.zone))

        # Leases, and the other gateways on the database.
        keeper, watch = await enter(
            keep_leases(
                store,
                clock,
                start.timing,
                limits=start.limits,
                metrics=start.metrics,
                health=start.health,
                blame=partial(blame_plugins, start.parts),
            )
        )
        cluster = await enter(_join(start, store, keeper))
        membership = None if cluster is None else cluster.membership
        note_sources: list[NoteSource] = [notes]
        if membership is not None:
            note_sources.append(await enter(keep_places(membership, store, workspaces, notes)))

        # Agents.
        scope = ToolScope(
            home=home.path,
            environ=start.environ,
            clock=clock,
            people=start.people,
            current=start.current,
            opened=store,
            secrets=start.secrets,
            index=index,
            zone=start.zone,
            sender=sender,
            follow=start.live.follow,
            shared=settings.store.shared,
            is_own_secret=start.is_own_secret,
        )
        agents = await enter(
            _open_agents(
                start,
                scope,
                models,
                workspaces,
                workers,
                membership=membership,
                trust=trust,
                notes=note_sources,
                hooks=hooks,
            )
        )
        channels: dict[str, OpenChannel] = {}

        def measure() -> MemberFigures:
            ready = (name for name, channel in channels.items() if channel.status.startswith("ready"))
            return MemberFigures(
                turns=len(keeper),
                agents=agents.pool.stats().size,
                rss_bytes=read_rss(),
                turns_total=start.metrics.turns_ended,
                channels=tuple(sorted(ready)),
                trouble="; ".join(start.health.readiness().reasons)[:_MOST_TROUBLE],
            )

        overview: Overview | None = None
        if cluster is not None:
            together = _work_together(cluster, store, delivery, start.health, start.metrics, measure=measure)
            overview = await enter(together)
        roles = None if overview is None else overview.own_roles

        # Sessions and turns.
        sessions = SessionLifecycle(
            store,
            clock,
            workspaces,
            agents.pool.release,
            lambda: reset_cutoff(start.live.settings.sessions, store.clock.now(), start.zone),
            hooks=hooks,
            is_in_charge=lambda: roles is None or roles.has(UPKEEP),
            feed=live.feed,
        )
        store.jobs.on_change = partial(note_job, live.feed)
        scopes.push_async_callback(sessions.drain)
        uploads = _make_uploads(start, store, cluster, folders, workers)
        followed: FollowedTurns | None = None
        feeds: OtherFeeds | None = None
        if cluster is not None:
            own = cluster.membership
            followed = FollowedTurns(store, own.store, live, cluster.peers, own.owner)
            feeds = OtherFeeds(store, live.feed, cluster.peers, own.owner)
        turns = Turns(
            store,
            keeper,
            agents,
            sessions,
            turn_settings,
            live=live,
            hosts=hosts,
            load=watch.load,
            uploads=uploads,
            cluster=membership or LoneGateway(store, clock, keeper, has_lock=has_lock),
            followed=followed,
            feeds=feeds,
        )
        loops = {
            "delegates": (
                await enter(
                    open_delegates(
                        turns,
                        store,
                        sender,
                        clock,
                        lambda: start.live.settings.delegates,
                        is_in_charge=sessions.is_in_charge,
                    )
                )
            ).run,
            "delivery": delivery.run,
            "sending": sender.run,
            "deadlines": turns.watch,
            "orphans": turns.here.run,
            "answers": turns.requests.run,
            "expiry": sessions.run,
            "config": start.reloader.run,
        }
        await enter(run_loops(clock, loops))

        # The gateway, and its services.
        gateway = Gateway(
            home=home,
            settings=settings,
            environ=start.environ,
            clock=clock,
            store=store,
            people=start.people,
            sender=sender,
            sessions=sessions,
            deletions=Deletions(
                store,
                clock,
                sessions,
                folders,
                index.forget,
                place="" if membership is None else membership.here.own_place,
            ),
            search=index,
            workspaces=workspaces,
            pairing=PairingAdmin(store.pairings, pairing_channels(start.parts)),
            providers=models.providers,
            local=models.local,
            catalog=models.catalog,
            pool=agents.pool,
            turns=turns,
            delivery=delivery,
            notes=notes,
            budgets=agents.budgets,
            uploads=uploads,
            networks=networks,
            metrics=start.metrics,
            health=start.health,
            limits=start.limits,
            secrets=start.secrets,
            loop_watch=watch,
            reloader=start.reloader,
            started_at=clock.now(),
            tool_runner=agents.tool_runner,
            parts=start.parts,
            overview=overview,
            cluster=membership,
            peers=None if cluster is None else cluster.peers,
            channels=channels,
        )
        for part in start.parts:
            if isinstance(part, ServicePart) and (start.serves or not part.needs_serve):
                await enter(part.open(gateway, settings.of(part)))
        yield gateway
