"""What a failed call means: error bodies, statuses, and what follows as a truth table."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from talaria.core.errors import (
    AnswerMemoryFull,
    AnswerTooLarge,
    ContextTooLong,
    EndpointResting,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from talaria.models.failures import (
    RETRY_BACKOFF,
    ErrorBody,
    FallBack,
    GiveUp,
    ProviderErrors,
    Retry,
    RetryState,
    StatusKind,
    decide,
    harms_endpoint,
    parse_error,
    read_error_body,
    read_retry_after,
    retry_pause,
    status_kind,
)

LONGEST_RETRY_AFTER = 60.0
LONGEST_WAIT = 7 * 86400.0


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"error":{"message":"m","type":"t","code":null}}', ErrorBody("m", "t")),
        (b'{"error":{"message":"m","type":"t","code":"c"}}', ErrorBody("m", "c")),
        (b'{"error":{"message":"m","code":502}}', ErrorBody("m", "", 502)),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}',
            ErrorBody("m", "overloaded_error"),
        ),
        (b'{"error":"plain"}', ErrorBody("plain")),
        (b'{"detail":"d"}', ErrorBody("d")),
        (b'{"detail":[{"msg":"x"}]}', ErrorBody('[{"msg":"x"}]')),
        (b'{"message":"m","code":10001}', ErrorBody("m")),
        (b'[{"error":{"message":"m"}}]', ErrorBody("m")),
        (b"plain words", ErrorBody("plain words")),
        (b" <!doctype html>", ErrorBody()),
        (b"", ErrorBody()),
        (b"12", ErrorBody()),
    ],
)
def test_error_bodies_in_every_shape(body: bytes, error: ErrorBody) -> None:
    assert read_error_body(body) == error


ERRORS = ProviderErrors("acme", "m")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "Overloaded", "type": "overloaded_error"}, ModelUnavailable),
        ({"message": "Slow down", "code": 429}, ModelUnavailable),
        ({"message": "Slow down", "type": "rate_limit_error"}, ModelUnavailable),
        ({"message": "Slow down", "code": "rate_limit_exceeded"}, ModelUnavailable),
        ({"message": "Bad gateway", "code": 502}, ModelUnavailable),
        ({"message": "Internal server error", "type": "api_error"}, ModelUnavailable),
        ({"message": "Oops", "code": "server_error"}, ModelUnavailable),
        ({"message": "Oops", "code": None}, ModelUnavailable),
        ("something", ModelUnavailable),
        ({"message": "No", "code": 403}, ModelRefused),
        ({"message": "Wrong field", "type": "invalid_request_error"}, ModelRefused),
        ({"message": "invalid x-api-key", "type": "authentication_error"}, ModelRefused),
        ({"message": "No", "type": "permission_error"}, ModelRefused),
        ({"message": "model: x", "type": "not_found_error"}, ModelRefused),
        ({"message": "Pay", "type": "billing_error"}, ModelRefused),
        ({"message": "No", "code": "invalid_prompt"}, ModelRefused),
        ({"message": "No", "code": "insufficient_quota"}, ModelRefused),
        ({"message": "x", "code": "context_length_exceeded"}, ContextTooLong),
        ({"message": "prompt is too long: 210 tokens", "type": "invalid_request_error"}, ContextTooLong),
        ({"message": "input and `max_tokens` exceed context limit: 190 + 32 > 200"}, ContextTooLong),
        ({"message": "Request exceeds the maximum size", "type": "request_too_large"}, ContextTooLong),
    ],
)
def test_errors_are_classed_in_a_stream_and_instead_of_it(error: Any, kind: type[ModelError]) -> None:
    assert type(ERRORS.in_stream(parse_error(msgspec.json.encode(error)))) is kind
    if kind is not ModelUnavailable:
        assert type(ERRORS.from_status(400, {}, json.dumps({"error": error}).encode())) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
        ({"retry-after-ms": "soon", "Retry-After": "9"}, 9.0),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "1e300"}, LONGEST_WAIT),
        ({"Retry-After": "9" * 8000}, LONGEST_WAIT),
        (
            {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"},
            LONGEST_WAIT,
        ),
        ({"Retry-After": "Wed, 21 Oct 99999999999999999999 07:28:30 GMT", "Date": "x"}, None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT", "Date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
    ],
)
def test_the_wish_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers) == seconds


BROKEN = ModelUnavailable("cut off")
FAILING = ModelUnavailable("failing", status=503)
LIMITED = ModelUnavailable("limited", status=429)
LIMITED_A_WHILE = ModelUnavailable("limited", status=429, retry_after=7)
LIMITED_FOR_LONG = ModelUnavailable("limited", status=429, retry_after=LONGEST_RETRY_AFTER + 1)
RESTING = EndpointResting("resting", retry_after=3)
REFUSED = ModelRefused("no", status=400)
TOO_LONG = ContextTooLong("too long", status=400)
TOO_LARGE = AnswerTooLarge("too large")
MEMORY_FULL = AnswerMemoryFull("full")
STRANGE = ModelError("strange")

AGAIN, AT_ONCE, OVER = Retry(0.5), FallBack(), GiveUp()


@pytest.mark.parametrize(
    ("error", "state", "alone", "with_a_chain"),
    [
        # tries left
        (BROKEN, RetryState(1, 3), AGAIN, AGAIN),
        (FAILING, RetryState(1, 3), AGAIN, AGAIN),
        (LIMITED, RetryState(1, 3), AGAIN, AGAIN),
        (MEMORY_FULL, RetryState(1, 3), AGAIN, AGAIN),
        (LIMITED_A_WHILE, RetryState(1, 3), Retry(7.5), Retry(7.5)),
        (FAILING, RetryState(3, 3), Retry(2.0), Retry(2.0)),
        # none left
        (FAILING, RetryState(4, 3), OVER, AT_ONCE),
        (LIMITED_A_WHILE, RetryState(4, 3), OVER, AT_ONCE),
        (BROKEN, RetryState(1, 0), OVER, AT_ONCE),
        # not worth waiting for
        (LIMITED_FOR_LONG, RetryState(1, 3), OVER, AT_ONCE),
        (FAILING, RetryState(1, 3, is_resting=True), OVER, AT_ONCE),
        (RESTING, RetryState(1, 3, is_resting=True), OVER, AT_ONCE),
        (RESTING, RetryState(1, 3), OVER, AT_ONCE),
        (FAILING, RetryState(1, 3, seconds_left=5.4), OVER, AT_ONCE),
        (FAILING, RetryState(1, 3, seconds_left=5.5), AGAIN, AGAIN),
        (LIMITED_A_WHILE, RetryState(1, 3, seconds_left=12), OVER, AT_ONCE),
        # fatal for this model
        (TOO_LARGE, RetryState(1, 3), OVER, AT_ONCE),
        (REFUSED, RetryState(1, 3), OVER, AT_ONCE),
        (STRANGE, RetryState(1, 3), OVER, AT_ONCE),
        # the conversation is the same for everybody
        (TOO_LONG, RetryState(1, 3), OVER, OVER),
        # the user has seen some of it
        (BROKEN, RetryState(1, 3, has_spoken=True), OVER, OVER),
        (FAILING, RetryState(4, 3, has_spoken=True, is_resting=True), OVER, OVER),
        (REFUSED, RetryState(1, 3, has_spoken=True), OVER, OVER),
    ],
)
def test_every_failure_has_its_consequence(
    error: ModelError,
    state: RetryState,
    alone: Retry | FallBack | GiveUp,
    with_a_chain: Retry | FallBack | GiveUp,
) -> None:
    assert decide(error, state, 0.5) == alone
    chained = msgspec.structs.replace(state, has_next=True)
    assert decide(error, chained, 0.5) == with_a_chain


def test_pauses_double_up_to_a_limit_and_are_spread_over_all_of_it() -> None:
    assert [retry_pause(tries, None, 1.0) for tries in range(1, 8)] == [
        1,
        2,
        4,
        8,
        16,
        RETRY_BACKOFF.longest,
        RETRY_BACKOFF.longest,
    ]
    assert retry_pause(5, None, 0.0) == 0.0
    assert retry_pause(5, None, 0.25) == 4.0
    assert retry_pause(1000, None, 1.0) == RETRY_BACKOFF.longest


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_a_pause_that_the_server_asked_for_is_never_cut_short(draw: float) -> None:
    assert 7 <= retry_pause(1, 7, draw) <= 8
    assert 0 <= retry_pause(1, 0, draw) <= 1


def test_only_the_endpoints_own_failures_count_against_its_health() -> None:
    assert all(map(harms_endpoint, (BROKEN, FAILING)))
    assert not any(map(harms_endpoint, (LIMITED, LIMITED_A_WHILE, REFUSED, TOO_LONG, STRANGE, MEMORY_FULL)))


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        (StatusKind.REDIRECT, (301, 308)),
        (StatusKind.BAD_KEY, (401, 403)),
        (StatusKind.NOT_FOUND, (404,)),
        (StatusKind.RATE_LIMITED, (429,)),
        (StatusKind.FAILING, (None, 408, 409, 425, 500, 529, 599)),
        (StatusKind.REFUSED, (400, 402, 410, 413, 418, 422, 451)),
    ],
)
def test_every_status_has_one_meaning(kind: StatusKind, statuses: tuple[int | None, ...]) -> None:
    assert {status_kind(status) for status in statuses} == {kind}
