"""Messages to a model that is still being fetched: saved, told how long, answered later, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contracts.arrivals_suite import MODEL, PROVIDER, ArrivalsSuite, Coming
from support.rig import Rig, chat, start
from support.waiting import until
from talaria.core.clock import SystemClock
from talaria.core.events import Event, ModelLoading
from talaria.core.turns import TurnState
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.turns.live import LiveTurn
from turns.fake_arrivals import FakeArrivals

ANOTHER = "scripted/elsewhere"


class TestFakeArrivals(ArrivalsSuite):
    @pytest.fixture
    async def coming(self) -> Coming:
        arrivals = FakeArrivals(f"{PROVIDER}/{MODEL}")
        return Coming(arrivals, arrivals.arrive)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock())


async def until_waiting(arrivals: FakeArrivals, count: int = 1) -> None:
    await until(lambda: arrivals.waiting >= count, pause=0)


async def test_a_message_is_saved_told_of_and_answered_when_the_model_is_here(
    store: MemoryStore, tmp_path: Path
) -> None:
    arrivals = FakeArrivals("scripted/scripted")
    async with start(store, tmp_path, arrivals=arrivals) as rig:
        receipt = await rig.submit("hello")
        await until_waiting(arrivals)
        assert receipt.turn.state is TurnState.ACCEPTED
        arrivals.arrive()
        assert (await rig.turns.wait(receipt)).reply == "You said: hello"
        [told] = [event for event in await _events(rig, receipt) if isinstance(event, ModelLoading)]
        assert told.sentence() == ("Saved. I answer when the model is ready, about 31 s (128 of 491 MB).")


async def _events(rig: Rig, receipt: LiveTurn) -> list[Event]:
    return [event async for _, event in receipt.follow()]


async def test_dying_while_it_waits_is_no_attempt_however_often(store: MemoryStore, tmp_path: Path) -> None:
    for life in range(5):
        arrivals = FakeArrivals("scripted/scripted")
        async with start(store, tmp_path, arrivals=arrivals) as rig:
            if life == 0:
                turn_id = (await rig.submit("hello")).turn.id
            await until_waiting(arrivals)
    async with start(store, tmp_path) as rig:
        turn = await rig.turns.wait(await rig.turns.find(turn_id))
        assert (turn.state, turn.reply, turn.attempts) == (TurnState.DONE, "You said: hello", 1)


async def test_the_wait_is_not_counted_against_the_turns_time(store: MemoryStore, tmp_path: Path) -> None:
    clock, arrivals = FakeClock(), FakeArrivals("scripted/scripted")
    async with start(store, tmp_path, clock=clock, arrivals=arrivals, turn_seconds=60) as rig:
        watching = asyncio.create_task(rig.turns.watch())
        receipt = await rig.submit("hello")
        await until_waiting(arrivals)
        await clock.play(3600)
        assert not receipt.settled.done()
        arrivals.arrive()
        assert (await rig.turns.wait(receipt)).reply == "You said: hello"
        watching.cancel()


async def test_a_message_that_waits_can_be_cancelled_and_the_next_one_waits(
    store: MemoryStore, tmp_path: Path
) -> None:
    arrivals = FakeArrivals("scripted/scripted")
    async with start(store, tmp_path, arrivals=arrivals) as rig:
        first, second = await rig.submit("first"), await rig.submit("second")
        await until_waiting(arrivals)
        assert (await rig.turns.cancel(first)).state is TurnState.CANCELLED
        await until_waiting(arrivals)
        arrivals.arrive()
        assert (await rig.turns.wait(second)).reply == "You said: second"
        assert len(rig.model.bodies) == 1


async def test_stop_reaches_a_message_that_waits(store: MemoryStore, tmp_path: Path) -> None:
    arrivals = FakeArrivals("scripted/scripted")
    async with start(store, tmp_path, arrivals=arrivals) as rig:
        receipt = await rig.submit("hello")
        await until_waiting(arrivals)
        await rig.say("/stop")
        assert (await rig.turns.wait(receipt)).state is TurnState.CANCELLED


async def test_who_talks_to_another_model_does_not_wait(store: MemoryStore, tmp_path: Path) -> None:
    async with start(store, tmp_path, arrivals=FakeArrivals(ANOTHER)) as rig:
        assert (await rig.say("hello")).reply == "You said: hello"
        assert (await rig.say("again")).reply == "You said: again"


async def test_the_wait_is_for_the_model_that_the_session_is_pinned_to(
    store: MemoryStore, tmp_path: Path
) -> None:
    async with start(store, tmp_path) as rig:
        await rig.say("hello", model="fast")
    arrivals = FakeArrivals("scripted/fast")
    async with start(store, tmp_path, arrivals=arrivals) as rig:
        waiting = await rig.submit("and now?")
        await until_waiting(arrivals)
        assert (await rig.say("hello", "another")).reply == "You said: hello"
        arrivals.arrive()
        assert (await rig.turns.wait(waiting)).reply == "You said: and now?"


async def test_a_gateway_that_ends_does_not_wait_for_the_model(store: MemoryStore, tmp_path: Path) -> None:
    clock, arrivals = FakeClock(), FakeArrivals("scripted/scripted")
    async with start(store, tmp_path, clock=clock, arrivals=arrivals) as rig:
        await rig.submit("hello")
        await until_waiting(arrivals)
        assert await rig.turns.drain(3600) == 0, "it ended by itself, before the deadline"
    session = await store.current_session(chat())
    assert session is not None
    record = await store.stats()
    assert record is not None
