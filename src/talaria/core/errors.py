"""Errors that a person may meet: each says what happened and why (`user_text`) and what to do (`hint`)."""

from __future__ import annotations

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as it is stored and sent: `{"type", "message", "hint"}`."""

    type: str
    message: str
    hint: str = ""

    def sentence(self) -> str:
        return f"{self.message} {self.hint}".strip()


class TalariaError(Exception):
    """`type` is a stable word for programs; `user_text` says what and why; `hint` says what to do."""

    type = "internal"

    def __init__(self, user_text: str, hint: str = "") -> None:
        super().__init__(f"{user_text} {hint}".strip())
        self.user_text = user_text
        self.hint = hint

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.type, self.user_text, self.hint)


class ConfigError(TalariaError):
    type = "config"


class BadRequest(TalariaError):
    """The caller's mistake."""

    type = "bad_request"


class NotFound(TalariaError):
    type = "not_found"


class TooManyTries(TalariaError):
    """Wrong codes have locked what they were for; time opens it again."""

    type = "too_many_tries"


class IdempotencyConflict(TalariaError):
    """The same idempotency key came with another body."""

    type = "idempotency_conflict"


class NoModel(TalariaError):
    """No model is configured, or the configured one cannot be used."""

    type = "no_model"


class ToolError(TalariaError):
    """A tool could not do what was asked; the text goes to the model as the call's result."""

    type = "tool"


class LimitReached(TalariaError):
    """A turn used up its steps."""

    type = "limit"


class OverBudget(TalariaError):
    """A cap on spending forbids the call, which was not made."""

    type = "over_budget"


class Poisoned(TalariaError):
    """A turn that took the process down too often."""

    type = "poisoned"


# -- models -----------------------------------------------------------------------------------------------


class ModelError(TalariaError):
    """A model call failed. The subclass says whether another try could help."""

    type = "model"

    def __init__(self, user_text: str, hint: str = "", *, status: int | None = None) -> None:
        super().__init__(user_text, hint)
        self.status = status


class ModelUnavailable(ModelError):
    """Retryable: 429, 5xx, refused or broken connections, timeouts."""

    type = "model_unavailable"

    def __init__(
        self, user_text: str, hint: str = "", *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(user_text, hint, status=status)
        self.retry_after = retry_after


class EndpointResting(ModelUnavailable):
    """No call was made: the endpoint failed too often in a row and is left alone for a while."""

    type = "model_resting"


class ModelRefused(ModelError):
    """Fatal for this model: 400, 401, 403, 404."""

    type = "model_refused"


class ContextTooLong(ModelError):
    """The conversation does not fit the model's window."""

    type = "context_too_long"


# -- store ------------------------------------------------------------------------------------------------


class StoreError(TalariaError):
    """The store could not do what was asked; nothing of it was done."""

    type = "store"


class StoreLocked(StoreError):
    """Another process holds this home."""

    type = "store_locked"


class StoreDamaged(StoreError):
    """The database is damaged: nothing is written to it any more."""

    type = "store_damaged"


class StaleFence(StoreError):
    """The session's lease is another's now: stop at once, without a word to the user."""

    type = "stale_fence"


class LeaseHeld(StoreError):
    """The session's lease is held by a live owner."""

    type = "lease_held"


class SteerWaiting(StoreError):
    """The turn cannot be done yet: a message to steer it was accepted and is not in its log."""

    type = "steer_waiting"


class IllegalMove(StoreError):
    """A state machine was asked for a move that its table does not have."""

    type = "illegal_move"

    def __init__(self, what: str, old: str, new: str) -> None:
        super().__init__(f"{what} cannot go from {old} to {new}.")
        self.old = old
        self.new = new
