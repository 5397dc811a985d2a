"""Memory over many runs of many jobs, which is where the gateway before this one grew by 18 MB an hour.

Each job runs every ten minutes of a virtual clock, most in a fresh session. Some runs get a megabyte from a
tool, some fail, some hang until their deadline, and jobs are edited all the time.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random

import msgspec

from bench.processes import model_server
from talaria.core.errors import TalariaError
from talaria.core.ids import ChatAddress, JobId, new_job_id
from talaria.core.jobs import NOWHERE, AddJob, EditJob, Every, Job, JobOrigin, JobPlan, SessionMode
from talaria.core.turns import Sender
from talaria.gateway import Gateway
from talaria.observe.health import read_rss
from talaria.testing.clock import FakeClock
from talaria.turns.live import LiveTurn
from trial.in_process.virtual_gateway import open_virtual, settle
from trial.measure import children, slope
from trial.report import Check, Curve, Figure, Progress

PERIOD = 600.0  # seconds between two runs of a job
STEP = 60.0
RSS_LIMIT = 0.5  # MB for 10,000 runs
BLOCKS_LIMIT = 300  # for 1,000 runs: a third of one forgotten object each
AGENTS = 64
ANCESTOR = 18.0  # MB an hour
_LONG = 20_000  # runs; below that, noise of the allocator is larger than the limit
_DEADLINE = 3.0
_MORE = 8  # files and threads, up to the sizes of their pools
_TEXTS = (
    *["tell what is new in the harbour today"] * 14,
    *['[[call look {"size": 1048576}]] read all of it'] * 1,
    *['[[call look {"size": 900}]][[call look {"size": 1800}]] compare the two'] * 2,
    *["[[status 400]] a call that fails"] * 2,
    *["[[hang]] a call that never ends"] * 1,
)


@dataclass(frozen=True, slots=True)
class JobSample:
    """A measurement while no run goes on."""

    runs: int
    hours: float  # of the virtual clock
    rss: int
    blocks: int  # all allocations of the interpreter, after all agents were released
    pool: int
    fds: int
    threads: int
    tasks: int
    children: int


class JobLoad:
    """So many `runs` of so many `jobs`. `states` counts their ends."""

    def __init__(
        self, jobs: int, runs: int, progress: Progress, *, minutes: float = math.inf, max_running: int = 16
    ) -> None:
        """After so many real `minutes` it ends with the runs that there were."""
        self._until = time.monotonic() + 60 * minutes
        self._jobs = jobs
        self._runs = runs
        self._progress = progress
        self._max_running = max_running
        self._random = Random(1)
        self._ids: list[JobId] = []
        self.samples: list[JobSample] = []
        self.states: dict[str, int] = {}
        self.edits = 0
        self.unsettled = 0
        self.most_agents = 0

    async def run(self) -> list[Figure]:
        tables = {
            "jobs": {"max_running": self._max_running},
            "retention": {"job_sessions": timedelta(hours=1)},
            "pool": {"max_agents": AGENTS, "max_bytes": 8 << 20},
        }
        clock = FakeClock(time.time() - self._runs / self._jobs * PERIOD)
        with tempfile.TemporaryDirectory(prefix="talaria-soak-") as name, model_server() as model:
            async with open_virtual(Path(name), model.url, clock, tables) as gateway:
                await self._add(gateway)
                await self._live(gateway, clock)
        return self.figures()

    async def _add(self, gateway: Gateway) -> None:
        chat = ChatAddress("main", "soak", "dm", "owner").key()
        origin, now = JobOrigin("owner", chat, Sender("owner")), gateway.clock.now()
        for number in range(self._jobs):
            since = now + PERIOD * number / self._jobs
            order = AddJob(new_job_id(), origin, self._plan(since), since + PERIOD, self._jobs + 1)
            self._ids.append((await gateway.store.jobs.add(order)).id)

    def _plan(self, since: float) -> JobPlan:
        text = self._random.choice(_TEXTS)
        mode = SessionMode.SAME if self._random.random() < 0.1 else SessionMode.NEW
        deadline = _DEADLINE if "[[hang]]" in text else 0.0
        return JobPlan(text, Every(int(PERIOD), since), "UTC", session=mode, to=NOWHERE, deadline=deadline)

    async def _live(self, gateway: Gateway, clock: FakeClock) -> None:
        gateway.turns.live.observe(self._watch)
        began, told = clock.now(), 0
        every = max(self._jobs // 10, self._runs // 100)
        done = 0
        while done < self._runs and time.monotonic() < self._until:
            clock.advance(STEP)
            await settle(gateway, clock)
            await self._edit(gateway)
            done = sum(self.states.values())
            if done - told >= every:
                told = done
                self.samples.append(await self._sample(gateway, done, (clock.now() - began) / 3600))
                last = self.samples[-1]
                more = f", {last.rss / 1e6:.0f} MB, {last.hours:.1f} h, {last.pool} warm"
                self._progress.tell("runs of jobs", done, self._runs, more)
        slots = (await gateway.store.jobs.counts()).slots
        self.unsettled = slots.get("running", 0) + sum(1 for _ in gateway.turns.live)

    def _watch(self, live: LiveTurn) -> None:
        def count(_: object) -> None:
            self.states[live.turn.state] = self.states.get(live.turn.state, 0) + 1

        live.settled.add_done_callback(count)

    async def _edit(self, gateway: Gateway) -> None:
        """Change some jobs, so that a failing one seldom fails ten times, and start the paused ones again."""
        for _ in range(max(1, self._jobs // 50)):
            job = await gateway.store.jobs.find(self._random.choice(self._ids))
            if job is not None:
                with suppress(TalariaError):
                    await gateway.store.jobs.edit(self._changed(job, gateway.clock.now()))
                    self.edits += 1

    def _changed(self, job: Job, now: float) -> EditJob:
        schedule = job.plan.schedule
        assert isinstance(schedule, Every)
        next_at = schedule.since + PERIOD * (1 + (now - schedule.since) // PERIOD)
        plan = msgspec.structs.replace(self._plan(schedule.since), name=job.plan.name)
        return EditJob(job.id, job.version, plan, type(job.state).ACTIVE, next_at)

    async def _sample(self, gateway: Gateway, runs: int, hours: float) -> JobSample:
        rss, agents = read_rss(), gateway.pool.stats().size
        self.most_agents = max(self.most_agents, agents)
        await gateway.pool.drain()
        gc.collect()
        return JobSample(
            runs=runs,
            hours=hours,
            rss=rss,
            blocks=sys.getallocatedblocks(),
            pool=agents,
            fds=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            tasks=len(asyncio.all_tasks()),
            children=len(children(os.getpid())),
        )

    # -- results --------------------------------------------------------------------------------------------

    @property
    def second_half(self) -> Sequence[JobSample]:
        return self.samples[len(self.samples) // 2 :]

    def figures(self) -> list[Figure]:
        late, first = self.second_half, self.samples[: max(1, len(self.samples) // 2)]
        done = self.samples[-1].runs
        rss = slope([(s.runs, s.rss) for s in late]) * 10_000 / 1e6
        grown = {
            name: max(getattr(s, name) for s in late) - max(getattr(s, name) for s in first)
            for name in ("fds", "threads", "tasks", "children")
        }
        counted = ", ".join(f"{count:,} {state}" for state, count in sorted(self.states.items()) if count)
        return [
            Figure(f"RSS slope over {done:,} runs of {self._jobs:,} jobs ({counted})", rss,
                   "MB per 10,000 runs", RSS_LIMIT if done >= _LONG else None, Check.MEMORY),
            Figure("… allocations kept", slope([(s.runs, s.blocks) for s in late]) * 1000, "per 1,000 runs",
                   BLOCKS_LIMIT if done >= _LONG else None, Check.MEMORY),
            Figure("… most warm agents", self.most_agents, "", AGENTS),
            *(Figure(f"… more {name} in the second half than in the first", max(0, more), "", _MORE,
                     Check.LEFTOVERS) for name, more in grown.items()),
            Figure("… runs and turns left unsettled", self.unsettled, "", 0),
            Figure("… jobs edited meanwhile", self.edits),
            Figure("… virtual hours", self.samples[-1].hours, "h"),
            Figure("… RSS at the end", late[-1].rss / 1e6, "MB"),
        ]  # fmt: skip

    def curves(self) -> list[Curve]:
        first = self.samples[0]
        ancestor = [(s.runs, first.rss / 1e6 + ANCESTOR * (s.hours - first.hours)) for s in self.samples]
        return [
            Curve("resident memory (grey: 18 MB an hour)", "MB", "#2f7d6b",
                  [(s.runs, s.rss / 1e6) for s in self.samples], ancestor),
            Curve("warm agents in the pool", "", "#4a6fa5", [(s.runs, s.pool) for s in self.samples]),
            Curve("tasks", "", "#a5674a", [(s.runs, s.tasks) for s in self.samples]),
        ]  # fmt: skip
