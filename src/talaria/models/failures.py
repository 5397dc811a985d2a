"""Failed model calls: their meaning, their text for people, and what follows (retry, fallback, giving up).

This module owns three tables: `STATUS_KINDS` (what an HTTP status means), `_ACTIONS` (what a kind says to a
person), and the cases of `decide` (what the caller does next).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import TypeGuard

import msgspec

from talaria.core.backoff import Backoff
from talaria.core.errors import (
    AnswerMemoryFull,
    ContextTooLong,
    EndpointResting,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from talaria.core.problems import Action, Do
from talaria.core.redaction import Redactor
from talaria.core.text import cut_to_fit

MAX_REASON = 300
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of decoding untrusted JSON."""
LONGEST_WAIT = 7 * 86400.0
"""A server that asks for a longer pause in seconds is taken to mean this one."""

_MAX_ERROR_BYTES = 64 << 10
_MAX_MESSAGE = 4000  # characters that are searched and redacted, before the text is cut to `MAX_REASON`
_MAX_TYPE = 200
_MAX_DEPTH = 4

# -- statuses and error types -------------------------------------------------------------------------------


class StatusKind(Enum):
    """The meaning of an HTTP status of a model provider.

    `RATE_LIMITED` and `FAILING` may pass: the call is retried. All other kinds are final for this model.
    """

    REDIRECT = auto()
    BAD_KEY = auto()
    NOT_FOUND = auto()
    RATE_LIMITED = auto()
    FAILING = auto()
    REFUSED = auto()


STATUS_KINDS: Mapping[int, StatusKind] = {
    401: StatusKind.BAD_KEY,
    403: StatusKind.BAD_KEY,
    404: StatusKind.NOT_FOUND,
    408: StatusKind.FAILING,
    409: StatusKind.FAILING,
    425: StatusKind.FAILING,
    429: StatusKind.RATE_LIMITED,
}
_PAYMENT_REQUIRED = 402
_RETRYABLE = frozenset({StatusKind.RATE_LIMITED, StatusKind.FAILING})


def status_kind(status: int | None) -> StatusKind:
    """Return the kind of a status that is no success. None, a failure without a status, is `FAILING`."""
    if status is None or status >= 500:
        return StatusKind.FAILING
    if 300 <= status < 400:
        return StatusKind.REDIRECT
    return STATUS_KINDS.get(status, StatusKind.REFUSED)


# Errors inside a stream have a type instead of a status. These words mark the final ones.
_FINAL_TYPES = re.compile(
    r"invalid|authenti|permission|unauthori[sz]ed|forbidden|not_?found|quota|unsupported|billing|content_?filter"
    r"|moderation",
    re.IGNORECASE,
)
# Providers have no common status or type for a conversation that is too long; they have these words.
_TOO_LONG = re.compile(
    r"context[_ ]length|maximum context|context window|exceeds? the (model'?s )?context|prompt is too long"
    r"|input is too long|too many (input )?tokens|reduce the length|exceeds? the available context"
    r"|request[_ ]too[_ ]large|maximum prompt length|exceeds? context limit",
    re.IGNORECASE,
)
_QUOTA = "insufficient_quota"  # the account is empty; the same call fails until it is topped up
_CODE = re.compile(r"[a-z0-9_.-]{1,64}")
_PARAM = re.compile(r"[A-Za-z0-9_.\[\]-]{1,200}")
_NO_CREDIT = "has no credit left"
_USE_OTHER = Action(Do.USE_MODEL, "choose another model")
_USE_LOCAL = Action(Do.USE_LOCAL_MODEL)
_CHOOSE_OTHER = Action(Do.USE_MODEL, "Choose another")
_TRY_OTHER = Action(Do.USE_MODEL, "Try another model")
_SHORTER = Action(Do.SHORTER)
_TOP_UP = f"Top up the account at the provider, or {_USE_OTHER}."
_OTHER_ADDRESS = "Run `talaria setup` and give its right address."
_SOON = "Try again in a moment."
# The provider's action in words, a hint, and the action in the hint.
_ACTIONS: Mapping[StatusKind, tuple[str, str, Action]] = {
    StatusKind.BAD_KEY: (
        "did not accept the key",
        f"{_USE_LOCAL}, or run `talaria setup` to set another key.",
        _USE_LOCAL,
    ),
    StatusKind.NOT_FOUND: (
        "does not know this model or address",
        f"{_CHOOSE_OTHER}, or run `talaria setup`.",
        _CHOOSE_OTHER,
    ),
    StatusKind.REFUSED: (
        "refused the request",
        f"{_TRY_OTHER}, or change what was asked.",
        _TRY_OTHER,
    ),
}


