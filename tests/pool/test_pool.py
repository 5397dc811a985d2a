"""The pool's leases: what is found, what is built, what leaves, and what never does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from support.rig import chat
from support.scripted_model import ScriptedModels
from talaria.agent.warm import AgentBuilder
from talaria.core.clock import SystemClock
from talaria.core.entries import Entry, EntryBody, Revision, SpecSet
from talaria.core.errors import NoModel, StoreError
from talaria.core.ids import OwnerId, SessionId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Commit, Fresh
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.core.specs import AgentSpec, PinnedSpec, Prefix, pin
from talaria.core.turns import Inbound, Sender
from talaria.pool.policy import AgentState, PoolLimits
from talaria.pool.pool import Pool, Wanted
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.testing.fake_workspaces import FakeWorkspaces

ME = OwnerId("own_me")


def spec(model: str = "m") -> PinnedSpec:
    return pin(AgentSpec("main", "scripted", model, "openai-chat", "p", (), "", ""), Prefix(b"{}", b""))


class Vanishing(ScriptedModels):
    """Models whose provider is gone when the test says so."""

    is_gone = False

    def credential(self, provider: str) -> str:
        if self.is_gone:
            raise NoModel(f"There is no provider named {provider}.")
        return super().credential(provider)


class HeldReads(MemoryStore):
    """The same rows as another store; its log is read when the test lets it."""

    def __init__(self, rows: MemoryStore) -> None:
        self.__dict__.update(rows.__dict__)
        self.is_read = asyncio.Event()
        self.may_go = asyncio.Event()

    async def shown_log(self, session_id: SessionId) -> Sequence[Entry]:
        self.is_read.set()
        await self.may_go.wait()
        return await super().shown_log(session_id)

    async def log(self, session_id: SessionId, after_seq: int) -> Sequence[Entry]:
        self.is_read.set()
        await self.may_go.wait()
        return await super().log(session_id, after_seq)


class Line:
    """A store with sessions, and a pool over it."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.clock = FakeClock()
        self.store = MemoryStore(SystemClock())
        self.models = ScriptedModels()
        self.workspaces = FakeWorkspaces(lambda key: Path("/nowhere"))
        self.pool = self.other_pool()

    def other_pool(self, store: Store | None = None, models: ScriptedModels | None = None) -> Pool:
        builder = AgentBuilder(store or self.store, models or self.models, self.workspaces)
        return Pool(builder, self.limits, self.clock)

    async def session(self, name: str) -> SessionId:
        order = Accept(
            turn_id=new_turn_id(),
            inbound=Inbound(chat(name), Sender("x"), (Text("hi"),)),
            fresh=Fresh(new_session_id(), spec(), (UserMessage((Text("hi"),)),)),
        )
        return (await self.store.accept(order)).turn.session_id

    async def append(
        self, session_id: SessionId, *bodies: EntryBody, specs: tuple[PinnedSpec, ...] = ()
    ) -> None:
        fence = await self.store.hold(session_id, ME, 30)
        await self.store.commit(Commit(session_id, fence, None, bodies, specs, release=True))

    async def wanted(self, session_id: SessionId) -> Wanted:
        session = await self.store.session(session_id)
        assert session is not None and session.spec_id is not None
        return Wanted(session_id, session.chat_key, session.spec_id, session.revision)

    async def touch(self, session_id: SessionId) -> None:
        async with self.pool.lease(await self.wanted(session_id)):
            self.clock.advance(1)

    def held(self) -> set[SessionId]:
        return {agent.session_id for agent in self.pool.stats().agents}

    def check(self) -> None:
        """Built is released plus held, always."""
        stats = self.pool.stats()
        counters = stats.counters
        assert counters.builds + counters.rebuilds == counters.released + stats.size - stats.building
        assert stats.bytes == sum(agent.bytes for agent in stats.agents)
        assert len(self.workspaces.held) == stats.size - stats.building, "a handle for each that is held"


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line(PoolLimits(max_agents=2, idle_ttl=100, max_bytes=1 << 20))
    yield line
    line.check()
    await line.pool.drain()
    assert line.pool.stats().size == 0
    assert line.clock.sleepers == 0


