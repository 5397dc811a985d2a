"""What follows a failed call, as a truth table."""

from __future__ import annotations

import pytest

from talaria.core.errors import (
    ContextTooLong,
    EndpointResting,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from talaria.models.rules import (
    LONGEST_GIVEN_PAUSE,
    LONGEST_PAUSE,
    GiveUp,
    MoveOn,
    Standing,
    TryAgain,
    Verdict,
    decide,
    is_sick,
    pause,
)

BROKEN = ModelUnavailable("cut off")
FAILING = ModelUnavailable("failing", status=503)
LIMITED = ModelUnavailable("limited", status=429)
LIMITED_A_WHILE = ModelUnavailable("limited", status=429, retry_after=7)
LIMITED_FOR_LONG = ModelUnavailable("limited", status=429, retry_after=LONGEST_GIVEN_PAUSE + 1)
RESTING = EndpointResting("resting", retry_after=3)
REFUSED = ModelRefused("no", status=400)
TOO_LONG = ContextTooLong("too long", status=400)
STRANGE = ModelError("strange")

AGAIN, AT_ONCE, OVER = TryAgain(0.5), MoveOn(), GiveUp()


@pytest.mark.parametrize(
    ("error", "standing", "alone", "with_a_chain"),
    [
        # tries left
        (BROKEN, Standing(1, 3), AGAIN, AGAIN),
        (FAILING, Standing(1, 3), AGAIN, AGAIN),
        (LIMITED, Standing(1, 3), AGAIN, AGAIN),
        (LIMITED_A_WHILE, Standing(1, 3), TryAgain(7.5), TryAgain(7.5)),
        (FAILING, Standing(3, 3), TryAgain(2.0), TryAgain(2.0)),
        # none left
        (FAILING, Standing(4, 3), OVER, AT_ONCE),
        (LIMITED_A_WHILE, Standing(4, 3), OVER, AT_ONCE),
        (BROKEN, Standing(1, 0), OVER, AT_ONCE),
        # not worth waiting for
        (LIMITED_FOR_LONG, Standing(1, 3), OVER, AT_ONCE),
        (FAILING, Standing(1, 3, is_resting=True), OVER, AT_ONCE),
        (RESTING, Standing(1, 3, is_resting=True), OVER, AT_ONCE),
        (RESTING, Standing(1, 3), OVER, AT_ONCE),
        # fatal for this model
        (REFUSED, Standing(1, 3), OVER, AT_ONCE),
        (STRANGE, Standing(1, 3), OVER, AT_ONCE),
        # the conversation is the same for everybody
        (TOO_LONG, Standing(1, 3), OVER, OVER),
        # the user has seen some of it
        (BROKEN, Standing(1, 3, has_spoken=True), OVER, OVER),
        (FAILING, Standing(4, 3, has_spoken=True, is_resting=True), OVER, OVER),
        (REFUSED, Standing(1, 3, has_spoken=True), OVER, OVER),
    ],
)
def test_every_failure_has_its_consequence(
    error: ModelError, standing: Standing, alone: Verdict, with_a_chain: Verdict
) -> None:
    assert decide(error, standing, 0.5) == alone
    chained = Standing(
        standing.tries, standing.max_retries, standing.has_spoken, standing.is_resting, has_next=True
    )
    assert decide(error, chained, 0.5) == with_a_chain


def test_pauses_double_up_to_a_limit_and_are_spread_over_all_of_it() -> None:
    assert [pause(tries, None, 1.0) for tries in range(1, 8)] == [
        1,
        2,
        4,
        8,
        16,
        LONGEST_PAUSE,
        LONGEST_PAUSE,
    ]
    assert pause(5, None, 0.0) == 0.0
    assert pause(5, None, 0.25) == 4.0
    assert pause(1000, None, 1.0) == LONGEST_PAUSE


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_a_pause_that_the_server_asked_for_is_never_cut_short(draw: float) -> None:
    assert 7 <= pause(1, 7, draw) <= 8
    assert 0 <= pause(1, 0, draw) <= 1


def test_only_the_endpoints_own_failures_count_against_its_health() -> None:
    assert all(map(is_sick, (BROKEN, FAILING)))
    assert not any(map(is_sick, (LIMITED, LIMITED_A_WHILE, REFUSED, TOO_LONG, STRANGE)))
