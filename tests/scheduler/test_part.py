"""The scheduler in a whole gateway: from the first job on, and the heartbeat as it is configured."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.gateway import Api, in_process
from talaria.core.jobs import EditJob, JobState
from talaria.jobs.scheduler import HEARTBEAT, follow_rules, keep_heartbeat
from talaria.jobs.schedules import find_zone
from talaria.jobs.settings import HeartbeatSettings
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.model_server import ModelServer


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with ModelServer() as model, in_process(tmp_path / "home", model) as api:
        yield api


async def ended(api: Api, name: str) -> dict[str, Any]:
    """The last run of a job, once it has ended."""
    while True:
        runs = (await api.get(f"/api/jobs/{name}/runs"))["items"]
        if runs and runs[0]["ended_at"] is not None:
            return dict(runs[0])
        await asyncio.sleep(0)


async def test_a_job_runs_as_a_turn_that_is_settled_with_its_slot(api: Api) -> None:
    await api.post("/api/jobs", {"text": "say hello", "every": "1h", "name": "hello"}, 201)
    started = await api.post("/api/jobs/hello/run", status=202)
    run = await ended(api, "hello")
    assert (run["id"], run["state"], run["reason"]) == (started["id"], "done", "")
    turn = await api.get(f"/api/turns/{run['turn_id']}")
    assert turn["state"] == "done"


async def test_the_heartbeat_is_a_job_like_any_other() -> None:
    clock = FakeClock()
    jobs = MemoryStore(clock).jobs
    keep = partial(keep_heartbeat, jobs, clock, "main")
    await keep(HeartbeatSettings())
    assert await jobs.find(HEARTBEAT) is None, "it is off by default"
    settings = HeartbeatSettings(every="30m", text="look around")
    await keep(settings)
    first = await jobs.find(HEARTBEAT)
    clock.advance(60)
    await keep(settings)
    assert await jobs.find(HEARTBEAT) == first
    assert first is not None
    assert (first.plan.text, first.plan.to, first.next_at) == ("look around", "none", clock.now() + 1740)
    await keep(msgspec.structs.replace(settings, every="1h"))
    hourly = await jobs.find(HEARTBEAT)
    assert hourly is not None
    assert hourly.next_at == clock.now() + 3600
    await jobs.edit(EditJob(HEARTBEAT, hourly.version, hourly.plan, JobState.PAUSED, None))
    await keep(msgspec.structs.replace(settings, text="look well"))
    paused = await jobs.find(HEARTBEAT)
    assert paused is not None
    assert (paused.state, paused.next_at, paused.plan.text) == (JobState.PAUSED, None, "look well")
    await keep(HeartbeatSettings())
    assert await jobs.find(HEARTBEAT) is None


async def test_instants_follow_when_the_agent_s_zone_changes(api: Api) -> None:
    job = await api.post("/api/jobs", {"text": "x", "cron": "0 12 1 1 *"}, 201)
    store, clock = api.gateway.store, api.gateway.clock
    await follow_rules(store, clock, find_zone("UTC"))
    before = (await api.get(f"/api/jobs/{job['id']}"))["next_at"]
    await follow_rules(store, clock, find_zone("Asia/Tokyo"))
    assert (await api.get(f"/api/jobs/{job['id']}"))["next_at"] == before - 9 * 3600


def test_a_gateway_without_jobs_loads_no_scheduler() -> None:
    unwanted = ("cronsim", "talaria.jobs.words", "talaria.jobs.runs", "talaria.jobs.scheduler")
    code = f"import sys, talaria.app; print([name for name in sys.modules if name in {unwanted}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
