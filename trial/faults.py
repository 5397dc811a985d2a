"""Faults of gateways, and trials: loads on a world while faults hit it, and the figures in the end."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import psycopg

from talaria.core.failpoints import Failpoint
from talaria.workspace.sandbox.group import start_time
from talaria.workspace.watched_process import read_record
from trial.report import Check, Fault, Figure, Progress, none_of
from trial.world import LEASE_SECONDS, Member, Surroundings, World, new_world

POINT_SECONDS = 5.0
_CALM_SHARE = 0.3  # with more kills in a row of one gateway, most messages would be given up
_KILL_SHARE = 20  # at least one fault in so many is a kill
_FAULTS_BETWEEN = 12  # of several gateways, from one calm to the next
_CALM_SECONDS = 20.0
_END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'talaria' AND datname = current_database() AND usename LIKE %s
"""


MEANINGS = {
    Fault.KILL: "SIGKILL, at a random moment or at a labelled point between a commit and its effect",
    Fault.STOP: "SIGTERM, with the deadline for running turns",
    Fault.PAUSE: "SIGSTOP for longer than a lease, then SIGCONT",
    Fault.CUT: "on PostgreSQL: end database sessions; with the load retries: cut HTTP connections",
    Fault.DATABASE: "restart or crash PostgreSQL, which stays away for up to two leases",
    Fault.SHIM: "SIGKILL for the shim of a background process",
    Fault.DISK: "fill, break, freeze or slow down the disk, or delete the database (preset disk only)",
    Fault.CLOCK: "jumps and sleeps of the clock (preset slots only)",
}
OF_WORLDS = (Fault.KILL, Fault.STOP, Fault.PAUSE, Fault.CUT, Fault.DATABASE, Fault.SHIM)
_ON_POSTGRES = (Fault.DATABASE, Fault.PAUSE)
_WEIGHTS = {Fault.KILL: 8, Fault.PAUSE: 5, Fault.CUT: 4, Fault.DATABASE: 2, Fault.SHIM: 2, Fault.STOP: 1}
# The points of a turn. Tests have those that no load passes: questions, memory, the index and deletions.
OF_TURNS = (
    Failpoint.BEGUN, Failpoint.ANSWERED, Failpoint.STARTED, Failpoint.RAN, Failpoint.ENDING, Failpoint.ENDED,
)  # fmt: skip


class Load:
    """Users of a world. `points` are the labelled points that its work passes."""

    points: tuple[Failpoint, ...] = ()
    gateways = 3  # the most with which it works
    moment = (0.2, 2.5)  # seconds of a life that ends at a random moment

    async def prepare(
        self, world: World, faults: Collection[Fault], scopes: AsyncExitStack
    ) -> dict[str, str]:
        """Open what the load needs beside the gateways, and return settings for them."""
        return {}

    async def run(self, world: World) -> None:
        """Send messages while `world.is_open` is set, until `world.is_over`. End what was begun."""

    async def calmed(self, world: World) -> None:
        """Work between two faults, when all gateways are up."""

    async def finish(self, world: World) -> None:
        """Do the last work, when there are no more faults."""

    def is_accepted(self) -> bool:
        """Return whether gateways have taken all that was sent."""
        return True

    async def judge(self, world: World) -> list[Figure]:
        """Compare what was sent with what there is now. Nothing is owed any more."""
        return []


