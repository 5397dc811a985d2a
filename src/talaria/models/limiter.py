"""Which calls of an endpoint may go out: a circuit breaker, and a number of permits shared fairly.

The breaker has three states.

- *closed*: every call goes out. `threshold` failures in a row open it.
- *open*: no call goes out. After a rest that doubles each time, the next call is the probe.
- *half open*: the probe is under way, and every other call is refused. Any answer to the probe closes the
  breaker, a failure opens it for longer, and a cancelled probe leaves its place to the next call. An answer
  that has started closes the breaker on trial, because a long answer must not keep the other calls out: one
  failure opens it again.

A call carries the number of the last move before it was admitted. Once the breaker has moved again, the
outcome of that call changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from talaria.core.backoff import Backoff
from talaria.core.clock import Clock, SystemClock
from talaria.core.errors import EndpointResting, IllegalMove, ModelError
from talaria.core.slots import FairSlots
from talaria.models.failures import ProviderErrors, harms_endpoint
from talaria.observe.metrics import EndpointReading

# -- the circuit breaker ------------------------------------------------------------------------------------


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


BREAKER_MOVES: Mapping[BreakerState, frozenset[BreakerState]] = {
    BreakerState.CLOSED: frozenset({BreakerState.OPEN}),
    BreakerState.OPEN: frozenset({BreakerState.HALF_OPEN}),
    BreakerState.HALF_OPEN: frozenset({BreakerState.CLOSED, BreakerState.OPEN}),
}


class BreakerSettings(msgspec.Struct, frozen=True):
    """A rest is drawn from the upper half of its bound, so that processes do not come back together."""

    threshold: int = 5
    rests: Backoff = Backoff(first=5.0, longest=120.0)


class CircuitBreaker:
    """Synchronous. Every `admit` is followed by exactly one of `answered`, `failed` and `cancelled`."""

    def __init__(
        self, clock: Clock, draw: Callable[[], float], settings: BreakerSettings | None = None
    ) -> None:
        """`draw` returns random numbers from 0 to 1."""
        self._clock = clock
        self._draw = draw
        self._settings = settings or BreakerSettings()
        self._move_number = 0
        self._rests = 0  # since it was last closed
        self._until = 0.0
        self.state = BreakerState.CLOSED
        self.failures = 0  # in a row

    @property
    def is_resting(self) -> bool:
        """Whether a call would be refused now."""
        match self.state:
            case BreakerState.CLOSED:
                return False
            case BreakerState.OPEN:
                return self.rests_for > 0
            case BreakerState.HALF_OPEN:
                return True

    @property
    def rests_for(self) -> float:
        """Seconds until the next probe; 0 when the breaker is not open."""
        return max(0.0, self._until - self._clock.elapsed()) if self.state is BreakerState.OPEN else 0.0

    def admit(self) -> int | None:
        """Return the ticket of a call that may go out, or None."""
        if self.is_resting:
            return None
        if self.state is BreakerState.OPEN:
            self._move(BreakerState.HALF_OPEN)
        return self._move_number

    def started(self, ticket: int) -> int:
        """Note that the answer has started. Return the ticket that the call continues with."""
        if ticket == self._move_number and self.state is BreakerState.HALF_OPEN:
            self.failures = self._settings.threshold - 1
            self._move(BreakerState.CLOSED)
            return self._move_number
        return ticket

    def answered(self, ticket: int) -> None:
        """Note a complete answer. A refusal is one too."""
        if ticket != self._move_number:
            return
        self.failures = self._rests = 0
        if self.state is BreakerState.HALF_OPEN:
            self._move(BreakerState.CLOSED)

    def failed(self, ticket: int) -> None:
        if ticket != self._move_number:
            return
        self.failures += 1
        if self.state is BreakerState.HALF_OPEN or self.failures >= self._settings.threshold:
            self._rests += 1
            bound = self._settings.rests.pause(self._rests)
            self._until = self._clock.elapsed() + bound * (0.5 + self._draw() / 2)
            self._move(BreakerState.OPEN)

    def cancelled(self, ticket: int) -> None:
        """Note that the call was cancelled, so that its outcome stays unknown."""
        if ticket == self._move_number and self.state is BreakerState.HALF_OPEN:
            self._move(BreakerState.OPEN)

    def _move(self, new: BreakerState) -> None:
        if new not in BREAKER_MOVES[self.state]:
            raise IllegalMove("A breaker", self.state, new)
        self.state = new
        self._move_number += 1


# -- the breaker and the permits -----------------------------------------------------------------------------


class CallLimiter:
    """The breaker and the permits of one endpoint. The outcome of each call feeds the breaker."""

    def __init__(
        self,
        max_concurrency: int = 256,
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
        breaker: BreakerSettings | None = None,
    ) -> None:
        self.breaker = CircuitBreaker(clock or SystemClock(), draw, breaker)
        self.permits = FairSlots(lambda: max_concurrency)

    @property
    def is_resting(self) -> bool:
        return self.breaker.is_resting

    def call(self, session: str, errors: ProviderErrors, *, gives_way: bool = False) -> LimitedCall:
        """Return the context in which the caller makes one call."""
        return LimitedCall(self, session, errors, gives_way)

    def reading(self) -> EndpointReading:
        breaker = self.breaker
        return EndpointReading(
            state=breaker.state,
            failures=breaker.failures,
            retry_seconds=round(breaker.rests_for, 3),
            busy=self.permits.in_use,
            waiting=self.permits.waiting,
        )


class LimitedCall(msgspec.Struct, eq=False):
    """Holds a permit inside the block. Entering returns the function to call when the answer starts.

    Entering raises `EndpointResting` while the breaker is open: before waiting for a permit, and again after
    it. A class, because a generator costs twice as much.
    """

    _limiter: CallLimiter
    _session: str
    _errors: ProviderErrors
    _gives_way: bool
    _ticket: int = 0

    async def __aenter__(self) -> Callable[[], None]:
        breaker, permits = self._limiter.breaker, self._limiter.permits
        if breaker.is_resting:
            raise self._refusal(breaker)
        await permits.acquire(self._session, gives_way=self._gives_way)
        if (ticket := breaker.admit()) is None:
            permits.release(self._session, gave_way=self._gives_way)
            raise self._refusal(breaker)
        self._ticket = ticket
        return self._started

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        breaker = self._limiter.breaker
        if error is None or (isinstance(error, ModelError) and not harms_endpoint(error)):
            breaker.answered(self._ticket)
        elif isinstance(error, ModelError):
            breaker.failed(self._ticket)
        else:
            breaker.cancelled(self._ticket)
        self._limiter.permits.release(self._session, gave_way=self._gives_way)

    def _started(self) -> None:
        self._ticket = self._limiter.breaker.started(self._ticket)

    def _refusal(self, breaker: CircuitBreaker) -> EndpointResting:
        return self._errors.resting(breaker.failures, breaker.rests_for)
