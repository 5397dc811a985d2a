"""Prefix bytes over many turns, with evictions, restarts and writes of another process in between."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from support.prefixes import PrefixWatch
from support.rig import Rig, chat, start
from support.scripted_model import ScriptedModel
from talaria.core.clock import SystemClock
from talaria.core.ids import OwnerId
from talaria.core.ledger import Commit
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.core.specs import Completion, ModelCall, ModelDelta
from talaria.core.turns import TurnState
from talaria.pool.policy import PoolLimits
from talaria.store.sqlite.store import SqliteStore
from trial.report import Figure, Progress

LIVES = 5
AT_ONCE = 16
FOREIGN = OwnerId("own_another")
_NAME = re.compile(rb"<(\d+)>")


def session_of(raw: bytes) -> str:
    found = _NAME.search(raw)
    assert found, raw[:300]
    return found[1].decode()


class WatchedModel(ScriptedModel):
    """A scripted model that passes each body to a watch and records none."""

    def __init__(self, watch: PrefixWatch) -> None:
        super().__init__()
        self._watch = watch

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        self._watch.see(b"".join(self.wire.body(call)))
        try:
            return await super().complete(call, sink)
        finally:
            self.bodies.clear()
            self.sessions.clear()


class Prefixes:
    """Runs `turns` in each of `sessions`, over several lives of a gateway with a small pool."""

    def __init__(self, sessions: int, turns: int, progress: Progress) -> None:
        self._sessions = sessions
        self._turns = turns
        self._progress = progress
        self._watch = PrefixWatch(session_of)
        self._done = 0
        self.evicted = 0
        self.caught_up = 0

    async def run(self) -> list[Figure]:
        with tempfile.TemporaryDirectory(prefix="talaria-soak-") as folder:
            for life in range(LIVES):
                first, last = self._turns * life // LIVES, self._turns * (life + 1) // LIVES
                await self._live(Path(folder), range(first, last))
        requests = sum(self._watch.requests.values())
        if self._watch.breaks:
            print("\n".join(self._watch.breaks[:20]))
        name = f"prefix breaks in {requests:,} requests of {self._sessions} sessions × {self._turns} turns"
        return [
            Figure(name, len(self._watch.breaks), limit=0),
            Figure("… while agents were evicted", self.evicted, "times"),
            Figure("… and foreign writes were caught up", self.caught_up, "times"),
        ]

    async def _live(self, folder: Path, turns: range) -> None:
        limits = PoolLimits(max_agents=max(12, self._sessions // 8), idle_ttl=3600, max_bytes=4 << 20)
        async with (
            await SqliteStore.open(folder / "talaria.db", SystemClock()) as store,
            start(store, folder / "files", model=WatchedModel(self._watch), limits=limits) as rig,
        ):
            waiting = iter(range(self._sessions))

            async def work() -> None:
                for session in waiting:
                    for turn in turns:
                        await self._turn(rig, str(session), turn)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(AT_ONCE):
                    tasks.create_task(work())
            self.evicted += rig.pool.counters.evicted_cap + rig.pool.counters.evicted_bytes
            self.caught_up += rig.pool.counters.catchups

    async def _turn(self, rig: Rig, session: str, turn: int) -> None:
        text = f"<{session}> ünï {turn}"
        if turn % 3 == 1:
            text += f' [[call todo {{}}]][[think hm]][[call write_file {{"path":"{turn}","content":"é"}}]]'
        done = await rig.say(text, session)
        assert done.state is TurnState.DONE, done
        if (turn + int(session)) % 4 == 0:
            await self._write_from_outside(rig, session)
        self._done += 1
        self._progress.tell("prefix turns", self._done, self._sessions * self._turns)

    async def _write_from_outside(self, rig: Rig, session: str) -> None:
        """Write like another process: under the lease of the session, between two turns."""
        current = await rig.store.current_session(chat(session))
        assert current is not None
        fence = await rig.store.hold(current.id, FOREIGN, 30)
        said = (UserMessage((Text("from elsewhere"),)), AssistantMessage(text="noted"))
        await rig.store.commit(Commit(current.id, fence, None, said, release=True))
