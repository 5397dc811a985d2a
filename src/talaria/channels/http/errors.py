"""Errors as HTTP answers: a status for each, and always `{"error": {"type", "message", "hint"}}`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from talaria.core.errors import ErrorInfo, TalariaError
from talaria.core.turns import Turn, TurnState

RawHeaders = tuple[tuple[bytes, bytes], ...]

_STATUS: Mapping[str, int] = {
    "bad_request": 400,
    "context_too_long": 400,
    "over_budget": 402,
    "not_found": 404,
    "lease_held": 409,
    "too_large": 413,
    "cancelled": 409,
    "idempotency_conflict": 422,
    "too_many_tries": 429,
    "model_refused": 502,
    "model": 502,
    "no_model": 503,
    "model_resting": 503,
    "model_unavailable": 503,
    "draining": 503,
    "store": 503,
    "store_locked": 503,
    "store_damaged": 503,
    "stale_fence": 503,
}
INTERNAL = ErrorInfo(
    "internal",
    "Something went wrong inside the gateway.",
    "The gateway's log has the details; please report it.",
)
_LOG_HINT = "The gateway's log may say more."
_encode = msgspec.json.Encoder().encode


class Refused(TalariaError):
    """An answer that only HTTP has: its status, and headers that belong to it."""

    def __init__(self, status: int, kind: str, user_text: str, hint: str, headers: RawHeaders = ()) -> None:
        super().__init__(user_text, hint)
        self.type = kind
        self.status = status
        self.headers = headers


class ClientGone(Exception):
    """Whoever asked has left: there is nobody to answer."""


def status_of(error: ErrorInfo) -> int:
    """What the caller could mend is 4xx; unknown kinds are ours."""
    return _STATUS.get(error.type, 500)


def error_body(error: ErrorInfo) -> bytes:
    if not error.hint:
        error = ErrorInfo(error.type, error.message, _LOG_HINT)
    return _encode({"error": error})


def turn_error(turn: Turn) -> ErrorInfo | None:
    """Why a turn has no answer to give, or None when it has one."""
    match turn.state:
        case TurnState.DONE:
            return None
        case TurnState.FAILED:
            return turn.error or INTERNAL
        case TurnState.CANCELLED:
            return ErrorInfo("cancelled", f"The turn {turn.id} was cancelled.", "Send the message again.")
        case _:
            return ErrorInfo(
                "draining",
                f"The gateway is shutting down and left the turn {turn.id} unfinished.",
                f"The next start takes it up; GET /api/turns/{turn.id} has its answer then.",
            )


def turn_refusal(error: ErrorInfo, headers: RawHeaders) -> Refused:
    """A turn that failed, as an answer. It is final, so clients that retry by themselves are told not to."""
    return Refused(
        status_of(error), error.type, error.message, error.hint, (*headers, (b"x-should-retry", b"false"))
    )
