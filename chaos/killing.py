"""Kills: real gateways, ended with SIGKILL at labelled points and at random, and judged from their chats."""

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
from talaria.channels.telegram.channel import WEBHOOK_PATH
from talaria.core.failpoints import Failpoint
from talaria.store.sqlite.engine import driver
from talaria.testing.crowd import Crowd, settled
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.promises import Kind, Verdict
from talaria.testing.telegram_server import TelegramServer

RANDOM = "at random"
_POINT_SECONDS = 5.0
_SETTLE_SHARE = 0.3  # of the lives; more kills in a row would make most messages be given up
_KINDS = (Kind.TEXT, Kind.TEXT, Kind.TOOL, Kind.TOOL, Kind.SLOW, Kind.COMMAND, Kind.EDIT, Kind.BUTTON)
# What the last two may do to their own messages is excused, so they do it in chats of their own.
_MANNERS: dict[int, tuple[Kind, ...]] = {
    11: _KINDS,
    12: _KINDS,
    13: _KINDS,
    14: _KINDS,
    15: (*_KINDS, Kind.STEER, Kind.STEER),
    16: (*_KINDS, Kind.STOP, Kind.STOP),
}
_NEEDED = {Failpoint.STARTED: Kind.TOOL, Failpoint.RAN: Kind.TOOL, Failpoint.SHOWN: Kind.SLOW}


def plans(random: Random) -> Iterator[Failpoint | None]:
    """Every point in any order, with a kill at random after every second one, over and over."""
    points = [point for point in Failpoint if point is not Failpoint.PARKED]  # no built-in tool asks a person
    while True:
        for n, point in enumerate(random.sample(points, len(points))):
            yield point
            if n % 2:
                yield None


@dataclass(slots=True)
class Tally:
    """What all homes saw. `kills` are by where they struck; a point not reached in time is `RANDOM`."""

    kills: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    repeated: list[str] = field(default_factory=list)  # tool effects that happened twice
    undone: int = 0  # tool calls without effect: a kill kept them from running, or their turn ended
    damaged: list[str] = field(default_factory=list)
    owed: int = 0
    looks: list[tuple[int, Verdict]] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)  # chats in which a promise was broken, as they look

    @property
    def total(self) -> int:
        return self.kills.total()

    @property
    def is_good(self) -> bool:
        return self.verdict.is_kept and not (self.repeated or self.damaged or self.owed)

    def figures(self) -> list[Figure]:
        verdict, labelled = self.verdict, self.total - self.kills[RANDOM]
        excused = verdict.asked - verdict.answered - verdict.told - len(verdict.lost)
        return [
            Figure(
                f"{self.total} kills, {labelled} at labelled points: messages lost", len(verdict.lost), "", 0
            ),
            Figure("… replies doubled without a mark", len(verdict.unmarked), "", 0),
            Figure("… replies out of order", len(verdict.disordered), "", 0),
            Figure("… tool effects repeated", len(self.repeated), "", 0),
            Figure("… databases found damaged", len(self.damaged), "", 0),
            Figure("… turns and replies owed at the end", self.owed, "", 0),
            Figure("… messages asked", verdict.asked),
            Figure("… given up after three crashes, and told", verdict.told),
            Figure("… stopped by `/stop`, or answered with the message that they joined", excused),
            Figure("… resent with the mark, because the first try may have arrived", verdict.resent),
            Figure("… live previews left behind, with their cursor", verdict.previews),
            Figure("… tool calls without effect: their outcome unknown, given up or stopped", self.undone),
        ]

    def curves(self) -> list[Curve]:
        def curve(name: str, colour: str, read: Callable[[Verdict], int]) -> Curve:
            return Curve(name, "", colour, [(kills, float(read(verdict))) for kills, verdict in self.looks])

        return [
            curve("messages answered", "#2f7d4f", lambda verdict: verdict.answered),
            curve("replies resent with a mark", "#b8860b", lambda verdict: verdict.resent),
            curve(
                "lost, doubled without a mark or out of order",
                "#b3392f",
                lambda verdict: len(verdict.lost) + len(verdict.unmarked) + len(verdict.disordered),
            ),
        ]


