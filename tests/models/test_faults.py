"""Reading what servers complain about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from talaria.core.errors import ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from talaria.models.faults import Complaint, Faults, complaint_from, read_complaint, read_retry_after


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"error":{"message":"m","type":"t","code":null}}', Complaint("m", "t")),
        (b'{"error":{"message":"m","type":"t","code":"c"}}', Complaint("m", "c")),
        (b'{"error":{"message":"m","code":502}}', Complaint("m", "", 502)),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}',
            Complaint("m", "overloaded_error"),
        ),
        (b'{"error":"plain"}', Complaint("plain")),
        (b'{"detail":"d"}', Complaint("d")),
        (b'{"detail":[{"msg":"x"}]}', Complaint('[{"msg":"x"}]')),
        (b'{"message":"m","code":10001}', Complaint("m")),
        (b'[{"error":{"message":"m"}}]', Complaint("m")),
        (b"plain words", Complaint("plain words")),
        (b" <!doctype html>", Complaint()),
        (b"", Complaint()),
        (b"12", Complaint()),
    ],
)
def test_error_bodies_in_every_shape(body: bytes, complaint: Complaint) -> None:
    assert read_complaint(body) == complaint


FAULTS = Faults("acme", "m")


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
    assert type(FAULTS.in_stream(complaint_from(error))) is kind
    if kind is not ModelUnavailable:
        assert type(FAULTS.from_status(400, {}, json.dumps({"error": error}).encode())) is kind


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT", "Date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
    ],
)
def test_the_wish_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert read_retry_after(headers) == seconds
