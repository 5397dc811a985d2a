"""Races that the seeded loop found, each brought to the point where it happens under every seed."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from support.rig import Rig, inbound, start
from support.scripted_model import ScriptedModel
from support.sim import SimClock, run
from support.slow_store import SlowStore
from support.turn_world import Work
from support.waiting import until
from talaria.core.errors import StoreError
from talaria.core.ids import SessionId, TurnId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Commit, Committed, Fresh, TurnRecord
from talaria.core.messages import AssistantMessage, Message, ToolResults
from talaria.core.turns import TurnState
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.tools.toolset import ToolSet
from talaria.turns.live import LiveTurn

SEEDS = range(5)


class Hooked(MemoryStore):
    """Stops `live` while a turn's failure is being committed or a turn looked up; `sick`: fails to look.

    Until the `gate` is open no turn can be looked up, so that `live` is set in time.
    """

    live: LiveTurn | None = None
    gate: asyncio.Event | None = None
    sick = False

    async def commit(self, order: Commit) -> Committed:
        if order.end is not None and order.end.state is TurnState.FAILED and self.live is not None:
            self.live.stop()
        return await super().commit(order)

    async def turn_record(self, turn_id: TurnId) -> TurnRecord | None:
        if self.gate is not None:
            await self.gate.wait()
        if self.live is not None:
            self.live.stop()
        if self.sick:
            raise StoreError("The disk is sick.")
        return await super().turn_record(turn_id)


class RaceRig:
    def __init__(self, seed: int) -> None:
        self.clock = SimClock()
        self.inner = Hooked(self.clock)
        self.store: Store = SlowStore(self.inner, Random(seed))
        self.tool = Work("work", Random(seed))

    def start(self) -> AbstractAsyncContextManager[Rig]:
        model = ScriptedModel(self.clock)
        folder = Path("/nowhere")
        return start(
            self.store, folder, clock=self.clock, model=model, tools=lambda tools: ToolSet([self.tool])
        )

    async def crash_in_a_call(self) -> TurnId:
        """A life that ends while a tool runs."""
        async with self.start() as rig:
            receipt = await rig.submit("[[call work {}]]")
            await until(lambda: self.tool.done)
        return receipt.turn.id

    async def said(self, session_id: SessionId) -> list[Message]:
        return [entry.message for entry in await self.inner.log(session_id, 0) if entry.message is not None]

    async def assert_well_formed(self, session_id: SessionId) -> None:
        said = await self.said(session_id)
        for position, message in enumerate(said):
            if isinstance(message, AssistantMessage) and message.tool_calls:
                behind = said[position + 1 : position + 2]
                assert behind and isinstance(behind[0], ToolResults), f"{behind} stands behind a call"


async def settle_all(rig: Rig) -> None:
    while unsettled := [turn.settled for turn in rig.live]:
        await asyncio.wait(unsettled)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_while_a_failure_is_committed_does_not_strand_what_waits_behind(seed: int) -> None:
    async def main() -> None:
        world = RaceRig(seed)
        async with world.start() as rig:
            first = await rig.submit("[[delay 1]][[status 500]]")
            behind = await rig.submit("and now?")
            world.inner.live = first
            turn = await asyncio.wait_for(rig.turns.wait(behind), 60)
            assert turn.state is TurnState.DONE

    run(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stop_while_a_resumed_turn_is_recalled_leaves_a_well_formed_log(seed: int) -> None:
    async def main() -> None:
        world = RaceRig(seed)
        await world.crash_in_a_call()
        world.inner.gate = asyncio.Event()
        async with world.start() as rig:
            (resumed,) = rig.live
            world.inner.live = resumed
            world.inner.gate.set()
            await settle_all(rig)
            assert resumed.turn.state is TurnState.CANCELLED
        await world.assert_well_formed(resumed.turn.session_id)

    run(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_turn_that_cannot_be_recalled_keeps_its_place_before_the_next(seed: int) -> None:
    async def main() -> None:
        world = RaceRig(seed)
        await world.crash_in_a_call()
        world.inner.sick = True
        async with world.start() as rig:
            (resumed,) = rig.live
            receipt = await rig.submit("and now?")
            await rig.turns.wait(receipt, 60)
        world.inner.sick = False
        async with world.start() as rig:
            await settle_all(rig)
        await world.assert_well_formed(resumed.turn.session_id)

    run(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_turn_that_had_begun_is_resumed_before_one_that_had_not(seed: int) -> None:
    """As when the first was accepted while the lane was busy, and the lane fell idle before it got there."""

    async def main() -> None:
        world = RaceRig(seed)
        async with world.start() as rig:
            session_id = (await rig.say("hello")).session_id
            order = Accept(new_turn_id(), inbound("first"), Fresh(new_session_id(), None))
            await world.store.accept(order)
            await rig.submit("[[call work {}]]")
            await until(lambda: world.tool.done)
        async with world.start() as rig:
            await settle_all(rig)
        await world.assert_well_formed(session_id)

    run(seed, main)


def test_nobody_waits_for_ever_for_a_message_that_was_accepted_during_a_drain() -> None:
    async def main(seed: int) -> None:
        world = RaceRig(seed)
        async with world.start() as rig:
            sending = [asyncio.create_task(rig.submit(f"message {number}")) for number in range(3)]
            await asyncio.sleep(0)
            await rig.turns.drain(0)
            for receipt in await asyncio.gather(*sending, return_exceptions=True):
                if isinstance(receipt, LiveTurn):
                    await asyncio.wait_for(rig.turns.wait(receipt), 60)

    for seed in range(100):
        run(seed, partial(main, seed))
