"""Faults of a cluster: three gateways on one PostgreSQL are killed, stopped and cut off under load."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import psycopg

from chaos.cluster_clients import ClusterClients, ClusterReport
from chaos.cluster_world import LEASE_SECONDS, ClusterWorld, Supervised, new_world
from soak.report import Figure, Progress
from talaria.core.failpoints import Failpoint
from talaria.testing.simulated_users import DeliveryReport, MessageKind, SimulatedUsers
from talaria.testing.telegram_server import TelegramServer

POINTS = (
    Failpoint.BEGUN,
    Failpoint.ANSWERED,
    Failpoint.STARTED,
    Failpoint.RAN,
    Failpoint.ENDING,
    Failpoint.ENDED,
    Failpoint.SLOTS_WRITTEN,
    Failpoint.SLOT_CLAIMED,
    Failpoint.RECEIVED,
    Failpoint.ACCEPTED,
    Failpoint.ACKNOWLEDGED,
    Failpoint.SHOWN,
    Failpoint.CLAIMED,
    Failpoint.DELIVERED,
    Failpoint.MARKED,
)
_CHATS = 12
# Text, tools with effects in the chat's folder, answers with a live preview, commands.
_KINDS = (MessageKind.TEXT, MessageKind.TEXT, MessageKind.TOOL, MessageKind.SLOW, MessageKind.COMMAND)
_PEOPLE = (31, 32, 33, 34)  # on a chat platform, which one gateway at a time may ask
_FAULTS_BETWEEN = 12  # from one settling to the next; more in a row, and most messages would be given up
_END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'talaria' AND datname = current_database() AND usename LIKE %s
"""


