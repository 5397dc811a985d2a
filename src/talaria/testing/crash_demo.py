"""The show behind `talaria demo crash`: ten people, forty messages, five kills, and every answer counted.

The platform and the model are fakes behind real HTTP; the gateway is the real one, in a process of its own
and a home that is gone afterwards.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

from talaria.testing.crowd import Crowd, settled
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.promises import Asked, Kind, Verdict, finals
from talaria.testing.telegram_server import TelegramServer
from talaria.turns.crashes import MAX_CRASHES

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June")
EACH = 4
KILLS = 5
_SECONDS_PER_LIFE = 4.0  # of the gateway, in which people write
_FIRST_PERSON = 101
_KINDS = (Kind.TEXT, Kind.SLOW, Kind.TOOL, Kind.SLOW, Kind.TOOL, Kind.TEXT)
_THINKING_SECONDS = 0.6
_DOWN_SECONDS = 1.0


class Fate(StrEnum):
    """What has become of a message, as far as its sender and the platform can see."""

    TO_COME = "to come"
    SENT = "sent"
    ACCEPTED = "accepted"
    ANSWERED = "answered"
    RESENT = "answered, and again with a mark"
    TOLD = "given up, and told"
    LOST = "lost"
    DOUBLED = "doubled"


@dataclass(frozen=True, slots=True)
class Scene:
    """One look. `verdict` comes with the end."""

    rows: tuple[tuple[str, tuple[Fate, ...]], ...]
    gateway: str
    kills: int
    planned: int
    seconds: float
    verdict: Verdict | None
    repeated: int

    @property
    def answered(self) -> int:
        return sum(fate in (Fate.ANSWERED, Fate.RESENT) for _, fates in self.rows for fate in fates)

    @property
    def is_good(self) -> bool:
        return self.verdict is not None and self.verdict.is_kept and not self.repeated


class CrashDemo:
    """`tell` hears what happens, in sentences; `scene` may be looked at any time while `run` goes on."""

    def __init__(self, tell: Callable[[str], None], kills: int = KILLS, random: Random | None = None) -> None:
        self._tell = tell
        self._planned = kills
        self._random = random or Random()  # noqa: S311 - when to kill is no secret
        self._crowd: Crowd | None = None
        self._gateway = "not started yet"
        self._kills = 0
        self._met: Counter[str] = Counter()  # kills that a message has met
        self._began = time.monotonic()
        self._verdict: Verdict | None = None
        self._repeated = 0

    async def run(self) -> Scene:
        """Everything that it made is gone when this returns, or is cancelled."""
        async with AsyncExitStack() as scopes:
            folder = Path(scopes.enter_context(tempfile.TemporaryDirectory(prefix="talaria-demo-")))
            home = folder / "home"
            home.mkdir(mode=0o700)
            platform = await scopes.enter_async_context(TelegramServer())
            model = await scopes.enter_async_context(ModelServer(latency=_THINKING_SECONDS, record=False))
            people = range(_FIRST_PERSON, _FIRST_PERSON + len(NAMES))
            crowd = self._crowd = Crowd(platform, people, home)
            settings = crowd.settings_with(model)
            gateway = await scopes.enter_async_context(GatewayProcess(home, folder / "log", settings))
            *shares, last = self._shares(crowd)
            for share in shares:
                await self._live(gateway)
                writing = asyncio.create_task(self._write(crowd, share), name="people who write")
                scopes.callback(writing.cancel)
                await self._kill(gateway, crowd, writing)
                await writing
            await self._live(gateway)
            await self._write(crowd, last)
            self._tell("all is sent; what is still owed is being answered")
            await settled(gateway, crowd)
            self._verdict = crowd.verdict()
            self._repeated = sum(times > 1 for times in crowd.effects().values())
            self._gateway = "stopped"
        return self.scene()

    def scene(self) -> Scene:
        seconds = time.monotonic() - self._began
        rows = tuple((name, self._fates(_FIRST_PERSON + n)) for n, name in enumerate(NAMES))
        return Scene(rows, self._gateway, self._kills, self._planned, seconds, self._verdict, self._repeated)

    def _shares(self, crowd: Crowd) -> list[list[int]]:
        """Who writes in each life of the gateway, and who after the last kill."""
        order = [person for person in crowd.people for _ in range(EACH)]
        self._random.shuffle(order)
        lives = self._planned + 1
        return [order[n::lives] for n in range(lives)]

    async def _write(self, crowd: Crowd, share: Sequence[int]) -> None:
        for person in share:
            crowd.send(person, self._random.choice(_KINDS))
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * _SECONDS_PER_LIFE / len(share))

    async def _live(self, gateway: GatewayProcess) -> None:
        self._gateway = "starting"
        await gateway.start()
        self._gateway = f"running, pid {gateway.pid}"
        self._tell(f"gateway up, pid {gateway.pid}")

    async def _kill(self, gateway: GatewayProcess, crowd: Crowd, writing: asyncio.Task[None]) -> None:
        """At a moment when it owes someone an answer; but nobody meets so many kills that the gateway would
        have to give them up."""
        await asyncio.sleep(self._random.uniform(2.0, 3.5))
        while True:
            owed = self._owed(crowd)
            if (owed or writing.done()) and all(self._met[name] < MAX_CRASHES - 1 for name in owed):
                break
            await asyncio.sleep(0.02)
        await gateway.kill()
        self._met.update(owed)
        self._kills += 1
        self._gateway = "DOWN"
        self._tell(f"kill -9 {gateway.pid} ({self._kills} of {self._planned}), {len(owed)} unanswered")
        await asyncio.sleep(_DOWN_SECONDS)

    def _owed(self, crowd: Crowd) -> list[str]:
        """What the gateway has accepted and not answered."""
        return [
            asked.name
            for person in crowd.people
            for asked, fate in zip(crowd.asked[person], self._fates(person), strict=False)
            if fate is Fate.ACCEPTED
        ]

    def _fates(self, person: int) -> tuple[Fate, ...]:
        if self._crowd is None:
            return (Fate.TO_COME,) * EACH
        asked, replies = self._crowd.asked[person], finals(self._crowd.shown(person))
        fates = [self._fate(one, len(replies.get(one.name, ()))) for one in asked]
        return tuple(fates + [Fate.TO_COME] * (EACH - len(fates)))

    def _fate(self, asked: Asked, replies: int) -> Fate:
        assert self._crowd is not None
        if self._verdict is not None and asked.name in self._verdict.unmarked:
            return Fate.DOUBLED
        if replies:
            return Fate.ANSWERED if replies == 1 else Fate.RESENT
        if self._verdict is not None and asked.name in self._verdict.lost:
            return Fate.LOST
        if self._verdict is not None:
            return Fate.TOLD
        return Fate.ACCEPTED if self._crowd.is_taken(asked) else Fate.SENT
