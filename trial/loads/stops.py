"""Cancels at random moments, SIGTERM with many live turns, and a message that kills the process."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from talaria.core.failpoints import Failpoint
from talaria.testing.gateway_process import GatewayProcess, running_gateway
from talaria.testing.model_server import ModelServer
from talaria.testing.simulated_users import MessageKind, SimulatedUsers, replies_by_name
from talaria.testing.telegram_server import TelegramServer
from trial.loads.shells import running_with
from trial.measure import children, descriptors
from trial.report import Check, Figure, Progress
from trial.world import Member, Surroundings, World, new_world

_MOST_DEATHS = 10
_TOOL_THREADS = 2
# Pools start a thread when it is needed first, up to their size: those for tools, and asyncio's own.
_POOLED_THREADS = _TOOL_THREADS + min(32, (os.cpu_count() or 1) + 4)
_CHATS = 16
_POOLED_CONNECTIONS = _CHATS  # to the model, kept open for the next call
_WARM_UP = 32
_TOKEN = f"cancels{os.getpid()}"  # in the words of every process of a command
_TEXTS = (
    "[[delay 0.05]] let me see",
    "[[chunks 10]][[chunk-delay 0.01]][[words 30]]",
    '[[call write_file {"path": "a.txt", "content": "x"}]][[delay 0.03]][[call list_files {}]][[words 5]]',
    '[[call search_files {"pattern": "x"}]][[call search_files {"pattern": "y"}]][[words 3]]',
    f'[[call terminal {{"command": ": {_TOKEN}; sleep 5 & echo up; wait"}}]][[words 3]]',
    f'[[call terminal {{"command": ": {_TOKEN}; sleep 0.2", "background": true}}]][[delay 0.03]][[words 3]]',
    "[[hang]]",
    "quick",
)


_SETTINGS = {"LIMITS__TOOL_THREADS": str(_TOOL_THREADS), "NETWORK__COMMANDS": "off"}


# -- cancels ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holdings:
    """The resources of a gateway, seen from outside."""

    descriptors: int
    children: int  # and those of its spawner, which stays
    threads: int
    busy: int  # agents leased
    permits: int  # running and waiting calls at endpoints
    owed: int
    answering: int  # connections with an unfinished answer of the model
    commands: int = 0  # processes of commands, whatever their parent is

    def left_over(self, before: Holdings) -> dict[str, int]:
        """Return the resources that are there now and were not before, by name."""
        grown = {
            "descriptors": max(0, self.descriptors - before.descriptors - _POOLED_CONNECTIONS),
            "threads": max(0, self.threads - before.threads - _POOLED_THREADS),
            "children": self.children,
            "leased agents": self.busy,
            "permits": self.permits,
            "turns owed": self.owed,
            "model connections": self.answering,
            "processes of commands": self.commands,
        }
        return {name: count for name, count in grown.items() if count}


async def take_stock(gateway: GatewayProcess, model: ModelServer) -> Holdings:
    process = Path(f"/proc/{gateway.pid}")
    status = await gateway.call("GET", "/api/status")
    pool = await gateway.call("GET", "/api/pool")
    threads = list((process / "task").iterdir())
    return Holdings(
        descriptors=descriptors(gateway.pid),
        children=sum(1 for child in children(gateway.pid) for _ in _kept_by(child)),
        threads=len(threads),
        busy=pool["busy"] + pool["building"],
        permits=sum(one["busy"] + one["waiting"] for one in status["endpoints"].values()),
        owed=status["owed"]["turns"],
        answering=model.answering,
        commands=sum(1 for _ in running_with(_TOKEN)),
    )


def _kept_by(child: int) -> list[int]:
    """Return a child, or the children of the gateway's spawner instead of the spawner."""
    is_spawner = Path(f"/proc/{child}/comm").read_text().strip() == "talaria-spawner"
    return children(child) if is_spawner else [child]


