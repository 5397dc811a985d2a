"""Scheduled turns give way to those that people wait for: in a chat's lane, at the endpoint, at the budget.
They wait while the process has too much to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.rig import Rig, inbound, start
from support.scripted_model import ScriptedModel
from support.waiting import until
from talaria.access.settings import BudgetSettings
from talaria.core.errors import Overloaded
from talaria.core.limits import Limits, LimitSettings
from talaria.core.messages import UserMessage
from talaria.core.specs import Completion, ModelCall, ModelDelta
from talaria.core.turns import RunOrder, TurnState
from talaria.core.units import Size
from talaria.models.known import PriceSettings
from talaria.observe.loop_watch import Load
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.turns.live import LiveTurn

PRICES = {"scripted/*": PriceSettings(input=0, output=10, max_output=900)}


async def schedule(rig: Rig, text: str, name: str = "one") -> LiveTurn:
    return await rig.turns.submit(replace(inbound(text, name), run=RunOrder()))


class Noting(ScriptedModel):
    """Notes the calls that give way."""

    def __init__(self) -> None:
        super().__init__()
        self.gave_way: list[bool] = []

    async def complete(self, call: ModelCall, sink: Callable[[ModelDelta], None]) -> Completion:
        self.gave_way.append(call.gives_way)
        return await super().complete(call, sink)


async def test_message_of_a_person_goes_before_scheduled_turns_of_its_chat(
    store: Store, tmp_path: Path
) -> None:
    async with start(store, tmp_path) as rig:
        running = await schedule(rig, "[[hang]]")
        await until(lambda: rig.model.busy, pause=0)
        waiting = [await schedule(rig, f"run {n}") for n in (1, 2)]
        said = [await rig.submit(f"message {n}") for n in (1, 2)]
        await rig.turns.cancel(running)
        turns = [await rig.turns.wait(live) for live in (*said, *waiting)]
        assert [turn.state for turn in turns] == [TurnState.DONE] * 4
        log = await store.log(running.turn.session_id, 0)
        heard = [entry.body.text for entry in log if isinstance(entry.body, UserMessage)]
        assert heard == ["[[hang]]", "message 1", "message 2", "run 1", "run 2"]


async def test_calls_of_scheduled_turns_give_way(store: Store, tmp_path: Path) -> None:
    model = Noting()
    async with start(store, tmp_path, model=model) as rig:
        await rig.say("hello")
        await rig.turns.wait(await schedule(rig, "[[call list_files {}]] hello"))
        assert model.gave_way == [False, True, True]


@pytest.mark.parametrize(
    "budgets", [BudgetSettings(per_day_usd=0.0485), BudgetSettings(per_user_daily_usd=0.0485)]
)
async def test_scheduled_turns_leave_a_part_of_the_day_to_people(
    store: Store, tmp_path: Path, budgets: BudgetSettings
) -> None:
    async with start(store, tmp_path, budgets=budgets, prices=PRICES) as rig:
        for _ in range(4):
            assert (await rig.say("[[usage 0 0 900 0]] hello")).state is TurnState.DONE
        run = await rig.turns.wait(await schedule(rig, "hello", "two"))
        assert run.state is TurnState.FAILED and run.reply is not None
        assert "budget for today that scheduled work may use is $0.0437" in run.reply
        assert (await rig.say("hello")).state is TurnState.DONE


async def test_scheduled_turn_waits_while_the_process_has_too_much_memory(tmp_path: Path) -> None:
    clock, store, used = FakeClock(), MemoryStore(FakeClock()), [2 << 30]
    load = Load(Limits(LimitSettings(memory=Size(1 << 30))), memory=lambda: used[0])
    async with start(store, tmp_path, clock=clock, load=load, model=ScriptedModel(clock)) as rig:
        run = await schedule(rig, "a run", "two")
        assert (await rig.say("hello")).state is TurnState.DONE
        await clock.play(60)
        assert not run.settled.done()
        used[0] = 0
        await clock.play(1)
        assert (await rig.turns.wait(run)).reply == "You said: a run"
        used[0] = 2 << 30
        left = await schedule(rig, "another run", "two")
        await clock.play(1)
        leaving = asyncio.create_task(rig.turns.drain(3600))
        await clock.play(1)
        assert await leaving == 0, "a turn that waits does not hold a shutdown up"
    used[0] = 0
    async with start(store, tmp_path, clock=clock, load=load, model=ScriptedModel(clock)) as rig:
        turn = await rig.turns.wait(await rig.turns.find(left.turn.id))
        assert (turn.reply, turn.attempts) == ("You said: another run", 1)


async def test_scheduled_turn_is_accepted_while_messages_are_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    load = Load(elapsed=clock.elapsed)
    async with start(MemoryStore(clock), tmp_path, clock=clock, load=load, model=ScriptedModel(clock)) as rig:
        load.note(3)
        with pytest.raises(Overloaded):
            await rig.submit("hello")
        run = await schedule(rig, "a run", "two")
        await clock.play(3)
        assert (await rig.turns.wait(run)).state is TurnState.DONE


async def test_waiting_scheduled_turn_can_be_stopped(tmp_path: Path) -> None:
    clock = FakeClock()
    load = Load(memory=lambda: 2 << 40)
    async with start(MemoryStore(clock), tmp_path, clock=clock, load=load) as rig:
        run = await schedule(rig, "a run")
        await clock.play(1)
        assert not run.settled.done()
        await rig.say("/stop")
        assert (await rig.turns.wait(run)).state is TurnState.CANCELLED
