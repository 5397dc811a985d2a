"""The limiter of an endpoint: its circuit breaker, its permits, and both together."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support import sim
from support.waiting import until
from talaria.core.backoff import Backoff
from talaria.core.errors import EndpointResting, IllegalMove, ModelError, ModelRefused, ModelUnavailable
from talaria.core.slots import FairSlots
from talaria.models.failures import ProviderErrors
from talaria.models.limiter import (
    BREAKER_MOVES,
    BreakerSettings,
    BreakerState,
    CallLimiter,
    CircuitBreaker,
)
from talaria.observe.metrics import EndpointReading
from talaria.testing.clock import FakeClock

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
LIMITS = BreakerSettings(threshold=3, rests=Backoff(4.0, 20.0))


def breaker(clock: FakeClock, draw: float = 1.0) -> CircuitBreaker:
    return CircuitBreaker(clock, lambda: draw, LIMITS)


def admit(subject: CircuitBreaker) -> int:
    ticket = subject.admit()
    assert ticket is not None
    return ticket


def fail(subject: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        subject.failed(admit(subject))


def test_failures_in_a_row_open_it_and_an_answer_in_between_does_not() -> None:
    subject = breaker(FakeClock())
    fail(subject, 2)
    subject.answered(admit(subject))
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
    subject.answered(probe)
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
    subject.answered(admit(subject))
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
    subject.cancelled(admit(subject))
    assert subject.state is OPEN
    subject.answered(admit(subject))
    assert subject.state is CLOSED


def test_an_answer_that_has_begun_lets_others_in_on_trial() -> None:
    clock = FakeClock()
    subject = breaker(clock)
    fail(subject, 3)
    clock.advance(4)
    probe = subject.started(admit(subject))
    assert subject.state is CLOSED
    other = admit(subject)
    subject.failed(probe)
    assert (subject.state, subject.rests_for) == (OPEN, 8.0)
    subject.failed(other)
    subject.answered(other)
    assert (subject.state, subject.rests_for) == (OPEN, 8.0)


def test_calls_of_an_earlier_state_change_nothing() -> None:
    clock = FakeClock()
    subject = breaker(clock)
    old = [admit(subject) for _ in range(9)]
    for ticket in old[:3]:
        subject.failed(ticket)
    assert (subject.state, subject.rests_for) == (OPEN, 4.0)
    subject.failed(old[3])
    subject.answered(old[4])
    assert (subject.state, subject.rests_for) == (OPEN, 4.0)
    clock.advance(4)
    probe = admit(subject)
    subject.answered(old[5])
    subject.failed(old[6])
    subject.cancelled(old[7])
    assert subject.state is HALF_OPEN
    subject.answered(probe)
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
    @rule(data=st.data(), how=st.sampled_from(["answered", "failed", "cancelled"]))
    def end(self, data: st.DataObject, how: str) -> None:
        ticket = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        getattr(self.subject, how)(ticket)
        if ticket == self.probe:
            self.probe = None

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def begin_to_answer(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, len(self.under_way) - 1))
        ticket, self.under_way[n] = self.under_way[n], self.subject.started(self.under_way[n])
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
        assert self.subject.rests_for <= LIMITS.rests.longest


TestBreakerMachine = BreakerMachine.TestCase
TestBreakerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class Calls:
    """Calls that hold a permit until they are told to end."""

    def __init__(self, permits: FairSlots) -> None:
        self.permits = permits
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._ends: list[asyncio.Event] = []

    async def _hold(self, session: str) -> None:
        async with self.permits.slot(session, gives_way=session.startswith("job")):
            self.served.append(session)
            end = asyncio.Event()
            self._ends.append(end)
            await end.wait()

    async def call(self, session: str, times: int = 1) -> None:
        for _ in range(times):
            self.tasks.append(asyncio.create_task(self._hold(session)))
        await settle()

    async def end_one(self) -> None:
        self._ends.pop(0).set()
        await settle()

    async def end_all(self) -> None:
        while self._ends:
            await self.end_one()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert (self.permits.in_use, self.permits.waiting) == (0, 0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_session_with_a_hundred_calls_does_not_starve_another() -> None:
    calls = Calls(FairSlots(lambda: 1))
    await calls.call("greedy", 100)
    await calls.call("modest", 2)
    await calls.call("third")
    for _ in range(6):
        await calls.end_one()
    assert calls.served == ["greedy", "greedy", "modest", "third", "greedy", "modest", "greedy"]
    assert (calls.permits.in_use, calls.permits.waiting) == (1, 103 - 7)
    await calls.end_all()
    assert len(calls.served) == 103


async def test_scheduled_calls_wait_until_no_other_call_waits() -> None:
    calls = Calls(FairSlots(lambda: 1))
    await calls.call("job 1", 2)
    await calls.call("job 2")
    await calls.call("person", 2)
    await calls.call("friend")
    await calls.end_all()
    assert calls.served == ["job 1", "person", "friend", "person", "job 1", "job 2"]


@pytest.mark.parametrize(("permits", "most"), [(1, 1), (2, 1), (4, 3), (8, 6), (256, 192)])
async def test_scheduled_calls_leave_permits_to_people(permits: int, most: int) -> None:
    calls = Calls(FairSlots(lambda: permits))
    await calls.call("job", permits + 1)
    assert (calls.permits.in_use, calls.permits.waiting) == (most, permits + 1 - most)
    await calls.call("person", permits - most)
    assert calls.served == ["job"] * most + ["person"] * (permits - most)
    await calls.end_all()
    assert len(calls.served) == permits + 1 + permits - most


async def test_scheduled_call_that_is_cancelled_with_its_permit_hands_it_on() -> None:
    calls = Calls(FairSlots(lambda: 2))
    await calls.call("job 1")
    await calls.call("job 2")
    await calls.call("job 3")
    calls._ends.pop(0).set()  # the permit of job 1 goes to job 2, which does not run before it is cancelled
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls.tasks[1].cancel()
    await settle()
    assert calls.served[-1] == "job 3"
    await calls.end_all()


async def test_calls_of_one_session_keep_their_order() -> None:
    permits, order = FairSlots(lambda: 1), list[int]()

    async def work(n: int) -> None:
        async with permits.slot("one"):
            order.append(n)
            await asyncio.sleep(0)

    await asyncio.gather(*(work(n) for n in range(20)))
    assert order == list(range(20))


async def test_who_leaves_the_queue_leaves_no_trace() -> None:
    calls = Calls(FairSlots(lambda: 1))
    await calls.call("a")
    await calls.call("b", 2)
    await calls.call("c")
    calls.tasks[1].cancel()
    await settle()
    assert calls.permits.waiting == 2
    await calls.end_one()
    await calls.end_one()
    assert calls.served == ["a", "b", "c"]
    await calls.end_all()


async def test_a_permit_given_to_someone_who_is_just_leaving_goes_to_the_next() -> None:
    calls = Calls(FairSlots(lambda: 1))
    async with calls.permits.slot("a"):
        await calls.call("b")
        await calls.call("c")
    calls.tasks[0].cancel()  # it has its permit and has not woken yet
    await settle()
    assert (calls.served, calls.permits.in_use) == (["c"], 1)
    await calls.end_all()


@pytest.mark.parametrize("seed", range(40))
def test_no_interleaving_loses_a_permit_or_gives_one_too_many(seed: int) -> None:
    async def main() -> None:
        random, permits, running = Random(seed), FairSlots(lambda: 3), 0

        async def work(session: str) -> None:
            nonlocal running
            async with permits.slot(session):
                running += 1
                assert running <= 3
                try:
                    await asyncio.sleep(random.uniform(0, 0.1))
                finally:
                    running -= 1

        tasks = [asyncio.create_task(work(str(random.randrange(4)))) for _ in range(30)]
        for task in random.sample(tasks, 10):
            await asyncio.sleep(random.uniform(0, 0.05))
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (permits.in_use, permits.waiting, running) == (0, 0, 0)

    sim.run(seed, main)


ERRORS = ProviderErrors("acme", "m")
QUICK = BreakerSettings(threshold=2, rests=Backoff(8.0, 120.0))


async def fail_call(limiter: CallLimiter, error: ModelError) -> None:
    with pytest.raises(ModelError):
        async with limiter.call("s", ERRORS):
            raise error


def new_limiter(permits: int = 4) -> tuple[CallLimiter, FakeClock]:
    clock = FakeClock()
    return CallLimiter(permits, clock, lambda: 1.0, QUICK), clock


async def test_those_who_wait_for_a_permit_are_turned_away_when_the_breaker_opens() -> None:
    limiter, _ = new_limiter(permits=1)
    await fail_call(limiter, ModelUnavailable("broken"))
    released = asyncio.Event()

    async def call() -> None:
        async with limiter.call("s", ERRORS):
            await released.wait()
            raise ModelUnavailable("broken")

    calls = [asyncio.create_task(call()) for _ in range(5)]
    await until(lambda: limiter.reading().waiting >= 4, pause=0)
    released.set()
    first, *rest = await asyncio.gather(*calls, return_exceptions=True)
    assert type(first) is ModelUnavailable
    assert [type(error) for error in rest] == [EndpointResting] * 4
    assert limiter.reading() == EndpointReading("open", 2, 8.0, 0, 0)


async def test_a_refusal_says_when_to_come_back_and_that_no_call_was_made() -> None:
    limiter, clock = new_limiter()
    for _ in range(2):
        await fail_call(limiter, ModelUnavailable("broken", status=500))
    clock.advance(3.5)
    with pytest.raises(EndpointResting, match="has failed 2 times in a row") as caught:
        async with limiter.call("s", ERRORS):
            raise AssertionError("it passed")
    assert (caught.value.retry_after, "in 5 seconds" in caught.value.hint) == (4.5, True)


@pytest.mark.parametrize(
    "error", [ModelRefused("no", status=401), ModelUnavailable("slow down", status=429)], ids=str
)
async def test_an_answer_of_any_kind_ends_the_rest(error: ModelError) -> None:
    limiter, clock = new_limiter()
    for _ in range(2):
        await fail_call(limiter, ModelUnavailable("broken"))
    clock.advance(8)
    await fail_call(limiter, error)
    assert limiter.reading().state == "closed"


async def test_a_long_answer_does_not_keep_the_others_out() -> None:
    limiter, clock = new_limiter()
    for _ in range(2):
        await fail_call(limiter, ModelUnavailable("broken"))
    clock.advance(8)
    async with limiter.call("s", ERRORS) as began:
        assert limiter.reading().state == "half_open"
        began()
        assert limiter.reading().state == "closed"
        async with limiter.call("another", ERRORS):
            assert limiter.reading().busy == 2
    assert limiter.reading() == EndpointReading()


async def test_a_cancelled_probe_gives_its_permit_and_its_place_back() -> None:
    limiter, clock = new_limiter()
    for _ in range(2):
        await fail_call(limiter, ModelUnavailable("broken"))
    clock.advance(8)
    with pytest.raises(asyncio.CancelledError):
        async with limiter.call("s", ERRORS):
            raise asyncio.CancelledError
    assert (limiter.reading().busy, limiter.is_resting) == (0, False)
