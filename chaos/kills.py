"""Kills of real gateways with SIGKILL, at labelled points and at random. Their chats show the damage."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from soak.report import Curve, Figure, Progress
from support.ports import port_of, reserve_port
from talaria.channels.telegram.channel import WEBHOOK_PATH
from talaria.core.failpoints import Failpoint
from talaria.store.sqlite.faults import driver
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.simulated_users import DeliveryReport, MessageKind, SimulatedUsers
from talaria.testing.telegram_server import TelegramServer

RANDOM = "at random"
_POINT_SECONDS = 5.0
_SETTLE_SHARE = 0.3  # of the lives; with more kills in a row most messages would be given up
_KINDS = (
    MessageKind.TEXT,
    MessageKind.TEXT,
    MessageKind.TOOL,
    MessageKind.TOOL,
    MessageKind.SLOW,
    MessageKind.COMMAND,
    MessageKind.EDIT,
    MessageKind.BUTTON,
)
# A joined or stopped message may have no reply, so only the last two users send them, in their own chats.
_KINDS_OF: dict[int, tuple[MessageKind, ...]] = {
    11: _KINDS,
    12: _KINDS,
    13: _KINDS,
    14: _KINDS,
    15: (*_KINDS, MessageKind.STEER, MessageKind.STEER),
    16: (*_KINDS, MessageKind.STOP, MessageKind.STOP),
}
_NEEDED = {
    Failpoint.STARTED: MessageKind.TOOL,
    Failpoint.RAN: MessageKind.TOOL,
    Failpoint.SHOWN: MessageKind.SLOW,
}


# No built-in tool asks a person; `chaos.processes` has the points of background processes, `chaos.job_kills`
# those of jobs, `tests/search` those of the index.
ELSEWHERE = {
    Failpoint.PARKED,
    Failpoint.PROCESS_RECORDED,
    Failpoint.PROCESS_STARTED,
    Failpoint.NOTED,
    Failpoint.WOKEN,
    Failpoint.SLOTS_WRITTEN,
    Failpoint.SLOT_CLAIMED,
    Failpoint.CHECKED,
    Failpoint.INDEXING,
    Failpoint.INDEXED,
}


def plans(random: Random) -> Iterator[Failpoint | None]:
    """Yield every point in random order, and a kill at random after every second one, without end."""
    points = [point for point in Failpoint if point not in ELSEWHERE]
    while True:
        for n, point in enumerate(random.sample(points, len(points))):
            yield point
            if n % 2:
                yield None


@dataclass(slots=True)
class KillResults:
    """The results of all homes. `kills` counts by point; `RANDOM` includes points not reached in time."""

    kills: Counter[str] = field(default_factory=Counter)
    report: DeliveryReport = field(default_factory=DeliveryReport)
    repeated: list[str] = field(default_factory=list)  # tool effects that happened twice
    undone: int = 0  # tool calls without effect: a kill came first, or their turn ended
    damaged: list[str] = field(default_factory=list)
    owed: int = 0
    samples: list[tuple[int, DeliveryReport]] = field(default_factory=list)
    evidence: list[str] = field(
        default_factory=list
    )  # the texts of chats with a lost, duplicated or misplaced reply

    @property
    def total(self) -> int:
        return self.kills.total()

    @property
    def is_good(self) -> bool:
        return self.report.is_good and not (self.repeated or self.damaged or self.owed)

    def figures(self) -> list[Figure]:
        report, labelled = self.report, self.total - self.kills[RANDOM]
        excused = report.sent - report.answered - report.given_up - len(report.lost)
        return [
            Figure(
                f"{self.total} kills, {labelled} at labelled points: messages lost", len(report.lost), "", 0
            ),
            Figure("… replies duplicated without a mark", len(report.duplicated), "", 0),
            Figure("… replies out of order", len(report.out_of_order), "", 0),
            Figure("… tool effects repeated", len(self.repeated), "", 0),
            Figure("… databases found damaged", len(self.damaged), "", 0),
            Figure("… turns and replies owed at the end", self.owed, "", 0),
            Figure("… messages sent", report.sent),
            Figure("… given up after three crashes, and reported as such", report.given_up),
            Figure("… stopped by `/stop`, or answered with the message that they joined", excused),
            Figure("… resent with the mark, because the first attempt may have arrived", report.resent),
            Figure("… live previews left behind, with their cursor", report.previews),
            Figure("… tool calls without effect: their outcome unknown, given up or stopped", self.undone),
        ]

    def curves(self) -> list[Curve]:
        def curve(name: str, colour: str, read: Callable[[DeliveryReport], int]) -> Curve:
            return Curve(name, "", colour, [(kills, float(read(report))) for kills, report in self.samples])

        return [
            curve("messages answered", "#2f7d4f", lambda report: report.answered),
            curve("replies resent with a mark", "#b8860b", lambda report: report.resent),
            curve(
                "lost, duplicated without a mark or out of order",
                "#b3392f",
                lambda report: len(report.lost) + len(report.duplicated) + len(report.out_of_order),
            ),
        ]


class KillRun:
    """Kills spread over `workers` homes, which live for the whole run, so that their histories grow.

    Every second home takes its updates by webhook, the others poll. A message that is still owed after
    `patience` seconds counts as lost. `source` is another source tree to run.
    """

    def __init__(
        self,
        kills: int,
        progress: Progress,
        *,
        workers: int = 2,
        seed: int = 1,
        points: Callable[[Random], Iterator[Failpoint | None]] = plans,
        source: Path | None = None,
        patience: float = 60.0,
    ) -> None:
        self._kills = kills
        self._progress = progress
        self._workers = workers
        self._seed = seed
        self._points = points
        self._source = source
        self._patience = patience
        self._reports: dict[int, DeliveryReport] = {}
        self.results = KillResults()

    async def run(self) -> KillResults:
        with tempfile.TemporaryDirectory(prefix="talaria-chaos-") as folder:
            async with ModelServer(record=False) as model, asyncio.TaskGroup() as tasks:
                for number in range(self._workers):
                    home = Path(folder) / f"home{number}"
                    home.mkdir(mode=0o700)
                    share = self._kills // self._workers + (number < self._kills % self._workers)
                    tasks.create_task(self._work(number, share, home, model), name=f"home {number}")
        self.results.report = sum(self._reports.values(), DeliveryReport())
        return self.results

    async def _work(self, number: int, kills: int, home: Path, model: ModelServer) -> None:
        random = Random(f"{self._seed} {number}")
        async with AsyncExitStack() as scopes:
            server = await scopes.enter_async_context(TelegramServer())
            users = SimulatedUsers(server, list(_KINDS_OF), home)
            settings = users.settings_with(model) | (
                _webhook(scopes.enter_context(reserve_port())) if number % 2 else {}
            )
            gateway = await scopes.enter_async_context(
                GatewayProcess(home, home.with_suffix(".log"), settings, source=self._source)
            )
            worker = _Worker(gateway, users, random, self.results)
            for point in itertools.islice(self._points(random), kills):
                if random.random() < _SETTLE_SHARE:
                    await worker.settle(self._patience)
                    self._sample(number, users)
                    await worker.kill_now()
                else:
                    await worker.kill(point)
                await worker.check_database()
            self.results.owed += await worker.settle(self._patience)
            await gateway.kill(signal.SIGTERM)
            self._sample(number, users)
            effects = users.effects()
            calls = sum(one.kind is MessageKind.TOOL for sent in users.sent.values() for one in sent)
            self.results.repeated += [name for name, times in effects.items() if times > 1]
            self.results.undone += calls - len(effects)
            self.results.evidence += users.broken_chats()

    def _sample(self, number: int, users: SimulatedUsers) -> None:
        self._reports[number] = users.report()
        report = sum(self._reports.values(), DeliveryReport())
        self.results.samples.append((self.results.total, report))
        bad = f"{len(report.lost)} lost, {len(report.duplicated)} duplicated"
        more = f", {report.answered} of {report.sent} answered, {report.resent} resent marked, {bad}"
        self._progress.tell("kills", self.results.total, self._kills, more)


class _Worker:
    def __init__(
        self, gateway: GatewayProcess, users: SimulatedUsers, random: Random, results: KillResults
    ) -> None:
        self._gateway = gateway
        self._users = users
        self._random = random
        self._results = results

    async def kill(self, point: Failpoint | None) -> None:
        """Run one life with messages before and during it, and kill it at the point or at a random moment."""
        gateway, random = self._gateway, self._random
        for _ in range(random.randrange(3)):
            self._say()
        await gateway.spawn("" if point is None else f"{point}={random.choice((1, 1, 2, 3))}")
        talk = asyncio.create_task(self._talk(_NEEDED.get(point) if point else None))
        seconds = random.uniform(0.2, 2.5) if point is None else _POINT_SECONDS
        reached = await gateway.wait(seconds) is not None
        await gateway.kill()
        assert await gateway.wait() == -signal.SIGKILL, gateway.log.read_text()[-2000:]
        talk.cancel()
        await asyncio.wait((talk,))
        self._results.kills[str(point) if point and reached else RANDOM] += 1

    async def settle(self, patience: float) -> int:
        """Run one life until nothing is owed. Returns how much is owed after `patience` seconds."""
        await self._gateway.start()
        return await self._users.until_settled(self._gateway, patience)

    async def kill_now(self) -> None:
        """Kill the life that `settle` started, in the middle of new messages."""
        talk = asyncio.create_task(self._talk(None))
        await asyncio.sleep(self._random.uniform(0.0, 1.2))
        await self._gateway.kill()
        talk.cancel()
        await asyncio.wait((talk,))
        self._results.kills[RANDOM] += 1

    async def check_database(self) -> None:
        """Check a copy, so that the next start finds the files as the kill left them."""
        finding = await asyncio.to_thread(_find_damage, self._gateway.home)
        if finding is not None:
            self._results.damaged.append(finding)

    async def _talk(self, needed: MessageKind | None) -> None:
        """Send a few messages at random moments. A message of the `needed` kind leads to the armed point."""
        if needed is not None:
            self._users.send(self._random.choice(self._users.people[:4]), needed)
        for _ in itertools.repeat(None, self._random.randint(1, 3)):
            self._say()
            await asyncio.sleep(self._random.expovariate(4))
        if needed is None:  # for every point that any message leads to
            await asyncio.sleep(1.0)
            self._say()

    def _say(self) -> None:
        person = self._random.choice(self._users.people)
        kind = self._random.choice(_KINDS_OF[person])
        self._users.send(person, kind)
        if self._random.random() < 0.2:
            self._users.redeliver(self._random)


def _webhook(place: socket.socket) -> dict[str, str]:
    """Return settings for a webhook at this reserved port, which stays the same over all lives."""
    port = port_of(place)
    return {
        "HTTP__PORT": str(port),
        "CHANNELS__TELEGRAM__MODE": "webhook",
        "CHANNELS__TELEGRAM__WEBHOOK_URL": f"http://127.0.0.1:{port}{WEBHOOK_PATH}",
    }


def _find_damage(home: Path) -> str | None:
    """Return what SQLite finds wrong in a copy, or None. The process that had the files open is dead."""
    if not (home / "talaria.db").exists():
        return None
    with tempfile.TemporaryDirectory(prefix="talaria-chaos-look-") as folder:
        for ending in ("", "-wal"):
            if (home / f"talaria.db{ending}").exists():
                shutil.copyfile(home / f"talaria.db{ending}", Path(folder) / f"copy.db{ending}")
        db = driver.connect(Path(folder) / "copy.db")
        try:
            (found,) = db.execute("PRAGMA integrity_check").fetchone()
        except driver.DatabaseError as error:
            return str(error)
        finally:
            db.close()
    return None if found == "ok" else str(found)
