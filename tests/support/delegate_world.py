"""Random trees of delegates on the seeded loop, over restarts of their gateway."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random

import msgspec

from support.rig import Rig, inbound, start
from support.scripted_model import ScriptedModel
from support.sim import SimClock, run
from talaria.access.settings import BudgetSettings
from talaria.core.clock import Clock, SystemClock
from talaria.core.delegates import Delegate, Report, delegate_path
from talaria.core.ids import TurnId, all_delegates, delegates_within
from talaria.core.ledger import TurnRecord
from talaria.core.messages import ToolResults, UserMessage
from talaria.core.redaction import SecretRegistry
from talaria.core.spending import SpendingQuery
from talaria.core.turns import RunOrder, Turn, TurnState
from talaria.models.known import PriceSettings
from talaria.pool.policy import PoolLimits
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.tools.delegate import DelegateTool
from talaria.tools.settings import DelegateSettings
from talaria.tools.toolset import ToolSet
from talaria.turns.delegates import open_delegates
from talaria.turns.sending import ChatSender
from talaria.turns.settings import TurnSettings
from talaria.workspace.places import ChatFolders

FOLDER = Path("/nowhere")
PRICES = {"scripted/*": PriceSettings(input=1.0, output=1.0)}
LIMITS = {  # how a tree ends, by a word of what its model reads
    "depth": "cannot hand out tasks",
    "count": "delegates.max_per_turn",
    "money": "budgets.per_session_usd",
    "time": "timed out",
}


class Explored(msgspec.Struct, frozen=True):
    """The delegates of a seed by final state, its restarts, and by which limits its tree ended."""

    states: dict[str, int]
    lives: int
    ended_by: tuple[str, ...]


@asynccontextmanager
async def open_gateway(
    store: Store, folder: Path, limits: DelegateSettings, clock: Clock | None = None, cap: float = 0.0
) -> AsyncIterator[Rig]:
    """Open a gateway whose only tool is `delegate`. A session may cost `cap` dollars."""
    clock = clock or SystemClock()

    def tools(builtin: ToolSet) -> ToolSet:
        return ToolSet((DelegateTool(lambda: limits),))

    async with start(
        store,
        folder,
        clock=clock,
        model=ScriptedModel(clock, latency=0.01),
        limits=PoolLimits(10_000, 3600, 1 << 30),
        tools=tools,
        budgets=BudgetSettings(per_session_usd=cap, assumed_output=100),
        prices=PRICES,
    ) as rig:
        settings, secrets = TurnSettings("main", 20, 0.0), SecretRegistry()
        folders = ChatFolders(folder)
        sender = ChatSender(store, settings, lambda chat: None, folders, secrets, clock, rig.live)
        async with open_delegates(
            rig.turns, store, sender, clock, lambda: limits, is_in_charge=lambda: True
        ) as delegates:
            loop = asyncio.create_task(delegates.run(), name="delegates")
            try:
                yield rig
            finally:
                loop.cancel()
                await asyncio.wait((loop,))


class DelegateWorld:
    """One message, whose tree of tasks is drawn, and the gateways that work on it, one after the other."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names = count(1)
        self._clock = SimClock()
        self.ledger = MemoryStore(self._clock)
        self._settings = DelegateSettings(
            max_parallel=random.randint(1, 4),
            max_depth=random.randint(1, 3),
            max_per_turn=random.randint(2, 8),
            timeout=timedelta(seconds=random.choice((5, 60))),
        )
        self.cap = random.choice((0.0, 0.0, 0.02, 0.2))
        self._message = self._task(0)

    def _task(self, depth: int) -> str:
        """Return the script of a turn. Deeper ones are smaller, and some try more than they may."""
        random, name = self._random, f"<n{next(self._names)}>"
        usage = f"[[usage {random.choice((0, 500, 4000))} 0 0 0]]"
        # The title is the beginning of a task. It gets no marks, because it is part of reports.
        parts = [
            "Look at this, think about it, and write what you have found. ",
            usage,
            f"[[delay {random.choice((0, 0.01, 0.3, 2))}]]",
        ]
        for _ in range(random.randint(1, 2) if depth == 0 else random.choice((0, 0, 1, 1, 2))):
            if depth < 4:
                tasks = [self._task(depth + 1) for _ in range(random.randint(1, 4 - min(depth, 3)))]
                order = {"tasks": tasks, **({"background": True} if random.random() < 0.25 else {})}
                parts += [f"[[call delegate {json.dumps(order)}]]", usage]
        end = random.random()
        parts.append("[[hang]]" if depth and end < 0.06 else "[[status 400]]" if end < 0.12 else "")
        return "".join((*parts, f"[[reply {name}]]"))

    async def live(self, *, is_last: bool) -> None:
        """One gateway: until the tree is at rest, or until it stops at a random moment."""
        async with open_gateway(self.ledger, FOLDER, self._settings, self._clock, self.cap) as rig:
            message = msgspec.structs.replace(inbound(self._message, key="message"), address="one")
            await rig.turns.submit(message)
            if not is_last:
                await asyncio.sleep(self._random.choice((0, 0.02, 0.3, 1, 5)))
                return
            while len(rig.live) or await self.ledger.owed_delegates() or await self._open_sessions():
                await asyncio.sleep(1)

    async def _open_sessions(self) -> bool:
        return bool(await self.ledger.unused_sessions(all_delegates("main")))

    # -- what must hold -------------------------------------------------------------------------------------

    async def check(self) -> tuple[Counter[str], set[str]]:
        """Return the delegates by state, and the limits that the model was told of."""
        root = await self._root()
        turns = await self.ledger.turns_within(delegates_within(root.chat_key, root.id), 10_000)
        records = {turn.id: await self._record(turn.id) for turn in (root, *turns)}
        assert all(record.turn.state.is_final for record in records.values())
        ran = Counter(order.descent.delegate for order in map(_order_of, turns) if order.descent)
        assert all(times == 1 for times in ran.values()), "a delegate was run twice"
        states, told = Counter[str](), list[str]()
        for record in records.values():
            self._check_replies(record, root)
            rows = record.delegates
            assert len(rows) <= self._settings.max_per_turn
            assert all(len(delegate_path(row.id)) <= self._settings.max_depth for row in rows)
            texts = [text async for text in self._read(record.turn)]
            told += texts
            for row in rows:
                self._check_row(row, record.turn, texts)
                states[row.outcome.state if row.outcome else "never begun"] += 1
        await self._check_money(root)
        words = "\n".join(told)
        return states, {name for name, word in LIMITS.items() if word in words}

    def _check_row(self, row: Delegate, parent: Turn, texts: list[str]) -> None:
        if row.outcome is None:
            assert parent.state is TurnState.CANCELLED, f"{row.id} has no outcome"
            return
        assert row.report is not Report.OWED, f"{row.id} owes its report"
        is_due = row.report is Report.MADE or parent.state is TurnState.DONE
        if row.outcome.state == TurnState.DONE and is_due:
            times = sum(text.count(row.outcome.text) for text in texts)
            assert times == 1, f"the result of {row.id} reached its parent {times} times"

    def _check_replies(self, record: TurnRecord, root: Turn) -> None:
        """A delegate speaks to its parent only."""
        if record.turn.id != root.id:
            assert record.replies == (), "a delegate posted into the chat"
        elif record.turn.state is not TurnState.CANCELLED:
            assert record.replies, "the parent did not reply"

    async def _check_money(self, root: Turn) -> None:
        spending = await self.ledger.spending(SpendingQuery(root.session_id, "", 0.0))
        assert spending.reserved == 0
        if self.cap:
            assert spending.session.cost <= self.cap * 1e9, "the tree cost more than its root may"

    async def _root(self) -> Turn:
        session = await self.ledger.current_session(inbound("").chat_key)
        assert session is not None
        return (await self.ledger.recent_of_session(session.id, 1000))[-1]

    async def _record(self, turn_id: TurnId) -> TurnRecord:
        record = await self.ledger.turn_record(turn_id)
        assert record is not None
        return record

    async def _read(self, turn: Turn) -> AsyncIterator[str]:
        """Yield what the session of a turn was told by tools and by the gateway."""
        for entry in await self.ledger.log(turn.session_id, 0):
            if isinstance(entry.body, ToolResults):
                for result in entry.body.results:
                    yield result.text
            elif isinstance(entry.body, UserMessage) and "in the background has ended" in entry.body.text:
                yield entry.body.text


def _order_of(turn: Turn) -> RunOrder:
    order = turn.inbound.order
    assert order is not None
    return order


def explore(seed: int) -> Explored:
    """Work on one tree under the interleaving of `seed`. Raises when something broke."""

    async def main() -> Explored:
        random = Random(seed)
        world = DelegateWorld(random)
        lives = random.choice((1, 1, 2, 3))
        for life in range(lives):
            await world.live(is_last=life == lives - 1)
        states, ended_by = await world.check()
        return Explored(dict(states), lives, tuple(sorted(ended_by)))

    try:
        return run(seed, main, max_steps=2_000_000)
    except Exception as error:
        error.add_note(f"seed {seed}: delegate_world.explore({seed}) brings it back")
        raise


def explore_all(seeds: Iterator[int] | range) -> tuple[Counter[str], Counter[str]]:
    """Return how many delegates ended in which state, and how many trees by which limit."""
    states, ended_by = Counter[str](), Counter[str]()
    for seed in seeds:
        found = explore(seed)
        states.update(found.states)
        ended_by.update(found.ended_by)
    return states, ended_by
