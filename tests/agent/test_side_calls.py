from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.rig import Rig, start
from support.waiting import until
from talaria.access.settings import BudgetSettings
from talaria.agent.settings import ContextSettings
from talaria.agent.side_calls import Purpose, SideCall
from talaria.core.clock import SystemClock
from talaria.core.errors import ModelUnavailable, NoModel, OverBudget
from talaria.core.ids import SessionId
from talaria.core.spending import SpendingQuery
from talaria.models.catalog import ModelChoice
from talaria.models.known import PriceSettings
from talaria.store.in_memory import MemoryStore

OWN = ModelChoice("scripted", "scripted")
PRICES = {"scripted/*": PriceSettings(input=100.0, output=100.0, max_output=100)}
CALL = SideCall(Purpose.TITLE, "Find a title.", "hello " * 20, max_output=20)


async def spent(rig: Rig) -> tuple[int, int, int]:
    """The calls, their cost, and what is set aside."""
    found = await rig.store.spending(SpendingQuery(SessionId(""), "", 0.0))
    return found.everyone.calls, found.everyone.cost, found.reserved


async def test_a_call_beside_a_turn_is_counted_and_has_no_part_in_the_log(tmp_path: Path) -> None:
    budgets = BudgetSettings(per_day_usd=100)
    async with start(MemoryStore(SystemClock()), tmp_path, prices=PRICES, budgets=budgets) as rig:
        turn = await rig.say("hello")
        before = await spent(rig)
        log = await rig.store.log(turn.session_id, 0)
        answer = await rig.side_calls.beside(CALL, OWN, turn)
        assert answer.startswith("In short")
        calls, cost, reserved = await spent(rig)
        assert (calls, reserved) == (before[0] + 1, 0) and cost > before[1]
        assert await rig.store.log(turn.session_id, 0) == log
        record = await rig.store.turn_record(turn.id)
        assert record is not None and (record.spent.calls, len(record.steps)) == (2, 1)


async def test_a_call_over_the_budget_is_not_made(tmp_path: Path) -> None:
    budgets = BudgetSettings(per_day_usd=2)
    async with start(MemoryStore(SystemClock()), tmp_path, prices=PRICES, budgets=budgets) as rig:
        turn = await rig.say("hi")
        made, before = len(rig.model.bodies), await spent(rig)
        long = SideCall(Purpose.SUMMARY, "Summarise.", "x" * 200_000)
        with pytest.raises(OverBudget):
            await rig.side_calls.beside(long, OWN, turn)
        assert len(rig.model.bodies) == made and await spent(rig) == before


@pytest.mark.parametrize("mark", ["[[hang]]", "[[delay 60]]"])
async def test_a_call_that_hangs_ends_and_costs_what_was_sent(tmp_path: Path, mark: str) -> None:
    budgets = BudgetSettings(per_day_usd=100)
    slow = SideCall(Purpose.TITLE, f"Find a title. {mark}", "hello", seconds=0.05)
    async with start(MemoryStore(SystemClock()), tmp_path, prices=PRICES, budgets=budgets) as rig:
        turn = await rig.say("hello")
        with pytest.raises(ModelUnavailable, match=r"within 0\.05 seconds"):
            await rig.side_calls.beside(slow, OWN, turn)
        assert (await spent(rig))[0] == 2 and (await spent(rig))[2] == 0
        patient = SideCall(Purpose.TITLE, slow.instructions, "hello")
        task = asyncio.create_task(rig.side_calls.beside(patient, OWN, turn))
        await until(lambda: rig.model.busy != 0, pause=0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await spent(rig))[0] == 3 and (await spent(rig))[2] == 0


async def test_a_call_that_was_not_sent_costs_nothing_and_reserves_nothing(tmp_path: Path) -> None:
    budgets = BudgetSettings(per_day_usd=100)
    async with start(MemoryStore(SystemClock()), tmp_path, prices=PRICES, budgets=budgets) as rig:
        for _ in range(4):
            turn = await rig.say("hello " * 200)
        before = await spent(rig)
        rig.model.is_down = True
        with pytest.raises(ModelUnavailable):
            await rig.side_calls.beside(CALL, OWN, turn)
        assert await spent(rig) == before
        assert (await rig.say("/compact")).reply != ""
        assert await spent(rig) == before


async def test_the_configured_model_is_called_and_a_built_in_one_is_not(tmp_path: Path) -> None:
    context = ContextSettings(summary_model="fast")
    async with start(MemoryStore(SystemClock()), tmp_path, context=context) as rig:
        turn = await rig.say("hello")
        await rig.side_calls.beside(CALL, OWN, turn)
        assert b'"model":"fast"' in rig.model.bodies[-1]
    async with start(MemoryStore(SystemClock()), tmp_path) as rig:
        with pytest.raises(NoModel):
            rig.side_calls.choose(ModelChoice("local", "tiny"))
