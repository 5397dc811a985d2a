"""Evictions, resumptions and restarts of sessions that have a shell and background processes."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from talaria.app import open_gateway
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.ids import ChatAddress, ChatKey, SessionId
from talaria.core.messages import Text
from talaria.core.shells import ProcessState
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.gateway import Gateway
from talaria.parts import PARTS
from talaria.testing.model_server import ModelServer
from talaria.workspace.sandbox.group import start_time
from talaria.workspace.watched_process import ProcessRecord
from trial.report import Check, Figure, Progress, none_of

SESSIONS = 4
_LOOK = 'pwd; echo "$MARK"; cat ~/kept "$TMPDIR/kept"'
_SECONDS = 30.0


def call(tool: str, **arguments: object) -> str:
    return f"[[call {tool} {json.dumps(arguments)}]]"


class Resumes:
    """Sends messages to sessions in turn, in a pool that has room for one agent: each message evicts the
    agent of another session and finds its own evicted. The gateway is opened again every now and then."""

    def __init__(self, cycles: int, restarts: int, progress: Progress) -> None:
        self._cycles = cycles
        self._restarts = restarts
        self._progress = progress
        self._seen: dict[str, list[Any]] = {}
        self.evicted = 0
        self.resumed = 0
        self.differences: list[str] = []
        self.left: list[str] = []

    async def run(self) -> list[Figure]:
        with tempfile.TemporaryDirectory(prefix="talaria-resumes-") as folder:
            home = Path(folder)
            async with ModelServer() as model:
                (home / "config.toml").write_text(
                    '[model]\nprovider = "mine"\nname = "m"\n[pool]\nmax_agents = 1\n'
                    f'[providers.mine]\nbase_url = "{model.base_url}"\n'
                    '[network]\ncommands = "off"\n[tools]\nenabled = ["terminal"]\n'
                )
                await self._live(home, model)
                await self._end(home)
        named = f"{self.resumed:,} resumptions after evictions, over {self._restarts} restarts"
        return [
            none_of(f"{named}: differences of history, cwd, environment, files, processes", self.differences),
            none_of("… processes, mounts and folders left after /new and the end of a session", self.left,
                    Check.LEFTOVERS),
        ]  # fmt: skip

    async def _live(self, home: Path, model: ModelServer) -> None:
        found: dict[str, ProcessRecord] = {}
        each = -(-self._cycles // (self._restarts + 1))
        for life in range(self._restarts + 1):
            async with _open(home) as gateway:
                if not found:
                    for name in _names():
                        found[name] = await self._furnish(gateway, name)
                for cycle in range(each):
                    name = _names()[cycle % SESSIONS]
                    await self._look(gateway, model, name, found[name])
                    self._progress.tell("evict and resume", life * each + cycle + 1, self._cycles)
                self.evicted += gateway.pool.counters.released

    async def _furnish(self, gateway: Gateway, name: str) -> ProcessRecord:
        made = "mkdir -p w && cd w && export MARK={0} && echo {0} >~/kept && echo {0} >$TMPDIR/kept"
        await _say(gateway, name, call("terminal", command=made.format(name)))
        turn = await _say(
            gateway, name, call("terminal", command=f"echo {name} up; sleep 100000", background=True)
        )
        (process,) = gateway.notes.processes.of_session(turn.session_id)
        return process.record

    async def _look(self, gateway: Gateway, model: ModelServer, name: str, record: ProcessRecord) -> None:
        turn = await _say(
            gateway, name, f"{call('terminal', command=_LOOK)}+{call('process', action='list')}"
        )
        messages = json.loads(model.bodies[-1])["messages"]
        before = self._seen.get(name, [])
        if messages[: len(before)] != before:
            self._note(name, "the history changed")
        self._seen[name] = messages
        self.resumed += 1
        told = [message["content"] for message in messages if message["role"] == "tool"][-2:]
        lines = told[0].splitlines()
        if len(lines) < 4 or not lines[0].endswith("/w") or lines[1:4] != [name] * 3:
            self._note(name, f"the shell is another one: {told[0]!r}")
        if f"{record.id} runs" not in told[1]:
            self._note(name, f"the process is another one: {told[1]!r}")
        if turn.session_id != record.session_id or start_time(record.pid) != record.start:
            self._note(name, "the session or the shim is another one")

    def _note(self, name: str, what: str) -> None:
        self.differences.append(f"{name}: {what}")

    async def _end(self, home: Path) -> None:
        """End half of the sessions with /new and the others by request: nothing may be left."""
        async with _open(home) as gateway:
            processes = list(gateway.notes.processes)
            if sum(process.state is ProcessState.RUNNING for process in processes) != SESSIONS:
                self._note("all", f"{len(processes)} processes were found again")
            ended: list[SessionId] = []
            for number, name in enumerate(_names()):
                current = await gateway.store.current_session(_chat(name))
                assert current is not None
                ended.append(current.id)
                if number % 2:
                    await _say(gateway, name, "/new")
                else:
                    await gateway.turns.end(current.id)
            async with asyncio.timeout(_SECONDS):
                while any(process.folder.exists() for process in processes):
                    await asyncio.sleep(0.02)
        for process in processes:
            record = process.record
            self.left += [
                f"pid {pid}" for pid in (record.pid, record.launch, record.first) if start_time(pid)
            ]
        self.left += [
            str(path) for name in ("tmp", "processes", "network") for path in home.glob(f"sessions/*/{name}")
        ]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        self.left += [line for line in mounts if str(home) in line]


def _names() -> list[str]:
    return [f"s{number}" for number in range(SESSIONS)]


def _chat(name: str) -> ChatKey:
    return ChatAddress("main", "test", "dm", name).key()


async def _say(gateway: Gateway, name: str, text: str) -> Turn:
    inbound = Inbound(_chat(name), Sender("tester"), (Text(text),))
    turn = await gateway.turns.wait(await gateway.turns.submit(inbound))
    if turn.state is not TurnState.DONE:
        raise RuntimeError(f"{text}: {turn.error}")
    return turn


@asynccontextmanager
async def _open(home: Path) -> AsyncIterator[Gateway]:
    environ = {"TALARIA_CACHE": str(home / "cache")}
    async with open_gateway(Home(home), load(home, {}, PARTS), environ) as gateway:
        while not gateway.notes.is_open:
            await asyncio.sleep(0.005)
        yield gateway
