"""Errors for people: `user_text` says what happened and why, `hint` says what to do."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from talaria.core.problems import Action, Do, Problem, Severity, run
from talaria.core.program import spoken_afar


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as it is stored and sent: `{"type", "message", "hint"}`, and what else is known.

    `code` is a word that programs of other systems look for, `param` the field that is wrong. `status` and
    `retry_after` (in seconds) are what the provider of a model answered. `action` is what the hint tells
    people in a chat to do. A member that is not known is left out.
    """

    type: str
    message: str
    hint: str = ""
    code: str | UnsetType = UNSET
    param: str | UnsetType = UNSET
    status: int | UnsetType = UNSET
    retry_after: float | UnsetType = UNSET
    action: Action | UnsetType = UNSET

    def hint_in(self, words: Mapping[Do, str]) -> str:
        """Return the hint with the action in the words of a surface that is not a chat."""
        if self.action is UNSET:
            return self.hint
        return self.hint.replace(str(self.action), self.action.worded(words))

    def sentence(self) -> str:
        return f"{self.message} {self.hint}".strip()


class TalariaError(Exception):
    """The base of all errors for people. `type` is a stable word for programs."""

    type = "internal"

    def __init__(
        self,
        user_text: str,
        hint: str = "",
        *,
        code: str = "",
        param: str = "",
        action: Action | None = None,
    ) -> None:
        """`code` is a word that programs of other systems look for, `param` the field that is wrong. The hint
        contains the words of the `action`."""
        super().__init__(f"{user_text} {hint}".strip())
        self.user_text = user_text
        self.hint = hint
        self.action = action
        self.api_code = code
        self.param = param

    def problem(self, subject: str, action: Action | str = "") -> Problem:
        """Return the error as a value, with this action or command line."""
        return Problem(self.user_text, self.hint, run(action) or self.action, Severity.PROBLEM, subject)

    def info(self) -> ErrorInfo:
        """Return the error with commands as the user of this program types them."""
        return ErrorInfo(
            self.type,
            spoken_afar(self.user_text),
            spoken_afar(self.hint),
            self.api_code or UNSET,
            self.param or UNSET,
            action=self.action or UNSET,
        )


class ConfigError(TalariaError):
    type = "config"


class BadRequest(TalariaError):
    """The caller's mistake."""

    type = "bad_request"


class NotFound(TalariaError):
    type = "not_found"


class Refused(TalariaError):
    """A refusal of the type `kind`, which decides the status of an HTTP answer."""

    type = "refused"

    def __init__(self, kind: str, user_text: str, hint: str, *, action: Action | None = None) -> None:
        super().__init__(user_text, hint, action=action)
        self.type = kind


class NoSession(NotFound):
    """The chat has no open session, and the order does not say how to create one. Never shown: the caller
    sends the order again with a session."""

    type = "no_session"


class TooManyTries(TalariaError):
    """Too many wrong codes: the lock opens again after a while."""

    type = "too_many_tries"


class IdempotencyConflict(TalariaError):
    """An idempotency key was used again with another body."""

    type = "idempotency_conflict"


class HeadMoved(TalariaError):
    """A response cannot be put behind another one, because that is not the last of its chain any more."""

    type = "head_moved"


class NoModel(TalariaError):
    """No model is configured, or the configured one cannot be used."""

    type = "no_model"


class ToolError(TalariaError):
    """A tool failed. The model gets the text as the result of its call."""

    type = "tool"


class LimitReached(TalariaError):
    """A turn used up its steps, its time or another limit of one answer, turn or chat."""

    type = "limit"


class RepeatedMessage(TalariaError):
    """The message was accepted before, as the turn `turn_id`. Nothing was done."""

    type = "repeated"

    def __init__(self, user_text: str, hint: str = "", *, turn_id: str) -> None:
        super().__init__(user_text, hint)
        self.turn_id = turn_id


class Overloaded(TalariaError):
    """The gateway has too much to do and took nothing on. The same request may succeed `retry_after` seconds
    later."""

    type = "overloaded"

    def __init__(self, user_text: str, hint: str = "", *, retry_after: float = 5.0) -> None:
        super().__init__(user_text, hint)
        self.retry_after = retry_after


class OverBudget(TalariaError):
    """A spend cap forbids a call. The call was not made."""

    type = "over_budget"


class Poisoned(TalariaError):
    """A turn was running in too many crashes and is not tried again."""

    type = "poisoned"


# -- models -----------------------------------------------------------------------------------------------


class ModelError(TalariaError):
    """A model call failed. The subclass says whether another try could help."""

    type = "model"

    def __init__(
        self,
        user_text: str,
        hint: str = "",
        *,
        status: int | None = None,
        retry_after: float | None = None,
        code: str = "",
        param: str = "",
        action: Action | None = None,
    ) -> None:
        super().__init__(user_text, hint, code=code, param=param, action=action)
        self.status = status
        self.retry_after = retry_after

    def info(self) -> ErrorInfo:
        return msgspec.structs.replace(
            super().info(),
            status=UNSET if self.status is None else self.status,
            retry_after=UNSET if self.retry_after is None else self.retry_after,
        )


class ModelUnavailable(ModelError):
    """Retryable: 429, 5xx, refused or broken connections, timeouts."""

    type = "model_unavailable"


class EndpointResting(ModelUnavailable):
    """No call was made: the breaker of the endpoint is open after too many failures in a row."""

    type = "model_resting"


class ModelRefused(ModelError):
    """Fatal for this model: 400, 401, 403, 404."""

    type = "model_refused"


class AnswerTooLarge(ModelError):
    """Fatal for this call: the answer went over a limit of one answer. Asked again, it would cost again."""

    type = "answer_too_large"


class AnswerMemoryFull(ModelUnavailable):
    """Retryable: the answers that are being received need too much memory together."""

    type = "answer_memory_full"


class EmptyAnswer(ModelUnavailable):
    """The model's answer has neither text nor a call. A person is told so; a program gets the empty text."""

    type = "empty_answer"


class ContextTooLong(ModelError):
    """The conversation does not fit the model's window."""

    type = "context_too_long"


# -- store ------------------------------------------------------------------------------------------------


class StoreError(TalariaError):
    """A store operation failed and changed nothing."""

    type = "store"


class StoreLocked(StoreError):
    """Another process holds this home."""

    type = "store_locked"


class StoreDamaged(StoreError):
    """The database is damaged. The store refuses all further writes."""

    type = "store_damaged"


class StoreGone(StoreError):
    """The database file was deleted or replaced while it was open. The store refuses all further writes."""

    type = "store_gone"


class ForeignDatabase(StoreError):
    """The database was not made by this program."""

    type = "store_foreign"


class StaleFence(StoreError):
    """Another owner has taken the session's lease. The holder of the old fence must stop silently."""

    type = "stale_fence"


class LeaseHeld(StoreError):
    """Another owner holds the session's lease."""

    type = "lease_held"


class TurnElsewhere(StoreError):
    """The turn is for another gateway of the cluster."""

    type = "turn_elsewhere"


class SessionOwes(TalariaError):
    """A session cannot be deleted yet: a turn of it is unsettled, or a reply is not sent."""

    type = "busy"


class SteerWaiting(StoreError):
    """A turn cannot end yet: a message that steers it was accepted and is not in its log."""

    type = "steer_waiting"


class IllegalMove(StoreError):
    """A move that the transition table of a state machine does not allow."""

    type = "illegal_move"

    def __init__(self, what: str, old: str, new: str) -> None:
        super().__init__(f"{what} cannot go from {old} to {new}.")
        self.old = old
        self.new = new
