"""The composition root: opens everything in order and nests the scopes.

home lock ⊃ store ⊃ providers ⊃ pool ⊃ turns ⊃ channels. Shutdown is leaving the scopes from the inside out:
channels stop accepting, turns drain until the deadline and are then left resumable, agents go, the endpoints
and the store close, the lock is free.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import lru_cache, partial
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from talaria import __version__
from talaria.agent.bound_tools import ToolBench
from talaria.agent.specs import SpecResolver
from talaria.agent.warm import AgentBuilder
from talaria.channels.http.api import HttpParts, create_app
from talaria.channels.http.server import HttpServer, allowed_hosts, bind
from talaria.cluster.leases import LeaseKeeper
from talaria.config.home import GatewayInfo, Home
from talaria.config.load import Loaded
from talaria.config.settings import Settings
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import ConfigError
from talaria.core.ids import SessionId, new_owner_id
from talaria.models.catalog import Catalog
from talaria.models.providers import Providers
from talaria.observe.health import Health, Phase, read_rss
from talaria.observe.metrics import Metrics, PoolReading
from talaria.pool.policy import PoolLimits
from talaria.pool.pool import Pool
from talaria.store.home_lock import HomeLock
from talaria.store.sqlite.store import SqliteStore
from talaria.tools.registry import builtin_registry
from talaria.turns.expiry import Expiry, reset_cutoff
from talaria.turns.live import LiveTurns
from talaria.turns.parts import Parts
from talaria.turns.turns import Turns
from talaria.workspace.folder import chat_folder

_log = logging.getLogger("talaria.app")
LEASE_SECONDS = 30.0
_FAREWELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway: what its channels and the command line may use."""

    home: Home
    settings: Settings
    store: SqliteStore
    providers: Providers
    catalog: Catalog
    pool: Pool
    turns: Turns
    metrics: Metrics
    health: Health
    clock: Clock
    started_at: float

    async def status(self) -> dict[str, object]:
        return {
            "version": __version__,
            "uptime_seconds": round(self.clock.now() - self.started_at, 3),
            "pid": os.getpid(),
            "rss_bytes": read_rss(),
            "phase": self.health.phase,
            "endpoints": {
                name: {"busy": endpoint.busy} for name, endpoint in self.providers.endpoints.items()
            },
            "channels": {"http": "ready" if self.health.phase is Phase.READY else self.health.phase},
            "mcp_servers": {},
        }