class CancelRun:
    def __init__(self, cancels: int, progress: Progress, seed: int = 1) -> None:
        self._cancels = cancels
        self._progress = progress
        self._random = Random(seed)
        self.ends: Counter[str] = Counter()
        self.left: dict[str, int] = {}

    async def run(self) -> list[Figure]:
        async with running_gateway(_SETTINGS) as (gateway, model):
            await self._cancel_many(gateway, _WARM_UP)
            before = await take_stock(gateway, model)
            self.ends.clear()
            await self._cancel_many(gateway, self._cancels)
            after = await take_stock(gateway, model)
            for _ in range(50):  # a broken connection is closed a moment later
                if not after.left_over(before):
                    break
                await asyncio.sleep(0.1)
                after = await take_stock(gateway, model)
            self.left = after.left_over(before)
        stopped, left = self.ends["cancelled"], sum(self.left.values())
        return [
            Figure(
                f"{self._cancels:,} cancels at random moments: resources left behind",
                left,
                "",
                0,
                Check.LEFTOVERS,
            ),
            Figure("… came too late, after the answer", self.ends.total() - stopped),
        ]

    async def _cancel_many(self, gateway: GatewayProcess, count: int) -> None:
        numbers = iter(range(count))

        async def chat(n: int) -> None:
            for number in numbers:
                self.ends[await self._cancel_one(gateway, f"chat{n}")] += 1
                self._progress.tell("cancels", number + 1, count)

        await asyncio.gather(*(chat(n) for n in range(_CHATS)))

    async def _cancel_one(self, gateway: GatewayProcess, chat: str) -> str:
        random, path = self._random, f"/api/sessions/{chat}/messages"
        turn = await gateway.call("POST", path, json={"text": random.choice(_TEXTS)})
        await asyncio.sleep(random.choice((0.0, random.uniform(0.0, 0.15))))
        if random.random() < 0.5:
            await gateway.call("POST", f"{path}?wait=30", json={"text": "/stop"})
        else:
            await gateway.call("POST", f"/api/turns/{turn['turn_id']}/cancel")
        return str((await gateway.ended_turn(turn["turn_id"]))["state"])


# -- SIGTERM ----------------------------------------------------------------------------------------------


class DrainRun:
    """SIGTERM with `turns` live turns. A third of them can end before the deadline, the others cannot."""

    def __init__(self, turns: int = 50, deadline: float = 10.0) -> None:
        self._turns = turns
        self._deadline = deadline
        self.done = 0
        self.resumed = 0

    async def run(self) -> list[Figure]:
        async with running_gateway({"SHUTDOWN__DEADLINE": f"{self._deadline:g}s"}) as (gateway, model):
            tickets = []
            for n in sorted(
                range(self._turns), key=lambda n: n % 3 == 0
            ):  # those that end by themselves last
                text = f"[[delay {self._deadline / 5:g}]] {n}" if n % 3 == 0 else f"[[first 1 hang]] {n}"
                path = f"/api/sessions/chat{n}/messages"
                tickets.append((await gateway.call("POST", path, json={"text": text}))["turn_id"])
            await model.until(lambda: model.requests == self._turns)
            live, began = model.answering, time.monotonic()
            await gateway.kill(signal.SIGTERM)
            seconds = time.monotonic() - began
            status = await gateway.wait()
            await gateway.start()
            turns = [await gateway.ended_turn(ticket) for ticket in tickets]
            lost = sum(turn["state"] != "done" for turn in turns)
            self.resumed = model.requests - self._turns  # the model was called once more for each
            self.done = self._turns - self.resumed - lost
        return [
            Figure(f"SIGTERM with {live} live turns: lost", lost + abs(status or 0), "", 0, Check.LOST),
            Figure("… until the process was gone", seconds, "s", self._deadline),
            Figure("… done before its end", self.done),
            Figure("… resumed and done by the next start", self.resumed),
        ]


# -- poison -----------------------------------------------------------------------------------------------


async def send_poison() -> list[Figure]:
    """Send a message that kills the gateway on every attempt, at the moment when it is first shown."""
    async with new_world(Surroundings(), Random("poison")) as world, TelegramServer() as server:
        users = SimulatedUsers(server, (21, 22), *world.homes)
        assert world.model
        await world.start(users.settings_with(world.model))
        (member,) = world.members
        member.points = itertools.repeat(f"{Failpoint.SHOWN}=1")
        await member.end(signal.SIGKILL)
        users.send(21, MessageKind.SLOW)
        users.send(21, MessageKind.TEXT)
        for deaths in itertools.count(1):
            users.send(22, MessageKind.TEXT)
            if deaths > _MOST_DEATHS or await _settles(world, member, users):
                break
        report = users.report()
        others = sum(len(replies_by_name(users.shown(person))) for person in users.people)
        return [
            Figure(
                "a message that kills the gateway: attempts",
                world.faults[f"kill at {Failpoint.SHOWN}"],
                "",
                3,
            ),
            Figure("… its sender not informed", 1 - report.given_up, "", 0, Check.LOST),
            Figure("… messages of others not answered", report.sent - 1 - others, "", 0, Check.LOST),
        ]


async def _settles(world: World, member: Member, users: SimulatedUsers) -> bool:
    """Return whether a life settles all that is owed; otherwise it has ended."""
    settling = asyncio.create_task(world.settle(60.0, lambda: users.is_all_accepted))
    life = member.gateway.lives
    while not settling.done() and member.gateway.lives == life:
        await asyncio.sleep(0.02)
    settling.cancel()
    return (await asyncio.gather(settling, return_exceptions=True))[0] == 0
