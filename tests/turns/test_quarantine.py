"""A message that takes the process down is found, and those that ran beside it are served."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rig import start
from talaria.core.ids import OwnerId, TurnId
from talaria.core.turns import TurnState
from talaria.store.memory import MemoryStore
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
        while gate.together < 2:
            await asyncio.sleep(0)
        await store.reclaim(OwnerId("own_next"))
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])):
        while gate.together < 2:
            await asyncio.sleep(0)
        await store.reclaim(OwnerId("own_next"))
    async with start(store, tmp_path, clock=clock, tools=lambda known: known.with_tools([gate])) as rig:
        while gate.together < 1:
            await asyncio.sleep(0)
        assert (await rig.say("hello", "c")).reply == "You said: hello"
        assert gate.together == 1
        while gate.together < 2:
            clock.advance(1)
            await asyncio.sleep(0)
        assert clock.elapsed() >= 3
