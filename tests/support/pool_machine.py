"""Rules over the real pool for hypothesis: leases wait, are held, fail, or are cancelled at any await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.pool_world import ME, NEVER_STORED, OVERHEAD, SPECS, TICKS, GuardedAgent, PoolWorld, TurnFailed
from support.sim import SimClock, SimLoop
from support.slow_store import SlowStore
from talaria.core.entries import EntryBody, SpecSet
from talaria.core.errors import StoreError
from talaria.core.ids import SessionId
from talaria.core.ledger import Commit, Committed
from talaria.core.messages import AssistantMessage
from talaria.pool.policy import PoolLimits
from talaria.pool.pool import RELEASE_SECONDS
from talaria.store.in_memory import MemoryStore

T = TypeVar("T")
picks = st.integers(0, 3)
budgets = st.sampled_from([1 << 20, 2 * OVERHEAD + 700, OVERHEAD])
moments = st.sampled_from([0.0, 0.001, 0.003, 0.01, 0.05])
IDLE_TTL = 60.0


class Turn:
    """Someone who wants an agent: waiting for it, then having it until `end` is set or its task cancelled."""

    def __init__(
        self, loop: SimLoop, world: PoolWorld, session_id: SessionId, *, is_possible: bool = True
    ) -> None:
        self.session_id = session_id
        self.agent: GuardedAgent | None = None
        self.end: asyncio.Future[bool] = loop.create_future()
        self.task = loop.create_task(self._run(world, is_possible))

    async def _run(self, world: PoolWorld, is_possible: bool) -> None:
        wanted = await world.wanted(self.session_id)
        if not is_possible:
            wanted = msgspec.structs.replace(wanted, spec_id=NEVER_STORED)
        async with world.lease(wanted) as agent:
            self.agent = agent
            await world.check_agent(agent, wanted)
            if not await self.end:
                raise TurnFailed
            await world.check_agent(agent, wanted)

    @property
    def has_agent(self) -> bool:
        return self.agent is not None and not self.task.done()


class PoolMachine(RuleBasedStateMachine):
    """After each step: no released agent is leased, built = released + held, and within all limits when
    nothing is leased. Between steps the seeded loop stands still, wherever its tasks happen to be."""

    @initialize(seed=st.integers(0, 1 << 30), cap=st.integers(1, 3), budget=budgets)
    def open(self, seed: int, cap: int, budget: int) -> None:
        self.loop = SimLoop(seed, tick=TICKS[seed % 2])
        clock = SimClock(self.loop)
        inner = MemoryStore(clock)
        self.slow = SlowStore(inner, Random(seed))
        limits = PoolLimits(cap, IDLE_TTL, budget)
        self.world = PoolWorld(inner, self.slow, limits, clock, Random(seed + 1))
        self.turns: list[Turn] = []
        for _ in range(4):
            at_once(self.world.add_session())

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            for turn in self.turns:
                turn.task.cancel()
            self.pass_time(1)
            self.loop.run_until_complete(self.world.check_rest())
            assert not asyncio.all_tasks(self.loop)
            assert self.loop.complaints == []
        finally:
            self.loop.close()

    def pick(self, number: int, kind: Callable[[Turn], bool]) -> Turn | None:
        found = [turn for turn in self.turns if kind(turn)]
        return found[number % len(found)] if found else None

    def inside(self, act: Callable[[], T]) -> T:
        """Where there is a running loop, as the pool has it wherever it lives."""

        async def run() -> T:
            return act()

        return self.loop.run_until_complete(run())

    def append(self, session_id: SessionId, body: EntryBody) -> Committed:
        inner = self.world.inner
        fence = at_once(inner.hold(session_id, ME, 1e9))
        return at_once(inner.commit(Commit(session_id, fence, None, (body,), tuple(SPECS), release=True)))

    # -- leasing

    @rule(session=picks, seconds=moments)
    def lease(self, session: int, seconds: float) -> None:
        self.turns.append(Turn(self.loop, self.world, self.world.sessions[session]))
        self.pass_time(seconds)

    @rule(session=picks)
    def lease_the_impossible(self, session: int) -> None:
        self.turns.append(Turn(self.loop, self.world, self.world.sessions[session], is_possible=False))

    @rule(number=picks, is_good=st.booleans())
    def end(self, number: int, is_good: bool) -> None:
        turn = self.pick(number, lambda turn: turn.has_agent and not turn.end.done())
        if turn is not None:
            turn.end.set_result(is_good)

    @rule(number=picks, seconds=moments)
    def cancel(self, number: int, seconds: float) -> None:
        turn = self.pick(number, lambda turn: not turn.task.done())
        if turn is not None:
            turn.task.cancel()
        self.pass_time(seconds)

    @rule(number=picks, length=st.sampled_from([1, 300, 3000]))
    def speak(self, number: int, length: int) -> None:
        """The turn's own commit, absorbed by its agent if nobody else wrote meanwhile."""
        turn = self.pick(number, lambda turn: turn.has_agent)
        if turn is None or turn.agent is None:
            return
        committed = self.append(turn.session_id, AssistantMessage(text="x" * length))
        if committed.entries[0].seq == turn.agent.revision.seq + 1:
            turn.agent.absorb(committed.entries)

    @rule(seconds=moments)
    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        for turn in [turn for turn in self.turns if turn.task.done()]:
            self.turns.remove(turn)
            if not turn.task.cancelled() and (error := turn.task.exception()) is not None:
                assert isinstance(error, (TurnFailed, StoreError)), error

    # -- what others do

    @rule(session=picks)
    def write_from_outside(self, session: int) -> None:
        self.append(self.world.sessions[session], AssistantMessage(text="from elsewhere"))

    @rule(session=picks, number=st.integers(0, len(SPECS) - 1))
    def rewrite(self, session: int, number: int) -> None:
        self.append(self.world.sessions[session], SpecSet(SPECS[number].id))

    @rule(share=st.sampled_from([0.0, 0.0, 0.5]))
    def make_reads_fail(self, share: float) -> None:
        self.slow.failing = share

    @rule(secret=st.sampled_from(["one", "two"]))
    def change_credential(self, secret: str) -> None:
        self.world.models.secrets = [secret]

    @rule(session=picks)
    def release(self, session: int) -> None:
        self.inside(lambda: self.world.release(self.world.sessions[session]))

    @rule(seconds=st.sampled_from([0.0, IDLE_TTL / 2, IDLE_TTL * 2]))
    def sweep(self, seconds: float) -> None:
        self.pass_time(seconds)
        self.inside(self.world.pool.sweep)
        stats = self.world.pool.stats()
        assert all(agent.idle_seconds <= IDLE_TTL + 0.1 for agent in stats.agents)

    @rule()
    def release_all(self) -> None:
        """Nobody waits for what they still have to give back."""
        stats = self.inside(self.world.release_all)
        assert stats.size == stats.busy + stats.building

    @rule(seconds=moments)
    def drain(self, seconds: float) -> None:
        """Whoever drains waits for the closers, or is cancelled while it does."""
        draining = self.loop.create_task(self.world.drain())
        self.pass_time(seconds)
        draining.cancel()

    @rule()
    def outwait_the_closers(self) -> None:
        """One that hangs is dropped."""
        self.pass_time(RELEASE_SECONDS + 2)
        assert self.world.pool.stats().closing == 0

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")
