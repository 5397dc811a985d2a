"""Calls of webhooks as senders make them: the headers that each kind of signature needs."""

from __future__ import annotations

import base64
import hashlib
import hmac

SECRET = "a secret of at least 16 characters"
STANDARD_SECRET = "whsec_" + base64.b64encode(SECRET.encode()).decode()


def sign(
    signature: str, body: bytes, *, event_id: str = "", at: float = 0.0, secret: str = SECRET
) -> dict[str, str]:
    """Return the headers of a genuine call at the time `at`."""
    key = secret.encode()
    digest = hmac.digest(key, body, "sha256").hex()
    match signature:
        case "github":
            return {
                "X-Hub-Signature-256": f"sha256={digest}",
                "X-GitHub-Delivery": event_id,
                "X-GitHub-Event": "push",
            }
        case "hmac-sha256":
            return {"X-Signature-256": f"sha256={digest}"} | ({"X-Event-Id": event_id} if event_id else {})
        case "standard":
            stamp = str(int(at))
            signed = hmac.new(key, f"{event_id}.{stamp}.".encode() + body, hashlib.sha256).digest()
            return {
                "webhook-id": event_id,
                "webhook-timestamp": stamp,
                "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
            }
        case "stripe":
            stamp = str(int(at))
            signed = hmac.new(key, f"{stamp}.".encode() + body, hashlib.sha256).digest()
            return {"Stripe-Signature": f"t={stamp},v1={signed.hex()}"}
        case _:
            return {"Authorization": f"Bearer {secret}"} | ({"X-Event-Id": event_id} if event_id else {})
