"""Races between recovery, adoption, shutdown and turns that wait for a person."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sick_store import SickStore
from talaria.core.errors import StoreError
from talaria.core.questions import APPROVE
from talaria.store.memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.turns.states import LiveState
from turns.test_parking import CALL, World, open_questions, park
from turns.test_stopping import Gate


async def settle_down() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


async def test_a_turn_that_was_adopted_is_not_taken_up_again_by_recovery(tmp_path: Path) -> None:
    clock = FakeClock()
    world = World(MemoryStore(clock), tmp_path)
    gate = Gate("gate", idempotent=True)
    world.more = [gate]
    async with world.start(clock=clock) as rig:
        live = await rig.submit("[[call gate {}]][[reply done]]")
        await gate.entered.wait()
    async with world.start(clock=clock) as rig:
        adopted = rig.live.get(live.turn.id)
        assert adopted is not None
        assert await rig.turns.recover() == 0
        assert rig.live.get(live.turn.id) is adopted


async def test_a_message_makes_room_for_an_adopted_turn_that_waited(tmp_path: Path) -> None:
    clock = FakeClock()
    world = World(MemoryStore(clock), tmp_path)
    async with world.start(clock=clock) as alive:
        async with world.start(clock=clock) as other:
            parked = await park(other)
            [question] = await open_questions(world.store, parked.turn.id)
        later = await alive.submit("hello")
        await settle_down()
        await alive.turns.decide(question, APPROVE, "person")
        for _ in range(10):
            clock.advance(61)
            await alive.turns.adopt()
            await settle_down()
        for turn_id in (parked.turn.id, later.turn.id):
            record = await world.store.turn_record(turn_id)
            assert record is not None
            assert record.turn.state.is_final, record.turn.state


async def test_a_drain_ends_although_a_stopped_turn_cannot_be_closed(tmp_path: Path) -> None:
    store = SickStore()
    store.holds = lambda order: bool(getattr(order, "ask", ()))
    world = World(store, tmp_path)
    async with world.start() as rig:
        live = await rig.submit("[[call look {}]]" + CALL)
        while not store.held:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(rig.turns.cancel(live))
        await asyncio.sleep(0)
        draining = asyncio.create_task(rig.turns.drain(0))
        await settle_down()
        real: Any = store.begin

        async def refuse(order: object) -> None:
            raise StoreError("The disk failed.")

        store.fails = lambda order: True
        store.begin = refuse  # type: ignore[assignment,method-assign]
        store.let_go()
        await asyncio.wait_for(draining, 10)
        assert live.state is LiveState.LET_GO
        await stopping
        store.begin, store.fails = real, lambda order: False  # type: ignore[method-assign]
