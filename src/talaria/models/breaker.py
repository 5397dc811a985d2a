"""The breaker of one endpoint: after failures in a row it rests, then one probe decides.

- *closed*: every call goes out. So many failures in a row as the threshold says open it.
- *open*: no call goes out. After a rest that doubles each time, up to a limit, the next call is the probe.
- *half open*: the probe is under way; all others are treated as if it were open. An answer of any kind closes
  it, a failure opens it for longer, a cancelled probe leaves the place to the next one. An answer that has
  begun closes it on trial, since a long one must not keep everybody out: one failure then opens it again.

Calls that went out before the last move change nothing any more: each carries the number of the move it was
admitted under.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import IllegalMove

_MOST_DOUBLINGS = 32


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
    """Rests are drawn from the upper half of their bound, so that processes do not come back together."""

    threshold: int = 5
    first_rest: float = 5.0
    longest_rest: float = 120.0


class Breaker:
    """Decides between awaits. Every `admit` is followed by exactly one of `heard`, `failed` and `left`."""

    def __init__(
        self, clock: Clock, draw: Callable[[], float], settings: BreakerSettings | None = None
    ) -> None:
        """`draw` gives random numbers from 0 to 1."""
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
        """Whether a call now would be turned away."""
        match self.state:
            case BreakerState.CLOSED:
                return False
            case BreakerState.OPEN:
                return self.rests_for > 0
            case BreakerState.HALF_OPEN:
                return True

    @property
    def rests_for(self) -> float:
        """Seconds until the next probe; 0 when it is not open."""
        return max(0.0, self._until - self._clock.elapsed()) if self.state is BreakerState.OPEN else 0.0

    def admit(self) -> int | None:
        """The ticket of a call that may go out, or None."""
        if self.is_resting:
            return None
        if self.state is BreakerState.OPEN:
            self._move(BreakerState.HALF_OPEN)
        return self._move_number

    def began(self, ticket: int) -> int:
        """The call's answer has begun; the ticket that it goes on with."""
        if ticket == self._move_number and self.state is BreakerState.HALF_OPEN:
            self.failures = self._settings.threshold - 1
            self._move(BreakerState.CLOSED)
            return self._move_number
        return ticket

    def heard(self, ticket: int) -> None:
        """The endpoint answered to the end, be it with a refusal."""
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
            self._rest()

    def left(self, ticket: int) -> None:
        """The call was cancelled, and nobody knows."""
        if ticket == self._move_number and self.state is BreakerState.HALF_OPEN:
            self._move(BreakerState.OPEN)

    def _rest(self) -> None:
        bound = min(self._settings.longest_rest, self._settings.first_rest * 2.0**self._rests)
        self._rests = min(self._rests + 1, _MOST_DOUBLINGS)
        self._until = self._clock.elapsed() + bound * (0.5 + self._draw() / 2)
        self._move(BreakerState.OPEN)

    def _move(self, new: BreakerState) -> None:
        if new not in BREAKER_MOVES[self.state]:
            raise IllegalMove("A breaker", self.state, new)
        self.state = new
        self._move_number += 1
