"""A process with a scheduler on a shared database and a clock that its parent, `slots`, sets.

It reads a line for each look and answers with a line when everything that was due has been dispatched. A run
is a turn that is accepted under its claim and then settled. `stall` lets the runs wait until the next look,
as a process does that was stopped after it had claimed them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from talaria.core.errors import StoreError, TalariaError
from talaria.core.failpoints import VARIABLE, Failpoint, arm, hit
from talaria.core.ids import OwnerId, TurnId, new_owner_id, new_session_id, new_turn_id
from talaria.core.jobs import ClaimedSlot
from talaria.core.ledger import Accept, Binding, Fresh, TurnEnd
from talaria.core.messages import Text
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.jobs.scheduler import Scheduler
from talaria.jobs.settings import JobSettings
from talaria.store.sqlite.store import SqliteStore

_ORPHAN_SECONDS = 30.0


class Look(msgspec.Struct):
    """A command of the parent."""

    now: float
    stall: bool = False


class SetClock:
    """A clock that shows what it was set to."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def elapsed(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class TurnRunner:
    """Runs a slot as a turn that ends at once."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.may_run = asyncio.Event()

    async def start(self, claimed: ClaimedSlot) -> None:
        await self.may_run.wait()
        slot = claimed.slot
        inbound = Inbound(claimed.job.origin.chat_key, Sender("job"), (Text(slot.id),), is_unattended=True)
        order = Accept(
            new_turn_id(), inbound, Fresh(new_session_id(), None), binding=Binding.NEW, claim=slot.claim
        )
        accepted = await self._store.accept(order)
        hit(Failpoint.ACCEPTED)
        await self._settle(accepted.turn.id)

    async def recover(self, owner: OwnerId, before: float) -> None:
        """Settle the turns of processes that died, as the recovery of a gateway resumes them."""
        for turn in await self._store.orphans(owner, before):
            await self._settle(turn.id)

    async def _settle(self, turn_id: TurnId) -> None:
        with suppress(StoreError):  # another process was first
            await self._store.settle(turn_id, TurnEnd(TurnState.DONE))


async def work(path: Path) -> None:
    clock, owner = SetClock(), new_owner_id()
    lines = asyncio.get_running_loop()
    async with await SqliteStore.open(path, clock) as store:
        runner = TurnRunner(store)
        scheduler = Scheduler(
            store.jobs,
            runner.start,
            clock,
            owner,
            settings=lambda: JobSettings(max_running=100),
            zone=ZoneInfo("UTC"),
        )
        print("ready", flush=True)
        while line := await lines.run_in_executor(None, sys.stdin.readline):
            look = msgspec.json.decode(line, type=Look)
            clock.time = look.now
            runner.may_run.set()
            await scheduler.settle_started()
            if look.stall:
                runner.may_run.clear()
            try:
                await runner.recover(owner, look.now - _ORPHAN_SECONDS)
                await scheduler.look()
                if not look.stall:
                    await scheduler.settle_started()
            except TalariaError as error:
                print("failed", error.user_text, flush=True)
                continue
            print("looked", flush=True)
        runner.may_run.set()
        await scheduler.settle_started()


if __name__ == "__main__":
    arm(os.environ.get(VARIABLE, ""))
    asyncio.run(work(Path(sys.argv[1])))
