"""What a failed model call means: the class of its error, one sentence for people and one action."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from talaria.core.errors import ContextTooLong, EndpointResting, ModelError, ModelRefused, ModelUnavailable
from talaria.core.redaction import Redactor

MAX_REASON = 300
_RETRYABLE = frozenset({408, 409, 425, 429})
_TOO_LONG = re.compile(
    r"context[_ ]length|maximum context|context window|exceeds? the (model'?s )?context|prompt is too long"
    r"|input is too long|too many (input )?tokens|reduce the length|exceeds? the available context"
    r"|request[_ ]too[_ ]large|maximum prompt length|exceeds? context limit",
    re.IGNORECASE,
)
_FATAL_WORDS = re.compile(
    r"invalid|authenti|permission|unauthori[sz]ed|forbidden|not_?found|quota|unsupported|billing|content_?filter"
    r"|moderation",
    re.IGNORECASE,
)
_SPACES = re.compile(r"\s+")
_START_IT = "Start its server, or choose another model with /model."
_OTHER_ADDRESS = "Run `talaria setup` and give its right address."
_SOON = "Try again in a moment."
_REFUSED = ("refused the request", "Try another model with /model, or change what was asked.")
_NO_KEY = ("did not accept the key", "Send `/model local`, or run `talaria setup` to set another key.")
_REFUSALS: Mapping[int | None, tuple[str, str]] = {
    401: _NO_KEY,
    403: _NO_KEY,
    404: ("does not know this model or address", "Choose another with /model, or run `talaria setup`."),
}


class Complaint(msgspec.Struct, frozen=True):
    """What the server itself said: its message, its word for the kind, a status if it named one."""

    message: str = ""
    kind: str = ""
    status: int | None = None

    def is_of_length(self) -> bool:
        return bool(_TOO_LONG.search(f"{self.kind} {self.message}"))


class Faults:
    """Makes the errors of one provider's model. Texts never hold the provider's secrets."""

    __slots__ = ("_model", "_provider", "_redact")

    def __init__(self, provider: str, model: str, redact: Redactor | None = None) -> None:
        self._provider = provider
        self._model = model
        self._redact = redact or Redactor()

    def from_status(self, status: int, headers: Mapping[str, str], body: bytes) -> ModelError:
        """An answer with a status other than 200."""
        complaint = read_complaint(body)
        if 300 <= status < 400:
            target = headers.get("Location", "elsewhere")
            return ModelRefused(
                self._say(f"answered with a redirect to {target}, which is not followed"),
                _OTHER_ADDRESS,
                status=status,
            )
        if _may_pass(status):
            reason = "is limiting requests" if status == 429 else "is failing"
            retry_after = read_retry_after(headers)
            return ModelUnavailable(
                self._say(f"{reason} (HTTP {status})", complaint.message),
                f"Try again in {_when(retry_after)}.",
                status=status,
                retry_after=retry_after,
            )
        return self._refused(status, complaint)

    def in_stream(self, complaint: Complaint) -> ModelError:
        """An error object where a part of the answer was due."""
        status = complaint.status
        if status is None:
            is_fatal = bool(_FATAL_WORDS.search(complaint.kind))
        else:
            is_fatal = status >= 400 and not _may_pass(status)
        if is_fatal or complaint.is_of_length():
            return self._refused(status, complaint)
        return ModelUnavailable(
            self._say("broke off its answer with an error", complaint.message or complaint.kind),
            _SOON,
            status=status,
        )

    def cut_off(self) -> ModelError:
        return self._failed("lost the connection: the answer was cut off")

    def disconnected(self) -> ModelError:
        return self._failed("closed the connection without an answer")

    def malformed(self, what: str) -> ModelError:
        hint = "Try again, and if it stays so, run `talaria doctor --call`."
        return self._failed(f"sent an answer that cannot be read: {what}", hint)

    def unreachable(self, url: str, reason: str) -> ModelError:
        return ModelUnavailable(self._say(f"cannot be reached at {url}", reason), _START_IT)

    def untrusted(self, url: str, reason: str) -> ModelError:
        what = f"cannot be trusted: the certificate of {url} does not verify"
        return ModelRefused(self._say(what, reason), _OTHER_ADDRESS)

    def resting(self, failures: int, seconds: float) -> EndpointResting:
        return EndpointResting(
            self._say(f"has failed {failures} times in a row and is not asked for a while"),
            f"Try again in {_when(seconds)}, or choose another model with /model.",
            retry_after=seconds,
        )

    def wordless(self, seconds: float) -> ModelError:
        return self._late(f"did not begin its answer within {seconds:g} seconds", "first_token")

    def silent(self, seconds: float) -> ModelError:
        return self._late(f"fell silent for {seconds:g} seconds in the middle of its answer", "silence")

    def too_slow(self, seconds: float) -> ModelError:
        return self._late(f"did not finish its answer within {seconds:g} seconds", "timeout")

    def unconnected(self, url: str, seconds: float) -> ModelError:
        what = f"did not take a connection at {url} within {seconds:g} seconds"
        return self._late(what, "connect_timeout", "Start its server")

    def _late(self, what: str, key: str, cure: str = "Try again") -> ModelError:
        return self._failed(what, f"{cure}, or raise `{key}` in [providers.{self._provider}] in config.toml.")

    def _failed(self, what: str, hint: str = _SOON) -> ModelError:
        return ModelUnavailable(self._say(what), hint)

    def _refused(self, status: int | None, complaint: Complaint) -> ModelError:
        reason = complaint.message or complaint.kind
        if complaint.is_of_length():
            return ContextTooLong(
                self._say("cannot take a conversation of this length", reason),
                "Start a new conversation with /new.",
                status=status,
            )
        what, hint = _REFUSALS.get(status, _REFUSED)
        code = f" (HTTP {status})" if status is not None else ""
        return ModelRefused(self._say(what + code, reason), hint, status=status)

    def _say(self, what: str, reason: str = "") -> str:
        # Redacted before it is trimmed: half a key is not found any more, but may still be read.
        reason = _SPACES.sub(" ", self._redact(reason)).strip()
        if len(reason) > MAX_REASON:
            reason = reason[: MAX_REASON - 1] + "…"
        model = f" (model {self._model})" if self._model else ""
        text = f"{self._provider}{model} {self._redact(what)}"
        text = f"{text}: {reason}" if reason else text
        return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _may_pass(status: int) -> bool:
    return status in _RETRYABLE or status >= 500


def read_complaint(body: bytes) -> Complaint:
    """What an error body says, in any of the shapes that servers use; plain text stands for itself."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body[:4000].decode("utf-8", "replace")
        # A page for browsers is no sentence for people.
        return Complaint("" if text.lstrip().startswith("<") else text)
    return complaint_from(value)