class Killing:
    """`kills` over `workers` homes that live for the whole run, so that their histories grow. Every second
    one takes its updates by webhook, the others poll. `patience`: seconds until what is owed is lost."""

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
        self._verdicts: dict[int, Verdict] = {}
        self.tally = Tally()

    async def run(self) -> Tally:
        with tempfile.TemporaryDirectory(prefix="talaria-chaos-") as folder:
            async with ModelServer(record=False) as model, asyncio.TaskGroup() as tasks:
                for number in range(self._workers):
                    home = Path(folder) / f"home{number}"
                    home.mkdir(mode=0o700)
                    share = self._kills // self._workers + (number < self._kills % self._workers)
                    tasks.create_task(self._work(number, share, home, model), name=f"home {number}")
        self.tally.verdict = sum(self._verdicts.values(), Verdict())
        return self.tally

    async def _work(self, number: int, kills: int, home: Path, model: ModelServer) -> None:
        random = Random(f"{self._seed} {number}")
        async with AsyncExitStack() as scopes:
            server = await scopes.enter_async_context(TelegramServer())
            crowd = Crowd(server, list(_MANNERS), home)
            settings = crowd.settings_with(model) | (_webhook() if number % 2 else {})
            gateway = await scopes.enter_async_context(
                GatewayProcess(home, home.with_suffix(".log"), settings, source=self._source)
            )
            worker = _Worker(gateway, crowd, random, self.tally)
            for point in itertools.islice(self._points(random), kills):
                if random.random() < _SETTLE_SHARE:
                    await worker.settle(self._patience)
                    self._look(number, crowd)
                    await worker.kill_now()
                else:
                    await worker.kill(point)
                await worker.check_database()
            self.tally.owed += await worker.settle(self._patience)
            await gateway.kill(signal.SIGTERM)
            self._look(number, crowd)
            effects = crowd.effects()
            calls = sum(one.kind is Kind.TOOL for asked in crowd.asked.values() for one in asked)
            self.tally.repeated += [name for name, times in effects.items() if times > 1]
            self.tally.undone += calls - len(effects)
            self.tally.evidence += crowd.broken_chats()

    def _look(self, number: int, crowd: Crowd) -> None:
        self._verdicts[number] = crowd.verdict()
        verdict = sum(self._verdicts.values(), Verdict())
        self.tally.looks.append((self.tally.total, verdict))
        bad = f"{len(verdict.lost)} lost, {len(verdict.unmarked)} doubled unmarked"
        more = f", {verdict.answered} of {verdict.asked} answered, {verdict.resent} resent marked, {bad}"
        self._progress.tell("kills", self.tally.total, self._kills, more)


class _Worker:
    def __init__(self, gateway: GatewayProcess, crowd: Crowd, random: Random, tally: Tally) -> None:
        self._gateway = gateway
        self._crowd = crowd
        self._random = random
        self._tally = tally

    async def kill(self, point: Failpoint | None) -> None:
        """One life: messages before and during it, and its end at the point, or at any moment."""
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
        self._tally.kills[str(point) if point and reached else RANDOM] += 1

    async def settle(self, patience: float) -> int:
        """A life that is left alone until nothing is owed. Answers what is owed all the same."""
        await self._gateway.start()
        return await settled(self._gateway, self._crowd, patience)

    async def kill_now(self) -> None:
        """The life that `settle` began ends too, in the middle of new messages."""
        talk = asyncio.create_task(self._talk(None))
        await asyncio.sleep(self._random.uniform(0.0, 1.2))
        await self._gateway.kill()
        talk.cancel()
        await asyncio.wait((talk,))
        self._tally.kills[RANDOM] += 1

    async def check_database(self) -> None:
        """A copy is looked at, so that the next start finds the files as the kill left them."""
        finding = await asyncio.to_thread(_find_damage, self._gateway.home)
        if finding is not None:
            self._tally.damaged.append(finding)

    async def _talk(self, needed: Kind | None) -> None:
        """A few messages at any moments of the life; `needed` is one that leads to the armed point."""
        if needed is not None:
            self._crowd.send(self._random.choice(self._crowd.people[:4]), needed)
        for _ in itertools.repeat(None, self._random.randint(1, 3)):
            self._say()
            await asyncio.sleep(self._random.expovariate(4))
        if needed is None:  # enough for every point that any message leads to
            await asyncio.sleep(1.0)
            self._say()

    def _say(self) -> None:
        person = self._random.choice(self._crowd.people)
        kind = self._random.choice(_MANNERS[person])
        self._crowd.send(person, kind)
        if self._random.random() < 0.2:
            self._crowd.repeat(self._random)


def _webhook() -> dict[str, str]:
    """A port that stays the same over the lives, and is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return {
        "HTTP__PORT": str(port),
        "CHANNELS__TELEGRAM__MODE": "webhook",
        "CHANNELS__TELEGRAM__WEBHOOK_URL": f"http://127.0.0.1:{port}{WEBHOOK_PATH}",
    }


def _find_damage(home: Path) -> str | None:
    """What SQLite finds in a copy. Nothing else has the files open: their owner is dead."""
    if not (home / "talaria.db").exists():
        return None
    with tempfile.TemporaryDirectory(prefix="talaria-chaos-look-") as folder:
        for ending in ("", "-wal"):
            if (home / f"talaria.db{ending}").exists():
                shutil.copyfile(home / f"talaria.db{ending}", Path(folder) / f"copy.db{ending}")
        db = driver.connect(Path(folder) / "copy.db")
        try:
            (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
        except driver.DatabaseError as error:
            return str(error)
        finally:
            db.close()
    return None if verdict == "ok" else str(verdict)
