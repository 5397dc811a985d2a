"""The table of a live turn's states: every pair, and every sequence of what can happen to a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise, product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.rig import chat, inbound
from talaria.core.entries import Revision
from talaria.core.ids import Fence, QuestionId, SessionId, TurnId
from talaria.core.ledger import Began
from talaria.core.questions import Question, QuestionKind
from talaria.core.sessions import Session
from talaria.core.turns import Turn, TurnState
from talaria.testing.clock import FakeClock
from talaria.turns.live import LiveTurn
from talaria.turns.states import ENDING, INTERRUPTIONS, MOVES, IllegalTransition, LiveState, check_move

# Rows: from; columns: to, in the order of `LiveState`.
TABLE = """
          QUEUED STARTING RUNNING PARKED STOPPING OVERDUE LOST SETTLED LET_GO
QUEUED      -       x        -      -       x        -      -     x       x
STARTING    -       -        x      x       x        -      -     x       x
RUNNING     -       x        -      x       x        x      x     x       x
PARKED      -       x        -      -       x        -      -     -       x
STOPPING    -       -        -      -       -        -      -     x       x
OVERDUE     -       -        -      -       -        -      -     x       x
LOST        -       x        -      -       x        -      -     x       x
SETTLED     -       -        -      -       -        -      -     -       -
LET_GO      -       -        -      -       -        -      -     -       -
"""


def _parse(table: str) -> dict[tuple[LiveState, LiveState], bool]:
    head, *rows = [line.split() for line in table.strip().splitlines()]
    return {
        (LiveState[row[0]], LiveState[name]): mark == "x"
        for row in rows
        for name, mark in zip(head, row[1:], strict=True)
    }


@pytest.mark.parametrize(("old", "new"), list(product(LiveState, LiveState)), ids=lambda state: state.name)
def test_every_pair(old: LiveState, new: LiveState) -> None:
    if _parse(TABLE)[old, new]:
        check_move(old, new)
    else:
        with pytest.raises(IllegalTransition, match=f"from {old.name} to {new.name}"):
            check_move(old, new)


def test_every_state_can_be_reached_and_left_for_good() -> None:
    reached = {LiveState.QUEUED}
    while more := {new for old in reached for new in MOVES[old]} - reached:
        reached |= more
    assert reached == set(LiveState)
    assert [state for state in LiveState if state.is_over] == [LiveState.SETTLED, LiveState.LET_GO]
    assert all(LiveState.LET_GO in MOVES[state] for state in LiveState if not state.is_over)


def test_an_order_to_end_a_turn_is_never_taken_back() -> None:
    assert all(MOVES[state] == {LiveState.SETTLED, LiveState.LET_GO} for state in ENDING)
    assert ENDING < INTERRUPTIONS


# -- the table in use ----------------------------------------------------------------------------------


def make_turn(state: TurnState = TurnState.ACCEPTED) -> Turn:
    return Turn(TurnId("turn_1"), chat(), SessionId("ses_1"), state, inbound("hello"), 1_750_000_000.0)


def make_began() -> Began:
    session = Session(SessionId("ses_1"), chat(), 0.0, 0.0, Revision(0, 1))
    return Began(session, Fence(1), Revision(0, 0), None, 1)


def make_question(number: int, clock: FakeClock) -> Question:
    return Question(
        QuestionId(f"q_{number}"),
        TurnId("turn_1"),
        number,
        "call",
        QuestionKind.APPROVAL,
        "?",
        clock.now(),
        clock.now() + 60,
    )


class Model:
    """A live turn beside the plainest account of what it should be."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.live = LiveTurn(make_turn(), self.clock)
        self.questions = 0
        self.ran = 0.0
        self.path: list[LiveState] = [LiveState.QUEUED]

    def do(self, action: Callable[[LiveTurn], object]) -> None:
        """Do it; an illegal move must change nothing."""
        live = self.live
        before = (live.state, live.turn, live.begins, live.settled.done(), dict(live.questions))
        try:
            action(live)
        except IllegalTransition:
            after = (live.state, live.turn, live.begins, live.settled.done(), dict(live.questions))
            assert after == before
        if live.state is not self.path[-1]:
            self.path.append(live.state)

    def pass_time(self, seconds: float) -> None:
        if self.live.state is LiveState.RUNNING:
            self.ran += seconds
        self.clock.advance(seconds)

    def check(self) -> None:
        live = self.live
        assert live.settled.done() == live.state.is_over
        assert live.running_seconds() == pytest.approx(self.ran)
        assert (live.turn.state is TurnState.WAITING) >= (live.state is LiveState.PARKED)
        for old, new in pairwise(self.path):
            # A turn that is parked after its decision came goes on in the same breath.
            assert new in MOVES[old] or (new is LiveState.STARTING and old is not LiveState.QUEUED)


