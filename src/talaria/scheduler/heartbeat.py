"""The heartbeat: a job like any other, kept for the gateway's owner while `jobs.heartbeat.every` is set."""

from __future__ import annotations

from typing import Final

import msgspec

from talaria.core.access import OWNER
from talaria.core.clock import Clock
from talaria.core.ids import ChatAddress, JobId
from talaria.core.jobs import (
    NOWHERE,
    AddJob,
    EditJob,
    Every,
    JobOrigin,
    JobPlan,
    JobState,
    Missed,
    SessionMode,
)
from talaria.core.turns import Sender
from talaria.core.units import parse_duration
from talaria.jobs.settings import HeartbeatSettings
from talaria.store.store import JobStore

HEARTBEAT: Final = JobId("job_heartbeat")
_NO_LIMIT: Final = 1 << 30


async def keep_heartbeat(jobs: JobStore, clock: Clock, agent: str, settings: HeartbeatSettings) -> None:
    """Add, change or remove the job so that it is as configured. One that a person paused stays paused."""
    now = float(round(clock.now()))
    job = await jobs.find(HEARTBEAT)
    if not settings.every:
        if job is not None:
            await jobs.remove(HEARTBEAT)
        return
    seconds = round(parse_duration(settings.every).total_seconds())
    plan = JobPlan(
        settings.text,
        Every(seconds, now),
        "",
        name="heartbeat",
        session=SessionMode.SAME,
        to=settings.to or NOWHERE,
        missed=Missed.SKIP,
    )
    if job is None:
        chat = ChatAddress(agent, "http", "api", "heartbeat").key()
        origin = JobOrigin(OWNER, chat, Sender("api", "API", is_operator=True))
        await jobs.add(AddJob(HEARTBEAT, origin, plan, now + seconds, _NO_LIMIT))
        return
    old = job.plan.schedule
    if isinstance(old, Every) and old.seconds == seconds:
        plan = msgspec.structs.replace(plan, schedule=old)
    if plan != job.plan:
        next_at = None if job.state is JobState.PAUSED else now + seconds
        await jobs.edit(EditJob(HEARTBEAT, job.version, plan, job.state, next_at, "the job was edited"))
