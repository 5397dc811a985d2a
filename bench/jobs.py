"""The cost of jobs: many that are due at once beside a person's turns, and many that are only stored."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.load import Client, fresh_names
from bench.processes import Metered, gateway, model_server
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatAddress, new_job_id
from talaria.core.jobs import NOWHERE, AddJob, At, Every, JobOrigin, JobPlan, Schedule
from talaria.core.turns import Sender
from talaria.store.sqlite.store import SqliteStore

MODEL_SECONDS = 0.5
_PEOPLE = 8
_BATCH = 500
_EACH = 50  # jobs of one person
_LEAD_SECONDS = 6.0  # between the writing of the jobs and their time
_FAR = 10 * 86_400.0


@dataclass(frozen=True, slots=True)
class CrowdCosts:
    """The p99 of a person's turn in seconds, at rest and while the jobs run, and how many of them had run by
    then."""

    rest: float
    crowd: float
    ran: int

    @property
    def limit(self) -> float:
        return 1.5 * self.rest + 0.02


async def measure_crowd(jobs: int, turns: int) -> CrowdCosts:
    """Let so many jobs be due in the same second. Each of some people sends so many messages, one by one."""
    with tempfile.TemporaryDirectory(prefix="talaria-bench-") as name, model_server(MODEL_SECONDS) as model:
        home = Path(name)
        with gateway(model.url, home=home) as (served, token):
            rest = await _p99(served, token, turns)
        instant = time.time() + _LEAD_SECONDS
        await store_jobs(home, jobs, At(instant), instant)
        with gateway(model.url, home=home) as (served, token):
            await asyncio.sleep(max(0.0, instant - time.time()))
            crowd = await _p99(served, token, turns)
        return CrowdCosts(rest, crowd, await _turns(home) - 2 * _PEOPLE * (turns + 1))


async def _p99(served: Metered, token: str, turns: int) -> float:
    client = Client(served.url, token)
    try:
        names = fresh_names(_PEOPLE)
        await client.run(names, 1)
        load = await client.run(names, turns)
    finally:
        await client.close()
    return statistics.quantiles(load.latencies, n=100, method="inclusive")[98]


@dataclass(frozen=True, slots=True)
class StoredCosts:
    """CPU seconds of an hour in which nothing happens, and of a turn."""

    idle_hour: float
    turn: float


async def measure_stored(
    jobs: int, seconds: float, turns: int, rounds: int
) -> tuple[StoredCosts, StoredCosts]:
    """Return the costs without jobs and with so many that are not due. The two are measured in turns."""
    async with AsyncExitStack() as scopes:
        model = scopes.enter_context(model_server())
        clients = []
        for count in (0, jobs):
            home = Path(scopes.enter_context(tempfile.TemporaryDirectory(prefix="talaria-bench-")))
            if count:
                now = time.time()
                await store_jobs(home, count, Every(int(_FAR), now), now + _FAR)
            served, token = scopes.enter_context(gateway(model.url, home=home))
            client = Client(served.url, token)
            scopes.push_async_callback(client.close)
            await client.run(fresh_names(2), turns)
            clients.append((served, client))
        await asyncio.sleep(2)
        idle = await _idle([served for served, _ in clients], seconds)
        spent: list[list[float]] = [[], []]
        for _ in range(rounds):
            for costs, (served, client) in zip(spent, clients, strict=True):
                before = served.cpu()
                await client.run(fresh_names(1), turns)
                costs.append((served.cpu() - before) / turns)
        without, stored = (StoredCosts(hour, min(costs)) for hour, costs in zip(idle, spent, strict=True))
        return without, stored


async def _idle(processes: list[Metered], seconds: float) -> list[float]:
    before = [process.cpu() for process in processes]
    await asyncio.sleep(seconds)
    spent = [process.cpu() - earlier for process, earlier in zip(processes, before, strict=True)]
    return [cpu / seconds * 3600 for cpu in spent]


async def store_jobs(home: Path, count: int, schedule: Schedule, instant: float) -> None:
    """Write jobs to the database of a home that no gateway serves."""
    chat = ChatAddress("main", "http", "api", "bench").key()
    plan = JobPlan("a run", schedule, "UTC", to=NOWHERE)
    async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
        for begin in range(0, count, _BATCH):
            some = range(begin, min(begin + _BATCH, count))
            people = [JobOrigin(f"person-{n // _EACH}", chat, Sender("owner")) for n in some]
            orders = [AddJob(new_job_id(), origin, plan, instant, _EACH) for origin in people]
            await asyncio.gather(*map(store.jobs.add, orders))


async def _turns(home: Path) -> int:
    """Return the number of turns that are done."""
    async with await SqliteStore.open(home / "talaria.db", SystemClock()) as store:
        return (await store.stats()).turns["done"]