class Trial:
    """Hits a world with `count` faults under the loads. What is owed `patience` seconds after them is lost.

    Kills are at the `points`, or at all points of the loads and at random moments.
    """

    def __init__(
        self,
        loads: Sequence[Load],
        faults: Collection[Fault],
        count: int,
        progress: Progress,
        seed: int = 1,
        *,
        around: Surroundings | None = None,
        points: Sequence[Failpoint] = (),
        patience: float = 60.0,
    ) -> None:
        self._loads = loads
        self._faults = [fault for fault in OF_WORLDS if fault in faults]
        self._count = count
        self._progress = progress
        self._random = Random(f"{type(loads[0]).__name__} {seed}")
        self._around = around or Surroundings()
        self._points = points
        self._patience = patience
        self.faults: dict[str, int] = {}

    async def run(self) -> list[Figure]:
        async with AsyncExitStack() as scopes:
            world = await scopes.enter_async_context(new_world(self._around, self._random))
            settings: dict[str, str] = {}
            for load in self._loads:
                settings |= await load.prepare(world, self._faults, scopes)
            await world.start(settings)
            tasks = [asyncio.create_task(each.run(world), name=type(each).__name__) for each in self._loads]
            try:
                await self._strike(world, tasks)
                world.is_over = True
                done, _ = await asyncio.wait(tasks, timeout=self._patience)
                for task in done:
                    task.result()  # what others did not send in time shows in the figures
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for load in self._loads:
                await load.finish(world)
            owed = await world.settle(self._patience, self._is_accepted)
            figures = [figure for load in self._loads for figure in await load.judge(world)]
            self.faults = dict(world.faults)
            return [*self._common(world, owed), *figures, *self._counts()]

    def _common(self, world: World, owed: int) -> list[Figure]:
        store = "PostgreSQL" if world.server else "SQLite"
        gateways = "a gateway" if len(world.members) == 1 else f"{len(world.members)} gateways"
        figures = [
            Figure(f"faults of {gateways} on {store}", sum(self.faults.values())),
            Figure("… turns, replies and runs owed at the end", owed, "", 0, Check.LOST),
            none_of("… messages refused", world.refused, Check.LOST),
        ]
        if world.server:
            foreign = world.foreign_commits()
            return [*figures, none_of("… commits under the lease of another gateway", foreign, Check.ORDER)]
        # A gateway cannot start while its PostgreSQL is away, so only on SQLite none may end by itself.
        failed = [finding for member in world.members for finding in member.failed]
        damaged = [finding for member in world.members for finding in member.damaged]
        return [
            *figures,
            none_of("… gateways that ended by themselves", failed),
            none_of("… databases found damaged", damaged),
        ]

    def _counts(self) -> list[Figure]:
        return [Figure(f"… faults: {name}", count) for name, count in sorted(self.faults.items())]

    def _is_accepted(self) -> bool:
        return all(load.is_accepted() for load in self._loads)

    # -- the faults -----------------------------------------------------------------------------------------

    async def _strike(self, world: World, loads: Sequence[asyncio.Task[None]]) -> None:
        since, under_way = 0, set[asyncio.Task[None]]()
        weights = [_WEIGHTS[fault] for fault in self._faults]
        for member in world.members:
            member.points = self._plan(world)
        try:
            while self._faults and not self._is_enough(world.faults):
                (fault,) = self._random.choices(self._faults, weights)
                member = self._random.choice(world.members)
                under_way.add(asyncio.create_task(self._one(world, member, fault)))
                if len(world.members) == 1:
                    await asyncio.gather(*under_way)
                await asyncio.sleep(self._random.uniform(0.1, 0.9) if len(world.members) > 1 else 0.02)
                for task in [task for task in under_way if task.done()]:
                    under_way.discard(task)
                    task.result()
                for task in loads:
                    if task.done():
                        task.result()
                world.check()
                since += 1
                if self._is_calm_due(world, since):
                    since = 0
                    await asyncio.gather(*under_way)
                    under_way.clear()
                    await self._calm(world)
                done = world.faults.total()
                self._progress.tell("faults", min(done, self._count), self._count, f", {world.owed()} owed")
            await asyncio.gather(*under_way)
        finally:
            for task in under_way:
                task.cancel()
            for member in world.members:
                member.points = iter(())

    def _is_enough(self, faults: Counter[str]) -> bool:
        """Return whether there were enough faults, and kills among them: clients cut connections faster."""
        kills = sum(count for name, count in faults.items() if name.startswith("kill at"))
        least = self._count // _KILL_SHARE if Fault.KILL in self._faults else 0
        return faults.total() >= self._count and kills >= least

    def _is_calm_due(self, world: World, since: int) -> bool:
        if len(world.members) > 1:
            return since >= _FAULTS_BETWEEN
        return self._random.random() < _CALM_SHARE

    def _plan(self, world: World) -> Iterator[str]:
        """Yield the points of the next lives: all in random order, with random moments in between. Lives that
        begin while the world is calm end at none."""
        points = self._points or [*dict.fromkeys(one for load in self._loads for one in load.points)]
        if Fault.KILL not in self._faults or not points:
            return
        for number in itertools.count():
            if number % len(points) == 0:
                order = self._random.sample(points, len(points))
            while not world.is_open.is_set():
                yield ""
            yield f"{order[number % len(points)]}={self._random.choice((1, 1, 2, 3))}"
            if number % 2 and not self._points:
                yield ""

    async def _calm(self, world: World) -> None:
        """Let few messages see three crashes: a single gateway settles all that it owes, and several live for
        some leases while messages continue."""
        if len(world.members) > 1:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CALM_SECONDS):
                    await asyncio.gather(*(member.up.wait() for member in world.members))
            await asyncio.sleep(3 * LEASE_SECONDS)
        else:
            world.is_open.clear()
            await world.settle(_CALM_SECONDS, self._is_accepted)
        for load in self._loads:
            await load.calmed(world)
        world.is_open.set()

    async def _one(self, world: World, member: Member, fault: Fault) -> None:
        match fault:
            case Fault.KILL:
                await self._kill(world, member)  # the member counts it
                return
            case Fault.STOP:
                name = "SIGTERM" if await member.end(signal.SIGTERM, LEASE_SECONDS) else ""
            case Fault.PAUSE:
                seconds = LEASE_SECONDS * self._random.uniform(1.1, 2.5)
                name = "SIGSTOP past the lease" if await member.pause(seconds) else ""
            case Fault.CUT:
                name = await self._cut(world, member)
            case Fault.DATABASE:
                name = await self._restart(world)
            case _:
                name = "kill of a shim" if kill_shim(world.homes, self._random) else ""
        if name:
            world.faults[name] += 1

    async def _kill(self, world: World, member: Member) -> None:
        """End a life: a single gateway's at its point or at a random moment, one of several at once. The next
        begins at once, or when others have taken over."""
        is_alone = len(world.members) == 1
        seconds = 0.0
        if is_alone:
            seconds = POINT_SECONDS if member.point else self._random.uniform(*self._loads[0].moment)
        if await member.lasts(seconds):
            down = 0.0 if is_alone else self._random.choice((0.0, 0.0, 1.5 * LEASE_SECONDS))
            await member.end(signal.SIGKILL, down)
            await member.lasts(1.0)

    async def _cut(self, world: World, member: Member) -> str:
        """End the database sessions of one gateway, or of all. Clients cut their connections themselves."""
        if not world.server:
            return ""
        user = self._random.choice((member.user, member.user, "g%"))
        try:
            await asyncio.to_thread(world.query, _END_SESSIONS, user)
        except psycopg.OperationalError:
            return ""
        return "pg_terminate_backend"

    async def _restart(self, world: World) -> str:
        """Restart PostgreSQL; it may be gone for longer than a lease."""
        assert world.server
        how = self._random.choice(("fast", "immediate"))
        gone = self._random.choice((0.0, 0.5, 2 * LEASE_SECONDS))
        async with world.restarting:
            await asyncio.to_thread(world.server.stop, how)
            await asyncio.sleep(gone)
            await asyncio.to_thread(world.server.start)
        return f"PostgreSQL {'crashed' if how == 'immediate' else 'restarted'}"


def kill_shim(homes: Sequence[Path], random: Random) -> bool:
    """Kill the shim of a background process, if one runs."""
    found = [read_record(path) for home in homes for path in home.glob("sessions/*/processes/*")]
    running = [one for one in found if one and start_time(one.pid) == one.start]
    if running:
        os.kill(random.choice(running).pid, signal.SIGKILL)
    return bool(running)


def why_impossible(loads: Sequence[Load], faults: Collection[Fault], around: Surroundings) -> str:
    """Return why these loads cannot meet these faults in such a world; '' if they can."""
    if other := [fault for fault in faults if fault not in OF_WORLDS]:
        return f"the fault {other[0]} belongs to a load that has its own faults"
    if not around.is_postgres and (lack := [fault for fault in faults if fault in _ON_POSTGRES]):
        return f"the fault {lack[0]} needs PostgreSQL: add --store postgres"
    if around.gateways > 1 and not around.is_postgres:
        return "several gateways need PostgreSQL: add --store postgres"
    most = min(load.gateways for load in loads)
    return f"one of these loads works with {most} gateway only" if around.gateways > most else ""
