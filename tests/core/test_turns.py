from __future__ import annotations

import itertools
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

import pytest

from talaria.core.errors import IllegalMove
from talaria.core.ids import ChatKey, TurnId
from talaria.core.messages import File, Image, Text
from talaria.core.turns import (
    STEP_MOVES,
    TURN_MOVES,
    Inbound,
    Sender,
    StepState,
    TurnState,
    check_step_move,
    check_turn_move,
)

TURN = TurnId("turn_1")
LEGAL_TURN_MOVES = {
    ("accepted", "running"),
    ("accepted", "done"),
    ("accepted", "failed"),
    ("accepted", "cancelled"),
    ("running", "running"),
    ("running", "waiting"),
    ("running", "done"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("waiting", "running"),
    ("waiting", "failed"),
    ("waiting", "cancelled"),
}
LEGAL_STEP_MOVES = {("pending", "started"), ("pending", "ended"), ("started", "ended")}

State = TypeVar("State", bound=StrEnum)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(TurnState, TurnState)))
def test_a_turn_moves_only_by_its_table(old: TurnState, new: TurnState) -> None:
    if (old, new) in LEGAL_TURN_MOVES:
        check_turn_move(TURN, old, new)
        return
    with pytest.raises(IllegalMove) as refusal:
        check_turn_move(TURN, old, new)
    assert (refusal.value.old, refusal.value.new) == (old, new)
    assert str(refusal.value) == f"turn turn_1 cannot go from {old} to {new}."


@pytest.mark.parametrize(("old", "new"), list(itertools.product(StepState, StepState)))
def test_a_step_moves_only_by_its_table(old: StepState, new: StepState) -> None:
    if (old, new) in LEGAL_STEP_MOVES:
        check_step_move(TURN, 3, old, new)
        return
    with pytest.raises(IllegalMove, match=f"step turn_1/3 cannot go from {old} to {new}"):
        check_step_move(TURN, 3, old, new)


def reachable(start: State, moves: Mapping[State, frozenset[State]]) -> set[State]:
    seen: set[State] = set()
    pending = [start]
    while pending:
        state = pending.pop()
        if state not in seen:
            seen.add(state)
            pending += moves[state]
    return seen


def test_every_state_can_be_reached_and_has_a_way_to_its_end() -> None:
    assert reachable(TurnState.ACCEPTED, TURN_MOVES) == set(TurnState) == set(TURN_MOVES)
    assert reachable(StepState.PENDING, STEP_MOVES) == set(StepState) == set(STEP_MOVES)
    assert all(any(end.is_final for end in reachable(state, TURN_MOVES)) for state in TurnState)
    assert all(StepState.ENDED in reachable(state, STEP_MOVES) for state in StepState)


def test_only_settled_turns_are_final() -> None:
    assert {state for state in TurnState if state.is_final} == {"done", "failed", "cancelled"}


def test_the_states_are_those_of_the_http_contract() -> None:
    assert [state.value for state in TurnState] == [
        "accepted",
        "running",
        "waiting",
        "done",
        "failed",
        "cancelled",
    ]


def test_the_text_of_an_inbound_is_its_text_parts() -> None:
    parts = (Text("one"), Image("https://x/y.png"), Text("two"), File("a", "a", "text/plain", 1))
    assert Inbound(ChatKey("agent:a:b:c:d"), Sender("7"), parts).text == "one\ntwo"
    assert Inbound(ChatKey("agent:a:b:c:d"), Sender("7"), ()).text == ""
