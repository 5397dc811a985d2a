"""Pauses of four processes on one database with SIGSTOP, longer than their leases, in the middle of turns.

`python -m trial.loads.pauses PATH NAME` is one of the processes. It uses the store only: its turns begin,
commit step by step and end, under leases of 300 ms that are not renewed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec

from talaria.core.clock import SystemClock
from talaria.core.errors import LeaseHeld, StaleFence
from talaria.core.ids import ChatAddress, ChatKey, OwnerId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Began, Begin, Commit, Fresh, TurnEnd
from talaria.core.messages import AssistantMessage, Text
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.store.sqlite.store import SqliteStore
from trial.report import Check, Figure, Progress

PROCESSES = 4
LEASE_SECONDS = 0.3
PAUSE_SECONDS = 0.4
STEPS = 4
_CHATS = 2
_AT_ONCE = 2  # paused processes; the others take over their sessions
_ROOT = Path(__file__).parents[2]


class PauseResults(msgspec.Struct):
    """The results of one process. `refused` are commits under a fence that was no longer valid."""

    turns: int = 0
    refused: int = 0


class Line(msgspec.Struct, frozen=True):
    """The content of an entry that a process writes."""

    owner: str
    fence: int
    turn: str
    step: int


class PauseRun:
    def __init__(self, pauses: int, progress: Progress, seed: int = 1, *, source: Path | None = None) -> None:
        self._pauses = pauses
        self._progress = progress
        self._random = Random(seed)
        self._source = source
        self.total = PauseResults()
        self.takeovers = 0

    async def run(self) -> list[Figure]:
        with tempfile.TemporaryDirectory(prefix="talaria-chaos-") as folder:
            path = Path(folder) / "talaria.db"
            await (await SqliteStore.open(path, SystemClock())).close()
            processes = [await self._start(path, f"owner{n}") for n in range(PROCESSES)]
            try:
                await self._pause(processes)
                all_results = [await self._stop(process) for process in processes]
            finally:
                for process in processes:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
            overlaps, broken = await self._check(path)
        self.total = PauseResults(
            sum(results.turns for results in all_results), sum(results.refused for results in all_results)
        )
        return [
            Figure(
                f"{self._pauses} pauses of 4 processes: commits of two owners at once",
                overlaps,
                "",
                0,
                Check.ORDER,
            ),
            Figure("… turns whose steps are missing, duplicated or out of order", broken, "", 0, Check.LOST),
            Figure("… stale commits refused", self.total.refused),
            Figure("… sessions taken over", self.takeovers),
            Figure("… turns", self.total.turns),
        ]

    async def _start(self, path: Path, name: str) -> asyncio.subprocess.Process:
        environ = dict(os.environ)
        if self._source is not None:
            environ["PYTHONPATH"] = str(self._source)
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trial.loads.pauses", str(path), name, cwd=_ROOT, env=environ,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def _pause(self, processes: list[asyncio.subprocess.Process]) -> None:
        done = 0
        for process in processes:
            assert process.stdout is not None
            await process.stdout.readline()  # it is at work
        while done < self._pauses:
            await asyncio.sleep(self._random.uniform(0.02, 0.15))
            chosen = self._random.sample(processes, min(_AT_ONCE, self._pauses - done))
            for process in chosen:
                process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(PAUSE_SECONDS)
            for process in chosen:
                process.send_signal(signal.SIGCONT)
            done += len(chosen)
            self._progress.tell("pauses", done, self._pauses)

    async def _stop(self, process: asyncio.subprocess.Process) -> PauseResults:
        said, _ = await asyncio.wait_for(process.communicate(b"stop\n"), 30)
        assert process.returncode == 0
        return msgspec.json.decode(said, type=PauseResults)

    async def _check(self, path: Path) -> tuple[int, int]:
        """Check the logs: a fence has one owner and never comes back, and every turn has all its steps."""
        overlaps, steps = 0, Counter[str]()
        broken = set[str]()
        async with await SqliteStore.open(path, SystemClock()) as store:
            for key in _chats():
                session = await store.current_session(key)
                assert session is not None
                owners: dict[int, str] = {}
                last = 0
                for entry in await store.log(session.id, 0):
                    if not isinstance(entry.body, AssistantMessage):
                        continue
                    line = msgspec.json.decode(entry.body.text, type=Line)
                    overlaps += line.fence < last or owners.setdefault(line.fence, line.owner) != line.owner
                    self.takeovers += line.fence > last and line.step > 0
                    last = line.fence
                    if line.step != steps[line.turn]:
                        broken.add(line.turn)
                    steps[line.turn] += 1
        return overlaps, len(broken | {turn for turn, count in steps.items() if count != STEPS})


def _chats() -> list[ChatKey]:
    return [ChatAddress("main", "chaos", "dm", str(n)).key() for n in range(_CHATS)]


class _Process:
    def __init__(self, store: SqliteStore, name: str) -> None:
        self._store = store
        self._owner = OwnerId(name)
        self._random = Random(name)
        self.results = PauseResults()

    async def work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._turn(self._random.choice(_chats()))

    async def _turn(self, key: ChatKey) -> None:
        """Run one turn to its end. A step whose commit was refused is committed again under a new fence."""
        turn_id = new_turn_id()
        inbound = Inbound(key, Sender("chaos"), (Text("go"),))
        await self._store.accept(Accept(turn_id, inbound, Fresh(new_session_id(), None)))
        began = await self._begin(Begin(turn_id, self._owner, LEASE_SECONDS))
        step = 0
        while step < STEPS:
            await asyncio.sleep(self._random.uniform(0.0, 0.03))
            line = Line(self._owner, began.fence, turn_id, step)
            said = AssistantMessage(msgspec.json.encode(line).decode())
            end = TurnEnd(TurnState.DONE, reply="done") if step == STEPS - 1 else None
            try:
                await self._store.commit(Commit(began.session.id, began.fence, turn_id, (said,), end=end))
                step += 1
            except StaleFence:
                self.results.refused += 1
                began = await self._begin(Begin(turn_id, self._owner, LEASE_SECONDS))
        self.results.turns += 1

    async def _begin(self, order: Begin) -> Began:
        while True:
            with suppress(LeaseHeld):
                return await self._store.begin(order)
            await asyncio.sleep(self._random.uniform(0.005, 0.03))


async def main(path: Path, name: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    async with await SqliteStore.open(path, SystemClock()) as store:
        process = _Process(store, name)
        print("at work", flush=True)
        await process.work(stop)
    sys.stdout.buffer.write(msgspec.json.encode(process.results))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
