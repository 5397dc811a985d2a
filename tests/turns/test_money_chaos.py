"""Calls that end in every way, over stops, shutdowns and kills: what a provider bills never passes a cap."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.rig import Rig, chat, start
from support.scripted_model import ScriptedModel, ScriptedModels
from support.sim import run
from support.waiting import until
from talaria.access.settings import BudgetSettings
from talaria.core.ids import SessionId, new_owner_id
from talaria.core.spending import SpendingQuery, from_usd
from talaria.core.tools import ToolSpec
from talaria.core.turns import TurnState
from talaria.models.known import Abilities, Prices, PriceSettings
from talaria.models.settings import FallbackSettings, ModelSettings
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.clock import HastyClock
from talaria.tools.tool import Tool, ToolContext

PRICES = {"*/*": PriceSettings(input=1, cached=0.1, output=10, max_output=400)}
PRICE = Prices(PRICES).find("scripted", "main")
CAPS = BudgetSettings(per_session_usd=0.06)
CAP = from_usd(CAPS.per_session_usd)
MODELS = ModelSettings("scripted", "main", fallback=(FallbackSettings("backup", "spare"),))
KNOWN = {"scripted/main": Abilities(tools=True, reasoning=False), "backup/spare": Abilities(reasoning=True)}
LIVES, CHATS, MESSAGES = 12, 4, 12

# How a call may end. Marks that stand alone fail every attempt, so that the fallback answers.
ENDINGS = (
    "hello",
    "[[words 90]][[chunks 30]]",
    "[[words 90]][[chunks 30]][[cut 20]]",
    "[[think hm]][[words 60]][[chunks 9]][[cut 4]]",
    "[[first 1 cut 0]] hello",
    "[[first 2 hang]] hello",
    "[[hang]]",
    "[[first 1 malformed]] hello",
    "[[error-in-stream]]",
    "[[status 503]]",
    "[[status 400]]",
    "[[call look {}]][[first 1 hang]] hello",
    "[[call look {}]][[half-call]]",
)


class Look(Tool):
    """A tool that needs no thread: how long a thread takes depends on the machine, and with it all that
    follows."""

    spec = ToolSpec("look", "Looks.", '{"type":"object","properties":{}}', read_only=True)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        return "seen"


class ChaosWorld:
    """A store and models that outlive the gateways before them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.clock = HastyClock()
        self.store: Store = MemoryStore(self.clock)
        self.primary = ScriptedModel(self.clock, max_retries=2, patience=30)
        self.backup = ScriptedModel(self.clock, name="backup", patience=30)
        self.folder = folder
        self.ends = Counter[str]()

    async def live(self, number: int) -> None:
        """Run one gateway until its chats are done, or until it is shut down or killed among them."""
        models = ScriptedModels(self.primary, {"backup": self.backup})
        async with start(
            self.store,
            self.folder,
            clock=self.clock,
            model=self.primary,
            models=models,
            settings=MODELS,
            budgets=CAPS,
            prices=PRICES,
            abilities=KNOWN,
            tools=lambda tools: tools.with_tools([Look()]),
        ) as rig:
            names = [f"chat-{number}-{i}" for i in range(CHATS)]
            talks = [asyncio.create_task(self.talk(rig, name)) for name in names]
            if number % 3:
                for _ in range(self.random.randint(20, 500)):
                    await asyncio.sleep(0)
                await until(lambda: self.primary.busy or all(talk.done() for talk in talks), pause=0)
                if number % 3 == 1:
                    # The other processes take this one for dead, so that no commit of it counts any more.
                    await self.store.reclaim(new_owner_id())
            else:
                await asyncio.gather(*talks)
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)

    async def talk(self, rig: Rig, name: str) -> None:
        for _ in range(MESSAGES):
            receipt = await rig.submit(f"{self.random.choice(ENDINGS)} #{name}", name)
            if self.random.random() < 0.4:
                for _ in range(self.random.randint(1, 60)):
                    await asyncio.sleep(0)
                turn = await rig.turns.cancel(receipt)
            else:
                turn = await rig.turns.wait(receipt)
            self.ends[turn.error.type if turn.error else turn.state.value] += 1
            await self.check(name)

    async def check(self, name: str) -> None:
        session = await self.store.current_session(chat(name))
        if session is None:
            return
        spending = await self.store.spending(SpendingQuery(session.id, "", 0.0))
        assert spending.session.cost <= CAP
        assert self.billed(name) <= spending.session.cost + spending.reserved
        if not spending.reserved:
            calls = sum(model.bills.by_payer[name].calls for model in (self.primary, self.backup))
            assert calls <= spending.session.calls, "a call was sent and not recorded"

    def billed(self, name: str) -> int:
        assert PRICE is not None
        return sum(model.bills.by_payer[name].cost(PRICE) for model in (self.primary, self.backup))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_no_way_of_ending_calls_passes_a_cap(tmp_path: Path, seed: int) -> None:
    run(seed, partial(check_caps, ChaosWorld(seed, tmp_path)))


async def check_caps(world: ChaosWorld) -> None:
    for number in range(LIVES):
        await world.live(number)
    await world.live(0)  # what the last gateway left is taken up
    payers = set(world.primary.bills.by_payer) | set(world.backup.bills.by_payer)
    assert len(payers) >= LIVES * CHATS / 2
    for name in payers:
        await world.check(name)
        assert world.billed(name) <= CAP
    spending = await world.store.spending(SpendingQuery(SessionId(""), "", 0.0))
    assert spending.reserved == 0
    assert spending.everyone.estimated > 50
    assert world.ends[TurnState.DONE.value] > 5
    assert world.ends[TurnState.CANCELLED.value] > 10
    assert world.ends["over_budget"] > 3
