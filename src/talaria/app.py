"""The composition root: opens everything in order and nests the scopes.

home lock ⊃ store ⊃ providers ⊃ workspaces ⊃ pool ⊃ turns ⊃ channels. Shutdown is leaving the scopes from the
inside out: channels stop accepting, turns drain until the deadline and are then left resumable, agents go,
workspaces let go, the endpoints and the store close, the lock is free.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from talaria.access.budgets import Budgets
from talaria.agent.calling import Routes
from talaria.agent.specs import SpecResolver
from talaria.agent.warm import AgentBuilder
from talaria.cluster.leases import LeaseKeeper
from talaria.config.home import Home
from talaria.config.live import LiveSettings, Reloader
from talaria.config.load import Loaded
from talaria.config.settings import Settings
from talaria.core.clock import Clock, SystemClock
from talaria.core.ids import ChatKey, new_owner_id
from talaria.core.parts import Parts as AllParts
from talaria.core.tools import MAX_SENT_BYTES
from talaria.core.turns import Turn
from talaria.gateway import Gateway
from talaria.models.catalog import Catalog, fallback_chain, providers_in_use
from talaria.models.discovery import MODEL_LISTS_FILE, ModelLists
from talaria.models.known import Prices
from talaria.models.local.local_endpoint import open_local
from talaria.models.providers import Providers
from talaria.observe.health import GatewayPhase, Health
from talaria.observe.metrics import Metrics, PoolReading
from talaria.parts import PARTS
from talaria.pool.policy import PoolLimits
from talaria.pool.pool import Pool
from talaria.store.archive import drop_snapshots
from talaria.store.engines import open_store
from talaria.store.home_lock import HomeLock
from talaria.store.watch import StoreWatch
from talaria.tools.builtin import builtin_sources
from talaria.tools.execution import ToolRunner
from talaria.tools.result import drop_old_results
from talaria.turns.agents import Agents
from talaria.turns.crashes import RestartGuard
from talaria.turns.delivery import Delivery
from talaria.turns.lifecycle import Retention, SessionLifecycle, reset_cutoff
from talaria.turns.settings import Busy, TurnSettings
from talaria.turns.turns import Turns
from talaria.workspace.folder import Folder, chat_folder
from talaria.workspace.uploads import Uploads
from talaria.workspace.workspaces import ChatWorkspaces

_log = logging.getLogger("talaria.app")
LEASE_SECONDS = 30.0


@asynccontextmanager
async def open_gateway(  # noqa: PLR0915 - a list of what there is, in its order
    home: Home,
    loaded: Loaded,
    environ: Mapping[str, str],
    clock: Clock | None = None,
    *,
    takes_up: Callable[[Turn], bool] = lambda turn: True,
    parts: AllParts = PARTS,
) -> AsyncIterator[Gateway]:
    """Everything but the channels, recovered and accepting: what earlier processes left is taken up, as far
    as `takes_up` says. Leaving it drains.

    Raises `ConfigError` and `StoreError`, each with what to do about it.
    """
    settings, clock = loaded.settings, clock or SystemClock()
    reloader = Reloader(home.path, environ, parts, LiveSettings(settings), clock)
    async with AsyncExitStack() as scopes:
        home.prepare()
        lock = scopes.enter_context(HomeLock(home.path))
        drop_snapshots(home.path)
        database = home.find_database(settings.store.url)
        store = await scopes.enter_async_context(open_store(database, clock, is_suspect=lock.follows_crash))
        watch = StoreWatch(store, lock, clock)
        local = open_local(settings.local, environ, clock)
        providers = await scopes.enter_async_context(
            Providers(settings.providers, environ, clock, local=local)
        )
        providers.follow(settings.model)
        metrics, health = Metrics(), Health()
        health.watch("store", watch.trouble)
        in_use = (*providers_in_use(settings.model, settings.aliases), *settings.providers)
        model_lists = ModelLists(providers, clock, in_use, home.path / MODEL_LISTS_FILE)
        catalog = Catalog(
            settings.model,
            settings.aliases,
            providers=providers.known,
            agents=(settings.agent.name,),
            config_path=str(home.config),
            abilities=settings.models,
            model_lists=model_lists,
            built_in_models=providers.built_in_models,
        )
        tool_runner = ToolRunner(builtin_sources(settings.tools), settings.tools, metrics)
        workspaces = ChatWorkspaces(home.path)
        scopes.push_async_callback(workspaces.close)
        builder = AgentBuilder(store, providers, workspaces)
        pool = Pool(builder, _limits(settings), clock)
        scopes.push_async_callback(pool.drain)
        metrics.watch_pool(lambda: _read_pool(pool))
        metrics.watch_endpoints(providers.readings)
        keeper = LeaseKeeper(store, clock, new_owner_id(), LEASE_SECONDS)
        zone = ZoneInfo(settings.agent.timezone) if settings.agent.timezone else None

        price = partial(catalog.price, Prices(settings.prices).find)
        budgets = Budgets(settings.budgets, price, store, metrics=metrics, clock=clock, zone=zone)
        uploads = Uploads(home.files, partial(chat_folder, home.path), clock)
        sessions = SessionLifecycle(
            store, clock, workspaces, pool.release, partial(_cutoff, reloader.live, clock, zone)
        )
        scopes.push_async_callback(sessions.drain)
        specs = SpecResolver(settings.agent, catalog, providers, lambda: tool_runner.tools)
        routes = Routes(
            providers, builder, clock, random.random, fallback_chain(settings.model), catalog.abilities
        )
        turns = Turns(
            store,
            keeper,
            Agents(pool, specs, routes, tool_runner, budgets, metrics, local.downloads),
            sessions,
            TurnSettings(
                agent_name=settings.agent.name,
                max_steps=settings.agent.max_steps,
                turn_seconds=settings.agent.turn_timeout.total_seconds(),
                busy=Busy(settings.sessions.busy),
                reasoning=None if settings.model.reasoning == "none" else settings.model.reasoning,
                zone=zone,
            ),
        )
        delivery = Delivery(store, turns.live, settings.delivery, partial(_read_sent, home.path))
        _follow(reloader.live, _Followers(providers, catalog, specs, tool_runner, pool, budgets))
        retention = Retention(
            store,
            clock,
            settings.retention,
            lambda before: asyncio.to_thread(_drop_files, home, uploads, before),
        )
        await scopes.enter_async_context(
            _background(
                clock,
                {
                    "leases": keeper.run,
                    "store": watch.run,
                    "pool": pool.run,
                    "delivery": delivery.run,
                    "deadlines": turns.watch,
                    "orphans": turns.watch_orphans,
                    "expiry": sessions.run,
                    "retention": retention.run,
                    "config": reloader.run,
                    "model_lists": model_lists.run,
                    "weights": local.downloads.run,
                    "built-in model": local.run,
                },
            )
        )
        guard = RestartGuard(store, clock, settings.shutdown.restart_pause.total_seconds())
        await guard.enter()
        try:
            await turns.recover(takes_up)
            health.enter(GatewayPhase.READY)
            warming = asyncio.create_task(providers.warm(), name="warm-up")
            scopes.callback(warming.cancel)
            yield Gateway(
                home=home,
                settings=settings,
                environ=environ,
                store=store,
                providers=providers,
                local=local,
                catalog=catalog,
                pool=pool,
                turns=turns,
                delivery=delivery,
                budgets=budgets,
                uploads=uploads,
                metrics=metrics,
                health=health,
                clock=clock,
                started_at=clock.now(),
                reloader=reloader,
                parts=parts,
            )
        finally:
            health.enter(GatewayPhase.DRAINING)
            await turns.drain(settings.shutdown.deadline.total_seconds())
            await guard.leave()


def _drop_files(home: Home, uploads: Uploads, before: float) -> int:
    return drop_old_results(home.files, before) + uploads.forget()


def _read_sent(home: Path, key: ChatKey, path: str) -> bytes:
    """A file that goes out with a reply; never one that a link leads to."""
    folder = Folder(chat_folder(home, key))
    return folder.read(folder.resolve(path), MAX_SENT_BYTES)


@dataclass(frozen=True, slots=True)
class _Followers:
    """Those that can change while the gateway runs."""

    providers: Providers
    catalog: Catalog
    specs: SpecResolver
    tool_runner: ToolRunner
    pool: Pool
    budgets: Budgets


def _cutoff(live: LiveSettings, clock: Clock, zone: tzinfo | None) -> float:
    return reset_cutoff(live.settings.sessions, clock.now(), zone)


def _follow(live: LiveSettings, followers: _Followers) -> None:
    """Let them hear of what changes in config.toml. What else is live is read where it is used."""
    catalog, specs = followers.catalog, followers.specs

    def change_models(new: Settings) -> None:
        providers = followers.providers
        providers.change(new.providers)
        providers.follow(new.model)
        catalog.change(new.model, new.aliases, providers.known, providers.built_in_models)
        specs.change(new.agent)

    def change_tools(new: Settings) -> None:
        followers.tool_runner.enable(new.tools.enabled)
        specs.change(new.agent)

    def change_money(new: Settings) -> None:
        price = partial(catalog.price, Prices(new.prices).find)
        followers.budgets.change(new.budgets, price)

    live.on(("providers",), ("aliases",), ("model", "provider"), ("model", "name"), tell=change_models)
    live.on(("tools", "enabled"), ("agent", "prompt"), tell=change_tools)
    live.on(("budgets",), ("prices",), tell=change_money)
    live.on(("pool",), tell=lambda new: followers.pool.change_limits(_limits(new)))


def _limits(settings: Settings) -> PoolLimits:
    pool = settings.pool
    return PoolLimits(pool.max_agents, pool.idle_ttl.total_seconds(), pool.max_bytes)


def _read_pool(pool: Pool) -> PoolReading:
    stats = pool.stats()
    return PoolReading(
        size=stats.size,
        busy=stats.busy,
        building=stats.building,
        bytes=stats.bytes,
        **msgspec.structs.asdict(stats.counters),
    )


@asynccontextmanager
async def _background(
    clock: Clock, loops: Mapping[str, Callable[[], Awaitable[None]]]
) -> AsyncIterator[None]:
    """Named loops beside the turns. One that fails is logged and begun again; leaving cancels them all."""

    async def supervise(name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
            except Exception:
                _log.exception("the %s loop failed and is begun again", name)
            await clock.sleep(5)

    tasks = [asyncio.create_task(supervise(name, run), name=name) for name, run in loops.items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