@asynccontextmanager
async def open_gateway(
    home: Home, loaded: Loaded, environ: Mapping[str, str], clock: Clock | None = None
) -> AsyncIterator[Gateway]:
    """Everything but the channels, recovered and accepting. Leaving it drains.

    Raises `ConfigError` and `StoreError`, each with what to do about it.
    """
    settings, clock = loaded.settings, clock or SystemClock()
    async with AsyncExitStack() as scopes:
        home.prepare()
        scopes.enter_context(HomeLock(home.path))
        store = await scopes.enter_async_context(await SqliteStore.open(database_path(home, settings), clock))
        providers = await scopes.enter_async_context(Providers(settings.providers, environ))
        metrics, health, live = Metrics(), Health(), LiveTurns()
        catalog = Catalog(
            settings.model,
            settings.aliases,
            providers=providers.known,
            agents=(settings.agent.name,),
            config_path=str(home.config),
        )
        tools = builtin_registry(settings.tools).resolve(settings.tools.enabled)
        bench = ToolBench(tools, settings.tools, metrics, partial(chat_folder, home.path))
        builder = AgentBuilder(store, providers)
        pool = Pool(builder, _limits(settings), clock)
        scopes.callback(pool.drain)
        metrics.watch_pool(lambda: _read_pool(pool))
        keeper = LeaseKeeper(store, clock, new_owner_id(), LEASE_SECONDS)
        zone = ZoneInfo(settings.agent.timezone) if settings.agent.timezone else None

        def cutoff() -> float:
            return reset_cutoff(settings.sessions, clock.now(), zone)

        def on_end(session_id: SessionId) -> None:
            pool.release(session_id)
            _log.info("session %s ended: nobody used it any more", session_id)

        turns = Turns(
            Parts(
                store=store,
                models=providers,
                builder=builder,
                specs=SpecResolver(settings.agent, catalog, providers, tools),
                pool=pool,
                keeper=keeper,
                clock=clock,
                metrics=metrics,
                live=live,
                bind_tools=bench.bind,
                stamp=lambda at: _stamp(int(at // 60), zone),
                cutoff=cutoff,
                on_end=on_end,
                agent_name=settings.agent.name,
                tool_names=tools.names,
                max_steps=settings.agent.max_steps,
                reasoning=None if settings.model.reasoning == "none" else settings.model.reasoning,
            )
        )
        retention = settings.retention.ephemeral.total_seconds()
        await scopes.enter_async_context(
            _background(
                clock,
                {
                    "leases": keeper.run,
                    "pool": pool.run,
                    "expiry": Expiry(store, clock, cutoff, on_end).run,
                    "retention": lambda: _prune(store, clock, retention),
                },
            )
        )
        try:
            await turns.recover()
            health.enter(Phase.READY)
            warming = asyncio.create_task(providers.warm(), name="warm-up")
            scopes.callback(warming.cancel)
            yield Gateway(
                home, settings, store, providers, catalog, pool, turns, metrics, health, clock, clock.now()
            )
        finally:
            health.enter(Phase.DRAINING)
            await turns.drain(settings.shutdown.deadline.total_seconds())


@asynccontextmanager
async def serve_http(gateway: Gateway, token: str) -> AsyncIterator[HttpServer]:
    """The HTTP API on its socket, with `gateway.json` telling other commands where."""
    settings = gateway.settings.http
    bound = bind(settings)
    app = create_app(
        HttpParts(
            turns=gateway.turns,
            store=gateway.store,
            pool=gateway.pool,
            catalog=gateway.catalog,
            metrics=gateway.metrics,
            health=gateway.health,
            settings=settings,
            token=token,
            hosts=allowed_hosts(settings, bound),
            agent_name=gateway.settings.agent.name,
            status=gateway.status,
        )
    )
    server = HttpServer(app, bound)
    await server.start()
    try:
        info = GatewayInfo(os.getpid(), server.address, __version__, gateway.started_at)
        gateway.home.write_gateway(info)
        yield server
    finally:
        gateway.home.remove_gateway()
        gateway.health.enter(Phase.DRAINING)
        # First the turns, so that who waits for one gets its answer; new messages are refused meanwhile.
        await gateway.turns.drain(gateway.settings.shutdown.deadline.total_seconds())
        await server.stop(_FAREWELL_SECONDS)


def database_path(home: Home, settings: Settings) -> Path:
    url = settings.store.url
    if not url:
        return home.database
    scheme, _, path = url.partition(":///")
    if scheme != "sqlite" or not path:
        raise ConfigError(
            f"store.url is {url!r}, which this version cannot open.",
            'Leave it empty for talaria.db in the home, or write "sqlite:///path/to/file.db".',
        )
    return Path("/" + path) if not path.startswith("~") else Path(path).expanduser()


def _limits(settings: Settings) -> PoolLimits:
    pool = settings.pool
    return PoolLimits(pool.max_agents, pool.idle_ttl.total_seconds(), pool.max_bytes)


@lru_cache(maxsize=8)
def _stamp(minute: int, zone: tzinfo | None) -> str:
    """The time as models read it with each message; without a zone, in the machine's of that moment."""
    moment = datetime.fromtimestamp(minute * 60, zone)
    return (moment if zone else moment.astimezone()).strftime("%Y-%m-%d %H:%M %Z")


def _read_pool(pool: Pool) -> PoolReading:
    stats = pool.stats()
    return PoolReading(
        size=stats.size,
        busy=stats.busy,
        building=stats.building,
        bytes=stats.bytes,
        **msgspec.structs.asdict(stats.counters),
    )


async def _prune(store: SqliteStore, clock: Clock, keep_seconds: float) -> None:
    while True:
        pruned = await store.prune_ephemeral(clock.now() - keep_seconds)
        if pruned:
            _log.info("pruned %d ephemeral sessions", pruned)
        await clock.sleep(600)


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