class ErrorBody(msgspec.Struct, frozen=True):
    """The server's own words: a message, a type, and if it named them a status and a parameter."""

    message: str = ""
    type: str = ""
    status: int | None = None
    param: str = ""

    @property
    def is_too_long(self) -> bool:
        return bool(_TOO_LONG.search(f"{self.type} {self.message}"))


_NO_ERRORS = (b"null", b"{}", b"[]", b'""', b"false", b"0")
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read_error_body(body: bytes) -> ErrorBody:
    """Read the body of an error response, in any of the forms that servers use. Plain text is the message."""
    found = _read_error(body)
    if found is None:
        text = body[:_MAX_MESSAGE].decode("utf-8", "replace")
        return ErrorBody("" if text.lstrip().startswith("<") else text)  # HTML is not for people
    return found


def parse_error(value: bytes | msgspec.Raw) -> ErrorBody:
    """Read an error inside an answer. It is empty if the JSON has none of the known forms."""
    return _read_error(value) or ErrorBody()


def is_error(value: msgspec.Raw) -> bool:
    """Return whether the member `error` of an answer holds an error: it is there, and not empty."""
    return len(value) > 0 and bytes(value) not in _NO_ERRORS


def _read_error(value: bytes | msgspec.Raw) -> ErrorBody | None:
    """Read JSON: `{"error": {…}}`, `{"error": "…"}`, `{"message": …}`, `{"detail": …}`, a string, a list.

    Return None for anything else. Only the members that are used are decoded, and nothing deeper than a few
    levels, because a hostile error can have any shape.
    """
    body = bytes(value)[:_MAX_ERROR_BYTES]
    try:
        for _ in range(_MAX_DEPTH):
            body = body.lstrip()
            if body.startswith(b'"'):
                return ErrorBody(msgspec.json.decode(body, type=str)[:_MAX_MESSAGE])
            if body[:1] in b"-0123456789tfn":  # a number, or a word
                msgspec.json.decode(body, type=float | bool | None)
                return ErrorBody()
            if body.startswith(b"["):
                items = _decode_items(body)
                body = bytes(items[0]) if items else b""
                continue
            members = {name: bytes(raw) for name, raw in _decode_members(body).items()}
            if not members.get("error", b"").startswith((b"{", b'"')):
                return _read_members(members)
            body = members["error"]
    except DECODE_ERRORS:
        pass
    return None


def _read_members(members: Mapping[str, bytes]) -> ErrorBody:
    code = _scalar(members.get("code"))
    kind = code if isinstance(code, str) else _scalar(members.get("type"))
    status = next((n for n in (code, _scalar(members.get("status"))) if is_status(n)), None)
    raw = next((members[name] for name in ("message", "detail") if len(members.get(name, b"")) > 2), b"")
    message, param = _scalar(raw), _scalar(members.get("param"))
    text = message if isinstance(message, str) else raw[:_MAX_MESSAGE].decode("utf-8", "replace")
    return ErrorBody(
        "" if raw in (b"null", b"false") else text[:_MAX_MESSAGE],
        kind[:_MAX_TYPE] if isinstance(kind, str) else "",
        status,
        param if isinstance(param, str) and _PARAM.fullmatch(param) else "",
    )


