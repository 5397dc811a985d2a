"""Races between recovery, adoption, shutdown and turns that wait for a person."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest

from support.faulty_store import FaultyStore
from support.rig import start
from support.scripted_model import ScriptedModel
from support.waiting import until
from talaria.core.errors import StoreError
from talaria.core.ids import ChatAddress, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Fresh
from talaria.core.messages import Text
from talaria.core.questions import APPROVE
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.turns.states import LiveState
from turns.test_parking import CALL, ParkingRig, open_questions, park
from turns.test_stopping import Gate


async def settle_down() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


async def test_a_turn_that_was_adopted_is_not_taken_up_again_by_recovery(tmp_path: Path) -> None:
    clock = FakeClock()
    world = ParkingRig(MemoryStore(clock), tmp_path)
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


async def test_orphans_are_adopted_once_in_each_leases_time_after_the_recovery(tmp_path: Path) -> None:
    clock = FakeClock()
    world = ParkingRig(MemoryStore(clock), tmp_path)
    gate = Gate("gate", idempotent=True)
    world.more = [gate]
    async with world.start(clock=clock) as alive:
        watching = asyncio.create_task(alive.turns.here.run())
        async with world.start(clock=clock) as other:
            left = await other.submit("[[call gate {}]][[reply done]]")
            await gate.entered.wait()
        assert alive.live.get(left.turn.id) is None
        for _ in range(20):
            clock.advance(30)
            await settle_down()
            if alive.live.get(left.turn.id) is not None:
                break
        assert alive.live.get(left.turn.id) is not None
        watching.cancel()
        await asyncio.wait((watching,))


async def test_a_message_makes_room_for_an_adopted_turn_that_waited(tmp_path: Path) -> None:
    clock = FakeClock()
    world = ParkingRig(MemoryStore(clock), tmp_path)
    async with world.start(clock=clock) as alive:
        async with world.start(clock=clock) as other:
            parked = await park(other)
            [question] = await open_questions(world.store, parked.turn.id)
        later = await alive.submit("hello")
        await settle_down()
        await alive.turns.decide(question, APPROVE, "person")
        for _ in range(10):
            clock.advance(61)
            await alive.turns.here.look()
            await settle_down()
        for turn_id in (parked.turn.id, later.turn.id):
            record = await world.store.turn_record(turn_id)
            assert record is not None
            assert record.turn.state.is_final, record.turn.state


async def test_a_drain_ends_although_a_stopped_turn_cannot_be_closed(tmp_path: Path) -> None:
    store = FaultyStore()
    store.holds = lambda order: bool(getattr(order, "ask", ()))
    world = ParkingRig(store, tmp_path)
    async with world.start() as rig:
        live = await rig.submit("[[call look {}]]" + CALL)
        await until(lambda: store.held, pause=0)
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


async def test_held_turns_wait_in_order_and_can_be_stopped(tmp_path: Path) -> None:
    clock = FakeClock()
    store, model = MemoryStore(clock), ScriptedModel(clock)
    async with start(store, tmp_path, clock=clock, model=model) as rig:
        earlier = (await rig.submit("[[first 1 hang]] earlier")).turn.id
        await until(lambda: model.busy, pause=0)
    async with start(store, tmp_path, clock=clock, model=model, is_held=True) as rig:
        sent = [await rig.submit(f"number {n}") for n in range(3)]
        elsewhere = await rig.submit("elsewhere", "other")
        assert (await rig.say("/status", "third")).state is TurnState.DONE
        assert (await rig.turns.cancel(sent[1])).state is TurnState.CANCELLED
        assert (await rig.turns.cancel(elsewhere)).state is TurnState.CANCELLED
        first = await rig.submit("[[hang]] first of its chat", "fourth")
        assert ((await rig.say("/stop", "fourth")).reply or "").startswith("Stopped.")
        assert (await rig.turns.wait(first)).state is TurnState.CANCELLED
        assert not sent[0].settled.done()
        rig.turns.release()
        await asyncio.wait([sent[2].settled])
        assert sent[0].turn.state is TurnState.DONE
        assert (await rig.say("hello", "other")).state is TurnState.DONE
        record = await store.turn_record(earlier)
        assert record is not None and record.turn.state is TurnState.DONE


async def test_a_drain_of_held_turns_leaves_them_for_the_next_start(tmp_path: Path) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    async with start(store, tmp_path, clock=clock, is_held=True) as rig:
        turn_id = (await rig.submit("hello")).turn.id
    async with start(store, tmp_path, clock=clock) as rig:
        assert (await rig.turns.wait(await rig.turns.find(turn_id))).reply == "You said: hello"


async def test_taking_up_takes_as_long_as_there_are_turns(tmp_path: Path) -> None:
    async def seconds(count: int) -> float:
        store = MemoryStore(FakeClock())
        for n in range(count):
            chat = ChatAddress("main", "test", "dm", str(n)).key()
            inbound = Inbound(chat, Sender("x"), (Text("hi"),))
            await store.accept(Accept(new_turn_id(), inbound, Fresh(new_session_id(), None)))
        gc.disable()  # a collection takes 150 ms once thousands of tests have run
        try:
            began = time.thread_time()
            async with start(store, tmp_path, clock=FakeClock(), is_held=True) as rig:
                taken = time.thread_time() - began
                assert len(rig.live) == count
        finally:
            gc.enable()
        return taken

    for _ in range(5):  # a busy machine can slow one trial down
        if await seconds(4000) < 20 * await seconds(500):
            return
    pytest.fail("eight times the turns take twenty times as long")


async def test_a_stop_that_is_carried_out_late_hits_no_message_that_came_after_it(tmp_path: Path) -> None:
    """It has stopped its turn, and the process died before the command's own end was written."""
    clock = FakeClock()
    world = ParkingRig(MemoryStore(clock), tmp_path)
    gate = Gate("gate", idempotent=True)
    world.more = [gate]
    async with world.start(clock=clock) as rig:
        first = (await rig.submit("hello")).turn
        inbound = Inbound(first.chat_key, first.inbound.sender, (Text("/stop"),))
        stop = Accept(new_turn_id(), inbound, Fresh(new_session_id(), None), "stop")
        await rig.store.accept(stop)
        clock.advance(1)
        await rig.turns.wait(await rig.submit("/new"))
        after = await rig.submit("[[call gate {}]][[reply done]]")
        await gate.entered.wait()
        clock.advance(61)
        assert await rig.turns.here.look() == 1
        assert (await rig.turns.wait(await rig.turns.find(stop.turn_id))).state is TurnState.DONE
        gate.opened.set()
        assert (await rig.turns.wait(after)).state is TurnState.DONE
