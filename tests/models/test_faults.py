"""Reading what servers complain about."""

from __future__ import annotations

import pytest

from talaria.models.faults import Complaint, read_complaint, read_retry_after


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