async def test_second_lease_reuses_the_agent_as_it_is(line: Line) -> None:
    session = await line.session("a")
    async with line.pool.lease(await line.wanted(session)) as first:
        pass
    async with line.pool.lease(await line.wanted(session)) as second:
        assert second is first
    assert line.pool.counters.hits == 1
    assert line.pool.counters.builds == 1


async def test_a_foreign_append_is_caught_up_without_a_rebuild(line: Line) -> None:
    session = await line.session("a")
    async with line.pool.lease(await line.wanted(session)) as first:
        before = list(first.transcript.chunks)
    held = line.pool.stats().bytes
    await line.append(session, AssistantMessage(text="from elsewhere"))
    async with line.pool.lease(await line.wanted(session)) as second:
        assert second is first
        assert line.pool.stats().bytes > held
        assert list(second.transcript.chunks)[:-1] == before
        assert b"from elsewhere" in second.transcript.chunks[-1]
    assert (line.pool.counters.catchups, line.pool.counters.rebuilds) == (1, 0)


async def test_another_stored_spec_rebuilds_over_the_whole_log(line: Line) -> None:
    session = await line.session("a")
    await line.touch(session)
    other = spec("another")
    await line.append(session, SpecSet(other.id), specs=(other,))
    async with line.pool.lease(await line.wanted(session)) as agent:
        assert agent.pinned == other
        assert agent.revision.epoch == 1
    assert (line.pool.counters.rebuilds, line.pool.counters.released) == (1, 1)


async def test_a_changed_credential_rebuilds_over_the_same_prefix(line: Line) -> None:
    session = await line.session("a")
    async with line.pool.lease(await line.wanted(session)) as first:
        prefix = first.pinned.prefix
    line.models.secrets.append("sk-new-key")
    async with line.pool.lease(await line.wanted(session)) as second:
        assert second is not first
        assert second.pinned.prefix == prefix
    assert line.pool.counters.rebuilds == 1


async def test_an_agent_ahead_of_the_store_is_rebuilt(line: Line) -> None:
    session = await line.session("a")
    async with line.pool.lease(await line.wanted(session)) as agent:
        agent.revision = Revision(0, 99)
    async with line.pool.lease(await line.wanted(session)) as agent:
        assert agent.revision.seq == 2


async def test_a_leased_agent_waits_for_its_turn_to_end(line: Line) -> None:
    session = await line.session("a")
    wanted = await line.wanted(session)
    order: list[str] = []

    async def use(name: str) -> None:
        async with line.pool.lease(wanted):
            order.append(f"{name} in")
            await asyncio.sleep(0)
            order.append(f"{name} out")

    await asyncio.gather(use("one"), use("two"), use("three"))
    assert [step.split()[1] for step in order] == ["in", "out"] * 3
    assert line.pool.counters.builds == 1


async def test_a_cancelled_waiter_leaves_nothing_behind(line: Line) -> None:
    session = await line.session("a")
    wanted = await line.wanted(session)
    async with line.pool.lease(wanted):
        waiter = asyncio.create_task(line.pool.lease(wanted).__aenter__())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with line.pool.lease(wanted):
        assert line.pool.stats().busy == 1


async def test_past_the_cap_the_least_recently_used_goes(line: Line) -> None:
    a, b, c = [await line.session(name) for name in "abc"]
    for session in (a, b, a, c):
        await line.touch(session)
    assert line.held() == {a, c}
    assert line.pool.counters.evicted_cap == 1