def complaint_from(value: Any) -> Complaint:
    """From decoded JSON: `{"error": {…}}`, `{"error": "…"}`, `{"message": …}`, `{"detail": …}`, a string."""
    match value:
        case str():
            return Complaint(value)
        case {"error": dict() | str() as inner}:
            return complaint_from(inner)
        case dict():
            code = value.get("code")
            kind = code if isinstance(code, str) else value.get("type")
            status = next(
                (n for n in (code, value.get("status")) if isinstance(n, int) and 100 <= n <= 599), None
            )
            message = value.get("message") or value.get("detail") or ""
            text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
            return Complaint(text, kind if isinstance(kind, str) else "", status)
        case [first, *_]:
            return complaint_from(first)
        case _:
            return Complaint()


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `Retry-After`; a date counts from the answer's own `Date`."""
    if milliseconds := headers.get("retry-after-ms"):
        return _number(milliseconds, 0.001)
    value = headers.get("Retry-After")
    if value is None:
        return None
    if (seconds := _number(value, 1.0)) is not None:
        return seconds
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("Date", ""))
    except (ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())


def _when(seconds: float | None) -> str:
    """A time to come back, as people say it."""
    if seconds is None or seconds < 1:
        return "a moment"
    if seconds <= 90:
        return f"{math.ceil(seconds)} seconds"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} minutes" if minutes <= 90 else f"{math.ceil(minutes / 60)} hours"


def _number(text: str, unit: float) -> float | None:
    try:
        value = float(text) * unit
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None