def _park(model: Model) -> None:
    model.questions += 1
    model.do(lambda live: live.park([make_question(model.questions, model.clock)]))


ACTIONS: dict[str, Callable[[Model], None]] = {
    "start": lambda model: model.do(LiveTurn.start),
    "run": lambda model: model.do(lambda live: live.run(make_began())),
    "stop": lambda model: model.do(LiveTurn.stop),
    "overdue": lambda model: model.do(lambda live: live.interrupt(LiveState.OVERDUE)),
    "lose": lambda model: model.do(LiveTurn.lose),
    "park": _park,
    "decide": lambda model: model.do(lambda live: live.decide(QuestionId(f"q_{model.questions}"))),
    "watch": lambda model: model.do(LiveTurn.resume_if_decided),
    "minute": lambda model: model.pass_time(60.0),
    "settle": lambda model: model.do(lambda live: live.settle(make_turn(TurnState.CANCELLED))),
    "let go": lambda model: model.do(LiveTurn.let_go),
}


@pytest.mark.parametrize("first", ACTIONS)
async def test_every_sequence_of_three(first: str) -> None:
    """Of a turn that is queued, starting, running or parked."""
    for begun in ([], ["start"], ["start", "run"], ["start", "run", "park"]):
        for rest in product(ACTIONS, repeat=2):
            model = Model()
            for name in (*begun, first, *rest):
                ACTIONS[name](model)
                model.check()


class LiveTurnMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = asyncio.run(self._make())

    async def _make(self) -> Model:
        return Model()

    @precondition(lambda self: not self.model.live.state.is_over)
    @rule(name=st.sampled_from(sorted(ACTIONS)))
    def act(self, name: str) -> None:
        ACTIONS[name](self.model)

    @precondition(lambda self: self.model.live.state.is_over)
    @rule(name=st.sampled_from(sorted(ACTIONS)))
    def nothing_more_happens(self, name: str) -> None:
        state, turn = self.model.live.state, self.model.live.turn
        ACTIONS[name](self.model)
        assert (self.model.live.state, self.model.live.turn) == (state, turn)

    @invariant()
    def holds(self) -> None:
        self.model.check()


TestLiveTurnMachine = LiveTurnMachine.TestCase
TestLiveTurnMachine.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


# -- interruptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(INTERRUPTIONS, key=str), ids=lambda state: state.name)
async def test_an_interruption_cancels_the_task_that_runs_the_turn_once(state: LiveState) -> None:
    live = LiveTurn(make_turn(), FakeClock())
    live.start()
    live.run(make_began())
    task = asyncio.create_task(asyncio.Event().wait())
    live.hold_task(task)
    assert live.interrupt(state)
    live.stop()
    assert task.cancelling() == 1
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_that_is_not_held_is_not_cancelled() -> None:
    live = LiveTurn(make_turn(), FakeClock())
    live.start()
    live.hold_task(asyncio.current_task())
    live.hold_task(None)
    assert live.stop()
    await asyncio.sleep(0)


async def test_a_decision_that_comes_before_the_turn_is_parked_is_not_lost() -> None:
    clock = FakeClock()
    live = LiveTurn(make_turn(), clock)
    live.start()
    live.run(make_began())
    live.decide(QuestionId("q_1"))
    live.park([make_question(1, clock)])
    assert live.state is LiveState.STARTING
