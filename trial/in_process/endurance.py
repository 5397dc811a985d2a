"""Memory over many turns in many sessions: it must follow the size of the pool, not the number of
sessions."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from support.rig import Rig, start
from support.scripted_model import ScriptedModel
from talaria.core.clock import SystemClock
from talaria.core.tools import ToolSpec
from talaria.core.turns import TurnState
from talaria.observe.health import read_rss
from talaria.pool.policy import PoolLimits
from talaria.store.sqlite.store import SqliteStore
from talaria.tools.function import FunctionTool, parameters
from talaria.tools.tool import ToolContext
from talaria.turns.slash import SLASH_COMMANDS
from trial.measure import slope
from trial.report import Check, Curve, Figure, Progress

AT_ONCE = 16
LIMITS = PoolLimits(max_agents=128, idle_ttl=3600, max_bytes=8 << 20)
RSS_LIMIT = 0.5  # MB per 10,000 turns
BLOCKS_LIMIT = 300  # per 1,000 evictions: a third of one forgotten object each
SHORT_BLOCKS_LIMIT = 1000  # in short runs, while caches still fill: 490 to 850; a leaked object adds 1,000
LONG = 20_000  # turns; below that, noise of the allocator is larger than the limit for RSS
ALLOCATIONS = "allocations kept"
_MORE = 8  # more threads and files with more load, up to the sizes of their pools
_MEGABYTE = "x" * (1 << 20)


@dataclass(frozen=True, slots=True)
class Sample:
    """A measurement while no turn runs. `blocks` (all allocations of the interpreter) and `objects` (those
    that the garbage collector tracks) are counted after all agents were released."""

    turns: int
    released: int
    rss: int
    blocks: int
    objects: int
    pool: int
    fds: int
    threads: int
    tasks: int
    per_second: float


class Endurance:
    """A run of `turns` over `sessions`. `leak` plants a leak of so many bytes for each eviction."""

    def __init__(
        self, turns: int, sessions: int, progress: Progress, *, leak: int = 0, samples: int = 100
    ) -> None:
        self._turns = turns
        self._sessions = sessions
        self._progress = progress
        self._leak = leak
        self._leaked: list[bytes] = []
        self._batch = max(AT_ONCE, turns // samples)
        self._random = Random(1)
        self.samples: list[Sample] = []
        self.states: dict[TurnState, int] = dict.fromkeys(TurnState, 0)

    async def run(self) -> list[Figure]:
        big = FunctionTool(ToolSpec("big", "A megabyte.", parameters({})), _big)
        with tempfile.TemporaryDirectory(prefix="talaria-soak-") as name:
            folder = Path(name)
            async with (
                await SqliteStore.open(folder / "talaria.db", SystemClock()) as store,
                start(
                    store,
                    folder / "files",
                    model=_Forgetful(),
                    limits=LIMITS,
                    tools=lambda tools: tools.with_tools([big]),
                ) as rig,
            ):
                await self._soak(rig, folder / "files")
        return self.figures()

    async def _soak(self, rig: Rig, files: Path) -> None:
        done = 0
        work = self._work()
        while done < self._turns:
            count = min(self._batch, self._turns - done)
            began = time.perf_counter()
            await self._run_batch(rig, work, count)
            done += count
            pace = count / (time.perf_counter() - began)
            shutil.rmtree(files, ignore_errors=True)  # the large tool results that were kept for the model
            self.samples.append(await self._sample(rig, done, pace))
            last = self.samples[-1]
            more = f", {last.rss / 1e6:.0f} MB, {last.pool} warm, {pace:.0f} turns/s"
            self._progress.tell("soak turns", done, self._turns, more)

    async def _run_batch(self, rig: Rig, work: Iterator[tuple[str, str, str | None]], count: int) -> None:
        left = iter(range(count))

        async def take() -> None:
            for _ in left:
                session, text, model = next(work)
                more = {"model": model} if model else {}
                turn = await rig.say(text, session, **more)
                self.states[turn.state] += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(take())

    def _work(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield a session, a text and perhaps a model, for all sessions in turn, without end."""
        has_undo = "undo" in SLASH_COMMANDS
        number = 0
        while True:
            session = str(number % self._sessions)
            number += 1
            share = self._random.random()
            if share < 0.05:
                yield session, "/new", None
            elif share < 0.10:
                yield session, "[[call big {}]]", None
            elif share < 0.15:
                yield session, "another model", self._random.choice(("fast", "scripted"))
            elif share < 0.25:
                yield session, "[[status 500]]", None
            elif share < 0.30 and has_undo:
                yield session, "/undo", None
            else:
                yield session, f"message {number}, and some words around it", None

    def _plant(self, rig: Rig) -> None:
        if self._leak:
            missing = rig.pool.counters.released - len(self._leaked)
            self._leaked += [os.urandom(self._leak - sys.getsizeof(b"")) for _ in range(missing)]

    async def _sample(self, rig: Rig, done: int, pace: float) -> Sample:
        stats, rss = rig.pool.stats(), read_rss()
        await rig.pool.drain()
        self._plant(rig)
        gc.collect()
        return Sample(
            turns=done,
            released=rig.pool.counters.released,
            rss=rss,
            blocks=sys.getallocatedblocks(),
            objects=len(gc.get_objects()),
            pool=stats.size,
            fds=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            tasks=len(asyncio.all_tasks()),
            per_second=pace,
        )

    # -- results --------------------------------------------------------------------------------------------

    @property
    def second_half(self) -> Sequence[Sample]:
        return self.samples[len(self.samples) // 2 :]

    @property
    def blocks_per_1000_evictions(self) -> float:
        """The slope after the first quarter, in which caches fill."""
        warm = self.samples[len(self.samples) // 4 :]
        return 1000 * slope([(s.released, s.blocks) for s in warm])

    def figures(self) -> list[Figure]:
        is_long, late = self._turns >= LONG, self.second_half
        first = self.samples[: len(self.samples) // 2]
        rss = slope([(s.turns, s.rss) for s in late]) * 10_000 / 1e6
        grown = {
            name: max(getattr(s, name) for s in late) - max(getattr(s, name) for s in first)
            for name in ("fds", "threads", "tasks")
        }
        return [
            Figure(f"RSS slope over {self._turns:,} turns in {self._sessions:,} sessions", rss,
                   "MB per 10,000 turns", RSS_LIMIT if is_long else None, Check.MEMORY),
            Figure(ALLOCATIONS, self.blocks_per_1000_evictions, "per 1,000 evictions",
                   BLOCKS_LIMIT if is_long else SHORT_BLOCKS_LIMIT, Check.MEMORY),
            Figure("most warm agents", max(s.pool for s in self.samples), "", LIMITS.max_agents),
            *(Figure(f"more {name} in the second half than in the first", max(0, more), "", _MORE,
                     Check.LEFTOVERS) for name, more in grown.items()),
            Figure("turns left unsettled", self._turns - sum(self.states[s] for s in _FINAL), "", 0),
            Figure("RSS at the end", late[-1].rss / 1e6, "MB"),
            Figure("turns per second", self._turns / sum(self._batch / s.per_second for s in self.samples)),
        ]  # fmt: skip

    def curves(self) -> list[Curve]:
        return [
            Curve("resident memory", "MB", "#2f7d6b", [(s.turns, s.rss / 1e6) for s in self.samples]),
            Curve("warm agents in the pool", "", "#4a6fa5", [(s.turns, s.pool) for s in self.samples]),
            Curve("turns per second", "", "#a5674a", [(s.turns, s.per_second) for s in self.samples]),
        ]


_FINAL = [state for state in TurnState if state.is_final]


class _Forgetful(ScriptedModel):
    """A model that records no bodies, because their memory would be measured."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = type(self.bodies)(maxlen=0)
        self.sessions = type(self.sessions)(maxlen=0)


async def _big(arguments: dict[str, object], context: ToolContext) -> str:
    return _MEGABYTE