async def test_a_busy_agent_is_never_evicted_and_the_pool_settles_when_it_returns(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = [await line.session(name) for name in "abc"]
    with caplog.at_level(logging.WARNING, "talaria.pool"):
        async with (
            line.pool.lease(await line.wanted(a)) as agent,
            line.pool.lease(await line.wanted(b)),
            line.pool.lease(await line.wanted(c)),
        ):
            assert line.pool.stats().size == 3
            line.pool.sweep()
            line.clock.advance(1000)
            line.pool.sweep()
            assert line.held() == {a, b, c}
            assert agent.transcript.size > 0
    assert len(line.held()) == 2
    assert sum("over its cap" in record.message for record in caplog.records) == 1


async def test_idle_agents_go_after_the_limit_and_fresh_ones_stay(line: Line) -> None:
    a, b = [await line.session(name) for name in "ab"]
    await line.touch(a)
    line.clock.advance(90)
    await line.touch(b)
    line.clock.advance(20)
    assert line.pool.sweep() == 1
    assert line.held() == {b}


async def test_the_byte_budget_lets_the_oldest_idle_go() -> None:
    line = Line(PoolLimits(max_agents=10, idle_ttl=100, max_bytes=3 * 2048 + 1000))
    sessions = [await line.session(name) for name in "abc"]
    for session in sessions:
        await line.append(session, AssistantMessage(text="x" * 400))
        await line.touch(session)
    line.check()
    assert line.held() == set(sessions[1:])
    assert line.pool.counters.evicted_bytes == 1


async def test_a_release_asked_for_during_a_lease_happens_at_its_end(line: Line) -> None:
    session = await line.session("a")
    async with line.pool.lease(await line.wanted(session)) as agent:
        line.pool.release(session)
        assert line.held() == {session}
        assert agent.transcript.size > 0
    assert line.held() == set()
    assert agent.transcript.size == 0


async def test_an_evicted_session_gets_a_fresh_agent_with_the_same_bytes(line: Line) -> None:
    session = await line.session("a")
    async with line.pool.lease(await line.wanted(session)) as first:
        chunks = list(first.transcript.chunks)
    line.pool.release(session)
    async with line.pool.lease(await line.wanted(session)) as second:
        assert second is not first
        assert list(second.transcript.chunks) == chunks


async def test_a_failed_turn_keeps_its_agent(line: Line) -> None:
    session = await line.session("a")
    with pytest.raises(RuntimeError, match="the turn failed"):
        async with line.pool.lease(await line.wanted(session)):
            raise RuntimeError("the turn failed")
    assert line.pool.stats().agents[0].state is AgentState.IDLE


async def test_a_failed_build_leaves_nothing_and_those_who_wait_build_again(line: Line) -> None:
    session = await line.session("a")
    good = await line.wanted(session)
    bad = Wanted(good.session_id, good.chat_key, spec("never stored").id, good.revision)

    async def fails() -> None:
        with pytest.raises(StoreError):
            async with line.pool.lease(bad):
                pass

    async def works() -> None:
        async with line.pool.lease(good) as agent:
            assert agent.revision == good.revision

    await asyncio.gather(fails(), works(), fails())
    assert line.pool.stats().building == 0


async def test_160_sessions_over_a_cap_of_16_settle_at_16(tmp_path: Path) -> None:
    line = Line(PoolLimits(max_agents=16, idle_ttl=100, max_bytes=1 << 30))
    sessions = [await line.session(f"s{number}") for number in range(160)]
    await asyncio.gather(*(line.touch(session) for session in sessions))
    line.check()
    assert line.pool.stats().size == 16
    assert line.pool.stats().busy == 0


async def test_the_pool_describes_itself(line: Line) -> None:
    session = await line.session("a")
    assert line.pool.describe(session) == ""
    await line.touch(session)
    assert "warm at revision 0.2" in line.pool.describe(session)
    assert repr(line.pool).startswith("<Pool 1/2 agents, 0 busy")


async def test_steady_load_above_the_cap_warns_once_per_episode(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = [await line.session(name) for name in "abc"]

    def warnings() -> int:
        return sum("over its cap" in record.message for record in caplog.records)

    async def crowd() -> None:
        async with (
            line.pool.lease(await line.wanted(sessions[0])),
            line.pool.lease(await line.wanted(sessions[1])),
            line.pool.lease(await line.wanted(sessions[2])),
        ):
            line.clock.advance(1)

    with caplog.at_level(logging.WARNING, "talaria.pool"):
        for _ in range(20):
            await crowd()
        assert warnings() == 1
        line.clock.advance(3600)
        await crowd()
        assert warnings() == 2


async def test_a_lease_that_fails_before_it_knows_what_it_found_gives_the_agent_back(line: Line) -> None:
    session = await line.session("a")
    await line.touch(session)
    wanted = await line.wanted(session)
    models = Vanishing()
    await line.pool.drain()
    line.pool = line.other_pool(models=models)
    await line.touch(session)
    models.is_gone = True
    with pytest.raises(NoModel):
        async with line.pool.lease(wanted):
            pass
    assert line.pool.stats().busy == 0
    models.is_gone = False
    async with line.pool.lease(wanted):
        assert line.pool.counters.builds == 1


async def test_a_cancelled_build_or_catch_up_leaves_nothing_busy(line: Line) -> None:
    session = await line.session("a")
    store = HeldReads(line.store)
    line.pool = line.other_pool(store)

    async def cancel_one() -> None:
        taking = asyncio.create_task(line.touch(session))
        await store.is_read.wait()
        waiting = asyncio.create_task(line.touch(session))
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        store.may_go.set()
        await waiting
        assert line.pool.stats().busy == line.pool.stats().building == 0
        line.check()
        store.may_go.clear()
        store.is_read.clear()

    await cancel_one()
    assert line.pool.counters.builds == 1
    await line.append(session, AssistantMessage(text="from elsewhere"))
    await cancel_one()
    assert (line.pool.counters.catchups, line.pool.counters.rebuilds) == (1, 0)
    other = spec("another")
    await line.append(session, SpecSet(other.id), specs=(other,))
    await cancel_one()
    assert line.pool.counters.builds == 2, "the old agent had left; who waited built anew"


async def test_a_release_during_a_build_happens_at_the_end_of_its_lease(line: Line) -> None:
    session = await line.session("a")
    store = HeldReads(line.store)
    line.pool = line.other_pool(store)
    taking = asyncio.create_task(line.touch(session))
    await store.is_read.wait()
    assert line.pool.stats().building == 1
    assert line.pool.sweep() == 0
    line.pool.release(session)
    store.may_go.set()
    await taking
    assert line.held() == set()


async def test_a_session_evicted_in_its_turn_is_the_newest_again_afterwards(line: Line) -> None:
    """`last_used` is set when a lease ends as well: a long turn does not make its agent the oldest."""
    a, b, c = [await line.session(name) for name in "abc"]
    async with line.pool.lease(await line.wanted(a)):
        line.clock.advance(10)
        await line.touch(b)
        line.clock.advance(10)
    await line.touch(c)
    assert line.held() == {a, c}


async def test_the_byte_budget_sees_what_a_turn_added() -> None:
    line = Line(PoolLimits(max_agents=10, idle_ttl=100, max_bytes=3 * 2048))
    a, b = [await line.session(name) for name in "ab"]
    await line.touch(a)
    async with line.pool.lease(await line.wanted(b)) as agent:
        agent.transcript.append(AssistantMessage(text="x" * 5000))
        assert line.held() == {a, b}
    assert line.held() == set(), "the oldest first, and what alone is too large as well"


async def test_another_epoch_of_the_same_spec_rebuilds(line: Line) -> None:
    session = await line.session("a")
    await line.touch(session)
    await line.append(session, SpecSet(spec().id))
    async with line.pool.lease(await line.wanted(session)) as agent:
        assert agent.revision == (await line.wanted(session)).revision
    assert (line.pool.counters.rebuilds, line.pool.counters.catchups) == (1, 0)
