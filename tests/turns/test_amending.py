"""Edits and withdrawals of messages that wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from support.rig import Rig, inbound, start
from support.waiting import until
from talaria.core.ledger import Amend
from talaria.core.turns import Inbound, TurnState
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock

HOLD = "[[chunks 4]][[chunk-delay 1]][[reply first]]"


def keyed(text: str, key: str) -> Inbound:
    return msgspec.structs.replace(inbound(text), key=key)


async def two(rig: Rig) -> None:
    """A message runs, and another one waits."""
    first = await rig.turns.submit(keyed(HOLD, "m1"))
    waiting = await rig.turns.submit(keyed("second", "m2"))
    assert (first.turn.state, waiting.turn.state) == (TurnState.RUNNING, TurnState.ACCEPTED)


async def test_the_edit_of_a_message_that_waits_is_what_is_answered(tmp_path: Path) -> None:
    store = MemoryStore(FakeClock())
    async with start(store, tmp_path) as rig:
        await two(rig)
        assert await rig.turns.amend(keyed("corrected", "m2"), "m2e1")
        repeated = await rig.turns.submit(keyed("second", "m2"))
        turn = await rig.turns.wait(repeated)
        assert turn.reply == "You said: corrected"
        assert await rig.turns.amend(keyed("corrected", "m2"), "m2e1"), "it comes again after the answer"
        assert not await rig.turns.amend(keyed("late", "m2"), "m2e2")
        assert not await rig.turns.amend(keyed("late", "m1"), "m1e1")


class GatedStore(MemoryStore):
    """Amends nothing before the gate is open."""

    gate: asyncio.Event

    async def amend(self, order: Amend) -> bool:
        await self.gate.wait()
        return await super().amend(order)


async def test_an_edit_on_its_way_holds_the_beginning_up(tmp_path: Path) -> None:
    store = GatedStore(FakeClock())
    store.gate = asyncio.Event()
    async with start(store, tmp_path) as rig:
        await two(rig)
        live = await rig.turns.submit(keyed("second", "m2"))
        edit = asyncio.create_task(rig.turns.amend(keyed("corrected", "m2"), "m2e1"))
        await until(lambda: live.amending is not None, pause=0)
        first = next(each for each in rig.turns.live if each is not live)
        await rig.turns.cancel(first)
        for _ in range(50):
            await asyncio.sleep(0)
        assert live.turn.state is TurnState.ACCEPTED, "it waits for the edit"
        store.gate.set()
        assert await edit
        assert (await rig.turns.wait(live)).reply == "You said: corrected"


async def test_an_edit_survives_a_restart(tmp_path: Path) -> None:
    store = MemoryStore(FakeClock())
    async with start(store, tmp_path, is_held=True) as rig:
        live = await rig.turns.submit(keyed("first", "m1"))
        await asyncio.sleep(0)
        is_made = await rig.turns.amend(keyed("corrected", "m1"), "m1e1")
    async with start(store, tmp_path) as rig:
        turn = await rig.turns.wait(await rig.turns.find(live.turn.id))
        assert turn.reply == ("You said: corrected" if is_made else "You said: first")


async def test_a_message_that_is_withdrawn_while_it_waits_is_not_answered(tmp_path: Path) -> None:
    store = MemoryStore(FakeClock())
    async with start(store, tmp_path) as rig:
        await two(rig)
        live = await rig.turns.submit(keyed("second", "m2"))
        assert rig.turns.withdraw(live.turn.chat_key, "m2")
        turn = await rig.turns.wait(live)
        assert (turn.state, turn.reply) == (TurnState.CANCELLED, None)
        assert not rig.turns.withdraw(live.turn.chat_key, "m1"), "it has begun"
