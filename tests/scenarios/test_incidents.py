"""The ancestor's incidents, one by one, where no other test tells them. docs/incidents.md lists them all.

Real turns over a memory store and the scripted model; what is asserted is what an operator sees: replies,
request bodies, `pool.stats()`, the log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.faulty_store import FaultyStore
from support.rig import LIMITS, Rig, start
from support.scripted_model import ScriptedModels
from support.waiting import until
from talaria.agent.context import TurnContext
from talaria.agent.settings import AgentSettings
from talaria.agent.spec_resolver import SpecResolver
from talaria.agent.warm import AgentBuilder, WarmAgent
from talaria.core.clock import SystemClock
from talaria.core.events import Done, Event
from talaria.core.ids import ChatAddress, ChatKey, OwnerId, SessionId
from talaria.core.ledger import Commit, TurnEnd
from talaria.core.messages import AssistantMessage, Text
from talaria.core.specs import PinnedSpec
from talaria.core.turns import TURN_MOVES, Inbound, Sender, TurnState
from talaria.models.catalog import Catalog
from talaria.models.settings import ModelSettings
from talaria.observe.metrics import Metrics
from talaria.parts import builtin_tools
from talaria.pool.policy import AgentState, AgentView, PoolLimits
from talaria.pool.pool import Pool, Wanted
from talaria.store.in_memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.tools.execution import ToolRunner
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import Family, ToolSet
from talaria.turns.live import LiveTurn
from talaria.workspace.workspaces import ChatWorkspaces
from tools.conftest import tool

ELSEWHERE = OwnerId("own_elsewhere")


@dataclasses.dataclass(frozen=True)
class IncidentRig:
    """A gateway whose clock and store the test holds in its hands."""

    rig: Rig
    clock: FakeClock
    store: FaultyStore

    async def session(self, name: str) -> SessionId:
        """A session with one exchange, warm and idle; a second of its own has passed since."""
        session_id = (await self.rig.say("hello", name)).session_id
        self.clock.advance(1)
        return session_id

    async def wanted(self, session_id: SessionId) -> Wanted:
        session = await self.store.session(session_id)
        assert session is not None and session.spec_id is not None
        return Wanted(session_id, session.chat_key, session.spec_id, session.revision)

    async def write_from_elsewhere(self, session_id: SessionId, text: str) -> None:
        fence = await self.store.hold(session_id, ELSEWHERE, 30)
        await self.store.commit(Commit(session_id, fence, None, (AssistantMessage(text=text),), release=True))

    def held(self) -> set[SessionId]:
        return {agent.session_id for agent in self.rig.pool.stats().agents}

    def states(self) -> dict[SessionId, AgentState]:
        return {agent.session_id: agent.state for agent in self.rig.pool.stats().agents}

    async def until_asked(self, calls: int) -> None:
        await until(lambda: len(self.rig.model.bodies) >= calls, pause=0)


@asynccontextmanager
async def world(
    folder: Path,
    cap: int = LIMITS.max_agents,
    idle_ttl: float = 100,
    tools: Callable[[ToolSet], ToolSet] = lambda tools: tools,
) -> AsyncIterator[IncidentRig]:
    """Ends with the books checked: what was built was released or is held."""
    clock, store = FakeClock(), FaultyStore()
    limits = PoolLimits(cap, idle_ttl, 1 << 20)
    async with start(store, folder, clock=clock, limits=limits, tools=tools) as rig:
        yield IncidentRig(rig, clock, store)
        stats = rig.pool.stats()
        counters = stats.counters
        assert counters.builds + counters.rebuilds == counters.released + stats.size


def tool_names(body: bytes) -> list[str]:
    return [each["function"]["name"] for each in json.loads(body)["tools"]]


def resolve(tools: ToolSet, model: str = "scripted", secrets: tuple[str, ...] = ()) -> PinnedSpec:
    """What a new session would be pinned to."""
    models = ScriptedModels()
    models.secrets.extend(secrets)
    catalog = Catalog(ModelSettings("scripted", model), {}, providers=("scripted",))
    return SpecResolver(AgentSettings(), catalog, models, lambda: tools).resolve(
        ChatKey("agent:main:http:api:x")
    )


# -- tool definitions: rows 1 to 6


def test_no_lookup_hands_out_anything_that_could_be_changed() -> None:
    family = Family("family", (tool("one"), tool("two")))
    runner = ToolRunner([family], ToolSettings(enabled=("family",)), Metrics())
    first, second = runner.tools, runner.tools
    assert first is second, "sharing is safe, so nothing is copied"
    for handed_out in (first, second):
        for name in ("tools", "specs", "names"):
            assert type(getattr(handed_out, name)) is tuple
            with pytest.raises(AttributeError):
                setattr(handed_out, name, ())
        with pytest.raises(AttributeError):
            handed_out.specs[0].name = "other"  # type: ignore[misc]
    assert runner.tools.names == ("one", "two")


async def test_five_builds_that_add_tools_never_send_a_name_twice(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    sent = []
    for life in range(5):
        plain = builtin_tools(ToolSettings(enabled=("files",)))
        assert "memory" not in plain
        grown = plain.with_tools([tool("memory"), tool("context")])

        def with_memory(_: ToolSet, grown: ToolSet = grown) -> ToolSet:
            return grown

        async with start(store, tmp_path, tools=with_memory) as rig:
            await rig.say("hello", f"chat {life}")
            await rig.pool.drain()
            await rig.say("again", f"chat {life}")
            sent += [tool_names(body) for body in rig.model.bodies]
    assert len(sent) == 10
    assert all(names == sent[0] and len(set(names)) == len(names) for names in sent)
    assert {"memory", "context", "read_file"} <= set(sent[0])


async def test_every_channel_is_served_from_the_same_tools(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for channel in ("console", "http", "test"):
            key = ChatAddress("main", channel, "dm", "one").key()
            inbound = Inbound(key, Sender("tester"), (Text("hello"),))
            await here.rig.turns.wait(await here.rig.turns.submit(inbound))
        sent = [msgspec.json.decode(body, type=dict[str, msgspec.Raw]) for body in here.rig.model.bodies]
        assert len({bytes(body["tools"]) for body in sent}) == 1
        assert len(sent) == 3


# -- spec: rows 7 to 12


def test_other_tools_are_another_spec_and_their_order_is_not() -> None:
    one, two = tool("one"), tool("two")
    assert resolve(ToolSet([one, two])) == resolve(ToolSet([two, one]))
    ids = {resolve(ToolSet(tools)).id for tools in ([one], [two], [one, two], [])}
    assert len(ids) == 4


def test_two_tokens_with_a_common_beginning_are_two_specs() -> None:
    tools = ToolSet()
    token = "eyJhbGciOi" + "x" * 100
    ids = {resolve(tools, secrets=(secret,)).id for secret in (token, token + "y", token[:-1] + "z")}
    assert len(ids) == 3
    assert resolve(tools, secrets=(token,)).id in ids


# -- reuse: rows 13 to 19


async def test_releasing_one_agent_leaves_the_others_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b, c = [await here.session(name) for name in "abc"]
        here.rig.pool.release(b)
        assert here.held() == {a, c}
        await here.session("a")
        await here.session("c")
        assert here.rig.pool.counters.builds == 3, "the others were reused"


async def test_a_new_session_never_meets_the_agent_of_the_old_one(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        old = await here.session("a")
        await here.rig.say("/new", "a")
        turn = await here.rig.say("[[history]]", "a")
        assert turn.session_id != old
        assert turn.reply == "2", "the system message and this one"
        assert here.rig.pool.counters.builds == 2


async def test_each_turn_speaks_to_its_own_followers_over_one_agent(tmp_path: Path) -> None:
    async with world(tmp_path) as here:

        async def told(text: str) -> list[Event]:
            receipt = await here.rig.submit(text)
            return [event async for _, event in receipt.follow()]

        first, second = await told("[[reply alpha]]"), await told("[[reply beta]]")
        assert (first[-1], second[-1]) == (Done("alpha"), Done("beta"))
        assert not any("alpha" in str(event) for event in second)
        assert here.rig.pool.counters.builds == 1
        (session_id,) = here.held()
        async with here.rig.pool.lease(await here.wanted(session_id)) as agent:
            for name in ("emit", "sink", "callback", "reasoning_config"):
                with pytest.raises(AttributeError):
                    setattr(agent, name, told)
    assert {"emit", "reasoning", "max_steps"} <= set(TurnContext.__struct_fields__)


# -- bounds: rows 20 to 26


async def test_both_the_start_and_the_end_of_a_lease_count_as_use(tmp_path: Path) -> None:
    async with world(tmp_path, cap=2) as here:
        a, b = await here.session("a"), await here.session("b")
        async with here.rig.pool.lease(await here.wanted(a)):
            here.clock.advance(1)
            await here.session("b")  # later than the start of the lease, earlier than its end
        c = await here.session("c")
        assert here.held() == {a, c}
        async with here.rig.pool.lease(await here.wanted(a)):  # the oldest now, by its start only
            d = await here.session("d")
            assert here.held() == {a, d}
        assert b not in here.held()


async def test_eviction_frees_the_bytes_and_ends_nothing(tmp_path: Path) -> None:
    async with world(tmp_path, cap=1) as here:
        a = await here.session("a")
        async with here.rig.pool.lease(await here.wanted(a)) as agent:
            assert agent.transcript.size > 0
        log = await here.store.log(a, 0)
        await here.session("b")
        assert here.rig.pool.counters.evicted_cap == 1
        assert agent.transcript.size == 0
        session = await here.store.session(a)
        assert session is not None and session.ended_at is None
        assert await here.store.log(a, 0) == log
        again = await here.rig.say("[[history]]", "a")
        assert (again.session_id, again.reply) == (a, "4")


async def test_every_agent_has_a_time_of_its_last_use(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        AgentView(session_id=SessionId("a"), size=1, state=AgentState.IDLE)  # type: ignore[call-arg]
    async with world(tmp_path) as here:
        await here.session("used by a turn")
        here.clock.advance(4)
        (agent,) = here.rig.pool.stats().agents
        assert agent.idle_seconds == 5
        here.clock.advance(96)
        assert here.rig.pool.sweep() == 1


async def test_no_half_built_pool_exists(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Pool()  # type: ignore[call-arg]
    builder = AgentBuilder(MemoryStore(SystemClock()), ScriptedModels(), ChatWorkspaces(tmp_path))
    fresh = Pool(builder, LIMITS, FakeClock())
    fresh.release(SessionId("nobody"))
    await fresh.drain()
    assert (fresh.sweep(), fresh.stats().size, fresh.describe(SessionId("nobody"))) == (0, 0, "")


# -- in the middle of a turn: rows 27 to 32


async def test_a_busy_oldest_is_passed_over_and_nobody_newer_pays(tmp_path: Path) -> None:
    async with world(tmp_path, cap=2) as here:
        oldest = await here.session("a")
        async with here.rig.pool.lease(await here.wanted(oldest)) as agent:
            newer, newest = await here.session("b"), await here.session("c")
            assert here.held() == {oldest, newer, newest}
            assert agent.transcript.size > 0
        assert here.held() == {newest, oldest}, "at the lease's end the pool settles, oldest first"


async def test_of_those_over_the_cap_only_idle_ones_go(tmp_path: Path) -> None:
    async with world(tmp_path, cap=4) as here:
        a, b, c, d = [await here.session(name) for name in "abcd"]
        async with AsyncExitStack() as leases:
            for busy in (a, c):
                await leases.enter_async_context(here.rig.pool.lease(await here.wanted(busy)))
            b_is_touched = await here.session("b")
            d_is_touched = await here.session("d")  # oldest first: a and c (busy), then b, then d
            assert (b_is_touched, d_is_touched) == (b, d)
            e = await here.session("e")
            assert here.held() == {a, b, c, d, e}, "the one over the cap is busy: nobody pays"
            f, g = await here.session("f"), await here.session("g")
            assert here.held() == {a, c, d, e, f, g}, "of the oldest three only b was idle"
        assert here.rig.pool.stats().size == 4


async def test_an_agent_under_construction_neither_blocks_eviction_nor_is_hit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, cap=1) as here:
        a, b = await here.session("a"), await here.session("b")
        here.store.held_log = a
        slow = asyncio.create_task(here.rig.say("[[history]]", "a"))
        await until(lambda: here.rig.pool.stats().building, pause=0)
        assert here.rig.pool.sweep() == 0, "nobody makes room for it before it is there"
        assert here.states() == {b: AgentState.IDLE, a: AgentState.BUILDING}
        c = await here.session("c")
        assert here.states() == {a: AgentState.BUILDING, c: AgentState.IDLE}, "b went all the same"
        here.clock.advance(1000)
        assert here.rig.pool.sweep() == 1, "c was idle for too long; what is being built is nobody's prey"
        assert here.states() == {a: AgentState.BUILDING}
        here.store.gate.set()
        assert (await slow).reply == "4"
    assert not caplog.records, "the pool was never over its cap"


async def test_the_idle_sweep_passes_over_a_busy_agent(tmp_path: Path) -> None:
    async with world(tmp_path, idle_ttl=100) as here:
        busy, idle = await here.session("a"), await here.session("b")
        async with here.rig.pool.lease(await here.wanted(busy)) as agent:
            here.clock.advance(1000)
            assert here.rig.pool.sweep() == 1
            assert here.held() == {busy}
            assert agent.transcript.size > 0
        assert idle not in here.held()
        assert here.rig.pool.sweep() == 0, "its time runs from the end of its lease"


class Evictor(Tool):
    """A tool that tries all that could take the agent away from the turn that calls it."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.clock: FakeClock | None = None
        self.spec = tool("evict").spec

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        assert self.pool is not None and self.clock is not None
        self.clock.advance(10_000)
        self.pool.sweep()
        self.pool.release(context.session_id)
        await self.pool.drain()
        return f"{self.pool.stats().busy} busy"