class ClusterRun:
    """Faults of one cluster. A message that is owed for `patience` seconds after the last one is lost."""

    def __init__(
        self,
        faults: int,
        progress: Progress,
        seed: int = 1,
        *,
        source: Path | None = None,
        points: Sequence[Failpoint] = POINTS,
        patience: float = 60.0,
        chats: int = _CHATS,
    ) -> None:
        self._count = faults
        self._progress = progress
        self._random = Random(f"cluster {seed}")
        self._source = source
        self._points = points
        self._patience = patience
        self._chats = chats
        self.faults: dict[str, int] = {}
        self.foreign: list[str] = []
        self.owed = 0
        self.evidence = ""
        self.report = ClusterReport()
        self.chats = DeliveryReport()

    async def run(self) -> list[Figure]:
        async with new_world() as world, TelegramServer() as platform:
            users = SimulatedUsers(platform, _PEOPLE, *world.homes)
            await world.start(users.settings_with(world.model), self._source)
            clients = ClusterClients(world, self._random, self._chats)
            talking = asyncio.create_task(clients.run(), name="clients")
            chatting = asyncio.create_task(self._chat(users), name="platform")
            try:
                await self._strike(world, clients)
                clients.stop()
                chatting.cancel()
                async with asyncio.timeout(self._patience):
                    await talking
            finally:
                for task in (talking, chatting):
                    task.cancel()
                await asyncio.gather(talking, chatting, return_exceptions=True)
            self.owed = await world.settle(self._patience, lambda: users.is_all_accepted)
            self.report, self.chats = clients.judge(), users.report()
            self.report.repeated += [name for name, times in users.effects().items() if times > 1]
            self.foreign = world.foreign_commits()
            self.faults = dict(world.faults)
            if not all(figure.is_reached for figure in self.figures()):
                self.evidence = "\n".join((*users.broken_chats(), world.stories(self.report.broken)))
        return self.figures()

    async def _chat(self, users: SimulatedUsers) -> None:
        while True:
            users.send(self._random.choice(_PEOPLE), self._random.choice(_KINDS))
            if self._random.random() < 0.1:
                users.redeliver(self._random)
            await asyncio.sleep(self._random.expovariate(1.5))

    def figures(self) -> list[Figure]:
        report, chats, total = self.report, self.chats, sum(self.faults.values())
        lost, disorder = len(report.lost) + len(chats.lost), len(report.out_of_order) + len(report.mixed)
        return [
            Figure(f"{total} faults of 3 gateways on PostgreSQL: messages lost", lost, "", 0),
            Figure("… duplicated without a mark", len(report.duplicated) + len(chats.duplicated), "", 0),
            Figure("… messages out of order", disorder + len(chats.out_of_order), "", 0),
            Figure("… commits under the lease of another gateway", len(self.foreign), "", 0),
            Figure("… effects of tools repeated", len(report.repeated), "", 0),
            Figure("… jobs missed or run twice", len(report.missed_jobs) + len(report.doubled_jobs), "", 0),
            Figure("… messages that kill: not given up after three attempts", len(report.poisoned), "", 0),
            Figure("… strangers with a turn", len(report.let_in), "", 0),
            Figure("… messages refused", len(report.refused), "", 0),
            Figure("… turns, replies and runs owed at the end", self.owed, "", 0),
            Figure("… messages over HTTP, to all gateways", report.said.total()),
            Figure("… messages on a platform with one consumer", chats.sent),
            Figure("… of their replies resent with the mark", chats.resent),
            Figure("… requests, with those sent again", report.tries),
            Figure("… jobs", report.jobs),
            Figure("… `/stop` that had to be said again", report.stops_again),
            Figure("… given up after three crashes, and told", report.given_up + chats.given_up),
            Figure("… tool calls told as *outcome unknown*", report.unknown),
            *(Figure(f"… faults: {name}", count) for name, count in sorted(self.faults.items())),
        ]  # fmt: skip

    def findings(self) -> str:
        report = self.report
        found = [
            *report.lost, *report.duplicated, *report.out_of_order, *report.mixed, *report.repeated,
            *report.missed_jobs, *report.doubled_jobs, *report.poisoned, *report.let_in, *report.refused,
            *self.foreign,
        ]  # fmt: skip
        return "\n".join([*found[:40], self.evidence])

    # -- the faults -----------------------------------------------------------------------------------------

    async def _strike(self, world: ClusterWorld, clients: ClusterClients) -> None:
        strikes: list[tuple[int, Callable[[ClusterWorld, Supervised], Awaitable[str]]]] = [
            (8, self._kill),
            (5, self._pause),
            (4, self._cut),
            (2, self._restart),
            (1, self._drain),
        ]
        weights, ways = [weight for weight, _ in strikes], [way for _, way in strikes]
        since, poisons = 0, max(1, self._count // 60)
        under_way: set[asyncio.Task[None]] = set()
        while (done := world.faults.total()) < self._count:
            (way,) = self._random.choices(ways, weights)
            member = self._random.choice(world.members)
            under_way.add(asyncio.create_task(self._one(world, member, way)))
            await asyncio.sleep(self._random.uniform(0.1, 0.9))
            for task in [task for task in under_way if task.done()]:
                under_way.discard(task)
                task.result()
            world.check()
            since += 1
            if since >= _FAULTS_BETWEEN:
                since = 0
                await asyncio.gather(*under_way)
                under_way.clear()
                await self._calm(world)
                if poisons:
                    poisons -= 1
                    await clients.poison()
            self._progress.tell("faults of a cluster", done, self._count, f", {world.owed()} owed")
        await asyncio.gather(*under_way)

    async def _one(
        self,
        world: ClusterWorld,
        member: Supervised,
        way: Callable[[ClusterWorld, Supervised], Awaitable[str]],
    ) -> None:
        if name := await way(world, member):
            world.faults[name] += 1

    async def _calm(self, world: ClusterWorld) -> None:
        """Let all gateways live for some leases, so that few messages see three crashes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                await asyncio.gather(*(each.up.wait() for each in world.members))
        await asyncio.sleep(3 * LEASE_SECONDS)

    async def _kill(self, world: ClusterWorld, member: Supervised) -> str:
        """SIGKILL. The next life begins at once, or when others have taken over; some end at a point."""
        member.armed = self._random.choice((None, *self._points))
        down = self._random.choice((0.0, 0.0, 1.5 * LEASE_SECONDS))
        return "kill at random" if await member.end(signal.SIGKILL, down) else ""

    async def _drain(self, world: ClusterWorld, member: Supervised) -> str:
        return "SIGTERM" if await member.end(signal.SIGTERM, LEASE_SECONDS) else ""

    async def _pause(self, world: ClusterWorld, member: Supervised) -> str:
        seconds = LEASE_SECONDS * self._random.uniform(1.1, 2.5)
        return "SIGSTOP past the lease" if await member.pause(seconds) else ""

    async def _cut(self, world: ClusterWorld, member: Supervised) -> str:
        """End the database sessions of one gateway, or of all."""
        who = self._random.choice((member.user, member.user, "g%"))
        try:
            await asyncio.to_thread(world.query, _END_SESSIONS, who)
        except psycopg.OperationalError:
            return ""
        return "pg_terminate_backend"

    async def _restart(self, world: ClusterWorld, member: Supervised) -> str:
        """Restart PostgreSQL; it may be gone for longer than a lease."""
        how = self._random.choice(("fast", "immediate"))
        gone = self._random.choice((0.0, 0.5, 2 * LEASE_SECONDS))
        async with world.restarting:
            await asyncio.to_thread(world.server.stop, how)
            await asyncio.sleep(gone)
            await asyncio.to_thread(world.server.start)
        return f"PostgreSQL {'crashed' if how == 'immediate' else 'restarted'}"
