"""Endpoints for probes and Prometheus: health, readiness and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from talaria.channels.http.request import Request
from talaria.channels.http.response import Response, json_response
from talaria.gateway import Gateway
from talaria.observe.health import GatewayPhase
from talaria.observe.metrics import CONTENT_TYPE
from talaria.operations.status import count_jobs

_DAY = 86_400.0


class HealthView(msgspec.Struct, frozen=True):
    live: bool
    phase: GatewayPhase


class ReadyView(msgspec.Struct, frozen=True):
    """`troubles` names the checks that fail; `/api/status` says why."""

    ready: bool
    phase: GatewayPhase
    loop_lag_seconds: float
    troubles: tuple[str, ...]


class OperatorApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def healthz(self, request: Request) -> Response:
        return json_response(HealthView(live=True, phase=self._gateway.health.phase))

    async def readyz(self, request: Request) -> Response:
        """Needs no token, so it leaves the reasons out; `/api/status` has them."""
        readiness = self._gateway.health.readiness()
        lag = self._gateway.loop_watch.load.lag
        body = ReadyView(readiness.is_ready, readiness.phase, round(lag, 3), readiness.troubles)
        return json_response(body, 200 if readiness.is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        metrics, store = self._gateway.metrics, self._gateway.store
        no_skips: Mapping[str, int] = {}
        stats, jobs, skips = await asyncio.gather(
            store.stats(),
            count_jobs(self._gateway),
            self._gateway.health.ask_store(
                "skips", lambda: store.jobs.skipped(store.clock.now() - _DAY), no_skips
            ),
        )
        metrics.note_store(stats)
        metrics.note_jobs(jobs, store.clock.now(), skips)
        return Response(metrics.render(), media_type=CONTENT_TYPE.encode())