async def test_a_turn_goes_on_when_its_agent_is_to_be_evicted(tmp_path: Path) -> None:
    evictor = Evictor()
    async with world(tmp_path, tools=lambda tools: tools.with_tools([evictor])) as here:
        evictor.pool, evictor.clock = here.rig.pool, here.clock
        turn = await here.rig.say("[[call evict {}]][[history]]")
        assert (turn.state, turn.reply) == (TurnState.DONE, "4")
        assert here.held() == set(), "it left when its turn had ended"
        assert (await here.rig.say("[[history]]")).reply == "6"
    assert not {"client", "endpoint", "model"} & set(WarmAgent.__struct_fields__), "it has no client to lose"


# -- live: rows 33 to 36


async def test_one_more_than_the_cap_sends_the_oldest_away(tmp_path: Path) -> None:
    async with world(tmp_path, cap=4) as here:
        first, *others = [await here.session(f"chat {number}") for number in range(5)]
        assert here.held() == set(others)
        counters = here.rig.pool.counters
        assert (counters.evicted_cap, counters.released) == (1, 1)
        assert first not in here.held()


async def test_when_all_are_busy_a_newcomer_is_served_and_nobody_is_torn_down(tmp_path: Path) -> None:
    async with world(tmp_path, cap=2) as here:
        hanging: list[LiveTurn] = []
        for name in "abc":
            hanging.append(await here.rig.submit("[[hang]]", name))
            await here.until_asked(len(hanging))
        assert list(here.states().values()) == [AgentState.BUSY] * 3
        assert here.rig.pool.counters.released == 0
        turns = [await here.rig.turns.cancel(receipt) for receipt in hanging]
        assert [turn.state for turn in turns] == [TurnState.CANCELLED] * 3
        assert here.rig.pool.stats().size == 2
        for name in "abc":
            assert (await here.rig.say("and now?", name)).state is TurnState.DONE


