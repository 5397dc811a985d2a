"""Kills of gateways while jobs run: no run is lost or made twice, and each is told once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp

from soak.report import Figure, Progress
from talaria.core.failpoints import Failpoint
from talaria.store.sqlite.faults import driver
from talaria.testing.gateway_process import GatewayProcess, running_gateway

CHAT = "terminal"
POINTS = (
    Failpoint.SLOTS_WRITTEN,
    Failpoint.SLOT_CLAIMED,
    Failpoint.CHECKED,
    Failpoint.BEGUN,
    Failpoint.ANSWERED,
    Failpoint.STARTED,
    Failpoint.RAN,
    Failpoint.ENDING,
    Failpoint.ENDED,
)
_POINT_SECONDS = 6.0
_PATIENCE = 90.0
_EFFECTS = "effects"
_NOT_TAKEN = ", not taken"


@dataclass(slots=True)
class JobKillResults:
    """The outcome of all kills. `made` are the names of jobs that the API took, with what each is to do."""

    kills: Counter[str] = field(default_factory=Counter)
    made: dict[str, str] = field(default_factory=dict)
    unended: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    told_twice: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    run_twice: list[str] = field(default_factory=list)

    def figures(self) -> list[Figure]:
        total = self.kills.total()
        return [
            Figure(f"{total} kills beside jobs: runs that did not end", len(self.unended), "", 0),
            Figure("… results and failures not told", len(self.untold), "", 0),
            Figure("… told twice", len(self.told_twice), "", 0),
            Figure("… effects of runs repeated", len(self.repeated), "", 0),
            Figure("… slots with two turns that are done", len(self.run_twice), "", 0),
            Figure("… of the kills at a labelled point", total - self.kills["at random"]),
            Figure("… jobs that ran", len(self.made)),
        ]  # fmt: skip


class JobKillRun:
    """One home over all kills. Each job runs once, at once: it leaves a line in a file and says its number,
    after a check or without one, or it fails, or it is silent."""

    def __init__(self, kills: int, progress: Progress, seed: int = 1) -> None:
        self._kills = kills
        self._progress = progress
        self._random = Random(f"jobs {seed}")
        self._armed: Failpoint | None = None
        self.results = JobKillResults()

    async def run(self) -> list[Figure]:
        settings = {"SHUTDOWN__RESTART_PAUSE": "1ms", "NETWORK__COMMANDS": "off", "JOBS__MAX_JOBS": "100000"}
        async with running_gateway(settings) as (gateway, _):
            await gateway.call("POST", f"/api/sessions/{CHAT}/messages", json={"text": "hello"})
            for number in range(self._kills):
                await self._kill(gateway)
                self._progress.tell("kills beside jobs", number + 1, self._kills)
            await self._settle(gateway)
            self._judge(gateway.home)
        return self.results.figures()

    async def _kill(self, gateway: GatewayProcess) -> None:
        point = self._armed
        making = asyncio.create_task(self._make_jobs(gateway))
        seconds = self._random.uniform(0.2, 1.5) if point is None else _POINT_SECONDS
        reached = await gateway.wait(seconds) is not None
        await gateway.kill()
        making.cancel()
        await asyncio.wait((making,))
        self.results.kills[str(point) if point and reached else "at random"] += 1
        self._armed = self._random.choice((None, *POINTS, *POINTS))
        await gateway.spawn(f"{self._armed}={self._random.choice((1, 2))}" if self._armed else "")
        if not await gateway.ready():  # the point was in what the last life owed
            self.results.kills[str(self._armed)] += 1
            self._armed = None
            await gateway.wait()
            await gateway.start()

    async def _make_jobs(self, gateway: GatewayProcess) -> None:
        while True:
            name = f"n{len(self.results.made) + 1}"
            kind = self._random.choice(("says", "says", "says", "checks", "fails", "silent", "nothing"))
            call = json.dumps({"command": f"echo {name} >>{_EFFECTS}"})
            reply = "NO_REPLY" if kind == "silent" else f"result of {name}"
            text = "[[status 400]]" if kind == "fails" else f"[[call terminal {call}]][[reply {reply}]]"
            body = {"text": text, "every": "24h", "name": name, "chat": CHAT, "quiet": kind == "silent"}
            if kind in ("checks", "nothing"):
                body["check"] = "true" if kind == "nothing" else "echo news"
            self.results.made[name] = f"{kind}{_NOT_TAKEN}"
            try:
                job = await gateway.call("POST", "/api/jobs", json=body)
                await gateway.call("POST", f"/api/jobs/{job['id']}/run")
            except (aiohttp.ClientError, OSError):
                return
            self.results.made[name] = kind
            await asyncio.sleep(self._random.expovariate(6))

    async def _settle(self, gateway: GatewayProcess) -> None:
        """Let every run end in a last life."""
        await gateway.kill()
        await gateway.start()
        async with asyncio.timeout(_PATIENCE):
            while True:
                status = await gateway.call("GET", "/api/status")
                db = driver.connect(gateway.home / "talaria.db")
                try:
                    (left,) = db.execute("SELECT count(*) FROM slots WHERE ended_at IS NULL").fetchone()
                    (waiting,) = db.execute("SELECT count(*) FROM announcements").fetchone()
                finally:
                    db.close()
                if not (left or waiting or status["owed"]["turns"]):
                    break
                await asyncio.sleep(0.1)
        await gateway.kill(signal.SIGTERM)

    def _judge(self, home: Path) -> None:
        results, db = self.results, driver.connect(home / "talaria.db")
        try:
            names = {row[0]: json.loads(row[1])["name"] for row in db.execute("SELECT id, plan FROM jobs")}
            slots = db.execute("SELECT job_id, state, ended_at FROM slots").fetchall()
            done = Counter(
                names.get(row[0])
                for row in db.execute("SELECT job_id FROM turns WHERE job_id IS NOT NULL AND state = 'done'")
            )
            told = [
                json.loads(row[0])["text"]
                for row in db.execute("SELECT body FROM entries WHERE kind = 'announcement'")
            ]
        finally:
            db.close()
        states = {names[job_id]: state for job_id, state, _ in slots if job_id in names}
        results.unended += [str(row) for row in slots if row[2] is None]
        results.run_twice += [str(name) for name, times in done.items() if times > 1]
        for name, kind in results.made.items():
            state, told_of = states.get(name), _told(told, name)
            if state is None:  # nobody asked for a run, or the answer was lost
                results.unended += [] if kind.endswith(_NOT_TAKEN) else [name]
                continue
            expected = 0 if state == "done" and kind.startswith(("silent", "nothing")) else 1
            if told_of < expected:
                results.untold.append(f"{name} {kind} {state}")
            elif told_of > expected:
                results.told_twice.append(f"{name} {kind} {state}")
        lines = Counter(
            line for path in home.glob(f"files/*/{_EFFECTS}") for line in path.read_text().split()
        )
        results.repeated += [line for line, times in lines.items() if times > 1]


def _told(texts: list[str], name: str) -> int:
    """Return how many messages tell of a job."""
    marks = (f"The job {name} failed", f"(job {name})", f"(job {name},")
    return sum(any(mark in text for mark in marks) for text in texts)
