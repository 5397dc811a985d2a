"""The demonstration `talaria demo crash`: ten users, forty messages, five kills, and a count of the answers.

The platform and the model are fakes behind real HTTP. The gateway is the real one, in its own process and
in a temporary home.
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

from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer
from talaria.testing.simulated_users import (
    DeliveryReport,
    MessageKind,
    SimulatedMessage,
    SimulatedUsers,
    replies_by_name,
)
from talaria.testing.telegram_server import TelegramServer
from talaria.turns.crashes import MAX_CRASHES

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June")
EACH = 4
KILLS = 5
_SECONDS_PER_LIFE = 4.0  # of the gateway, in which users write
_FIRST_PERSON = 101
_KINDS = (
    MessageKind.TEXT,
    MessageKind.SLOW,
    MessageKind.TOOL,
    MessageKind.SLOW,
    MessageKind.TOOL,
    MessageKind.TEXT,
)
_THINKING_SECONDS = 0.6
_DOWN_SECONDS = 1.0


class MessageState(StrEnum):
    """The state of a message as its sender and the platform see it."""

    TO_COME = "to come"
    SENT = "sent"
    ACCEPTED = "accepted"
    ANSWERED = "answered"
    RESENT = "answered, and again with a mark"
    GIVEN_UP = "given up, and reported"
    LOST = "lost"
    DUPLICATED = "duplicated"


@dataclass(frozen=True, slots=True)
class DemoState:
    """A snapshot of the demonstration. `report` is there at the end."""

    rows: tuple[tuple[str, tuple[MessageState, ...]], ...]
    gateway: str
    kills: int
    planned: int
    seconds: float
    report: DeliveryReport | None
    repeated: int

    @property
    def answered(self) -> int:
        return sum(
            state in (MessageState.ANSWERED, MessageState.RESENT)
            for _, states in self.rows
            for state in states
        )

    @property
    def is_good(self) -> bool:
        return self.report is not None and self.report.is_good and not self.repeated


class CrashDemo:
    """Calls `log` with a line for each event. `state` may be called at any time while `run` runs."""

    def __init__(self, log: Callable[[str], None], kills: int = KILLS, random: Random | None = None) -> None:
        self._log = log
        self._planned = kills
        self._random = random or Random()  # noqa: S311 - when to kill is no secret
        self._users: SimulatedUsers | None = None
        self._gateway = "not started yet"
        self._kills = 0
        self._survived: Counter[str] = Counter()  # kills by the messages that were unanswered then
        self._began = time.monotonic()
        self._report: DeliveryReport | None = None
        self._repeated = 0

    async def run(self) -> DemoState:
        """Run to the end. Processes and folders are gone when this returns or is cancelled."""
        async with AsyncExitStack() as scopes:
            folder = Path(scopes.enter_context(tempfile.TemporaryDirectory(prefix="talaria-demo-")))
            home = folder / "home"
            home.mkdir(mode=0o700)
            platform = await scopes.enter_async_context(TelegramServer())
            model = await scopes.enter_async_context(ModelServer(latency=_THINKING_SECONDS, record=False))
            people = range(_FIRST_PERSON, _FIRST_PERSON + len(NAMES))
            users = self._users = SimulatedUsers(platform, people, home)
            settings = users.settings_with(model)
            gateway = await scopes.enter_async_context(GatewayProcess(home, folder / "log", settings))
            *shares, last = self._shares(users)
            for share in shares:
                await self._live(gateway)
                writing = asyncio.create_task(self._write(users, share), name="users who write")
                scopes.callback(writing.cancel)
                await self._kill(gateway, users, writing)
                await writing
            await self._live(gateway)
            await self._write(users, last)
            self._log("all messages are sent; the rest is being answered")
            await users.until_settled(gateway)
            self._report = users.report()
            self._repeated = sum(times > 1 for times in users.effects().values())
            self._gateway = "stopped"
        return self.state()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def state(self) -> DemoState:
        rows = tuple((name, self._states(_FIRST_PERSON + n)) for n, name in enumerate(NAMES))
        return DemoState(
            rows, self._gateway, self._kills, self._planned, self.seconds, self._report, self._repeated
        )

    def _shares(self, users: SimulatedUsers) -> list[list[int]]:
        """Return who writes in each life of the gateway; the last share comes after the last kill."""
        order = [person for person in users.people for _ in range(EACH)]
        self._random.shuffle(order)
        lives = self._planned + 1
        return [order[n::lives] for n in range(lives)]

    async def _write(self, users: SimulatedUsers, share: Sequence[int]) -> None:
        for person in share:
            users.send(person, self._random.choice(_KINDS))
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * _SECONDS_PER_LIFE / len(share))

    async def _live(self, gateway: GatewayProcess) -> None:
        self._gateway = "starting"
        await gateway.start()
        self._gateway = f"running, pid {gateway.pid}"
        self._log(f"gateway up, pid {gateway.pid}")

    async def _kill(
        self, gateway: GatewayProcess, users: SimulatedUsers, writing: asyncio.Task[None]
    ) -> None:
        """Kill at a moment when an answer is owed, but no message so often that it would be given up."""
        await asyncio.sleep(self._random.uniform(2.0, 3.5))
        while True:
            owed = self._owed(users)
            if (owed or writing.done()) and all(self._survived[name] < MAX_CRASHES - 1 for name in owed):
                break
            await asyncio.sleep(0.02)
        await gateway.kill()
        self._survived.update(owed)
        self._kills += 1
        self._gateway = "DOWN"
        self._log(f"kill -9 {gateway.pid} ({self._kills} of {self._planned}), {len(owed)} unanswered")
        await asyncio.sleep(_DOWN_SECONDS)

    def _owed(self, users: SimulatedUsers) -> list[str]:
        """Return the names of the messages that the gateway has accepted and not answered."""
        return [
            sent.name
            for person in users.people
            for sent, state in zip(users.sent[person], self._states(person), strict=False)
            if state is MessageState.ACCEPTED
        ]

    def _states(self, person: int) -> tuple[MessageState, ...]:
        if self._users is None:
            return (MessageState.TO_COME,) * EACH
        sent, replies = self._users.sent[person], replies_by_name(self._users.shown(person))
        states = [self._state_of(one, len(replies.get(one.name, ()))) for one in sent]
        return tuple(states + [MessageState.TO_COME] * (EACH - len(states)))

    def _state_of(self, sent: SimulatedMessage, replies: int) -> MessageState:
        assert self._users is not None
        if self._report is not None and sent.name in self._report.duplicated:
            return MessageState.DUPLICATED
        if replies:
            return MessageState.ANSWERED if replies == 1 else MessageState.RESENT
        if self._report is not None and sent.name in self._report.lost:
            return MessageState.LOST
        if self._report is not None:
            return MessageState.GIVEN_UP
        return MessageState.ACCEPTED if self._users.is_accepted(sent) else MessageState.SENT