def is_status(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599


def _scalar(raw: bytes | None) -> str | int | None:
    """Return a string or a whole number; None for any other JSON."""
    if not raw or raw[:1] not in b'"0123456789':
        return None
    try:
        return msgspec.json.decode(raw, type=str | int)
    except DECODE_ERRORS:
        return None


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, from `retry-after-ms` or else `Retry-After`; None if neither can be read.

    A date counts from the response's own `Date`. The result is from 0 to `LONGEST_WAIT`.
    """
    if (seconds := _seconds(headers.get("retry-after-ms", ""), 0.001)) is not None:
        return seconds
    value = headers.get("Retry-After")
    if value is None:
        return None
    if (seconds := _seconds(value, 1.0)) is not None:
        return seconds
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("Date", ""))
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, wait.total_seconds()), LONGEST_WAIT)


def _seconds(text: str, unit: float) -> float | None:
    try:
        value = float(text[:100]) * unit
    except ValueError:
        return None
    return min(value, LONGEST_WAIT) if 0 <= value < math.inf else None


# -- errors for people --------------------------------------------------------------------------------------


class ProviderErrors(msgspec.Struct, eq=False):
    """Makes the errors of one provider's model. Their texts never hold the provider's secrets."""

    _provider: str
    _model: str
    _redact: Redactor = msgspec.field(default_factory=Redactor)

    def from_status(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """Return the error for a response whose status is no success."""
        error = read_error_body(body)
        kind = status_kind(status)
        if kind is StatusKind.REDIRECT:
            target = headers.get("Location", "elsewhere")[:MAX_REASON]
            return ModelRefused(
                self.say(f"answered with a redirect to {target}, which is not followed"),
                _OTHER_ADDRESS,
                status=status,
            )
        if kind not in _RETRYABLE or error.type == _QUOTA:
            return self._refused(status, error)
        what = "is limiting requests" if kind is StatusKind.RATE_LIMITED else "is failing"
        retry_after = read_retry_after(headers)
        return ModelUnavailable(
            self.say(f"{what} (HTTP {status})", error.message),
            f"Try again in {_format_wait(retry_after)}.",
            status=status,
            retry_after=retry_after,
            code=self._code(error),
        )

    def in_stream(self, error: ErrorBody) -> ModelError:
        """Return the error for an error object inside the answer. It has a status or a type, or neither."""
        status = error.status
        if status is None:
            is_final = bool(_FINAL_TYPES.search(error.type))
        else:
            is_final = status >= 400 and status_kind(status) not in _RETRYABLE
        if is_final or error.is_too_long:
            return self._refused(status, error)
        return ModelUnavailable(
            self.say("broke off its answer with an error", error.message or error.type),
            _SOON,
            status=status,
        )

    def cut_off(self) -> ModelError:
        return self._failed("lost the connection: the answer was cut off")

    def disconnected(self) -> ModelError:
        return self._failed("closed the connection without an answer")

    def malformed(self, what: str) -> ModelError:
        hint = "Try again, and if it stays so, run `talaria doctor --call`."
        return self._failed(f"sent an answer that cannot be read: {cut_to_fit(what, MAX_REASON)}", hint)

    def unreachable(self, url: str, reason: str) -> ModelError:
        return ModelUnavailable(
            self.say(f"cannot be reached at {url}", reason),
            f"Start its server, or {_USE_OTHER}.",
            action=_USE_OTHER,
        )

    def untrusted(self, url: str, reason: str) -> ModelError:
        what = f"cannot be trusted: the certificate of {url} does not verify"
        return ModelRefused(self.say(what, reason), _OTHER_ADDRESS)

    def resting(self, failures: int, seconds: float) -> EndpointResting:
        return EndpointResting(
            self.say(f"has failed {failures} times in a row and is not asked for a while"),
            f"Try again in {_format_wait(seconds)}, or {_USE_OTHER}.",
            retry_after=seconds,
            action=_USE_OTHER,
        )

    def no_first_token(self, seconds: float, *, is_retry: bool = False) -> ModelError:
        """`is_retry`: it was the time for all tries that ended."""
        key = "retry_within" if is_retry else "first_token"
        return self._late(f"did not begin its answer within {seconds:.3g} seconds", key)

    def stalled(self, seconds: float) -> ModelError:
        return self._late(f"fell silent for {seconds:g} seconds in the middle of its answer", "silence")

    def timed_out(self, seconds: float) -> ModelError:
        return self._late(f"did not finish its answer within {seconds:g} seconds", "timeout")

    def connect_timed_out(self, url: str, seconds: float) -> ModelError:
        what = f"did not take a connection at {url} within {seconds:g} seconds"
        return self._late(what, "connect_timeout", "Start its server")

    def _late(self, what: str, key: str, action: str = "Try again") -> ModelError:
        return self._failed(
            what, f"{action}, or raise `{key}` in [providers.{self._provider}] in config.toml."
        )

    def _failed(self, what: str, hint: str = _SOON) -> ModelError:
        return ModelUnavailable(self.say(what), hint)

    def _refused(self, status: int | None, error: ErrorBody) -> ModelError:
        reason = error.message or error.type
        if error.is_too_long:
            return ContextTooLong(
                self.say("cannot take a conversation of this length", reason),
                f"{_SHORTER}.",
                status=status,
                code="context_length_exceeded",
                param="messages",
                action=_SHORTER,
            )
        shown = f" (HTTP {status})" if status is not None else ""
        if error.type == _QUOTA or status == _PAYMENT_REQUIRED:
            what = self.say(_NO_CREDIT + shown, reason)
            return ModelRefused(what, _TOP_UP, status=status, code=_QUOTA, action=_USE_OTHER)
        kind = StatusKind.REFUSED if status is None else status_kind(status)
        what, hint, action = _ACTIONS.get(kind, _ACTIONS[StatusKind.REFUSED])
        return ModelRefused(
            self.say(what + shown, reason),
            hint,
            status=status,
            code=self._code(error),
            param=error.param,
            action=action,
        )

    def _code(self, error: ErrorBody) -> str:
        """Return the provider's own word for programs, or an empty text if the type is no such word."""
        return error.type if _CODE.fullmatch(error.type) and self._redact(error.type) == error.type else ""

    def say(self, what: str, reason: str = "") -> str:
        """Return a sentence about the model: what it did, and the reason in the words of the provider."""
        # Redact before trimming: the redactor does not find half a key, but a person can still read it.
        reason = cut_to_fit(" ".join(self._redact(reason[:_MAX_MESSAGE]).split()), MAX_REASON)
        model = f" (model {self._model})" if self._model else ""
        text = f"{self._provider}{model} {self._redact(what)}"
        text = f"{text}: {reason}" if reason else text
        return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _format_wait(seconds: float | None) -> str:
    if seconds is None or seconds < 1:
        return "a moment"
    if seconds <= 90:
        return f"{math.ceil(seconds)} seconds"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} minutes" if minutes <= 90 else f"{math.ceil(minutes / 60)} hours"


