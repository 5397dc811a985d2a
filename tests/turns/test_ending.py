"""Every way in which a session ends goes through one hook, once: its agent leaves, its workspace is ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.rig import Rig, inbound, start
from support.sim import SimClock, run
from support.slow_store import SlowStore
from talaria.core.clock import SystemClock
from talaria.core.errors import LeaseHeld
from talaria.core.ids import OwnerId, SessionId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Fresh, TurnEnd
from talaria.core.turns import TurnState
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.turns.lifecycle import END_SECONDS, SessionLifecycle


class Expired:
    """A rule by which every session has expired, once the test says so."""

    def __init__(self) -> None:
        self.is_past = False

    def __call__(self, now: float) -> float:
        return now + 1 if self.is_past else 0.0


async def by_request(rig: Rig, session_id: SessionId) -> None:
    await rig.turns.end(session_id)


async def by_two_requests_at_once(rig: Rig, session_id: SessionId) -> None:
    done = await asyncio.gather(*(rig.turns.end(session_id) for _ in range(4)), return_exceptions=True)
    assert all(not isinstance(each, Exception) or isinstance(each, LeaseHeld) for each in done)


async def by_the_next_message(rig: Rig, session_id: SessionId) -> None:
    assert (await rig.say("a new day")).session_id != session_id


async def by_the_sweep(rig: Rig, session_id: SessionId) -> None:
    assert await rig.sessions.sweep() == 1


async def by_sweep_and_request_at_once(rig: Rig, session_id: SessionId) -> None:
    await asyncio.gather(
        by_the_sweep_or_not(rig), rig.turns.end(session_id), by_the_sweep_or_not(rig), return_exceptions=True
    )


async def by_the_sweep_or_not(rig: Rig) -> None:
    await rig.sessions.sweep()


WAYS = [
    by_request,
    by_two_requests_at_once,
    by_the_next_message,
    by_the_sweep,
    by_sweep_and_request_at_once,
]


@pytest.mark.parametrize("was_released", [False, True], ids=["warm", "released long before"])
@pytest.mark.parametrize("end", WAYS, ids=lambda way: way.__name__)
async def test_however_a_session_ends_its_workspace_is_ended_once(
    store: Store, tmp_path: Path, end: Callable[[Rig, SessionId], object], was_released: bool
) -> None:
    expired = Expired()
    async with start(store, tmp_path, cutoff=expired) as rig:
        session_id = (await rig.say("hello")).session_id
        if was_released:
            await rig.pool.drain()
        expired.is_past = True
        ending = end(rig, session_id)
        assert asyncio.iscoroutine(ending)
        await ending
        expired.is_past = False
        session = await store.session(session_id)
        assert session is not None and session.ended_at is not None
        assert session_id not in {agent.session_id for agent in rig.pool.stats().agents}
        await rig.turns.end(session_id)
    assert rig.workspaces.ended == [session_id]


async def test_a_session_that_was_resumed_ends_again(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        session_id = (await rig.say("hello")).session_id
        await rig.turns.end(session_id)
        assert (await rig.say(f"/resume {session_id}")).session_id == session_id
        await rig.turns.end(session_id)
    assert rig.workspaces.ended == [session_id, session_id]


async def test_neither_eviction_nor_shutdown_ends_anything(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.say("hello")
        await rig.say("/branch")
        await rig.say("hello again")
        await rig.pool.drain()
    assert rig.workspaces.ended == []


async def test_new_ends_the_sessions_that_the_chat_leaves(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        first = (await rig.say("hello")).session_id
        second = (await rig.say("/branch")).session_id
        third = (await rig.say("/new")).session_id
        await rig.sessions.drain()
        assert rig.workspaces.ended == [second, first]
        row = await store.session(first)
        assert row is not None and row.ended_at is not None
        await rig.say(f"/resume {first}")
        fourth = (await rig.say("/new")).session_id
        await rig.sessions.drain()
        assert rig.workspaces.ended == [second, first, first, third]
        assert fourth not in rig.workspaces.ended


async def test_new_waits_for_the_turn_of_the_session_that_it_ends(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        running = await rig.submit("[[hang]]")
        left = running.turn.session_id
        new = await rig.submit("/new")
        assert rig.workspaces.ended == []
        await rig.turns.cancel(running)
        assert (await rig.turns.wait(new)).state is TurnState.DONE
        await rig.sessions.drain()
        assert rig.workspaces.ended == [left]


async def test_a_session_is_not_ended_while_a_turn_of_it_runs_or_waits(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        running = await rig.submit("[[hang]]")
        session_id = running.turn.session_id
        with pytest.raises(LeaseHeld):
            await rig.turns.end(session_id)
        await rig.turns.cancel(running)
        waiting = Accept(new_turn_id(), inbound("and then?"), Fresh(new_session_id(), None))
        await store.accept(waiting)  # by a gateway that has not begun it
        with pytest.raises(LeaseHeld):
            await rig.turns.end(session_id)
        await store.settle(waiting.turn_id, TurnEnd(TurnState.CANCELLED))
        assert rig.workspaces.ended == []
        await rig.turns.end(session_id)
    assert rig.workspaces.ended == [session_id]


@pytest.mark.parametrize("is_swept", [True, False], ids=["the sweep", "a request"])
def test_whoever_is_cancelled_in_the_middle_of_an_end_has_told_of_it(is_swept: bool) -> None:
    """Ended in the store is told to the hook, at whatever moment a shutdown or a client that leaves comes."""
    told: list[SessionId] = []

    async def main() -> bool:
        clock = SimClock()
        inner = MemoryStore(clock)
        store = SlowStore(inner, Random(seed))
        async with start(store, Path("/nowhere"), clock=clock) as rig:
            session_id = (await rig.say("hello")).session_id
            told.clear()
            sessions = SessionLifecycle(
                store, clock, FakeWorkspaces(lambda key: Path()), told.append, lambda: clock.now() + 1
            )
            end: Coroutine[Any, Any, object] = sessions.sweep() if is_swept else sessions.end(session_id)
            ending = asyncio.create_task(end)
            await asyncio.sleep(Random(seed).choice((0, 0.003, 0.006, 0.01, 0.015)))
            ending.cancel()
            await asyncio.wait([ending])
            await sessions.drain()
            session = await inner.session(session_id)
            assert session is not None
            assert told == ([session_id] if session.ended_at is not None else [])
            assert await inner.hold(session_id, OwnerId("own_next"), 30), "its lease is free"
            return bool(told)

    outcomes = set()
    for seed in range(60):
        outcomes.add(run(seed, main))
    assert outcomes == {True, False}


class Stubborn(FakeWorkspaces):
    """The end of one session hangs, that of another fails."""

    async def end(self, session_id: SessionId) -> None:
        await super().end(session_id)
        if session_id == "ses_hangs":
            await asyncio.get_running_loop().create_future()
        raise OSError("no such process")


async def test_an_end_that_hangs_or_fails_is_for_the_log_and_for_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, released = FakeClock(), list[SessionId]()
    sessions = SessionLifecycle(MemoryStore(clock), clock, Stubborn(lambda key: Path()), released.append)
    sessions.ended(SessionId("ses_hangs"))
    sessions.ended(SessionId("ses_fails"))
    assert released == ["ses_hangs", "ses_fails"]
    await asyncio.gather(sessions.drain(), clock.play(END_SECONDS + 0.1))
    assert sorted(record.getMessage() for record in caplog.records) == [
        "closing the workspace of ses_fails failed",
        "closing the workspace of ses_hangs took over 10 s: dropped",
    ]
    assert clock.sleepers == 0


async def test_a_session_that_is_ended_twice_ends_its_workspace_once(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        session_id = (await rig.say("hello")).session_id
    workspaces = FakeWorkspaces(lambda key: tmp_path)
    lifecycle = SessionLifecycle(store, SystemClock(), workspaces, lambda session_id: None)
    for _ in range(2):
        assert (await lifecycle.end(session_id)).ended_at is not None
    await lifecycle.drain()
    assert workspaces.ended == [session_id]
