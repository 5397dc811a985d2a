"""A message that takes the process down is found, and those that ran beside it are served."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.rig import start
from support.waiting import until
from talaria.core.ids import OwnerId, TurnId
from talaria.core.ledger import BLAMED
from talaria.core.turns import TurnState
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.tools.toolset import ToolSet
from turns.test_stopping import Gate


async def test_only_the_turn_that_kills_is_given_up(tmp_path: Path) -> None:
    """In memory only: a disk takes real time, in which the hands of the clock would run away."""
    clock = FakeClock()
    store = MemoryStore(clock)
    gates = {name: Gate(name, idempotent=True) for name in ("first", "killer", "last")}

    def tools(known: ToolSet) -> ToolSet:
        return known.with_tools(list(gates.values()))

    turns: dict[str, TurnId] = {}

    async def crash() -> None:
        """Leases are gone as they are when a process was killed: nothing is given back in good order."""
        await store.reclaim(OwnerId("own_next"))
        for gate in gates.values():
            gate.entered.clear()

    async with start(store, tmp_path, clock=clock, tools=tools) as rig:
        for name, gate in gates.items():
            turns[name] = (await rig.submit(f"[[call {name} {{}}]][[reply ok]]", name)).turn.id
            await gate.entered.wait()
        await crash()
    async with start(store, tmp_path, clock=clock, tools=tools):
        for gate in gates.values():
            await gate.entered.wait()
        await crash()
    for _ in range(5):
        async with start(store, tmp_path, clock=clock, tools=tools) as rig:
            killer = await rig.turns.find(turns["killer"])
            while not gates["killer"].entered.is_set() and not killer.settled.done():
                clock.advance(1)
                await asyncio.sleep(0)
            if not gates["killer"].entered.is_set():
                break
            await crash()
    gates["first"].opened.set()
    gates["last"].opened.set()
    async with start(store, tmp_path, clock=clock, tools=tools) as rig:
        ended = {}
        for name, turn_id in turns.items():
            receipt = await rig.turns.find(turn_id)
            while not receipt.settled.done():
                clock.advance(1)
                await asyncio.sleep(0)
            ended[name] = (await rig.turns.find(turn_id)).turn
    assert {name: turn.state for name, turn in ended.items()} == {
        "first": TurnState.DONE,
        "killer": TurnState.FAILED,
        "last": TurnState.DONE,
    }
    error = ended["killer"].error
    assert error is not None
    assert error.type == "poisoned"
    assert gates["killer"].runs == 3


async def test_suspects_wait_for_each_other_and_others_do_not(tmp_path: Path) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    gate = Gate("gate", idempotent=True)
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])) as rig:
        for name in ("a", "b"):
            await rig.submit("[[call gate {}]]", name)
        await until(lambda: gate.together >= 2, pause=0)
        await store.reclaim(OwnerId("own_next"))
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])):
        await until(lambda: gate.together >= 2, pause=0)
        await store.reclaim(OwnerId("own_next"))
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])) as rig:
        await until(lambda: gate.together >= 1, pause=0)
        assert (await rig.say("hello", "c")).reply == "You said: hello"
        assert gate.together == 1
        while gate.together < 2:
            clock.advance(1)
            await asyncio.sleep(0)
        assert clock.elapsed() >= 3


async def crash_twice(store: MemoryStore, folder: Path, clock: FakeClock, gate: Gate) -> TurnId:
    """Leave a turn behind that ran in two crashes."""
    async with start(store, folder, clock=clock, tools=lambda known: known.with_tools([gate])) as rig:
        turn_id = (await rig.submit("[[call gate {}]][[reply ok]]")).turn.id
        await gate.entered.wait()
        await store.reclaim(OwnerId("own_next"))
    gate.entered.clear()
    async with start(store, folder, clock=clock, tools=lambda known: known.with_tools([gate])):
        await gate.entered.wait()
        await store.reclaim(OwnerId("own_next"))
    gate.entered.clear()
    return turn_id


@pytest.mark.parametrize("has_company", [True, False])
async def test_only_a_turn_that_crashed_alone_is_told_that_it_is_the_cause(
    tmp_path: Path, has_company: bool
) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    gate = Gate("gate", idempotent=True)
    turn_id = await crash_twice(store, tmp_path, clock, gate)
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])) as rig:
        await gate.entered.wait()
        if has_company:
            await rig.say("hello", "another chat")
        await store.reclaim(OwnerId("own_next"))
    async with start(store, tmp_path, clock=clock) as rig:
        turn = await rig.turns.wait(await rig.turns.find(turn_id))
    assert turn.error is not None and turn.error.type == "poisoned"
    told = turn.error.sentence()
    assert ("with no other message beside it" in told) is not has_company
    assert ("need not be the cause" in told and told.endswith("Send it again.")) is has_company


async def test_a_suspect_that_never_ran_is_not_cleared(tmp_path: Path) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    gate = Gate("gate", idempotent=True)
    turn_id = await crash_twice(store, tmp_path, clock, gate)
    record = await store.turn_record(turn_id)
    assert record is not None
    await store.hold(record.turn.session_id, OwnerId("own_other"), 30)
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])) as rig:
        # `start` has taken all leases of others away, as the holder of the home's lock may.
        await store.hold(record.turn.session_id, OwnerId("own_other"), 30)
        await clock.play(10)
        record = await store.turn_record(turn_id)
        assert record is not None and record.turn.forgiven == 0
        await clock.play(60)
        assert gate.entered.is_set()
        record = await store.turn_record(turn_id)
        assert record is not None and record.turn.forgiven == record.turn.attempts
        assert len(rig.live) == 1


async def test_a_turn_that_held_the_loop_is_not_cleared_by_running_for_a_while(tmp_path: Path) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    gate = Gate("gate", idempotent=True)
    turn_id = await crash_twice(store, tmp_path, clock, gate)
    await store.set_cursor(BLAMED, msgspec.json.encode([turn_id, turn_id]).decode())
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])):
        await gate.entered.wait()
        await clock.play(60)
        await store.reclaim(OwnerId("own_next"))
    async with start(store, tmp_path, clock=clock) as rig:
        turn = await rig.turns.wait(await rig.turns.find(turn_id))
    assert turn.error is not None and "held up the whole gateway" in turn.error.message


async def test_a_turn_that_loses_its_lease_again_and_again_is_given_up(tmp_path: Path) -> None:
    clock = FakeClock()
    async with start(MemoryStore(clock), tmp_path, clock=clock) as rig:
        live = await rig.submit("[[hang]]")
        for _ in range(20):
            while not rig.model.busy and not live.settled.done():
                clock.advance(1)
                await asyncio.sleep(0)
            if live.settled.done():
                break
            live.lose()
            await until(lambda: not rig.model.busy, pause=0)
        turn = live.turn
    assert turn.state is TurnState.FAILED
    assert turn.error is not None and turn.error.type == "poisoned"
    assert turn.attempts == 7


async def test_a_suspect_is_not_watched_beyond_the_end_of_the_gateway(tmp_path: Path) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    gate = Gate("gate", idempotent=True)
    await crash_twice(store, tmp_path, clock, gate)
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])) as rig:
        await gate.entered.wait()
        assert len(watches()) == 1
        await rig.turns.drain(0)
        await asyncio.sleep(0)
        assert watches() == []


def watches() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("quarantine")]