# -- what follows -------------------------------------------------------------------------------------------

RETRY_BACKOFF = Backoff(first=1.0, longest=30.0)
LONGEST_RETRY_AFTER = 60.0
SHORTEST_TRY = 5.0


class RetryState(msgspec.Struct, frozen=True):
    """The state of a call after a failure.

    `tries` counts the calls of this model, the failed one included. `is_resting` is whether its endpoint
    rests now, `has_next` whether the fallback chain has another model. `seconds_left` is the time in which
    further tries have to begin an answer.
    """

    tries: int
    max_retries: int
    has_spoken: bool = False
    is_resting: bool = False
    has_next: bool = False
    seconds_left: float = math.inf


class Retry(msgspec.Struct, frozen=True):
    seconds: float


class FallBack(msgspec.Struct, frozen=True):
    """Ask the next model of the chain at once."""


class GiveUp(msgspec.Struct, frozen=True):
    pass


def decide(error: ModelError, state: RetryState, draw: float) -> Retry | FallBack | GiveUp:
    """Return what follows a failed call. Pure; its truth table is in `tests/models/test_failures.py`.

    - An answer of which the user has seen a part is not asked for again: give up.
    - A conversation that is too long stays too long: give up.
    - A refusal (400, 401, 403, 404) is final for this model: fall back. So is an answer over a limit, which
      would cost again.
    - A resting endpoint is not waited for: fall back.
    - Every other failure (429, 5xx, broken connections, timeouts before the first token) is retried up to
      `max_retries` times, unless the server asks for a pause longer than `LONGEST_RETRY_AFTER`, or less than
      `SHORTEST_TRY` would be left for the try after the pause.

    `draw`, a random number from 0 to 1, spreads the callers that wait for the same endpoint.
    """
    if state.has_spoken or isinstance(error, ContextTooLong):
        return GiveUp()
    if (
        isinstance(error, ModelUnavailable)
        and not isinstance(error, EndpointResting)
        and not state.is_resting
        and state.tries <= state.max_retries
        and (error.retry_after or 0.0) <= LONGEST_RETRY_AFTER
    ):
        pause = retry_pause(state.tries, error.retry_after, draw)
        if pause + SHORTEST_TRY <= state.seconds_left:
            return Retry(pause)
    return FallBack() if state.has_next else GiveUp()


def retry_pause(tries: int, retry_after: float | None, draw: float) -> float:
    """Return the seconds before the next try: a little more than the server asked for, else the backoff."""
    if retry_after is not None:
        return retry_after + draw * RETRY_BACKOFF.first
    return RETRY_BACKOFF.pause(tries, draw)


def harms_endpoint(error: ModelError) -> bool:
    """Return whether the failure counts against the endpoint's circuit breaker.

    A refusal is about the request, the key or the model. A rate limit is often about one model or one key; it
    must not close the endpoint for everybody. Memory that is full is the gateway's own.
    """
    if isinstance(error, AnswerMemoryFull):
        return False
    return isinstance(error, ModelUnavailable) and status_kind(error.status) is not StatusKind.RATE_LIMITED
