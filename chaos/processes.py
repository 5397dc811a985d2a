"""Kills of gateways while shells and background processes of their sessions run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp

from soak.report import Figure, Progress
from talaria.core.failpoints import Failpoint
from talaria.store.sqlite.faults import driver
from talaria.testing.gateway_process import GatewayProcess, running_gateway
from talaria.workspace.sandbox.group import start_time
from talaria.workspace.watched_process import ProcessRecord, read_exit, read_record

CHATS = 4
POINTS = (
    Failpoint.PROCESS_RECORDED,
    Failpoint.PROCESS_STARTED,
    Failpoint.NOTED,
    Failpoint.WOKEN,
    Failpoint.STARTED,
    Failpoint.RAN,
)
_POINT_SECONDS = 6.0
_PATIENCE = 60.0
_EFFECTS = "effects"


@dataclass(slots=True)
class ProcessResults:
    """The outcome of all kills. `told` counts by process how often its session heard of its end."""

    kills: Counter[str] = field(default_factory=Counter)
    started: dict[str, ProcessRecord] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    untold: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def figures(self) -> list[Figure]:
        twice = sum(times > 1 for times in self.told.values())
        total = self.kills.total()
        return [
            Figure(f"{total} kills beside shells and processes: ends not told", len(self.untold), "", 0),
            Figure("… ends that were told twice", twice, "", 0),
            Figure("… effects of commands repeated", len(self.repeated), "", 0),
            Figure("… processes and folders left over", len(self.left), "", 0),
            Figure("… of the kills at a labelled point", total - self.kills["at random"]),
            Figure("… background processes started", len(self.started)),
            Figure("… of them lost, because their shim was killed too, and declared so", self.lost),
            Figure("… ends told", self.told.total()),
        ]  # fmt: skip


class ProcessKillRun:
    """One home over all kills. Chats start commands and background processes, half of which wake them;
    every command leaves a line in a file. Some kills also hit a shim, and some chats begin anew."""

    def __init__(self, kills: int, progress: Progress, seed: int = 1) -> None:
        self._kills = kills
        self._progress = progress
        self._random = Random(f"processes {seed}")
        self._token = f"chaos{self._random.randrange(10**9)}x{os.getpid()}"
        self._count = 0
        self._armed: Failpoint | None = None
        self.results = ProcessResults()

    async def run(self) -> list[Figure]:
        settings = {"SHUTDOWN__RESTART_PAUSE": "1ms", "NETWORK__COMMANDS": "off"}
        async with running_gateway(settings) as (gateway, _):
            for number in range(self._kills):
                await self._kill(gateway)
                self._progress.tell("kills beside processes", number + 1, self._kills)
            await self._settle(gateway)
            self._judge(gateway.home)
            await self._end(gateway)
        self.results.left += [f"pid {pid}" for pid in running_with(self._token)]
        return self.results.figures()

    # -- one life -------------------------------------------------------------------------------------------

    async def _kill(self, gateway: GatewayProcess) -> None:
        """Let chats work in the life that runs, and end it with SIGKILL; then begin the next one."""
        point = self._armed
        talk = asyncio.create_task(self._talk(gateway))
        seconds = self._random.uniform(0.3, 2.5) if point is None else _POINT_SECONDS
        reached = await gateway.wait(seconds) is not None
        await gateway.kill()
        talk.cancel()
        await asyncio.wait((talk,))
        self.results.kills[str(point) if point and reached else "at random"] += 1
        self._note(gateway.home)
        if self._random.random() < 0.2:
            self._kill_shim()
        self._armed = self._random.choice((None, *POINTS))
        plan = f"{self._armed}={self._random.choice((1, 1, 2))}" if self._armed else ""
        await gateway.spawn(plan)
        if not await gateway.ready():  # the point was in what the last life owed
            self.results.kills[str(self._armed)] += 1
            self._armed = None
            await gateway.wait()
            await gateway.start()

    async def _talk(self, gateway: GatewayProcess) -> None:
        while True:
            chat = f"chat{self._random.randrange(CHATS)}"
            try:
                await self._say(gateway, chat, self._text())
            except (aiohttp.ClientError, OSError):
                return
            await asyncio.sleep(self._random.expovariate(4))

    def _text(self) -> str:
        self._count += 1
        command = f"echo n{self._count} >>{_EFFECTS}; : {self._token}; "
        drawn = self._random.random()
        if drawn < 0.05:
            return "/new"
        if drawn < 0.35:
            return _call(command + f"sleep {self._random.choice((0, 0.2))}")
        seconds = self._random.choice((0, 0.3, 1, 3))
        wake = self._random.random() < 0.5
        return _call(command + f"sleep {seconds}; exit 3", background=True, wake=wake)

    async def _say(self, gateway: GatewayProcess, chat: str, text: str) -> str:
        turn = await gateway.call("POST", f"/api/sessions/{chat}/messages", json={"text": text})
        return str(turn["turn_id"])

    def _note(self, home: Path) -> None:
        """Keep what is on record. A session that ended meanwhile has taken its records along."""
        for folder in home.glob("sessions/*/processes/*"):
            if (record := read_record(folder)) is not None:
                self.results.started[record.id] = record

    def _kill_shim(self) -> None:
        running = [one for one in self.results.started.values() if start_time(one.pid) == one.start]
        if running:
            os.kill(self._random.choice(running).pid, signal.SIGKILL)

    # -- the end --------------------------------------------------------------------------------------------

    async def _settle(self, gateway: GatewayProcess) -> None:
        """Let every process end and every session hear of it."""
        await gateway.kill()
        await gateway.start()

        async def is_quiet() -> bool:
            status = await gateway.call("GET", "/api/status")
            return not status["processes"] and not status["owed"]["turns"]

        await _until(is_quiet)
        for number in range(CHATS):  # the last notes come with the next message
            await gateway.ended_turn(await self._say(gateway, f"chat{number}", "and now?"))
        await _until(is_quiet)
        self._note(gateway.home)
        await gateway.kill(signal.SIGTERM)

    def _judge(self, home: Path) -> None:
        results = self.results
        db = driver.connect(home / "talaria.db")
        try:
            rows = db.execute("SELECT body FROM entries WHERE kind = 'note'").fetchall()
            keys = [json.loads(row[0])["key"] for row in rows]
            keys += [row[0] for row in db.execute("SELECT key FROM turns WHERE key LIKE 'process:%'")]
        finally:
            db.close()
        results.told.update(key.partition(":")[2] for key in keys)
        for folder in home.glob("sessions/*/processes/*"):
            record = read_record(folder)
            if record is None:
                results.left.append(str(folder))
                continue
            results.lost += read_exit(folder) is None
            if not results.told[record.id]:
                results.untold.append(f"{record.id} {record.command}")
        lines = Counter(
            line for path in home.glob(f"files/*/{_EFFECTS}") for line in path.read_text().split()
        )
        results.repeated += [line for line, times in lines.items() if times > 1]

    async def _end(self, gateway: GatewayProcess) -> None:
        await gateway.start()
        for number in range(CHATS):
            await gateway.ended_turn(await self._say(gateway, f"chat{number}", "/new"))

        def left() -> list[Path]:
            return [path for name in ("processes", "tmp") for path in gateway.home.glob(f"sessions/*/{name}")]

        async def is_empty() -> bool:
            return not left()

        try:
            await _until(is_empty)
        except TimeoutError:
            self.results.left += map(str, left())
        await gateway.kill(signal.SIGTERM)


def running_with(token: str) -> Iterator[int]:
    """Yield the processes that have the token in their command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if token.encode() in words:
            yield int(path.parent.name)


def _call(command: str, **more: object) -> str:
    return f"[[call terminal {json.dumps({'command': command, **more})}]]"


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not await condition():
            await asyncio.sleep(0.1)
