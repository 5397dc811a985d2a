"""People who write on a chat platform. Their chats show the damage."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Protocol

from talaria.core.failpoints import Failpoint
from talaria.testing.discord_server import DiscordServer
from talaria.testing.model_server import ModelServer
from talaria.testing.simulated_slack import SlackSide
from talaria.testing.simulated_users import DeliveryReport, MessageKind, SimulatedMessage, SimulatedUsers
from talaria.testing.slack_server import SlackServer
from talaria.testing.telegram_server import TelegramServer
from trial.faults import OF_TURNS, Load
from trial.report import Check, Curve, Fault, Figure, none_of
from trial.world import World

_KINDS = (
    MessageKind.TEXT, MessageKind.TEXT, MessageKind.TOOL, MessageKind.TOOL, MessageKind.SLOW,
    MessageKind.COMMAND, MessageKind.EDIT, MessageKind.BUTTON,
)  # fmt: skip
# A joined or stopped message may have no reply, so only the last two people send them, in their own chats.
PEOPLE: dict[int, tuple[MessageKind, ...]] = {
    11: _KINDS,
    12: _KINDS,
    13: _KINDS,
    14: _KINDS,
    15: (*_KINDS, MessageKind.STEER, MessageKind.STEER),
    16: (*_KINDS, MessageKind.STOP, MessageKind.STOP),
}
# With several gateways: text, tools with effects in the chat's folder, live previews, commands.
SHARED: dict[int, tuple[MessageKind, ...]] = dict.fromkeys(
    (31, 32, 33, 34),
    (MessageKind.TEXT, MessageKind.TEXT, MessageKind.TOOL, MessageKind.SLOW, MessageKind.COMMAND),
)
_NEEDED = {
    Failpoint.STARTED: MessageKind.TOOL,
    Failpoint.RAN: MessageKind.TOOL,
    Failpoint.SHOWN: MessageKind.SLOW,
}


class ChatUsers(Protocol):
    """People on a chat platform, such as `SimulatedUsers`."""

    sent: dict[int, list[SimulatedMessage]]

    def settings_with(self, model: ModelServer) -> dict[str, str]: ...
    def send(self, person: int, kind: MessageKind) -> SimulatedMessage: ...
    def redeliver(self, random: Random) -> None: ...
    def intrude(self) -> None: ...
    @property
    def is_all_accepted(self) -> bool: ...
    def report(self) -> DeliveryReport: ...
    def broken_chats(self) -> list[str]: ...
    def effects(self) -> Counter[str]: ...


OpenUsers = Callable[[Sequence[int], Sequence[Path]], AbstractAsyncContextManager[ChatUsers]]


@asynccontextmanager
async def telegram(people: Sequence[int], homes: Sequence[Path]) -> AsyncIterator[ChatUsers]:
    async with TelegramServer() as server:
        yield SimulatedUsers(server, people, *homes)


@asynccontextmanager
async def discord(people: Sequence[int], homes: Sequence[Path]) -> AsyncIterator[ChatUsers]:
    async with DiscordServer() as server:
        yield SimulatedUsers(server, people, *homes)


@asynccontextmanager
async def slack(people: Sequence[int], homes: Sequence[Path]) -> AsyncIterator[ChatUsers]:
    async with SlackServer() as server:
        yield SimulatedUsers(SlackSide(server), people, *homes)


PLATFORMS: dict[str, OpenUsers] = {"telegram": telegram, "discord": discord, "slack": slack}

# Platforms that keep no messages for a bot that has never been connected. It cannot find out who wrote then.
_FORGETFUL = frozenset(("discord",))


class ChatPlatform(Load):
    """People send plain messages, tool calls, slow answers with a live preview, commands, edits, buttons, and
    messages that join or stop a turn. The platform delivers some updates twice."""

    points = (
        Failpoint.RECEIVED, Failpoint.ACCEPTED, Failpoint.ACKNOWLEDGED, *OF_TURNS, Failpoint.SHOWN,
        Failpoint.CLAIMED, Failpoint.DELIVERED, Failpoint.MARKED,
    )  # fmt: skip

    def __init__(
        self, kinds: dict[int, tuple[MessageKind, ...]] | None = None, platform: str = "telegram"
    ) -> None:
        self._kinds = kinds or PEOPLE
        self._platform = platform
        self._open = PLATFORMS[platform]
        self.users: ChatUsers
        self.samples: list[tuple[int, DeliveryReport]] = []

    async def prepare(
        self, world: World, faults: Collection[Fault], scopes: AsyncExitStack
    ) -> dict[str, str]:
        self.users = await scopes.enter_async_context(self._open([*self._kinds], world.homes))
        assert world.model
        settings = self.users.settings_with(world.model)
        settings.pop("LOG__LEVEL")
        return settings

    async def run(self, world: World) -> None:
        random = world.random
        if self._platform in _FORGETFUL:
            await self._wait_until_connected(world)
        while not world.is_over:
            await world.is_open.wait()
            person = random.choice([*self._kinds])
            kind = random.choice(self._kinds[person])
            needed = [_NEEDED[point] for point in world.needed() if point in _NEEDED]
            if needed and random.random() < 0.5:
                person, kind = random.choice([*self._kinds][:4]), random.choice(needed)
            self.users.send(person, kind)
            if random.random() < 0.15:
                self.users.redeliver(random)
            if random.random() < 0.05:
                self.users.intrude()
            await asyncio.sleep(random.expovariate(2.5))

    async def _wait_until_connected(self, world: World) -> None:
        """Wait until the gateway has been connected to the platform, and has answered each person once."""
        status = "starting"
        while status == "starting":
            await asyncio.sleep(0.05)
            status = (await world.call("GET", "/api/status"))["channels"].get(self._platform, status)
        for person in self._kinds:
            self.users.send(person, MessageKind.TEXT)
        while self.users.report().lost:
            await asyncio.sleep(0.05)

    async def calmed(self, world: World) -> None:
        self.samples.append((world.faults.total(), self.users.report()))

    def is_accepted(self) -> bool:
        return self.users.is_all_accepted

    async def judge(self, world: World) -> list[Figure]:
        users, report = self.users, self.users.report()
        effects = users.effects()
        calls = sum(one.kind is MessageKind.TOOL for sent in users.sent.values() for one in sent)
        excused = report.sent - report.answered - report.given_up - len(report.lost)
        self.samples.append((world.faults.total(), report))
        repeated = [name for name, times in effects.items() if times > 1]
        chats = none_of("… chats with one of these", users.broken_chats())
        return [
            none_of("… messages of a chat platform lost", report.lost, Check.LOST),
            none_of("… replies duplicated without a mark", report.duplicated, Check.DUPLICATED),
            none_of("… replies out of order", report.out_of_order, Check.ORDER),
            none_of("… messages of unknown senders answered", report.intruded, Check.OTHER),
            none_of("… tool effects of these messages repeated", repeated, Check.EFFECTS),
            *([chats] if chats.found else []),
            Figure("… messages sent on the platform", report.sent),
            Figure("… of them answered", report.answered),
            Figure("… given up after three crashes, and reported as such", report.given_up),
            Figure("… stopped by `/stop`, or answered with the message that they joined", excused),
            Figure("… resent with the mark, because the first attempt may have arrived", report.resent),
            Figure("… live previews left behind, with their cursor", report.previews),
            Figure("… tool calls without effect: unknown, given up or stopped", calls - len(effects)),
        ]


def curves(loads: Sequence[ChatPlatform]) -> list[Curve]:
    """Return what became of the messages over the faults, of several homes together."""
    points = [
        (sum(faults for faults, _ in each), sum((report for _, report in each), DeliveryReport()))
        for each in zip(*(load.samples for load in loads), strict=False)
    ]

    def curve(name: str, colour: str, read: Callable[[DeliveryReport], int]) -> Curve:
        return Curve(name, "", colour, [(faults, float(read(report))) for faults, report in points])

    return [
        curve("messages answered", "#2f7d4f", lambda report: report.answered),
        curve("replies resent with a mark", "#b8860b", lambda report: report.resent),
        curve(
            "lost, duplicated without a mark or out of order",
            "#b3392f",
            lambda report: len(report.lost) + len(report.duplicated) + len(report.out_of_order),
        ),
    ]
