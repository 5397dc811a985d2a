"""The breaker: its table, its rests, and the single probe."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from talaria.core.errors import IllegalMove
from talaria.models.breaker import BREAKER_MOVES, Breaker, BreakerSettings, BreakerState
from talaria.testing.clock import FakeClock

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
LIMITS = BreakerSettings(threshold=3, first_rest=4.0, longest_rest=20.0)


def breaker(clock: FakeClock, draw: float = 1.0) -> Breaker:
    return Breaker(clock, lambda: draw, LIMITS)


def admit(subject: Breaker) -> int:
    ticket = subject.admit()
    assert ticket is not None
    return ticket


def fail(subject: Breaker, times: int = 1) -> None:
    for _ in range(times):
        subject.failed(admit(subject))


def test_failures_in_a_row_open_it_and_an_answer_in_between_does_not() -> None:
    subject = breaker(FakeClock())
    fail(subject, 2)
    subject.heard(admit(subject))
    fail(subject, 2)
    assert (subject.state, subject.failures) == (CLOSED, 2)
    fail(subject)
    assert (subject.state, subject.failures, subject.rests_for) == (OPEN, 3, 4.0)
    assert subject.admit() is None


def test_it_heals_by_itself_with_a_single_probe() -> None:
    clock = FakeClock()
    subject = breaker(clock)
    fail(subject, 3)
    clock.advance(3.9)
    assert subject.admit() is None
    clock.advance(0.1)
    probe = admit(subject)
    assert (subject.state, subject.admit(), subject.is_resting) == (HALF_OPEN, None, True)
    subject.heard(probe)
    assert (subject.state, subject.failures) == (CLOSED, 0)
    assert admit(subject) == admit(subject)


def test_rests_grow_to_a_limit_and_begin_anew_after_an_answer() -> None:
    clock = FakeClock()
    subject = breaker(clock)
    fail(subject, 3)
    rests = []
    for _ in range(4):
        rests.append(subject.rests_for)
        clock.advance(subject.rests_for)
        fail(subject)
    assert [*rests, subject.rests_for] == [4, 8, 16, 20, 20]
    clock.advance(20)
    subject.heard(admit(subject))
    fail(subject, 3)
    assert subject.rests_for == 4


def test_an_endpoint_that_is_dead_for_weeks_is_asked_at_the_longest_interval() -> None:
    clock = FakeClock()
    subject = breaker(clock)
    fail(subject, 3)
    for _ in range(3000):
        clock.advance(subject.rests_for)
        fail(subject)
    assert subject.rests_for == pytest.approx(20)


@pytest.mark.parametrize(("draw", "rest"), [(0.0, 2.0), (0.5, 3.0), (1.0, 4.0)])
def test_rests_are_spread(draw: float, rest: float) -> None:
    subject = breaker(FakeClock(), draw)
    fail(subject, 3)
    assert subject.rests_for == rest


def test_a_cancelled_probe_leaves_its_place_to_the_next() -> None:
    clock = FakeClock()
    subject = breaker(clock)
    fail(subject, 3)
    clock.advance(4)
    subject.left(admit(subject))
    assert subject.state is OPEN
    subject.heard(admit(subject))
    assert subject.state is CLOSED


def test_an_answer_that_has_begun_lets_others_in_on_trial() -> None:
    clock = FakeClock()
    subject = breaker(clock)
    fail(subject, 3)
    clock.advance(4)
    probe = subject.began(admit(subject))
    assert subject.state is CLOSED
    other = admit(subject)
    subject.failed(probe)
    assert (subject.state, subject.rests_for) == (OPEN, 8.0)
    subject.failed(other)
    subject.heard(other)
    assert (subject.state, subject.rests_for) == (OPEN, 8.0)


def test_calls_of_an_earlier_state_change_nothing() -> None:
    clock = FakeClock()
    subject = breaker(clock)
    old = [admit(subject) for _ in range(9)]
    for ticket in old[:3]:
        subject.failed(ticket)
    assert (subject.state, subject.rests_for) == (OPEN, 4.0)
    subject.failed(old[3])
    subject.heard(old[4])
    assert (subject.state, subject.rests_for) == (OPEN, 4.0)
    clock.advance(4)
    probe = admit(subject)
    subject.heard(old[5])
    subject.failed(old[6])
    subject.left(old[7])
    assert subject.state is HALF_OPEN
    subject.heard(probe)
    subject.failed(old[8])
    assert (subject.state, subject.failures) == (CLOSED, 0)


def test_a_move_that_the_table_lacks_is_refused() -> None:
    assert {state: set(moves) for state, moves in BREAKER_MOVES.items()} == {
        CLOSED: {OPEN},
        OPEN: {HALF_OPEN},
        HALF_OPEN: {CLOSED, OPEN},
    }
    subject = breaker(FakeClock())
    with pytest.raises(IllegalMove):
        subject._move(HALF_OPEN)
    assert subject.state is CLOSED


class BreakerMachine(RuleBasedStateMachine):
    """Calls begin and end in any order, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.subject = breaker(self.clock)
        self.under_way: list[int] = []
        self.probe: int | None = None

    @rule()
    def call(self) -> None:
        state, rests_for = self.subject.state, self.subject.rests_for
        ticket = self.subject.admit()
        assert (ticket is not None) is (state is CLOSED or (state is OPEN and rests_for == 0))
        if ticket is not None:
            self.under_way.append(ticket)
            if state is OPEN:
                assert self.probe is None, "two probes at once"
                self.probe = ticket

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), how=st.sampled_from(["heard", "failed", "left"]))
    def end(self, data: st.DataObject, how: str) -> None:
        ticket = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        getattr(self.subject, how)(ticket)
        if ticket == self.probe:
            self.probe = None

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def begin_to_answer(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, len(self.under_way) - 1))
        ticket, self.under_way[n] = self.under_way[n], self.subject.began(self.under_way[n])
        if ticket == self.probe:
            self.probe = None

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def half_open_is_one_probe_under_way(self) -> None:
        assert (self.subject.state is HALF_OPEN) is (self.probe is not None)

    @invariant()
    def closed_has_not_failed_too_often(self) -> None:
        assert self.subject.state is not CLOSED or self.subject.failures < LIMITS.threshold

    @invariant()
    def no_rest_is_longer_than_the_longest(self) -> None:
        assert self.subject.rests_for <= LIMITS.longest_rest


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
