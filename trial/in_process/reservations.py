"""Reservations of several processes on one database: together they never exceed a cap.

`python -m trial.in_process.reservations PATH COUNT SEED` is one of the processes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from itertools import count
from pathlib import Path
from random import Random

import msgspec

from talaria.core.clock import SystemClock
from talaria.core.ids import (
    ChatAddress,
    OwnerId,
    SessionId,
    TurnId,
    new_owner_id,
    new_session_id,
    new_turn_id,
)
from talaria.core.ledger import Accept, Began, Begin, Binding, Commit, Fresh, UsageWrite
from talaria.core.messages import Text, TokenUsage
from talaria.core.spending import Cap, Reserve, Scope, SpendingQuery
from talaria.core.turns import Inbound, Sender
from talaria.store.sqlite.store import SqliteStore
from trial.report import Check, Figure, Progress

PROCESSES = 4
AT_ONCE = 64
LARGEST = 1000
USERS = ("a", "b", "c")
_ROOT = Path(__file__).parents[2]


def caps_below(limit: int) -> tuple[Cap, Cap]:
    """Return a cap for all users together, and a cap for each user of two fifths of it."""
    return Cap(Scope.DAY, limit), Cap(Scope.USER, limit * 2 // 5)


class ReservationResults(msgspec.Struct):
    """The results of one process. `worst` is the largest sum of spending and reservations that it saw."""

    granted: int = 0
    refused: int = 0
    paid: int = 0
    worst: int = 0


class Reservations:
    """Makes `count` reservations in four processes. The caps grant about half of them."""

    def __init__(self, count: int, progress: Progress) -> None:
        self._count = count
        self._progress = progress
        self.total = ReservationResults()
        self.day, self.user = caps_below(count * LARGEST // 6)

    async def run(self) -> list[Figure]:
        with tempfile.TemporaryDirectory(prefix="talaria-soak-") as folder:
            path = Path(folder) / "talaria.db"
            await (await SqliteStore.open(path, SystemClock())).close()
            all_results = await asyncio.gather(*(self._process(path, seed) for seed in range(PROCESSES)))
            async with await SqliteStore.open(path, SystemClock()) as store:
                spending, *users = [
                    await store.spending(SpendingQuery(SessionId(""), user, 0.0)) for user in ("", *USERS)
                ]
        self.total = ReservationResults(
            sum(results.granted for results in all_results),
            sum(results.refused for results in all_results),
            sum(results.paid for results in all_results),
            max(results.worst for results in all_results),
        )
        assert self.total.granted + self.total.refused == self._count
        over = sum(max(0, total - self.day.limit) for total in (self.total.worst, self.total.paid))
        over += sum(max(0, user.user.cost - self.user.limit) for user in users)
        lost = abs(spending.everyone.cost - self.total.paid) + spending.reserved
        self._progress.tell("reservations", self._count, self._count, f", {self.total.refused} refused")
        return [
            Figure(
                f"{self._count:,} reservations in 4 processes: beyond the cap", over, "nano$", 0, Check.MONEY
            ),
            Figure("… spent and not accounted for, or still reserved", lost, "nano$", 0, Check.MONEY),
            Figure("… refused", self.total.refused),
        ]

    async def _process(self, path: Path, seed: int) -> ReservationResults:
        share = self._count // PROCESSES + (seed < self._count % PROCESSES)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trial.in_process.reservations", str(path), str(share), str(seed),
            str(self.day.limit), cwd=_ROOT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, _ = await process.communicate()
        assert process.returncode == 0
        return msgspec.json.decode(said, type=ReservationResults)


async def spend(path: Path, share: int, seed: int, limit: int) -> ReservationResults:
    """Run one process: reserve the cost of calls, then pay at most that much."""
    random, results, numbers = Random(seed), ReservationResults(), count()
    caps = caps_below(limit)
    async with await SqliteStore.open(path, SystemClock()) as store:

        async def work() -> None:
            owner = new_owner_id()
            turn_id, began = await _begin(store, owner, random.choice(USERS))
            session_id = began.session.id
            while (n := next(numbers)) < share:
                amount, user = random.randint(1, LARGEST), random.choice(USERS)
                order = Reserve(session_id, began.fence, turn_id, n, user, amount, 0.0, caps)
                if await store.reserve(order) is not None:
                    results.refused += 1
                    continue
                results.granted += 1
                if n % 16 == 0:
                    seen = await store.spending(SpendingQuery(session_id, user, 0.0))
                    results.worst = max(results.worst, seen.everyone.cost + seen.reserved)
                paid = random.randint(0, amount)
                usage = (UsageWrite(n, "p", "m", TokenUsage(1), paid, user),)
                await store.commit(Commit(session_id, began.fence, turn_id, usage=usage))
                results.paid += paid

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return results


async def _begin(store: SqliteStore, owner: OwnerId, user: str) -> tuple[TurnId, Began]:
    """Begin a turn in a new session, under a lease that outlasts the run."""
    turn_id = new_turn_id()
    inbound = Inbound(ChatAddress("main", "soak", "dm", turn_id).key(), Sender(user), (Text("hi"),))
    accepted = await store.accept(
        Accept(
            turn_id,
            inbound,
            Fresh(new_session_id(), None),
            binding=Binding.NEW,
            begin=Begin(turn_id, owner, 3600.0),
        )
    )
    assert accepted.began is not None
    return turn_id, accepted.began


if __name__ == "__main__":
    _, _path, _share, _seed, _limit = sys.argv
    _done = asyncio.run(spend(Path(_path), int(_share), int(_seed), int(_limit)))
    sys.stdout.buffer.write(msgspec.json.encode(_done))
