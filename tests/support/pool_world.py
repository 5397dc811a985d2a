"""A small world around the real pool, to be explored: guarded agents, a slow store, unruly actors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from support.rig import chat
from support.scripted_model import ScriptedModels
from support.sim import SimClock, SimLoop, run
from support.slow_store import SlowStore
from talaria.agent.warm import AgentBuilder, WarmAgent
from talaria.core.entries import EntryBody, Hidden, SpecSet, hidden_seqs
from talaria.core.errors import LeaseHeld, NoModel, StoreError
from talaria.core.ids import ChatKey, Fence, OwnerId, SessionId, SpecId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Commit, Fresh
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.core.specs import AgentSpec, PinnedSpec, Prefix, pin
from talaria.core.tasks import finish
from talaria.core.turns import Inbound, Sender
from talaria.observe.metrics import PoolCounters
from talaria.pool.policy import PoolLimits
from talaria.pool.pool import Pool, PoolStats, Wanted
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.fake_workspaces import FakeWorkspaces, ReleaseBehaviour
from talaria.workspace.workspaces import ChatWorkspaces

ME = OwnerId("own_me")
SPECS = [
    pin(AgentSpec("main", "scripted", model, "openai-chat", "p", (), "", ""), Prefix(b"{}", b""))
    for model in ("small", "large", "other")
]
NEVER_STORED = SpecId("spec_never_stored")
OVERHEAD = 2048
TICKS = (0.0, 0.01)  # the second is as long as most things take here, so that many happen at one moment


class TurnFailed(Exception):
    """What a turn raises in here."""


class GuardedAgent(WarmAgent):
    """A warm agent that knows who has it, and protests when it is released meanwhile: to `protests`, because
    the closer keeps what is raised in it to itself."""

    protests: list[str] = msgspec.field(default_factory=list)
    users: int = 0
    is_released: bool = False
    must_leave: bool = False

    def enter(self) -> None:
        assert not self.is_released, f"{self} was leased after its release"
        assert self.users == 0, f"{self} was leased twice"
        self.users += 1

    def leave(self) -> None:
        self.users -= 1

    def release(self) -> Coroutine[Any, Any, None] | None:
        if self.users:
            self.protests.append(f"{self} was released while it was leased")
        if self.is_released:
            self.protests.append(f"{self} was released twice")
        self.is_released = True
        return super().release()


class GuardedBuilder(AgentBuilder):
    """Builds guarded agents and remembers them all; one that is being caught up is in use."""

    def __init__(self, store: Store, models: ScriptedModels, workspaces: ChatWorkspaces) -> None:
        super().__init__(store, models, workspaces)
        self.agents: list[GuardedAgent] = []
        self.protests: list[str] = []

    async def build(
        self, session_id: SessionId, spec_id: SpecId, chat_key: ChatKey | None = None
    ) -> WarmAgent:
        built = msgspec.structs.asdict(await super().build(session_id, spec_id, chat_key))
        agent = GuardedAgent(**built, protests=self.protests)
        self.agents.append(agent)
        return agent

    async def catch_up(self, agent: WarmAgent) -> None:
        assert isinstance(agent, GuardedAgent)
        agent.enter()
        try:
            await super().catch_up(agent)
        finally:
            agent.leave()


class FickleModels(ScriptedModels):
    """Models whose provider can be taken out of the configuration."""

    is_gone = False

    def credential(self, provider: str) -> str:
        if self.is_gone:
            raise NoModel("The provider is not configured any more.")
        return super().credential(provider)


class PoolWorld:
    """Sessions in a store and a pool over it. `check` holds at any moment, `check_rest` when all is quiet.

    Agents that leave give their handles back as `random` draws it: at once, slowly, never, or with an error.
    """

    def __init__(
        self,
        store: MemoryStore,
        slow: Store,
        limits: PoolLimits,
        clock: SimClock,
        random: Random,
        kind: type[Pool] = Pool,
    ) -> None:
        self.inner = store
        self.store = slow
        self.limits = limits
        self.models = FickleModels()
        self.workspaces = FakeWorkspaces(
            lambda key: Path("/nowhere"), lambda: random.choice(tuple(ReleaseBehaviour)), slow_seconds=0.02
        )
        self.builder = GuardedBuilder(slow, self.models, self.workspaces)
        self.pool = kind(self.builder, limits, clock)
        self.sessions: list[SessionId] = []

    async def add_session(self) -> SessionId:
        order = Accept(
            turn_id=new_turn_id(),
            inbound=Inbound(chat(str(len(self.sessions))), Sender("x"), (Text("hi"),)),
            fresh=Fresh(new_session_id(), SPECS[0], (UserMessage((Text("hi"),)),)),
        )
        self.sessions.append((await self.inner.accept(order)).turn.session_id)
        return self.sessions[-1]

    async def wanted(self, session_id: SessionId) -> Wanted:
        session = await self.store.session(session_id)
        assert session is not None and session.spec_id is not None
        return Wanted(session_id, session.chat_key, session.spec_id, session.revision)

    @asynccontextmanager
    async def lease(self, wanted: Wanted) -> AsyncIterator[GuardedAgent]:
        """A lease of a guarded agent; one that was asked to leave meanwhile is gone when it ends."""
        had: GuardedAgent | None = None
        try:
            async with self.pool.lease(wanted) as agent:
                assert isinstance(agent, GuardedAgent)
                agent.enter()
                had = agent
                try:
                    yield agent
                finally:
                    agent.leave()
        finally:
            assert had is None or had.is_released or not had.must_leave, f"{had} outstayed its release"

    def release(self, session_id: SessionId) -> None:
        for agent in self.builder.agents:
            agent.must_leave |= agent.session_id == session_id
        self.pool.release(session_id)

    def release_all(self) -> PoolStats:
        for session_id in self.sessions:
            self.release(session_id)
        return self.pool.stats()

    async def drain(self) -> None:
        self.release_all()
        await self.pool.drain()

    async def append(
        self, session_id: SessionId, *bodies: EntryBody, specs: Sequence[PinnedSpec] = ()
    ) -> None:
        """From outside; the store refuses while a turn holds the session."""
        fence = await self.store.hold(session_id, ME, 1e9)
        await self.store.commit(Commit(session_id, fence, None, bodies, tuple(specs), release=True))

    async def change_spec(self, session_id: SessionId, number: int) -> None:
        await self.append(session_id, SpecSet(SPECS[number].id), specs=(SPECS[number],))

    async def say(self, agent: GuardedAgent, fence: Fence, text: str) -> None:
        """An own commit: done and absorbed, whatever happens to the caller."""

        async def carry_out() -> None:
            said = (AssistantMessage(text=text),)
            committed = await self.store.commit(Commit(agent.session_id, fence, None, said))
            agent.absorb(committed.entries)

        await finish(carry_out())

    async def check_agent(self, agent: GuardedAgent, wanted: Wanted) -> None:
        """What a turn gets is what it wanted, and its bytes are those of the log."""
        assert agent.pinned.id == wanted.spec_id
        assert agent.revision.seq >= wanted.revision.seq
        log = [
            entry for entry in await self.inner.log(agent.session_id, 0) if entry.seq <= agent.revision.seq
        ]
        hidden = hidden_seqs(log)
        seen = [entry.message for entry in log if entry.message is not None and entry.seq not in hidden]
        wire = self.models.wire("scripted")
        assert list(agent.transcript.chunks) == [wire.encode(message) for message in seen]

    def check(self) -> None:
        stats = self.pool.stats()
        counters = stats.counters
        held = stats.size - stats.building
        assert counters.builds + counters.rebuilds == counters.released + held, "built = released + held"
        assert sum(not agent.is_released for agent in self.builder.agents) == held
        assert len(self.workspaces.held) == held, "a handle for each that is held, and none besides"
        assert sum(agent.users for agent in self.builder.agents) <= stats.busy
        assert not self.builder.protests
        if not stats.busy and not stats.building:
            assert stats.size <= self.limits.max_agents
            assert stats.bytes <= self.limits.max_bytes

    async def check_rest(self) -> None:
        stats = self.pool.stats()
        assert (stats.busy, stats.building) == (0, 0), "a lease was left"
        self.check()
        await self.pool.drain()
        stats = self.pool.stats()
        assert (stats.size, stats.closing) == (0, 0)
        assert all(agent.is_released for agent in self.builder.agents)
        assert self.workspaces.ended == [], "nothing that leaves memory ends"


# -- exploring --------------------------------------------------------------------------------------------


class Explored(msgspec.Struct, frozen=True):
    """What a seed did, so that a replay can be compared and a run can tell what it covered."""

    steps: int
    counters: PoolCounters
    cancelled: int
    failed: int
    dropped: int


class Explorer:
    """Actors over one world: what they do is drawn by `random`, who runs next by the loop."""

    def __init__(self, world: PoolWorld, random: Random, *, is_fickle: bool) -> None:
        self._world = world
        self._random = random
        # Polite actors lease under the session's lease in the store, as turns do; the others press harder.
        # Nobody hides history from under a lease, so there is no undo among the impolite.
        self._is_polite = random.random() < 0.5
        self.cancelled = 0
        self.failed = 0
        self._acts: list[tuple[int, Callable[[SessionId], Coroutine[Any, Any, None]]]] = [
            (40, self._use),
            (25, self._use_cancelled),
            (12, self._append),
            (6, self._change_spec),
            (6 if self._is_polite else 0, self._undo),
            (6, self._release),
            (3, self._sweep),
            (2, self._drain),
            (3, self._rest),
            (3, self._change_credential),
            (3 if is_fickle else 0, self._lose_the_provider),
            (3, self._ask_for_the_impossible),
        ]

    async def act(self, times: int) -> None:
        weights = [weight for weight, _ in self._acts]
        for _ in range(times):
            _, act = self._random.choices(self._acts, weights)[0]
            try:
                await act(self._random.choice(self._world.sessions))
            except (TurnFailed, StoreError, NoModel, LeaseHeld):
                self.failed += 1
            self._world.check()

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.choice((0, 0, 0.001, 0.005, 0.02, 0.2)))

    async def _use(self, session_id: SessionId) -> None:
        """A turn: with the session's lease in the store, or without."""
        if not self._is_polite and self._random.random() < 0.8:
            await self._lease(session_id, None)
            return
        fences: list[Fence] = []

        async def hold() -> None:
            fences.append(await self._world.store.hold(session_id, ME, 1e9))

        try:
            await finish(hold())
            await self._lease(session_id, fences[0])
        finally:
            for fence in fences:
                await finish(self._give_back(session_id, fence))

    async def _give_back(self, session_id: SessionId, fence: Fence) -> None:
        await self._world.store.commit(Commit(session_id, fence, None, release=True))

    async def _lease(self, session_id: SessionId, fence: Fence | None) -> None:
        world = self._world
        wanted = await world.wanted(session_id)
        async with world.lease(wanted) as agent:
            await world.check_agent(agent, wanted)
            for _ in range(self._random.randrange(3)):
                await self._pause()
                if fence is not None:
                    await world.say(agent, fence, "so " * self._random.randrange(60))
                if self._random.random() < 0.1:
                    raise TurnFailed
            await world.check_agent(agent, wanted)

    async def _use_cancelled(self, session_id: SessionId) -> None:
        task = asyncio.create_task(self._use(session_id))
        await asyncio.sleep(self._random.uniform(0, 0.06))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            self.cancelled += 1

    async def _append(self, session_id: SessionId) -> None:
        await self._world.append(session_id, AssistantMessage(text="from elsewhere"))

    async def _change_spec(self, session_id: SessionId) -> None:
        await self._world.change_spec(session_id, self._random.randrange(len(SPECS)))

    async def _undo(self, session_id: SessionId) -> None:
        session = await self._world.store.session(session_id)
        assert session is not None
        first = self._random.randint(2, session.revision.seq)
        await self._world.append(session_id, Hidden(first, first + 1))

    async def _release(self, session_id: SessionId) -> None:
        self._world.release(session_id)

    async def _sweep(self, session_id: SessionId) -> None:
        self._world.pool.sweep()

    async def _drain(self, session_id: SessionId) -> None:
        await self._world.drain()

    async def _rest(self, session_id: SessionId) -> None:
        await asyncio.sleep(self._random.uniform(0, 2 * self._world.limits.idle_ttl))

    async def _change_credential(self, session_id: SessionId) -> None:
        self._world.models.secrets = [str(self._random.randrange(3))]

    async def _lose_the_provider(self, session_id: SessionId) -> None:
        self._world.models.is_gone = True
        await self._pause()
        self._world.models.is_gone = False

    async def _ask_for_the_impossible(self, session_id: SessionId) -> None:
        wanted = await self._world.wanted(session_id)
        async with self._world.pool.lease(msgspec.structs.replace(wanted, spec_id=NEVER_STORED)):
            raise AssertionError("there is no such spec")


