"""Endpoints for operators: health, metrics, the pool, the status, and backups."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from talaria.channels.http.request import Request
from talaria.channels.http.response import Response, json_response
from talaria.channels.http.status_views import (
    BackupView,
    BuiltInModelView,
    DefaultModelView,
    DescriptorView,
    HealthView,
    JobsView,
    OwedView,
    ReadyView,
    StatusView,
    StoreView,
    view_cluster,
)
from talaria.core.errors import NoModel, StoreError
from talaria.core.jobs import JobCounts
from talaria.core.version import this_version
from talaria.gateway import Gateway, find_extensions
from talaria.models.catalog import providers_in_use
from talaria.observe.descriptors import count_descriptors, descriptor_limit
from talaria.observe.health import read_rss
from talaria.observe.metrics import CONTENT_TYPE
from talaria.skills.pins import read_status

T = TypeVar("T")
_STORE_SECONDS: Final = 2.0  # that the status waits for the database
_STORE_SECONDS_IN_TROUBLE: Final = 0.25


class _LastKnown(Generic[T]):
    """The last answer of the database, for the time in which it does not answer."""

    def __init__(self, ask: Callable[[], Awaitable[T]], first: T) -> None:
        self._ask = ask
        self._known = first

    async def read(self, seconds: float) -> T:
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(seconds):
                self._known = await self._ask()
        return self._known


class OperatorApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        no_spending: dict[str, object] = {}
        self._spending = _LastKnown(gateway.budgets.status, no_spending)
        self._jobs = _LastKnown(gateway.store.jobs.counts, JobCounts({}, {}))
        self._skips = _LastKnown[Mapping[str, int]](self._count_skips, {})

    async def healthz(self, request: Request) -> Response:
        return json_response(HealthView(live=True, phase=self._gateway.health.phase))

    async def readyz(self, request: Request) -> Response:
        """Needs no token, so it leaves the reasons out; `/api/status` has them."""
        readiness = self._gateway.health.readiness()
        lag = self._gateway.loop_watch.load.lag
        body = ReadyView(readiness.is_ready, readiness.phase, round(lag, 3), readiness.troubles)
        return json_response(body, 200 if readiness.is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        metrics, seconds = self._gateway.metrics, self._store_seconds()
        stats, jobs, skips = await asyncio.gather(
            self._gateway.store.stats(), self._jobs.read(seconds), self._skips.read(seconds)
        )
        metrics.note_store(stats)
        metrics.note_jobs(jobs, self._gateway.store.clock.now(), skips)
        return Response(metrics.render(), media_type=CONTENT_TYPE.encode())

    async def pool(self, request: Request) -> Response:
        return json_response(self._gateway.pool.stats())

    async def backup(self, request: Request) -> Response:
        """Copy the database to a file in the home. `talaria backup` packs the file and removes it; a file
        that is left is deleted after a minute."""
        return json_response(BackupView(str(await self._gateway.snapshot())))

    async def status(self, request: Request) -> Response:
        gateway = self._gateway
        seconds, overview = self._store_seconds(), gateway.overview
        stats, spending, jobs, _ = await asyncio.gather(
            gateway.store.stats(),
            self._spending.read(seconds),
            self._jobs.read(seconds),
            self._look_at_cluster(seconds),
        )
        readiness = gateway.health.readiness()  # last: trouble may begin meanwhile
        return json_response(
            StatusView(
                version=this_version(),
                uptime_seconds=round(gateway.clock.now() - gateway.started_at, 3),
                pid=os.getpid(),
                rss_bytes=read_rss(),
                descriptors=DescriptorView(count_descriptors(), descriptor_limit()),
                phase=readiness.phase,
                ready=readiness.is_ready,
                reasons=readiness.reasons,
                model=self._model(),
                endpoints=gateway.providers.readings(),
                built_in_model=self._built_in_model(),
                channels={name: channel.status for name, channel in gateway.channels.items()},
                mcp_servers=gateway.tool_runner.servers(),
                skills=read_status(gateway.home.path),
                plugins=() if (plugins := find_extensions(gateway.parts)) is None else plugins.reports(),
                spending=spending,
                config=gateway.reloader.status(),
                limits=gateway.limits.readings(),
                loop=gateway.loop_watch.reading(),
                scheduled_work_waits=gateway.loop_watch.load.runs_wait(),
                network=gateway.networks.reading(),
                store=StoreView(
                    stats.engine,
                    stats.schema,
                    stats.size_bytes,
                    stats.wal_bytes,
                    stats.sessions,
                    stats.integrity,
                    stats.trouble,
                ),
                turns=stats.turns,
                owed=OwedView(stats.owed, stats.outbox, round(stats.oldest_seconds, 3), stats.unsent),
                jobs=self._view_jobs(jobs),
                processes=tuple(gateway.notes.processes.infos()),
                search=gateway.search.reading,
                cluster=None if overview is None else view_cluster(overview),
            )
        )

    def _view_jobs(self, counts: JobCounts) -> JobsView:
        late = 0.0 if counts.oldest_due is None else self._gateway.store.clock.now() - counts.oldest_due
        return JobsView(counts.jobs, counts.slots, round(max(0.0, late), 3))

    async def _count_skips(self) -> Mapping[str, int]:
        return await self._gateway.store.jobs.skipped(self._gateway.store.clock.now() - 86_400.0)

    async def _look_at_cluster(self, seconds: float) -> None:
        if (overview := self._gateway.overview) is not None:
            await _LastKnown(overview.look, None).read(seconds)

    def _store_seconds(self) -> float:
        """Return how long an answer waits for the database."""
        is_ready = self._gateway.health.readiness().is_ready
        return _STORE_SECONDS if is_ready else _STORE_SECONDS_IN_TROUBLE

    def _built_in_model(self) -> BuiltInModelView:
        return msgspec.convert(self._gateway.local.status(), BuiltInModelView)

    def _model(self) -> DefaultModelView:
        """Return the default model, and the keys in use that this process does not have."""
        gateway, now = self._gateway, self._gateway.reloader.live.settings
        try:
            default = str(gateway.catalog.default())
        except NoModel:
            default = ""
        in_use = (default.partition("/")[0], *providers_in_use(now.model, now.aliases))
        return DefaultModelView(default, gateway.providers.missing_keys(in_use))

    async def fetch_model(self, request: Request) -> Response:
        """Start to download a built-in model, and answer with the status of the built-in models."""
        request.call.about = name = request.params["name"]
        self._gateway.local.fetch(name)
        return json_response(self._built_in_model(), 202)
