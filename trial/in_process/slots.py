"""G13: each slot of a job runs once. Three processes on one database, on a clock that the run sets.

The clock goes over both changes of summer time in two zones, jumps forward and back, and sleeps. Processes
are killed at the labelled points around a claim, and stall after a claim until it is void. In the end every
instant has one row. It has one turn, or it was skipped and says why. The instants are computed here a second
time, from the offsets of the zones alone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import msgspec

from talaria.core.failpoints import VARIABLE, Failpoint
from talaria.core.ids import ChatKey, JobId
from talaria.core.jobs import AddJob, Cron, JobOrigin, JobPlan, Missed, Overlap, Slot, SlotState, slot_id
from talaria.core.ledger import Page
from talaria.core.turns import Sender
from talaria.jobs.schedules import TOGETHER, next_instant
from talaria.store.sqlite.faults import driver
from talaria.store.sqlite.store import SqliteStore
from trial.in_process.slot_worker import Look, SetClock
from trial.report import Check, Figure, Progress, add_up, none_of

PROCESSES = 3
HOUR, DAY = 3600, 86_400
ZONES = ("Europe/Berlin", "America/New_York")
_HOURLY = JobId("job_hourly")
_CHAT = ChatKey("agent:main:http:api:soak")
_POINTS = (Failpoint.SLOTS_WRITTEN, Failpoint.SLOT_CLAIMED, Failpoint.ACCEPTED)
_TIMES = ((2, 30), (2, 0), (1, 30), (3, 0), (9, 0), (0, 30), (2, 15), (23, 45), (1, 0), (12, 0))


def _at(*moment: int) -> float:
    return datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]


# A month around the edges of spring, half a month around those of autumn; for the short form some hours.
SEASONS = ((_at(2026, 3, 5), _at(2026, 4, 5)), (_at(2026, 10, 20), _at(2026, 11, 6)))
EDGES = tuple(
    (_at(2026, month, day) - 4 * HOUR, _at(2026, month, day) + 10 * HOUR)
    for month, day in ((3, 8), (3, 29), (10, 25), (11, 1))
)


# -- the second computation ---------------------------------------------------------------------------------


def offsets(zone: ZoneInfo, start: float, end: float) -> list[tuple[float, float, float]]:
    """Return the spans of one offset: from, to, seconds east of UTC."""
    spans: list[tuple[float, float, float]] = []
    for instant in range(int(start) - 2 * DAY, int(end) + 2 * DAY, 900):
        moved = datetime.fromtimestamp(instant, zone).utcoffset()
        assert moved is not None
        east = moved.total_seconds()
        if spans and spans[-1][2] == east:
            spans[-1] = (spans[-1][0], instant + 900, east)
        else:
            spans.append((instant, instant + 900, east))
    return spans


def daily_instants(zone: ZoneInfo, hour: int, minute: int, start: float, end: float) -> list[float]:
    """Return a fixed time of day as the first instant of each local day that shows it, or the end of the gap
    that it falls into."""
    wanted = hour * HOUR + minute * 60
    found: dict[int, float] = {}
    for begin, until, east in offsets(zone, start, end):
        for day in range(int((begin + east) // DAY), int((until + east) // DAY) + 1):
            instant = day * DAY + wanted - east
            if begin <= instant < until:
                found.setdefault(day, instant)
        today, local = divmod(begin + east, DAY)
        if local > wanted:
            found.setdefault(int(today), begin)  # only a gap leaves the day without it up to here
    return sorted(instant for instant in found.values() if start < instant <= end)


# -- the run ------------------------------------------------------------------------------------------------


@dataclass
class Worker:
    """A process with a scheduler."""

    path: Path
    failpoints: str
    process: asyncio.subprocess.Process = field(init=False)

    async def start(self) -> None:
        environ = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)) | {VARIABLE: self.failpoints}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "trial.in_process.slot_worker",
            str(self.path),
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        await self._answer()

    async def look(self, now: float, *, stall: bool = False) -> str:
        """Return the answer, or an empty text if the process was killed at a point."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(Look(now, stall)) + b"\n")
            await self.process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError, RuntimeError):  # uvloop's word for a closed pipe
            return ""
        return await self._answer()

    async def _answer(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


class Slots:
    """`jobs` daily jobs in two zones, and one that is due each hour."""

    def __init__(
        self,
        jobs: int,
        spans: Sequence[tuple[float, float]],
        progress: Progress,
        *,
        seed: int = 1,
        trouble: float = 1.0,
    ) -> None:
        """With more `trouble` there are more kills, stalls and jumps."""
        self._count = jobs
        self._spans = spans
        self._progress = progress
        self._random = Random(seed)
        self._trouble = trouble
        self._workers: list[Worker] = []
        self._jobs: dict[JobId, tuple[ZoneInfo, int, int]] = {}
        self.counts = Counter[str]()
        self.failed: list[str] = []  # answers of processes

    async def run(self) -> list[Figure]:
        with tempfile.TemporaryDirectory(prefix="talaria-slots-") as folder:
            path = Path(folder, "talaria.db")
            await self._make_jobs(path)
            self._workers = [Worker(path, "") for _ in range(PROCESSES)]
            await asyncio.gather(*(worker.start() for worker in self._workers))
            try:
                await self._live(path)
            finally:
                for worker in self._workers:
                    worker.kill()
                    await worker.process.wait()
            return await self._judge(path)

    async def _make_jobs(self, path: Path) -> None:
        clock, start = SetClock(), self._spans[0][0]
        clock.time = start
        async with await SqliteStore.open(path, clock) as store:
            for n in range(self._count):
                name, (hour, minute) = ZONES[n % 2], _TIMES[n // 2 % len(_TIMES)]
                job = JobId(f"job_{n}")
                self._jobs[job] = (ZoneInfo(name), hour, minute)
                missed = tuple(Missed)[n % 3]
                schedule = Cron(f"{minute} {hour} * * *")
                plan = JobPlan("water", schedule, name, missed=missed, overlap=Overlap.QUEUE)
                await self._add(store, job, plan, start)
            plan = JobPlan("hourly", Cron("0 * * * *"), ZONES[0], overlap=Overlap.QUEUE)
            await self._add(store, _HOURLY, plan, start)

    async def _add(self, store: SqliteStore, job_id: JobId, plan: JobPlan, start: float) -> None:
        next_at = next_instant(plan.schedule, ZoneInfo(plan.zone), start)
        origin = JobOrigin("owner", _CHAT, Sender("u1"))
        await store.jobs.add(AddJob(job_id, origin, plan, next_at, 10_000))

    async def _live(self, path: Path) -> None:
        """Let the time pass. Between the spans everything sleeps."""
        highest = self._spans[0][0]
        for start, end in self._spans:
            now = start
            while now < end:
                now = self._next(now)
                highest = max(highest, now)
                await self._look(path, now)
                days = int((now - start) // DAY), int((end - start) // DAY)
                self._progress.tell("slots, days", min(days), days[1])
        for _ in range(6):  # claims of the dead become void, and everything that is due runs
            highest += 70
            await self._look(path, highest, is_calm=True)
        self._end = highest

    def _next(self, now: float) -> float:
        """Return the next time of the clock: a step on, or a jump, or after a sleep."""
        drawn = self._random.random() / self._trouble
        if drawn < 0.01:
            self.counts["jumps forward"] += 1
            return now + self._random.randrange(2, 30) * HOUR
        if drawn < 0.02:
            self.counts["jumps back"] += 1
            return max(self._spans[0][0], now - self._random.randrange(1, 8) * HOUR)
        return now + HOUR + self._random.random() * 90

    async def _look(self, path: Path, now: float, *, is_calm: bool = False) -> None:
        stalled: list[Worker] = []
        for worker in self._workers:
            if not is_calm and self._random.random() < 0.02 * self._trouble:
                stalled.append(worker)
        self.counts["stalls"] += len(stalled)
        answers = await asyncio.gather(
            *(worker.look(now, stall=worker in stalled) for worker in self._workers)
        )
        if stalled:  # their claims become void, and then they go on
            awake = [worker for worker in self._workers if worker not in stalled]
            for later in (61, 62):
                await asyncio.gather(*(worker.look(now + later) for worker in awake))
            answers += await asyncio.gather(*(worker.look(now + 63) for worker in stalled))
        self.failed += [answer for answer in answers if answer.startswith("failed")]
        for n, worker in enumerate(self._workers):
            is_killed = not is_calm and self._random.random() < 0.01 * self._trouble
            if is_killed:
                worker.kill()
                await worker.process.wait()
            if (worker.process.stdout is not None and worker.process.stdout.at_eof()) or is_killed:
                await worker.process.wait()
                self.counts["kills"] += 1
                armed = f"{self._random.choice(_POINTS)}={self._random.randrange(1, 40)}"
                self._workers[n] = Worker(path, "" if is_calm else armed)
                await self._workers[n].start()

    # -- judging --------------------------------------------------------------------------------------------

    async def _judge(self, path: Path) -> list[Figure]:
        start = self._spans[0][0]
        expected = set[str]()
        for job, (zone, hour, minute) in self._jobs.items():
            expected |= {slot_id(job, t) for t in daily_instants(zone, hour, minute, start, self._end)}
        first = (int(start) // HOUR + 1) * HOUR
        hours = range(first, int(self._end) + 1, HOUR)
        expected |= {slot_id(_HOURLY, float(t)) for t in hours}
        clock = SetClock()
        clock.time = self._end
        async with await SqliteStore.open(path, clock) as store:
            rows = {slot.id: slot async for slot in _all_slots(store, [*self._jobs, _HOURLY])}
        turns = _turns(path)
        expected -= _told_together(rows)
        silent = {key for key, s in rows.items() if s.state is SlotState.SKIPPED and not s.reason}
        done = {key for key, slot in rows.items() if slot.state is SlotState.DONE}
        doubled = {key for key, count in turns.items() if count > 1}
        skipped = sum(slot.state is SlotState.SKIPPED for slot in rows.values())
        unsettled = {key for key, slot in rows.items() if not slot.state.is_final}
        return [
            Figure("slots", len(rows)),
            Figure("slots run once", len(done - doubled)),
            Figure("slots skipped, with their reason", skipped - len(silent)),
            none_of("slots missed", expected - rows.keys(), Check.LOST),
            none_of("slots not settled", unsettled, Check.LOST),
            none_of("slots done without a turn", done - turns.keys(), Check.LOST),
            none_of("slots run twice", doubled, Check.DUPLICATED),
            none_of("slots run and not done", (turns.keys() & rows.keys()) - done, Check.DUPLICATED),
            none_of("slots at a wrong instant", rows.keys() - expected),
            none_of("slots skipped without a reason", silent),
            Figure("kills at a claim, a turn or anywhere", self.counts["kills"]),
            Figure("claims held by a stalled process until they were void", self.counts["stalls"]),
            Figure(
                "jumps of the clock, forward and back",
                self.counts["jumps forward"] + self.counts["jumps back"],
            ),
            none_of("failed looks", self.failed),
        ]


async def run_seasons(jobs: int, progress: Progress) -> list[Figure]:
    """Run spring and autumn, each with its own database. Return the sums."""
    return add_up([await Slots(jobs, (span,), progress, seed=n).run() for n, span in enumerate(SEASONS)])


async def _all_slots(store: SqliteStore, jobs: Sequence[JobId]) -> AsyncIterator[Slot]:
    for job in jobs:
        page = Page(500)
        while True:
            found = await store.jobs.slots(job, page)
            for slot in found.items:
                yield slot
            if found.next is None:
                break
            page = Page(500, found.next)


def _told_together(rows: dict[str, Slot]) -> set[str]:
    """Return the hours that a row stands for which tells of very many missed slots at once."""
    hourly = sorted(slot.instant for slot in rows.values() if slot.job_id == _HOURLY)
    told = set[str]()
    for earlier, later in itertools.pairwise(hourly):
        if rows[slot_id(_HOURLY, earlier)].reason.endswith(TOGETHER):
            told |= {slot_id(_HOURLY, float(t)) for t in range(int(earlier) + HOUR, int(later), HOUR)}
    return told


def _turns(path: Path) -> Counter[str]:
    """Count the turns of each slot, whose id is the text of the message."""
    connection = driver.connect(str(path))
    try:
        rows = connection.execute("SELECT inbound FROM turns").fetchall()
    finally:
        connection.close()
    return Counter(msgspec.json.decode(row[0])["parts"][0]["text"] for row in rows)
