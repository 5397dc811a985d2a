"""docs/lifecycle.md: its diagrams show the transitions of the code, and the pool follows its diagram."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from incidents.nodes import ROOT, exists, node_ids
from support.rig import LIMITS, chat
from support.scripted_model import ScriptedModels
from talaria.agent.warm import AgentBuilder, WarmAgent
from talaria.core.clock import SystemClock
from talaria.core.delivery import OUTBOX_MOVES
from talaria.core.entries import SpecSet
from talaria.core.errors import StoreError
from talaria.core.ids import ChatKey, OwnerId, SessionId, SpecId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Commit, Fresh
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.core.specs import AgentSpec, PinnedSpec, Prefix, pin
from talaria.core.turns import STEP_MOVES, TURN_MOVES, Inbound, Sender
from talaria.models.limiter import BREAKER_MOVES
from talaria.pool.policy import AgentState
from talaria.pool.pool import Pool, Wanted
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.testing.fake_workspaces import FakeWorkspaces

DOCUMENT = ROOT / "docs" / "lifecycle.md"
NOWHERE = "[*]"  # where lives begin and end
TABLES: dict[str, Mapping[StrEnum, Collection[StrEnum]]] = {
    "turn": TURN_MOVES,  # type: ignore[dict-item]  # a mapping's keys could be any StrEnum's
    "step": STEP_MOVES,  # type: ignore[dict-item]
    "reply": OUTBOX_MOVES,  # type: ignore[dict-item]
    "breaker": BREAKER_MOVES,  # type: ignore[dict-item]
}


def diagrams() -> dict[str, set[tuple[str, str]]]:
    """Return the transitions of each diagram. All but those to the end must have a label."""
    found = {}
    for name, body in re.findall(
        r"<!-- diagram: (\w+) -->\n```mermaid\n(.*?)```", DOCUMENT.read_text(), re.S
    ):
        head, *lines = body.splitlines()
        moves = [re.fullmatch(r"    (\S+) --> (\S+?)(: .+)?", line) for line in lines]
        assert head == "stateDiagram-v2"
        assert all(move and (move[3] or move[2] == NOWHERE) for move in moves), body
        found[name] = {(move[1], move[2]) for move in moves if move}
        assert len(found[name]) == len(lines), "a move that is drawn twice"
    return found


def test_the_diagrams_show_the_moves_of_the_tables_and_no_others() -> None:
    drawn = diagrams()
    assert drawn.keys() == {*TABLES, "agent"}
    assert DOCUMENT.read_text().count("```mermaid") == len(drawn), "a diagram that nobody compares"
    for name, table in TABLES.items():
        moves = {(str(old), str(new)) for old, targets in table.items() for new in targets or (NOWHERE,)}
        begun = {move for move in drawn[name] if move[0] == NOWHERE}
        assert drawn[name] - begun == moves, name
        assert len(begun) == 1, name


def test_the_tests_that_it_names_exist() -> None:
    named = node_ids(DOCUMENT.read_text())
    assert named
    assert [test for test in named if not exists(test)] == []


# -- the pool, watched


def spec(model: str) -> PinnedSpec:
    return pin(AgentSpec("main", "scripted", model, "openai-chat", "p", (), "", ""), Prefix(b"{}", b""))


class WatchedBuilder(AgentBuilder):
    """Observes the pool while it builds and catches up, the two slow operations."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, ScriptedModels(), FakeWorkspaces(lambda key: Path()))
        self.pool = Pool(self, LIMITS, FakeClock())
        self.state: AgentState | None = None
        self.moves: set[tuple[AgentState | None, AgentState | None]] = set()

    def look(self) -> None:
        agents = self.pool.stats().agents
        state = agents[0].state if agents else None
        if state is not self.state:
            self.moves.add((self.state, state))
        self.state = state

    async def build(
        self, session_id: SessionId, spec_id: SpecId, chat_key: ChatKey | None = None
    ) -> WarmAgent:
        self.look()
        return await super().build(session_id, spec_id, chat_key)

    async def catch_up(self, agent: WarmAgent) -> None:
        self.look()
        await super().catch_up(agent)


async def test_a_pool_makes_the_moves_of_its_diagram_and_no_others() -> None:
    store = MemoryStore(SystemClock())
    watched = WatchedBuilder(store)
    fresh = Fresh(new_session_id(), spec("one"), (UserMessage((Text("hi"),)),))
    accepted = await store.accept(Accept(new_turn_id(), Inbound(chat(), Sender("x"), ()), fresh))
    session_id, other = accepted.turn.session_id, spec("two")

    async def lease(spec_id: SpecId | None = None, *, is_leaving: bool = False) -> None:
        session = await store.session(session_id)
        assert session is not None and session.spec_id is not None
        wanted = Wanted(session_id, chat(), spec_id or session.spec_id, session.revision)
        with suppress(StoreError):
            async with watched.pool.lease(wanted):
                watched.look()
                if is_leaving:
                    watched.pool.release(session_id)
                    watched.look()
        watched.look()

    async def append(body: AssistantMessage | SpecSet) -> None:
        fence = await store.hold(session_id, OwnerId("own_other"), 30)
        await store.commit(Commit(session_id, fence, None, (body,), (other,), release=True))

    await lease()
    await lease()
    await append(AssistantMessage(text="from elsewhere"))
    await lease()
    await append(SpecSet(other.id))
    await lease()
    watched.pool.release(session_id)
    watched.look()
    await lease(SpecId("spec_never_stored"))
    await lease(is_leaving=True)
    counters = watched.pool.counters
    assert (counters.builds, counters.hits, counters.catchups, counters.rebuilds) == (2, 1, 1, 1)
    assert {(str(old or NOWHERE), str(new or NOWHERE)) for old, new in watched.moves} == diagrams()["agent"]
