"""Jobs and reminders that come due all the time: none is lost or run twice, and each is reported once."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Collection
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any

import aiohttp

from talaria.core.failpoints import Failpoint
from trial.faults import OF_TURNS, Load
from trial.report import Check, Fault, Figure, none_of
from trial.world import World

CHAT = "terminal"
KINDS = ("says", "says", "says", "checks", "fails", "silent", "nothing")
REMINDERS = ("reminds",)
ON_TIME_SECONDS = 5.0
_SETTINGS = {"JOBS__MAX_JOBS": "100000", "NETWORK__COMMANDS": "off"}
_JOBS = """
SELECT j.id, j.plan, s.state, s.ended_at,
    (SELECT count(*) FROM turns t WHERE t.job_id = j.id AND t.state = 'done')
FROM jobs j LEFT JOIN slots s ON s.job_id = j.id
"""


class Jobs(Load):
    """Each job is due once, within seconds. It leaves a line in a file and says its name, after a check or
    without one, or it fails, or it is silent, or it is a reminder. At least
    `at_least` are created."""

    points: tuple[Failpoint, ...] = (
        Failpoint.SLOTS_WRITTEN,
        Failpoint.SLOT_CLAIMED,
        Failpoint.CHECKED,
        *OF_TURNS,
    )

    def __init__(self, kinds: tuple[str, ...] = KINDS, *, rate: float = 2.5, at_least: int = 0) -> None:
        self._kinds = kinds
        self._rate = rate
        self._at_least = at_least
        self._tried = 0
        self.made: dict[str, tuple[str, str, float]] = {}  # by name: id, kind, when it is due
        if kinds == REMINDERS:  # no model is called for them
            self.points = self.points[:2]

    async def prepare(
        self, world: World, faults: Collection[Fault], scopes: AsyncExitStack
    ) -> dict[str, str]:
        return _SETTINGS

    async def run(self, world: World) -> None:
        if world.model:
            await world.call("POST", f"/api/sessions/{CHAT}/messages", {"text": "hello"}, "hello")
        while not world.is_over:
            await world.is_open.wait()
            await self._add(world)
            await asyncio.sleep(world.random.expovariate(self._rate))

    async def _add(self, world: World) -> None:
        """Create a job. One whose answer is lost may be there all the same, and is judged too."""
        random = world.random
        self._tried += 1
        name, kind = f"job{self._tried}", random.choice(self._kinds)
        due = time.time() + random.uniform(0.2, 3.0)
        at = datetime.fromtimestamp(due, UTC).isoformat()
        body: dict[str, Any] = {"text": _text(name, kind), "name": name, "at": at}
        if kind == "reminds":
            body = {"text": name, "at": at, "remind": True}
        else:
            body |= {"chat": CHAT, "quiet": kind == "silent"}
        if kind in ("checks", "nothing"):
            body["check"] = "true" if kind == "nothing" else "echo news"
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            made = await world.try_call("POST", "/api/jobs", body)
            self.made[name] = made["id"], kind, due

    async def finish(self, world: World) -> None:
        while len(self.made) < self._at_least and self._tried < 100 * self._at_least:
            await self._add(world)
            await asyncio.sleep(0.02)  # a gateway that starts has no address yet

    async def judge(self, world: World) -> list[Figure]:
        rows = world.query(_JOBS)
        slots = Counter(row[0] for row in rows)
        effects = Counter(world.effects.read_text().splitlines())
        sent = [
            (at, json.loads(body)["text"])
            for at, body in world.query("SELECT at, body FROM entries WHERE kind = 'announcement'")
        ]
        lost = [f"{name}: {made}" for name, made in self.made.items() if made[0] not in slots]
        twice, silent, told_twice = [], [], []
        delays: dict[str, float] = {}
        for job_id, plan, state, ended_at, done in rows:
            name = (read := json.loads(plan)).get("name") or read["text"]
            told = f"{name} {job_id} {plan} {state}: {slots[job_id]} slots, {done} turns done"
            if ended_at is None:
                lost.append(told)
            if slots[job_id] > 1 or done > 1:
                twice.append(told)
            if name not in self.made or self.made[name][0] != job_id:
                continue
            _, kind, due = self.made[name]
            times = [at for at, text in sent if _is_about(text, name)]
            expected = 0 if state == "done" and kind in ("silent", "nothing") else 1
            if len(times) < expected:
                silent.append(told)
            elif len(times) > expected:
                told_twice.append(told)
            elif kind == "reminds":
                lives = [*world.members[0].lives, (world.members[0].ready_at, time.time())]
                delays[name] = max(min(times[0], end) - max(due, ready) for ready, end in lives if end > due)
        repeated = [name for name, times in effects.items() if name.startswith("job") and times > 1]
        late = [f"{name}: {delay:.1f} s" for name, delay in delays.items() if delay > ON_TIME_SECONDS]
        figures = [
            none_of("… jobs and reminders lost", lost, Check.LOST),
            none_of("… run twice", twice, Check.DUPLICATED),
            none_of("… results, failures and reminders not reported", silent, Check.LOST),
            none_of("… reported twice", told_twice, Check.DUPLICATED),
            none_of("… effects of their runs repeated", repeated, Check.EFFECTS),
            Figure("… jobs and reminders", len(self.made)),
        ]
        if delays and len(world.members) == 1:
            slowest = round(max(delays.values()), 2)
            figures += [
                none_of("… reminders later than 5 s while the gateway was up", late),
                Figure(
                    "… longest delay of a reminder while the gateway was up", slowest, "s", ON_TIME_SECONDS
                ),
            ]
        return figures


def _text(name: str, kind: str) -> str:
    reply = "NO_REPLY" if kind == "silent" else f"result of {name}"
    mark = f'[[call leave_mark {{"name": "{name}"}}]]'
    return "[[status 400]]" if kind == "fails" else f"{mark}[[reply {reply}]]"


def _is_about(text: str, name: str) -> bool:
    """Return whether a message reports this job, or is this reminder."""
    marks = (f"The job {name} failed", f"(job {name})", f"(job {name},")
    return text.partition("\n")[0] == name or any(mark in text for mark in marks)
