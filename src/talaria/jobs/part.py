"""The scheduler as a part of the gateway. Nothing of it is loaded before there is a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from talaria.core.cluster import Wake
from talaria.core.tasks import run_loops, sleep_until_woken
from talaria.gateway import Gateway, ServicePart
from talaria.jobs.settings import JobSettings

if TYPE_CHECKING:
    from talaria.jobs.runs import JobRuns

LOOK_SECONDS = 300.0  # between two looks for the first job, which another process may have written


class JobService:
    """Runs the scheduler from the first job on, and keeps the heartbeat as it is configured."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._woken = asyncio.Event()
        self._runs: JobRuns | None = None
        bell, cluster = gateway.store.jobs.bell, gateway.cluster
        bell.watch(self._woken.set)
        if cluster is not None:
            bell.tell_others = lambda: cluster.wake(Wake.JOBS)
            cluster.on_wake(Wake.JOBS, bell.hear)
            cluster.on_wake(Wake.MEMBERS, bell.hear)
        gateway.reloader.live.on(("jobs", "heartbeat"), tell=lambda new: self._woken.set())

    async def run(self) -> None:
        """Wait for the first job, then schedule. The heartbeat is looked after before and meanwhile."""
        while True:
            self._woken.clear()
            await self._keep_heartbeat()
            if await self._gateway.store.jobs.is_any():
                break
            await sleep_until_woken(self._gateway.clock, LOOK_SECONDS, self._woken)
        await self._schedule()

    async def close(self) -> None:
        if self._runs is not None:
            await self._runs.close()

    async def _keep_heartbeat(self) -> None:
        heartbeat = self._gateway.reloader.live.settings.jobs.heartbeat
        if heartbeat.every or await self._gateway.store.jobs.is_any():
            from talaria.jobs.scheduler import keep_heartbeat  # noqa: PLC0415

            gateway = self._gateway
            await keep_heartbeat(gateway.store.jobs, gateway.clock, gateway.settings.agent.name, heartbeat)

    async def _schedule(self) -> None:
        from talaria.jobs.runs import JobRuns, ProcessEnds  # noqa: PLC0415
        from talaria.jobs.scheduler import Scheduler, follow_rules  # noqa: PLC0415
        from talaria.jobs.schedules import agent_zone  # noqa: PLC0415 - with the first job

        gateway = self._gateway
        zone = agent_zone(gateway.settings.agent.timezone)
        self._runs = self._runs or JobRuns(gateway)
        await follow_rules(gateway.store, gateway.clock, zone)
        scheduler = Scheduler(
            gateway.store.jobs,
            self._runs.start,
            gateway.clock,
            gateway.turns.owner,
            settings=lambda: gateway.reloader.live.settings.jobs,
            zone=zone,
            sheds=lambda: bool(gateway.loop_watch.load.runs_wait()),
            metrics=gateway.metrics,
        )
        async with run_loops(gateway.clock, {"jobs after processes": ProcessEnds(gateway).run}):
            await scheduler.run(self._keep_heartbeat)


@asynccontextmanager
async def _open(gateway: Gateway, settings: JobSettings) -> AsyncIterator[None]:
    service = JobService(gateway)
    try:
        async with run_loops(gateway.clock, {"jobs": service.run}):
            yield
    finally:
        await service.close()


SCHEDULER: Final = ServicePart(
    name="scheduler", table=("jobs",), settings=JobSettings, needs_serve=True, open=_open
)
