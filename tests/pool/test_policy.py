"""The eviction plan as a truth table, and its rules over random pools."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from talaria.core.ids import SessionId
from talaria.pool.policy import AgentState, AgentView, Cause, PoolLimits, plan_eviction

NOW = 1000.0
LIMITS = PoolLimits(max_agents=2, idle_ttl=100, max_bytes=100)


def agent(name: str, state: str = "idle", used: float = 990, size: int = 10) -> AgentView:
    return AgentView(SessionId(name), used, size, AgentState(state))


TABLE: list[tuple[str, list[AgentView], list[tuple[str, Cause]], int]] = [
    ("nothing held, nothing goes", [], [], 0),
    ("within all limits", [agent("a"), agent("b")], [], 0),
    ("past the cap the least recently used goes", [agent("a", used=980), agent("b", used=970), agent("c")],
     [("b", Cause.CAP)], 0),
    ("a busy oldest is skipped and nobody newer pays",
     [agent("a", "busy", 970), agent("b", used=980), agent("c")],
     [], 1),
    ("of the excess only idle ones go",
     [agent("a", "busy", 960), agent("b", used=970), agent("c", used=980), agent("d")],
     [("b", Cause.CAP)], 1),
    ("all busy: over the cap", [agent("a", "busy"), agent("b", "busy"), agent("c", "busy")], [], 1),
    ("one being built is no obstacle",
     [agent("a", "building", 0, 0), agent("b", used=980), agent("c")], [], 0),
    ("idle for too long", [agent("a", used=899), agent("b")], [("a", Cause.IDLE)], 0),
    ("exactly at the limit stays", [agent("a", used=900), agent("b")], [], 0),
    ("busy for longer than the idle limit stays", [agent("a", "busy", 1), agent("b")], [], 0),
    ("over the bytes: oldest idle first", [agent("a", used=980, size=60), agent("b", size=60)],
     [("a", Cause.BYTES)], 0),
    ("bytes of a busy one count, and idle ones pay", [agent("a", "busy", 970, 90), agent("b", size=20)],
     [("b", Cause.BYTES)], 0),
    ("a busy giant alone stays", [agent("a", "busy", size=500)], [], 0),
    ("each goes once, by the first rule that takes it",
     [agent("a", used=1, size=90), agent("b", used=980, size=10), agent("c", size=90)],
     [("a", Cause.IDLE)], 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("views", "leaving", "over"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_plan(views: list[AgentView], leaving: list[tuple[str, Cause]], over: int) -> None:
    plan = plan_eviction(views, LIMITS, NOW)
    assert [(str(eviction.session_id), eviction.cause) for eviction in plan.evictions] == leaving
    assert plan.over_cap == over


_VIEWS = st.lists(
    st.builds(
        AgentView,
        st.uuids().map(lambda value: SessionId(str(value))),
        st.floats(0, 1000),
        st.integers(0, 80),
        st.sampled_from(AgentState),
    ),
    max_size=12,
    unique_by=lambda view: view.session_id,
)


@given(_VIEWS)
def test_only_idle_agents_leave_and_the_limits_hold_when_nothing_is_leased(views: list[AgentView]) -> None:
    plan = plan_eviction(views, LIMITS, NOW)
    leaving = [eviction.session_id for eviction in plan.evictions]
    assert len(set(leaving)) == len(leaving)
    state = {view.session_id: view.state for view in views}
    assert all(state[session_id] is AgentState.IDLE for session_id in leaving)
    rest = [
        view for view in views if view.session_id not in leaving and view.state is not AgentState.BUILDING
    ]
    if all(view.state is AgentState.IDLE for view in rest):
        assert len(rest) <= LIMITS.max_agents
        assert sum(view.size for view in rest) <= LIMITS.max_bytes
        assert plan.over_cap == 0
