"""docs/lifecycle.md: its diagrams are those of the tables, and the pool moves as its table says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from incidents.nodes import ROOT, exists, node_ids
from rig import LIMITS, chat
from talaria.agent.warm import AgentBuilder, WarmAgent
from talaria.core.clock import SystemClock
from talaria.core.entries import SpecSet
from talaria.core.errors import StoreError
from talaria.core.ids import ChatKey, OwnerId, SessionId, SpecId, new_session_id, new_turn_id
from talaria.core.ledger import Accept, Commit, Fresh
from talaria.core.messages import AssistantMessage, Text, UserMessage
from talaria.core.ports import Store
from talaria.core.specs import AgentSpec, PinnedSpec, Prefix, pin
from talaria.core.turns import Inbound, Sender, TurnState
from talaria.pool.policy import AgentState
from talaria.pool.pool import Pool, Wanted
from talaria.store.memory import MemoryStore
from talaria.testing.clock import FakeClock
from talaria.testing.diagrams import AGENT_MOVES, diagrams, draw, places, redraw
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.testing.scripted_model import ScriptedModels

DOCUMENT = ROOT / "docs" / "lifecycle.md"
AGAIN = "draw them again: .venv/bin/python -m talaria.testing.diagrams docs/lifecycle.md"


def test_the_document_has_exactly_the_diagrams_of_the_tables() -> None:
    text = DOCUMENT.read_text()
    assert sorted(places(text)) == sorted(diagrams())
    assert text.count("```mermaid") == len(diagrams()), "a diagram that nobody draws"
    assert redraw(text) == text, AGAIN


def test_the_tests_that_it_names_exist() -> None:
    named = node_ids(DOCUMENT.read_text())
    assert named
    assert [test for test in named if not exists(test)] == []


def test_a_changed_table_changes_its_diagram() -> None:
    words: dict[tuple[TurnState | None, TurnState | None], str] = {
        (None, TurnState.ACCEPTED): "comes",
        (TurnState.ACCEPTED, TurnState.DONE): "goes",
    }
    drawn = draw(TurnState.ACCEPTED, {TurnState.ACCEPTED: {TurnState.DONE}, TurnState.DONE: ()}, words)
    assert drawn.splitlines() == [
        "stateDiagram-v2",
        "    [*] --> accepted: comes",
        "    accepted --> done: goes",
        "    done --> [*]",
    ]
    with pytest.raises(KeyError):
        draw(TurnState.ACCEPTED, {TurnState.ACCEPTED: {TurnState.FAILED}, TurnState.FAILED: ()}, words)
    text = "<!-- diagram: step -->\nold\n<!-- end of diagram -->"
    assert redraw(text) != text
    assert redraw(redraw(text)) == redraw(text)


# -- the pool, watched


def spec(model: str) -> PinnedSpec:
    return pin(AgentSpec("main", "scripted", model, "openai-chat", "p", (), "", ""), Prefix(b"{}", b""))


class WatchedBuilder(AgentBuilder):
    """Looks at the pool while it builds and catches up: the two things that take time there."""

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
    told = {(old, new) for old, targets in AGENT_MOVES.items() for new in targets}
    assert watched.moves == told | {(None, AgentState.BUILDING)}
    assert set(AGENT_MOVES) == set(AgentState)


def test_drawing_writes_the_document_anew(tmp_path: Path) -> None:
    from talaria.testing.diagrams import main

    copy = tmp_path / "copy.md"
    copy.write_text(DOCUMENT.read_text().replace("accepted --> running", "accepted --> nowhere"))
    main([str(copy)])
    assert copy.read_text() == DOCUMENT.read_text()
