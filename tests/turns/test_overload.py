"""Too much to do: new turns are refused while the loop lags, and the queue of a chat is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.rig import Rig, start
from support.scripted_model import ScriptedModel
from support.waiting import until
from talaria.core.errors import LimitReached, Overloaded
from talaria.core.limits import Limits, LimitSettings
from talaria.core.messages import Text, UserMessage
from talaria.core.turns import Sender, TurnState
from talaria.observe.loop_watch import Load
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.turns.intake import StatelessCall
from talaria.turns.lifecycle import Retention
from talaria.turns.settings import Busy, RetentionSettings


def narrow(queue: int) -> Load:
    return Load(Limits(LimitSettings(chat_queue=queue)))


async def until_busy(rig: Rig) -> None:
    await until(lambda: rig.model.busy, pause=0)


async def test_a_lagging_loop_refuses_new_turns_and_lets_commands_pass(tmp_path: Path) -> None:
    clock = FakeClock()
    load = Load(elapsed=clock.elapsed)
    async with start(MemoryStore(clock), tmp_path, clock=clock, load=load) as rig:
        running = await rig.submit("[[hang]]")
        await until_busy(rig)
        load.note(3)
        with pytest.raises(Overloaded, match="takes no new messages for a moment") as refused:
            await rig.submit("hello", "other")
        with pytest.raises(Overloaded):
            await rig.turns.call(StatelessCall(Sender("tester"), (UserMessage((Text("hi"),)),)))
        assert (await rig.say("/stop")).state is TurnState.DONE
        assert (await rig.turns.wait(running)).state is TurnState.CANCELLED
        clock.advance(refused.value.retry_after)
        assert (await rig.say("hello", "other")).reply == "You said: hello"


async def test_messages_that_wait_in_a_chat_are_bounded(tmp_path: Path) -> None:
    clock = FakeClock()
    load = narrow(2)
    async with start(MemoryStore(clock), tmp_path, clock=clock, load=load) as rig:
        await rig.submit("[[hang]]")
        await until_busy(rig)
        waiting = [await rig.submit(f"number {n}", key=f"key-{n}") for n in range(2)]
        assert load.limits.readings()["chat_queue"].used == 2
        with pytest.raises(
            LimitReached, match=r"2 messages of this chat wait already.*limits\.chat_queue = 2"
        ):
            await rig.submit("one too many")
        assert (await rig.submit("number 1", key="key-1")).turn.id == waiting[1].turn.id
        assert (await rig.say("hello", "other")).reply == "You said: hello"
        await rig.say("/stop")
        assert [(await rig.turns.wait(one)).reply for one in waiting] == [
            "You said: number 0",
            "You said: number 1",
        ]
        assert (await rig.say("and again")).state is TurnState.DONE


async def test_messages_that_are_sent_at_once_are_bounded_too(tmp_path: Path) -> None:
    clock = FakeClock()
    async with start(MemoryStore(clock), tmp_path, clock=clock, load=narrow(3)) as rig:
        sent = await asyncio.gather(*(rig.submit(f"[[hang]] {n}") for n in range(10)), return_exceptions=True)
        assert [isinstance(one, LimitReached) for one in sent] == [False] * 4 + [True] * 6


async def test_messages_that_join_a_turn_are_bounded_too(tmp_path: Path) -> None:
    clock = FakeClock()
    async with start(MemoryStore(clock), tmp_path, clock=clock, load=narrow(2), busy=Busy.STEER) as rig:
        await rig.submit("[[hang]]")
        await until_busy(rig)
        joined = [await rig.submit(f"number {n}") for n in range(2)]
        assert all(one.turn.merged_into for one in joined)
        with pytest.raises(LimitReached):
            await rig.submit("one too many")


async def test_a_restored_queue_is_never_dropped(tmp_path: Path) -> None:
    clock = FakeClock()
    store, model = MemoryStore(clock), ScriptedModel(clock)
    async with start(store, tmp_path, clock=clock, model=model) as rig:
        await rig.submit("[[first 1 hang]]")
        await until_busy(rig)
        ids = [(await rig.submit(f"number {n}")).turn.id for n in range(5)]
    async with start(store, tmp_path, clock=clock, model=model, load=narrow(1)) as rig:
        for turn_id in ids:
            assert (await rig.turns.wait(await rig.turns.find(turn_id))).state is TurnState.DONE


async def test_old_data_is_not_deleted_while_the_loop_lags(tmp_path: Path) -> None:
    clock = FakeClock()
    load = Load(elapsed=clock.elapsed)
    store = MemoryStore(clock)

    async def drop(before: float) -> int:
        return 0

    load.note(0.6)
    retention = Retention(store, clock, RetentionSettings(), drop, load=load)
    sweep = asyncio.create_task(retention.sweep())
    await clock.until_sleepers(1)
    assert not sweep.done()
    await clock.play(3)
    await sweep
