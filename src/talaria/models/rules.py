"""What follows a failed model call: another try, the next model of the chain, or the failure itself.

One pure function, so that its truth table is all there is to know (`tests/models/test_rules.py`):

- what has reached the user is never asked for again: the answer broke off, and the failure says so;
- what does not fit the model's window fits no better the second time;
- a refusal (400, 401, 403, 404) costs one call, and the next model of the chain is asked;
- an endpoint that rests is not waited for: the next model of the chain is asked;
- everything else (429, 5xx, broken connections, timeouts before the first word) is tried again, `max_retries`
  times, after a pause; a server that names the pause gets it, unless it is longer than anyone would wait.
"""

from __future__ import annotations

import msgspec

from talaria.core.errors import ContextTooLong, EndpointResting, ModelError, ModelUnavailable

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
LONGEST_GIVEN_PAUSE = 60.0


class Standing(msgspec.Struct, frozen=True):
    """Where a call stands. `tries` counts those of this model, the failed one included; `is_resting` is the
    endpoint after it; `has_next` tells whether the chain goes on."""

    tries: int
    max_retries: int
    has_spoken: bool = False
    is_resting: bool = False
    has_next: bool = False


class TryAgain(msgspec.Struct, frozen=True):
    seconds: float


class MoveOn(msgspec.Struct, frozen=True):
    """To the next model of the chain, at once."""


class GiveUp(msgspec.Struct, frozen=True):
    pass


Verdict = TryAgain | MoveOn | GiveUp


def decide(error: ModelError, standing: Standing, draw: float) -> Verdict:
    """`draw` is a random number from 0 to 1, which spreads those who wait for the same endpoint."""
    if standing.has_spoken or isinstance(error, ContextTooLong):
        return GiveUp()
    if _may_try_again(error, standing):
        assert isinstance(error, ModelUnavailable)
        return TryAgain(pause(standing.tries, error.retry_after, draw))
    return MoveOn() if standing.has_next else GiveUp()


def _may_try_again(error: ModelError, standing: Standing) -> bool:
    return (
        isinstance(error, ModelUnavailable)
        and not isinstance(error, EndpointResting)
        and not standing.is_resting
        and standing.tries <= standing.max_retries
        and (error.retry_after or 0.0) <= LONGEST_GIVEN_PAUSE
    )


def pause(tries: int, given: float | None, draw: float) -> float:
    """Up to a bound that doubles with each try; behind what the server asked for, a moment more."""
    if given is not None:
        return given + draw * FIRST_PAUSE
    return draw * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (tries - 1))


def is_sick(error: ModelError) -> bool:
    """Whether the failure is one of the endpoint's health.

    Refusals are about the request, the key or the model. A 429 is an endpoint that is well and asks for
    patience, often with one model or one key only; it must not close the endpoint for everybody.
    """
    return isinstance(error, ModelUnavailable) and error.status != 429
