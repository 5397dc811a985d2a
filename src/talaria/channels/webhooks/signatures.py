"""How callers of webhooks prove themselves. Pure: of a secret, the headers and the raw body.

| signature     | header                               | what is signed    | event id            |
|---------------|--------------------------------------|-------------------|---------------------|
| `github`      | `X-Hub-Signature-256: sha256=HEX`    | the body          | `X-GitHub-Delivery` |
| `hmac-sha256` | `X-Signature-256: sha256=HEX`        | the body          | `X-Event-Id`        |
| `slack`       | `X-Slack-Signature: v0=HEX`          | time and body     | `event_id` in the body |
| `standard`    | `webhook-signature: v1,BASE64 …`     | id, time and body | `webhook-id`        |
| `stripe`      | `Stripe-Signature: t=SECONDS,v1=HEX` | time and body     | `id` in the body    |
| `token`       | `Authorization: Bearer TOKEN`        | nothing           | `X-Event-Id`        |

Every comparison takes the same time, whatever the caller sent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

Headers = Mapping[bytes, bytes]

TOLERANCE: Final = 300.0  # seconds that a signed time may differ
_MOST_SIGNATURES: Final = 8  # of one header: a sender that changes its secret signs with both
_MAX_ID: Final = 200
_MAX_HEADER: Final = 4_000
_WHSEC: Final = "whsec_"


class CallerProof(msgspec.Struct, frozen=True):
    """A caller that has proved itself. `event_id` is the sender's; `is_signed` tells whether the signature
    covers it, so that two events with the same body are two. `event` is the kind of the event."""

    event_id: str = ""
    is_signed: bool = False
    event: str = ""


class NotGenuine(Exception):
    """The caller has not proved itself. The text is for the log, not for the caller."""


def key_of(signature: str, secret: str) -> bytes:
    """Return the bytes of a secret. Raises ValueError for one that the signature cannot have."""
    if signature == "standard" and secret.startswith(_WHSEC):
        try:
            return base64.b64decode(secret.removeprefix(_WHSEC), validate=True)
        except binascii.Error:
            raise ValueError("what follows whsec_ is not base64") from None
    return secret.encode()


def has_proof(signature: str, key: bytes, headers: Headers) -> bool:
    """Return whether the headers may be those of a genuine call, before the body is read."""
    if any(len(headers.get(name, b"")) > _MAX_HEADER for name in _NAMES[signature]):
        return False
    if signature == "token":
        return _has_token(key, headers)
    return all(headers.get(name) for name in _NAMES[signature])


_NAMES: Final[Mapping[str, tuple[bytes, ...]]] = {
    "github": (b"x-hub-signature-256",),
    "hmac-sha256": (b"x-signature-256",),
    "standard": (b"webhook-signature", b"webhook-id", b"webhook-timestamp"),
    "slack": (b"x-slack-signature", b"x-slack-request-timestamp"),
    "stripe": (b"stripe-signature",),
    "token": (b"authorization",),
}


def prove(signature: str, key: bytes, headers: Headers, body: bytes, now: float) -> CallerProof:
    """Return the proof of a call. Raises `NotGenuine`."""
    match signature:
        case "github":
            _check_hex(key, headers[b"x-hub-signature-256"], body)
            return CallerProof(_text(headers, b"x-github-delivery"), event=_text(headers, b"x-github-event"))
        case "hmac-sha256":
            _check_hex(key, headers[b"x-signature-256"], body)
        case "standard":
            return _prove_standard(key, headers, body, now)
        case "slack":
            _check_slack(key, headers, body, now)
            return CallerProof()
        case "stripe":
            _check_stripe(key, headers[b"stripe-signature"], body, now)
            return CallerProof()
        case _:
            if not _has_token(key, headers):
                raise NotGenuine("another token")
    return CallerProof(_text(headers, b"x-event-id"), event=_text(headers, b"x-event-type"))


def _has_token(key: bytes, headers: Headers) -> bool:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    is_same = hmac.compare_digest(hashlib.sha256(token).digest(), hashlib.sha256(key).digest())
    return is_same and scheme.lower() == b"bearer"


def _check_hex(key: bytes, header: bytes, body: bytes) -> None:
    expected = b"sha256=" + hmac.digest(key, body, "sha256").hex().encode()
    if not hmac.compare_digest(header.strip(), expected):
        raise NotGenuine("another signature")


def _prove_standard(key: bytes, headers: Headers, body: bytes, now: float) -> CallerProof:
    event_id, at = headers[b"webhook-id"].strip(), headers[b"webhook-timestamp"].strip()
    if not event_id.isascii() or len(event_id) > _MAX_ID or b"." in event_id:
        raise NotGenuine("no id")
    _check_time(at, now)
    expected = hmac.digest(key, b"%b.%b.%b" % (event_id, at, body), "sha256")
    given = [part.partition(b",") for part in headers[b"webhook-signature"].split()[:_MOST_SIGNATURES]]
    _check_any((_unbase64(value) for version, _, value in given if version == b"v1"), expected)
    return CallerProof(event_id.decode("ascii"), is_signed=True)


def _check_stripe(key: bytes, header: bytes, body: bytes, now: float) -> None:
    parts = [part.strip().partition(b"=") for part in header.split(b",")[: _MOST_SIGNATURES + 2]]
    times = [value for name, _, value in parts if name == b"t"]
    if len(times) != 1:
        raise NotGenuine("no time")
    _check_time(times[0], now)
    expected = hmac.digest(key, b"%b.%b" % (times[0], body), "sha256").hex().encode()
    _check_any((value for name, _, value in parts if name == b"v1"), expected)


def _check_slack(key: bytes, headers: Headers, body: bytes, now: float) -> None:
    at = headers[b"x-slack-request-timestamp"].strip()
    _check_time(at, now)
    expected = b"v0=" + hmac.digest(key, b"v0:%b:%b" % (at, body), "sha256").hex().encode()
    if not hmac.compare_digest(headers[b"x-slack-signature"].strip(), expected):
        raise NotGenuine("another signature")


def _check_any(given: Iterator[bytes], expected: bytes) -> None:
    """Raise `NotGenuine` unless one is the expected signature. All are compared."""
    same = [hmac.compare_digest(each, expected) for each in given]
    if not any(same):
        raise NotGenuine("another signature")


def _check_time(text: bytes, now: float) -> None:
    if not (text.isdigit() and len(text) <= 12):
        raise NotGenuine("no time")
    if abs(now - int(text)) > TOLERANCE:
        raise NotGenuine("too old, or from the future")


def _unbase64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def _text(headers: Headers, name: bytes) -> str:
    """Return a header that names something; empty if it is longer than names are."""
    value = headers.get(name, b"").strip()
    return value.decode("latin-1") if len(value) <= _MAX_ID else ""
