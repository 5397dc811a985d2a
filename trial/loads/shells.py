"""Chats that run commands and start background processes, half of which wake them."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from talaria.core.failpoints import Failpoint
from talaria.workspace.watched_process import ProcessRecord, read_exit, read_record
from trial.faults import Load
from trial.report import Check, Fault, Figure, none_of
from trial.world import World

CHATS = 4
_PATIENCE = 60.0
_LEAST = 6  # background commands, however soon the faults are over
_EFFECTS = "effects"


class Shells(Load):
    """Every command leaves a line in a file. Some chats begin a new session."""

    points = (
        Failpoint.PROCESS_RECORDED, Failpoint.PROCESS_STARTED, Failpoint.NOTED, Failpoint.WOKEN,
        Failpoint.STARTED, Failpoint.RAN,
    )  # fmt: skip
    gateways = 1  # each home has its own records

    def __init__(self) -> None:
        self._count = 0
        self._backgrounds = 0  # commands that were sent
        self.started: dict[str, ProcessRecord] = {}

    async def prepare(
        self, world: World, faults: Collection[Fault], scopes: AsyncExitStack
    ) -> dict[str, str]:
        self._token = f"shells{world.random.randrange(10**9)}x{os.getpid()}"
        return {"NETWORK__COMMANDS": "off"}

    async def run(self, world: World) -> None:
        while not world.is_over or self._backgrounds < _LEAST:
            await world.is_open.wait()
            await self._say(world, world.random.randrange(CHATS), self._text(world))
            self._note(world.homes[0])
            await asyncio.sleep(world.random.expovariate(4))

    def _text(self, world: World) -> str:
        self._count += 1
        command = f"echo n{self._count} >>{_EFFECTS}; : {self._token}; "
        drawn = world.random.random()
        if drawn < 0.05:
            return "/new"
        if drawn < 0.35:
            return _call(command + f"sleep {world.random.choice((0, 0.2))}")
        self._backgrounds += 1
        seconds = world.random.choice((0, 0.3, 1, 3))
        wake = world.random.random() < 0.5
        return _call(command + f"sleep {seconds}; exit 3", background=True, wake=wake)

    async def _say(self, world: World, chat: int, text: str) -> str:
        self._count += 1
        key = f"{self._token}{self._count}"
        turn = await world.call("POST", f"/api/sessions/chat{chat}/messages", {"text": text}, key)
        return str(turn["turn_id"]) if turn else ""

    def _note(self, home: Path) -> None:
        """Keep what is on record. A session that ended meanwhile has taken its records along."""
        for folder in home.glob("sessions/*/processes/*"):
            if (record := read_record(folder)) is not None:
                self.started[record.id] = record

    async def finish(self, world: World) -> None:
        """Let every process end and every session be notified of it."""
        gateway = world.members[0].gateway

        async def is_quiet() -> bool:
            status = await world.call("GET", "/api/status")
            return not status["processes"] and not status["owed"]["turns"]

        await _until(is_quiet)
        for chat in range(CHATS):  # the last notes come with the next message
            await gateway.ended_turn(await self._say(world, chat, "and now?"))
        await _until(is_quiet)
        self._note(world.homes[0])

    async def judge(self, world: World) -> list[Figure]:
        home, (notes, turns) = world.homes[0], (
            world.query("SELECT body FROM entries WHERE kind = 'note'"),
            world.query("SELECT key FROM turns WHERE key LIKE 'process:%'"),
        )  # fmt: skip
        keys = [json.loads(row[0])["key"] for row in notes] + [row[0] for row in turns]
        told = Counter(key.partition(":")[2] for key in keys)
        left, silent, lost = [], [], 0
        for folder in home.glob("sessions/*/processes/*"):
            record = read_record(folder)
            if record is None:
                left.append(str(folder))
                continue
            lost += read_exit(folder) is None
            if not told[record.id]:
                silent.append(f"{record.id} {record.command}")
        lines = Counter(
            line for path in home.glob(f"files/*/{_EFFECTS}") for line in path.read_text().split()
        )
        repeated = [line for line, times in lines.items() if times > 1]
        twice = [name for name, times in told.items() if times > 1]
        left += await self._end(world)
        return [
            none_of("… ends of processes not reported", silent, Check.LOST),
            none_of("… reported twice", twice, Check.DUPLICATED),
            none_of("… effects of commands repeated", repeated, Check.EFFECTS),
            none_of("… processes and folders left over", left, Check.LEFTOVERS),
            Figure("… background processes started", len(self.started)),
            Figure("… of them lost, because their shim was killed too, and reported so", lost),
            Figure("… ends reported", told.total()),
        ]

    async def _end(self, world: World) -> list[str]:
        """End all sessions, and return what is left of their processes."""
        for chat in range(CHATS):
            await world.members[0].gateway.ended_turn(await self._say(world, chat, "/new"))

        def left() -> list[str]:
            folders = [
                path for name in ("processes", "tmp") for path in world.homes[0].glob(f"sessions/*/{name}")
            ]
            return [*map(str, folders), *(f"pid {pid}" for pid in running_with(self._token))]

        async def is_empty() -> bool:
            return not left()

        try:
            await _until(is_empty)
        except TimeoutError:
            return left()
        return []


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
