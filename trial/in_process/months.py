"""A heavy user's two months on a virtual clock, as one was reported of the gateway before this one.

63 days, 54,647 sessions, 760,000 messages and 114 jobs: nearly all sessions are runs of jobs, seven a day
each with five tool calls, and a person's chats beside them. There the database came to 17 GB, three backups
were corrupt, and starts hung.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from bench.processes import model_server
from talaria.core.ids import ChatAddress, new_job_id
from talaria.core.jobs import NOWHERE, AddJob, Every, JobOrigin, JobPlan
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.gateway import Gateway
from talaria.observe.health import read_rss
from talaria.store.sqlite.faults import driver
from talaria.testing.clock import FakeClock
from talaria.turns.live import LiveTurn
from trial.in_process.home_probe import MESSAGES, HomeFigures, ProbeSize, back_up, probe
from trial.in_process.virtual_gateway import open_virtual, say, settle
from trial.report import Curve, Figure, Progress

DAYS = 63
JOBS = 114
RUNS_A_DAY = 7  # of each job
RUN_CALLS = 5  # tool calls of a run: 12 messages
CHATS_A_DAY = 69  # sessions of people
CHAT_TURNS = 9  # of each, every second with a call and one with two: 36 messages
MESSAGES_IN_ALL = 760_000
_DAY = 86_400.0
_HOUR = 3600.0
_PEOPLE = 20
_AT_ONCE = 16
_KEPT_DAYS = 4  # in the part with retention
_KEPT_RUN = 12
_KEPT_SHARE = 0.1
BEYOND_LIMIT = 2048  # bytes for each message
_RETENTION = {
    "ledger": timedelta(days=_KEPT_DAYS),
    "ended_sessions": f"{_KEPT_DAYS}d",
    "job_sessions": timedelta(days=_KEPT_DAYS),
}


@dataclass(frozen=True, slots=True)
class Day:
    """The load process at the end of a day."""

    day: int
    rss: int
    database: int
    messages: int
    turn_cpu: float  # seconds


class Months:
    """`share` is the part of each day's load that is replayed; all 63 days are, unless `days` are given."""

    def __init__(
        self,
        progress: Progress,
        *,
        share: float = 1.0,
        days: int = DAYS,
        size: ProbeSize | None = None,
    ) -> None:
        self._progress = progress
        self._share = share
        self._days = days
        self._size = size or ProbeSize()
        self._random = Random(1)
        self._messages = 0
        self._turns = 0
        self._sessions = 0
        self.failed = 0
        self.days: list[Day] = []
        self.kept: list[int] = []
        self._end: tuple[HomeFigures, HomeFigures] | None = None
        self._stored = (0, 0, 0)
        self._lived = (0, 0)
        self._whole = False

    async def run(self) -> list[Figure]:
        with tempfile.TemporaryDirectory(prefix="talaria-soak-") as name:
            folder = Path(name)
            home, copy = folder / "home", folder / "copy"
            clock = FakeClock(time.time() - self._days * _DAY)
            with model_server() as model:
                await self.live(home, model.url, clock, range(1))
                begun = await self._probe(home, copy)
                await self.live(home, model.url, clock, range(1, self._days))
                self._stored = read_stored(home)
                self._lived = self._sessions, self._messages
                self._end = begun, await self._probe(home, copy)
                self._whole = await back_up(copy, folder)
                shutil.rmtree(home)
                await self._keep_little(folder / "kept", model.url)
        return self.figures()

    async def live(self, home: Path, model_url: str, clock: FakeClock, days: Iterable[int]) -> None:
        """Live these days in one life of the gateway, which keeps every session. `self.days` gets a line for
        each."""
        kept = {"retention": {"job_sessions": timedelta(days=365)}}
        await self._live(home, model_url, clock, self._share, days, self._note_day, kept)

    async def _probe(self, home: Path, copy: Path) -> HomeFigures:
        """Measure a copy of the home, because a gateway of today would make the jobs' times up."""
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(home, copy)
        with closing(driver.connect(copy / "talaria.db")) as database, database:
            database.execute("UPDATE jobs SET state = 'paused', next_at = NULL")
        return await probe(copy, self._size)

    async def _keep_little(self, home: Path, model_url: str) -> None:
        """Live some days with retention. `kept` gets the size of the database at the end of each."""
        clock = FakeClock(time.time() - _KEPT_RUN * _DAY)
        share = self._share * _KEPT_SHARE

        async def note(gateway: Gateway, day: int, cpu: float) -> None:
            self.kept.append((await gateway.store.stats()).size_bytes)

        tables = {"retention": _RETENTION, "sessions": {"reset": "idle", "idle_after": timedelta(hours=12)}}
        await self._live(home, model_url, clock, share, range(_KEPT_RUN), note, tables)

    # -- living ---------------------------------------------------------------------------------------------

    async def _live(
        self,
        home: Path,
        model_url: str,
        clock: FakeClock,
        share: float,
        days: Iterable[int],
        note: Callable[[Gateway, int, float], Awaitable[None]],
        tables: Mapping[str, Any] | None = None,
    ) -> None:
        jobs = {"jobs": {"max_running": _AT_ONCE}}
        async with open_virtual(home, model_url, clock, {**jobs, **(tables or {})}) as gateway:
            gateway.turns.live.observe(self._watch)
            if not (await gateway.store.jobs.counts()).jobs:
                await self._add_jobs(gateway, share)
            for day in days:
                before, turns = time.process_time(), self._turns
                for hour in range(24):
                    await self._run_hour(gateway, clock, share, day * 24 + hour)
                    clock.advance(_HOUR)
                    await asyncio.sleep(0.005)
                await note(gateway, day, (time.process_time() - before) / max(1, self._turns - turns))

    async def _run_hour(self, gateway: Gateway, clock: FakeClock, share: float, hour: int) -> None:
        left = iter([partial(self._chat, gateway, n) for n in _due(CHATS_A_DAY * share / 24, hour)])

        async def take() -> None:
            for task in left:
                await task()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(take())
        await settle(gateway, clock)

    async def _add_jobs(self, gateway: Gateway, share: float) -> None:
        chat = ChatAddress("main", "soak", "dm", "owner").key()
        origin, now = JobOrigin("owner", chat, Sender("owner")), gateway.clock.now()
        period = int(_DAY / RUNS_A_DAY / share)
        for number in range(JOBS):
            since = now - period * number / JOBS
            text = f"{self._marks(RUN_CALLS)} tell what job {number} found"
            plan = JobPlan(text, Every(period, since), "UTC", f"job {number}", to=NOWHERE)
            await gateway.store.jobs.add(AddJob(new_job_id(), origin, plan, since + period, JOBS + 1))

    def _watch(self, live: LiveTurn) -> None:
        live.settled.add_done_callback(lambda _: self._count(live.turn))

    def _count(self, turn: Turn) -> None:
        calls = turn.inbound.text.count("[[call ")
        self.failed += turn.state is not TurnState.DONE
        self._turns += 1
        self._messages += 2 + 2 * calls
        self._sessions += turn.inbound.gives_way

    async def _chat(self, gateway: Gateway, number: int) -> None:
        person = f"person-{number % _PEOPLE}-{number}"
        self._sessions += 1
        for turn in range(CHAT_TURNS):
            calls = 2 if turn == 0 else turn % 2
            await self._say(gateway, person, calls, f"message {turn} about the boats and lighthouse{number}")

    async def _say(self, gateway: Gateway, chat: str, calls: int, words: str) -> None:
        key = ChatAddress("main", "soak", "dm", chat).key()
        await say(gateway, Inbound(key, Sender("owner"), (Text(f"{self._marks(calls)}{words}, please"),)))

    def _marks(self, calls: int) -> str:
        return "".join(f'[[call look {{"size": {self._result_size()}}}]]' for _ in range(calls))

    def _result_size(self) -> int:
        share = self._random.random()
        return 400 if share < 0.6 else 2000 if share < 0.9 else 8000 if share < 0.99 else 20_000

    async def _note_day(self, gateway: Gateway, day: int, cpu: float) -> None:
        size = (await gateway.store.stats()).size_bytes
        self.days.append(Day(day + 1, read_rss(), size, self._messages, cpu))
        more = f", {self._messages:,} messages, {size / 1e6:,.0f} MB, {cpu * 1000:.2f} ms CPU a turn"
        self._progress.tell("months: day", day + 1, self._days, more)

    # -- results --------------------------------------------------------------------------------------------

    def figures(self) -> list[Figure]:
        assert self._end is not None
        first, last = self._end
        size, bodies, messages = self._stored
        sessions, lived = self._lived
        is_long = self._share >= 1 and self._days >= DAYS
        third = len(self.kept) // 3
        return [
            Figure(f"{sessions:,} sessions and {lived:,} messages in {self._days} days: turns that failed",
                   self.failed, "", 0),
            Figure("… messages that are stored at the end", messages),
            Figure("… start to ready, at the end over the first day", last.start / first.start, "×", 1.2),
            Figure("… CPU of a turn, at the end over the first day", last.turn / first.turn, "×", 1.1),
            Figure("… RSS, at the end over the first day", last.rss / first.rss, "×", 1.1),
            Figure("… GET /api/sessions at the end", last.sessions, "ms", 50),
            Figure("… search at the end", last.search, "ms", 50),
            Figure("… database beyond the bytes of the messages", (size - bodies) / messages,
                   "bytes a message", BEYOND_LIMIT),
            Figure("… database at the end", size / 1e6, "MB"),
            Figure("… backups, made while it ran, that were not whole", float(not self._whole), "", 0),
            Figure(f"… with retention of {_KEPT_DAYS} days: database at the end over two thirds",
                   self.kept[-1] / max(self.kept[third : 2 * third]), "×", 1.05 if is_long else 1.2),
            Figure("… start to ready at the end", last.start, "s CPU"),
            Figure("… CPU of a turn at the end", last.turn * 1000, "ms"),
            Figure("… RSS at the end", last.rss / 1e6, "MB"),
        ]  # fmt: skip

    def curves(self) -> list[Curve]:
        days = self.days
        return [
            Curve("database", "MB", "#2f7d6b", [(d.day, d.database / 1e6) for d in days]),
            Curve("messages", "thousand", "#7d6b2f", [(d.day, d.messages / 1e3) for d in days]),
            Curve(
                "resident memory of gateway and load", "MB", "#4a6fa5", [(d.day, d.rss / 1e6) for d in days]
            ),
            Curve("CPU of a turn", "ms", "#a5674a", [(d.day, d.turn_cpu * 1e3) for d in days]),
        ]


def _due(an_hour: float, hour: int) -> range:
    """Return the numbers of what comes in an hour, at so many an hour."""
    return range(int(an_hour * hour), int(an_hour * (hour + 1)))


def read_stored(home: Path) -> tuple[int, int, int]:
    """Return the bytes of the database, the bytes of the messages in it, and their number."""
    path = home / "talaria.db"
    with closing(driver.connect(path)) as database:
        count, size = database.execute(
            f"SELECT count(*), sum(length(cast(body AS BLOB))) FROM entries WHERE {MESSAGES}"
        ).fetchone()
    return path.stat().st_size, size, count