# -- resume: rows 37 to 41


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_release_touches_neither_files_nor_tasks_nor_the_log(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        turn = await here.rig.say(
            '[[call write_file {"path":"notes.txt","content":"keep me"}]]'
            '[[call todo {"items":[{"text":"water the plants"}]}]]'
        )
        before, log = tree(tmp_path), await here.store.log(turn.session_id, 0)
        assert len(before) == 2
        here.rig.pool.release(turn.session_id)
        assert here.held() == set()
        assert tree(tmp_path) == before
        assert await here.store.log(turn.session_id, 0) == log


async def test_a_rebuilt_agent_reaches_the_same_files_and_tasks(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path) as rig:
        await rig.say(
            '[[call write_file {"path":"notes.txt","content":"keep me"}]]'
            '[[call todo {"items":[{"text":"water the plants"}]}]]'
        )
        await rig.pool.drain()
        await rig.say('[[call read_file {"path":"notes.txt"}]]+[[call todo {}]]')
        assert rig.pool.counters.builds == 2
        released = rig.model.bodies[-1]
    async with start(store, tmp_path) as rig:
        await rig.say('[[call read_file {"path":"notes.txt"}]]+[[call todo {}]]')
        restarted = rig.model.bodies[-1]
    for body in (released, restarted):
        *_, read, listed = [m["content"] for m in json.loads(body)["messages"] if m["role"] == "tool"]
        assert "keep me" in read
        assert "water the plants" in listed


async def test_release_leaves_the_model_client_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a = await here.session("a")
        hanging = await here.rig.submit("[[hang]]", "b")
        await here.until_asked(2)
        here.rig.pool.release(a)
        assert here.rig.model.busy == 1, "the call of the other session goes on"
        await here.rig.turns.cancel(hanging)
        assert (await here.rig.say("again", "a")).state is TurnState.DONE


async def test_release_and_end_are_two_things(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        released, ended = await here.session("a"), await here.session("b")
        here.rig.pool.release(released)
        fence = await here.store.hold(ended, ELSEWHERE, 30)
        await here.store.end_session(ended, fence)
        assert await here.session("a") == released
        assert await here.session("b") != ended
        row = await here.store.session(ended)
        assert row is not None and row.ended_at is not None
        assert len(await here.store.log(ended, 0)) > 0, "an ended session stays readable"


async def test_a_new_session_keeps_the_files_and_nothing_else(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.rig.say('[[call write_file {"path":"notes.txt","content":"keep me"}]]')
        await here.rig.say('[[call todo {"items":[{"text":"water the plants"}]}]]')
        await here.rig.say("/model fast")
        await here.rig.say("/reasoning high")
        await here.rig.say("/new")
        await here.rig.say('[[call read_file {"path":"notes.txt"}]]+[[call todo {}]]')
        body = json.loads(here.rig.model.bodies[-1])
        read, listed = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        assert "keep me" in read
        assert "empty" in listed
        assert body["model"] == "scripted"
        assert "reasoning_effort" not in body


async def test_an_ended_session_comes_back_whole(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.rig.say("/model fast")
        await here.rig.say("/reasoning high")
        turn = await here.rig.say('[[call todo {"items":[{"text":"water the plants"}]}]]')
        await here.store.end_session(turn.session_id, await here.store.hold(turn.session_id, ELSEWHERE, 30))
        here.rig.pool.release(turn.session_id)
        assert (await here.rig.say("[[history]]")).reply == "2", "another session"
        back = await here.rig.say(f"/resume {turn.session_id}")
        assert back.session_id == turn.session_id
        await here.rig.say("[[call todo {}]]")
        body = json.loads(here.rig.model.bodies[-1])
        assert "water the plants" in body["messages"][-1]["content"]
        assert (body["model"], body["reasoning_effort"]) == ("fast", "high")


# -- coherence: rows 42 to 48


async def test_own_writes_are_never_taken_for_foreign_ones(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for text in ("hello", "[[call list_files {}]]", "[[status 401]]", "/title Own", "and now?"):
            await here.rig.say(text)
        counters = here.rig.pool.counters
        assert (counters.builds, counters.rebuilds) == (1, 0)
        assert counters.hits + counters.catchups == 3
        assert counters.catchups <= 1, "only the title was written beside the agent"


async def test_a_foreign_write_to_one_session_is_no_news_for_another(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b = await here.session("a"), await here.session("b")
        await here.write_from_elsewhere(a, "from elsewhere")
        await here.session("b")
        counters = here.rig.pool.counters
        assert (counters.hits, counters.catchups, counters.rebuilds) == (1, 0, 0)
        await here.session("a")
        assert (counters.hits, counters.catchups, counters.rebuilds) == (1, 1, 0)
        assert here.held() == {a, b}


async def test_after_catching_up_the_agent_is_at_the_live_revision(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a = await here.session("a")
        await here.write_from_elsewhere(a, "from elsewhere")
        await here.session("a")
        assert b"from elsewhere" in here.rig.model.bodies[-1]
        (agent,) = here.rig.pool.stats().agents
        assert agent.revision == str((await here.wanted(a)).revision)
        await here.session("a")
        counters = here.rig.pool.counters
        assert (counters.hits, counters.catchups, counters.rebuilds) == (1, 1, 0)


async def test_an_entry_of_the_pool_has_one_shape_in_every_state(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        a, b, c = [await here.session(name) for name in "abc"]
        here.rig.pool.release(c)
        here.store.held_log = c
        slow = asyncio.create_task(here.rig.say("hello", "c"))
        await until(lambda: here.rig.pool.stats().building, pause=0)
        async with here.rig.pool.lease(await here.wanted(b)):
            assert here.states() == {a: AgentState.IDLE, c: AgentState.BUILDING, b: AgentState.BUSY}
            shapes = {tuple(msgspec.structs.asdict(agent)) for agent in here.rig.pool.stats().agents}
            assert len(shapes) == 1
        here.store.gate.set()
        await slow


@pytest.mark.parametrize("missing", ["session_id", "spec_id", "revision"])
async def test_nothing_is_leased_without_saying_what_is_wanted(tmp_path: Path, missing: str) -> None:
    async with world(tmp_path) as here:
        whole = msgspec.structs.asdict(await here.wanted(await here.session("a")))
        del whole[missing]
        with pytest.raises(TypeError, match=missing):
            Wanted(**whole)


# -- failure: rows 49 to 52


async def test_after_a_failed_call_the_next_turn_asks_the_primary_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.session("a")
        assert (await here.rig.say("[[status 503]]", "a")).state is TurnState.FAILED
        assert (await here.rig.say("and now?", "a")).state is TurnState.DONE
        assert [json.loads(body)["model"] for body in here.rig.model.bodies] == ["scripted"] * 3
        counters = here.rig.pool.counters
        assert (counters.builds, counters.rebuilds, counters.released) == (1, 0, 0)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("hello", TurnState.DONE),
        ("[[empty]]", TurnState.FAILED),
        ("[[status 401]]", TurnState.FAILED),
        ("[[cut 1]]", TurnState.FAILED),
        ("/status", TurnState.DONE),
    ],
)
async def test_a_turn_ends_in_exactly_one_outcome(tmp_path: Path, text: str, state: TurnState) -> None:
    async with world(tmp_path) as here:
        turn = await here.rig.say(text)
        assert turn.state is state
        assert (turn.error is not None) == (state is TurnState.FAILED)
        assert turn.reply


def test_an_end_without_an_outcome_cannot_be_written_down() -> None:
    with pytest.raises(TypeError):
        TurnEnd()  # type: ignore[call-arg]
    assert {state for state, moves in TURN_MOVES.items() if not moves} == {
        TurnState.DONE,
        TurnState.FAILED,
        TurnState.CANCELLED,
    }
