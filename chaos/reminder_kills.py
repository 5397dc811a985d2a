"""Kills of a gateway without a model while reminders come due: each one is sent once, and on time."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import aiohttp

from soak.report import Figure, Progress
from talaria.core.failpoints import Failpoint
from talaria.store.sqlite.faults import driver
from talaria.testing.gateway_process import GatewayProcess

POINTS = (Failpoint.SLOTS_WRITTEN, Failpoint.SLOT_CLAIMED)
ON_TIME_SECONDS = 5.0
_LIFE_SECONDS = 3.0
_PATIENCE = 60.0
_SENT = "SELECT at, body FROM entries WHERE kind = 'announcement'"
_OWED = """
SELECT created_at, plan FROM jobs
WHERE state <> 'done' OR id IN (SELECT job_id FROM slots WHERE ended_at IS NULL)
"""


@dataclass(slots=True)
class ReminderKillResults:
    """The outcome of all kills. `due` has the time of each reminder that the API took, by its text. `lives`
    has the time at which each life was ready, and that of its end."""

    kills: Counter[str] = field(default_factory=Counter)
    due: dict[str, float] = field(default_factory=dict)
    lives: list[tuple[float, float]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    sent_twice: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def figures(self) -> list[Figure]:
        kills = self.kills.total()
        what = f"{len(self.due)} reminders across {kills} kills without a model"
        return [
            Figure(f"{what}: not sent", len(self.lost), "", 0),
            Figure("… sent twice", len(self.sent_twice), "", 0),
            Figure("… later than 5 s while the gateway was up", len(self.late), "", 0),
            Figure("… longest delay while the gateway was up", round(self.slowest, 2), "s", ON_TIME_SECONDS),
            Figure("… of the kills at a labelled point", kills - self.kills["at random"]),
        ]

    def judge(self, sent: list[tuple[float, str]]) -> None:
        """Compare the messages in the log, with their times, with the reminders that were due."""
        times: dict[str, list[float]] = {}
        for at, text in sent:
            times.setdefault(text.partition("\n")[0], []).append(at)
        for text, due in self.due.items():
            found = times.get(text, [])
            if len(found) != 1:
                (self.sent_twice if found else self.lost).append(text)
                continue
            delay = max(min(found[0], end) - max(due, ready) for ready, end in self.lives if end > due)
            self.slowest = max(self.slowest, delay)
            if delay > ON_TIME_SECONDS:
                self.late.append(f"{text}: {delay:.1f} s")


class ReminderKillRun:
    """One home without a model across all kills. The reminders are added in equal shares to all lives, due
    within seconds, so that kills come before, while and after they are sent."""

    def __init__(self, reminders: int, kills: int, progress: Progress, seed: int = 1) -> None:
        self._reminders = reminders
        self._kills = kills
        self._progress = progress
        self._random = Random(f"reminders {seed}")
        self._tried = 0
        self._ready_at = 0.0
        self.results = ReminderKillResults()

    async def run(self) -> list[Figure]:
        settings = {"SHUTDOWN__RESTART_PAUSE": "1ms", "JOBS__MAX_JOBS": "100000", "LOG__LEVEL": "error"}
        with TemporaryDirectory(prefix="talaria-reminders-") as folder:
            home = Path(folder) / "home"
            home.mkdir(mode=0o700)
            (home / "config.toml").write_text("")
            async with GatewayProcess(home, Path(folder) / "log", settings) as gateway:
                await self._start(gateway)
                while (kills := self.results.kills.total()) < self._kills:
                    await self._life(gateway, self._reminders * (kills + 1) // (self._kills + 1))
                    self._progress.tell("kills beside reminders", self.results.kills.total(), self._kills)
                await self._settle(gateway)
            self.results.judge(_read(home, _SENT))
        return self.results.figures()

    async def _life(self, gateway: GatewayProcess, count: int) -> None:
        """Add reminders until there are `count`, then kill the gateway at random or at a labelled point."""
        await self._add(gateway, count)
        reached = await gateway.wait(self._random.uniform(0.1, _LIFE_SECONDS)) is not None
        self.results.lives.append((self._ready_at, time.time()))
        await gateway.kill()
        self.results.kills["at a point" if reached else "at random"] += 1
        await self._start(gateway, self._random.choice((None, *POINTS)))

    async def _start(self, gateway: GatewayProcess, point: Failpoint | None = None) -> None:
        await gateway.spawn(f"{point}={self._random.choice((1, 2, 3))}" if point else "")
        if not await gateway.ready():  # the point was in what the last life owed
            self.results.kills["at a point"] += 1
            await gateway.wait()
            await gateway.start()
        self._ready_at = time.time()

    async def _add(self, gateway: GatewayProcess, count: int) -> None:
        while len(self.results.due) < count:
            self._tried += 1
            text = f"reminder {self._tried}"
            due = time.time() + self._random.uniform(0.2, 1.5 * _LIFE_SECONDS)
            body = {"text": text, "at": datetime.fromtimestamp(due, UTC).isoformat(), "remind": True}
            try:
                await gateway.call("POST", "/api/jobs", json=body)
            except (aiohttp.ClientError, OSError):  # killed meanwhile: it may have been saved, or not
                return
            self.results.due[text] = due

    async def _settle(self, gateway: GatewayProcess) -> None:
        """Add the rest in a last life without a kill, and wait until all reminders are over."""
        await gateway.kill()
        await self._start(gateway)
        await self._add(gateway, self._reminders)
        async with asyncio.timeout(_PATIENCE):
            while _read(gateway.home, _OWED):
                await asyncio.sleep(0.1)
        self.results.lives.append((self._ready_at, time.time()))


def _read(home: Path, statement: str) -> list[tuple[float, str]]:
    db = driver.connect(home / "talaria.db")
    try:
        return [(at, json.loads(body)["text"]) for at, body in db.execute(statement)]
    finally:
        db.close()
