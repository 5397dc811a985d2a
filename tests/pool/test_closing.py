"""How agents leave: the pool changes at once, and what they still hold is given back beside everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from pool.test_pool import Line, spec
from talaria.core.entries import SpecSet
from talaria.core.ids import SessionId
from talaria.core.messages import AssistantMessage
from talaria.pool.policy import PoolLimits
from talaria.testing.fake_workspaces import ReleaseBehaviour

RELEASE_SECONDS = 5.0


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line(PoolLimits(max_agents=2, idle_ttl=100, max_bytes=1 << 20))
    yield line
    line.check()
    line.workspaces.behaviour = lambda: ReleaseBehaviour.AT_ONCE
    await asyncio.gather(line.pool.drain(), line.clock.play(RELEASE_SECONDS + 1))
    assert line.pool.stats().closing == 0
    assert not line.workspaces.held
    assert line.clock.sleepers == 0


async def by_cap(line: Line, session: SessionId) -> None:
    for name in "xy":
        await line.touch(await line.session(name))


async def by_idle(line: Line, session: SessionId) -> None:
    line.clock.advance(101)
    line.pool.sweep()


async def by_bytes(line: Line, session: SessionId) -> None:
    other = await line.session("x")
    async with line.pool.lease(await line.wanted(other)) as agent:
        agent.transcript.append(AssistantMessage(text="x" * (1 << 20)))


async def by_replacing(line: Line, session: SessionId) -> None:
    other = spec("another")
    await line.append(session, SpecSet(other.id), specs=(other,))
    await line.touch(session)


async def by_releasing(line: Line, session: SessionId) -> None:
    line.pool.release(session)


async def by_releasing_in_use(line: Line, session: SessionId) -> None:
    async with line.pool.lease(await line.wanted(session)):
        line.pool.release(session)


async def by_draining(line: Line, session: SessionId) -> None:
    draining = asyncio.create_task(line.pool.drain())
    await line.clock.settle()
    draining.cancel()


WAYS = [by_cap, by_idle, by_bytes, by_replacing, by_releasing, by_releasing_in_use, by_draining]


@pytest.mark.parametrize("behaviour", ReleaseBehaviour, ids=lambda behaviour: behaviour.value)
@pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
async def test_every_way_out_gives_the_handle_back_and_waits_for_nothing(
    line: Line, leave: Callable[[Line, SessionId], object], behaviour: ReleaseBehaviour
) -> None:
    session = await line.session("a")
    async with line.pool.lease(await line.wanted(session)) as agent:
        handle = agent.workspace
    line.workspaces.behaviour = lambda: behaviour
    leaving = leave(line, session)
    assert asyncio.iscoroutine(leaving)
    await leaving  # the clock stands still: whoever waited for a hanging one would never come back
    assert handle not in line.workspaces.held
    assert (agent.workspace, agent.transcript.size) == (None, 0)
    line.check()
    assert line.pool.counters.released >= 1
    await line.touch(session)
    assert line.workspaces.ended == []


async def test_one_that_hangs_is_named_and_dropped_after_its_deadline(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    session = await line.session("a")
    await line.touch(session)
    line.workspaces.behaviour = lambda: ReleaseBehaviour.HANGS
    line.pool.release(session)
    line.workspaces.behaviour = lambda: ReleaseBehaviour.AT_ONCE
    assert (line.pool.stats().closing, line.pool.stats().size) == (1, 0)
    await line.touch(session)
    assert line.pool.counters.builds == 2, "its session goes on meanwhile"
    await line.clock.play(RELEASE_SECONDS - 0.1)
    assert (line.pool.stats().closing, line.pool.stats().dropped) == (1, 0)
    await line.clock.play(0.2)
    assert (line.pool.stats().closing, line.pool.stats().dropped) == (0, 1)
    assert [record.getMessage() for record in caplog.records] == [
        f"closing the agent of {session} took over 5 s: dropped"
    ]


@pytest.mark.parametrize("behaviour", [ReleaseBehaviour.FAILS, ReleaseBehaviour.FAILS_AT_ONCE])
async def test_one_that_fails_is_named_and_counts_as_released(
    line: Line, caplog: pytest.LogCaptureFixture, behaviour: ReleaseBehaviour
) -> None:
    session = await line.session("a")
    await line.touch(session)
    line.workspaces.behaviour = lambda: behaviour
    await by_replacing(line, session)
    await line.clock.settle()
    assert [record.getMessage() for record in caplog.records] == [f"closing the agent of {session} failed"]
    assert (line.pool.counters.rebuilds, line.pool.counters.released, line.pool.stats().size) == (1, 1, 1)


async def test_draining_waits_for_closers_until_their_deadline(line: Line) -> None:
    for name in "ab":
        await line.touch(await line.session(name))
    ways = iter((ReleaseBehaviour.SLOW, ReleaseBehaviour.HANGS))
    line.workspaces.behaviour = lambda: next(ways)
    draining = asyncio.create_task(line.pool.drain())
    await line.clock.play(RELEASE_SECONDS - 0.1)
    assert not draining.done()
    assert (line.pool.stats().size, line.pool.stats().closing) == (0, 1)
    await line.clock.play(0.2)
    assert draining.done()
    assert line.pool.stats().dropped == 1


async def test_agents_with_nothing_to_wait_for_leave_without_a_task(line: Line) -> None:
    before = asyncio.all_tasks()
    for name in "abcd":
        await line.touch(await line.session(name))
    line.pool.release(next(iter(line.held())))
    assert line.pool.counters.released == 3
    assert asyncio.all_tasks() == before