def explore(seed: int, *, is_fickle: bool = False, kind: type[Pool] = Pool) -> Explored:
    """One small life of a pool under the interleaving of `seed`. Raises when something that must hold broke.

    `is_fickle`: providers vanish from the configuration and come back.
    """

    async def main() -> Explored:
        random, clock = Random(seed), SimClock()
        inner = MemoryStore(clock)
        slow = SlowStore(inner, random)
        slow.failing = random.choice((0.0, 0.0, 0.05))
        budget = random.choice((1 << 20, 2 * OVERHEAD + 700, OVERHEAD))
        world = PoolWorld(inner, slow, PoolLimits(random.randint(1, 3), 0.1, budget), clock, random, kind)
        for _ in range(random.randint(1, 4)):
            await world.add_session()
        explorer = Explorer(world, random, is_fickle=is_fickle)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(random.randint(2, 5)):
                tasks.create_task(explorer.act(random.randint(2, 6)))
        await world.check_rest()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        dropped = world.pool.stats().dropped
        return Explored(loop.steps, world.pool.counters, explorer.cancelled, explorer.failed, dropped)

    try:
        return run(seed, main, tick=TICKS[seed % 2])
    except Exception as error:
        again = f"explore({seed}, is_fickle={is_fickle})"
        error.add_note(f"seed {seed}: pool_world.{again} brings it back")
        raise
