"""Errors as callers get them: their statuses, the bodies of `/api`, and those that OpenAI's clients read.

The body is `{"error": {"type", "message", "hint"}}`. Under `/v1` it has `code` and `param` too, and under
`/v1/messages` it has Anthropic's form. Clients show the message alone, so the hint is in it too. Callers of
an API cannot type commands, so a hint for them names none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from talaria.channels.http.request import HttpError, RawHeaders, Request
from talaria.channels.http.response import Response
from talaria.core.errors import EmptyAnswer, ErrorInfo, NotFound, Overloaded, TalariaError
from talaria.core.problems import Do
from talaria.core.turns import Turn, TurnState

_MOST_RETRY_AFTER = 3600.0  # seconds
STATUS: Mapping[str, int] = {
    "bad_request": 400,
    "context_too_long": 400,
    "unclear_schedule": 400,
    "unauthorized": 401,
    "bad_code": 401,
    "over_budget": 402,
    "forbidden": 403,
    "wrong_origin": 403,
    "not_our_page": 403,
    "token_needed": 403,
    "not_found": 404,
    "wrong_method": 405,
    "timeout": 408,
    "busy": 409,
    "too_little_memory": 409,
    "lease_held": 409,
    "not_current": 409,
    "cancelled": 409,
    "question_closed": 409,
    "head_moved": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "no_such_range": 416,
    "wrong_host": 421,
    "idempotency_conflict": 422,
    "too_many_tries": 429,
    "limit": 429,
    "head_too_large": 431,
    "internal": 500,
    "model": 502,
    "model_refused": 502,
    "answer_too_large": 502,
    "no_browser": 503,
    "no_model": 503,
    "model_resting": 503,
    "model_unavailable": 503,
    "answer_memory_full": 503,
    "draining": 503,
    "overloaded": 503,
    "store": 503,
    "store_locked": 503,
    "store_damaged": 503,
    "store_gone": 503,
    "stale_fence": 503,
}  # by the type of the error; a type that is not here is 500
# A provider's status that is about the request, or says when to ask again, is the caller's to know. Its 401
# and 403 are about the gateway's own key.
PASSED_ON = frozenset({400, 402, 404, 413, 422, 429})
# The status of a turn that failed after its tools ran. No client sends a request again after this one; some
# do so after 409, 429 and 5xx.
NOT_AGAIN = 424
_QUOTA = "insufficient_quota"
_INTERNAL = ErrorInfo(
    "internal",
    "Something went wrong inside the gateway.",
    "The gateway's log has the details; please report it.",
)
LOG_HINT = "The gateway's log may say more."
# The words that clients look for, by the type of the error, if the error brings none itself.
_CODES: Mapping[str, str] = {
    "context_too_long": "context_length_exceeded",
    "over_budget": "insufficient_quota",
    "unauthorized": "invalid_api_key",
}
_RATE_LIMITED = 429
# https://docs.anthropic.com/en/api/errors
_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    424: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# LangChain and LiteLLM look for these words in the message, and not at the code.
_TOO_LONG = " (context_length_exceeded: the input is longer than the model's context length)"
# Paths that OpenAI's clients add to a base URL. Without /v1 they are unknown, and the caller is told so.
_PATHS = ("/chat/completions", "/responses", "/completions", "/embeddings", "/models")
# Advice for callers of OpenAI's API whose call is not here.
_INSTEAD: Mapping[str, str] = {
    "/v1/completions": "Send the prompt as a message to /v1/chat/completions.",
    "/v1/files": "Upload files of a session with POST /api/files; send images as `data:` URLs.",
    "/v1/assistants": "Use /v1/responses, with `conversation` for an agent that keeps its history.",
    "/v1/threads": "Use /v1/conversations and /v1/responses.",
    "/v1/messages/batches": "Send the requests one by one to /v1/messages.",
}
# The words for callers, who cannot type commands.
_WORDS: Mapping[Do, str] = {
    Do.USE_MODEL: "Name another `model`",
    Do.USE_LOCAL_MODEL: "Name another `model`",
    Do.NEW_SESSION: "Begin another session",
    Do.SHORTER: "Send fewer or shorter messages, or begin another session",
    Do.NEW_BUDGET: "Begin another session, with a budget of its own",
    Do.ANSWER_AGAIN: "Send the request again",
    Do.STOP_TURN: "cancel its turn with POST /api/turns/ID/cancel",
    Do.RESUME: "Write",
    Do.LIST_SESSIONS: "",
}

_encode = msgspec.json.Encoder().encode


def error_response(error: Exception, path: str = "", request_id: str = "") -> Response:
    """Return an error in the form that callers of this path read. An error that is not ours is 500, without
    its text."""
    info = error.info() if isinstance(error, TalariaError) else _INTERNAL
    headers: RawHeaders = error.headers if isinstance(error, HttpError) else ()
    wait = error.retry_after if isinstance(error, Overloaded) else info.retry_after
    status = (error.status if isinstance(error, HttpError) else None) or status_of(info)
    if wait is not UNSET and status in (429, 503):
        headers = (*headers, (b"retry-after", b"%d" % math.ceil(min(max(wait, 1.0), _MOST_RETRY_AFTER))))
    if is_anthropic_path(path):
        return Response(anthropic_error_body(info, request_id) + b"\n", status, headers)
    body = openai_error_body(info) if is_openai_path(path) else error_body(info)
    return Response(body + b"\n", status, headers)


def status_of(error: ErrorInfo) -> int:
    """Return the status of the response with this error."""
    if error.status is not UNSET and error.status in PASSED_ON:
        return error.status
    if error.code == _QUOTA and error.type == "model_refused":
        return 429
    return STATUS.get(error.type, 500)


def error_body(error: ErrorInfo) -> bytes:
    """Return `{"error": {…}}`, without a line end."""
    return _encode({"error": ErrorInfo(error.type, error.message, error.hint or LOG_HINT)})


def nothing_at(request: Request) -> NotFound:
    """Return the error for an unknown path. A client of `/v1` whose base URL lacks it is told so."""
    hint = "docs/http-api.md lists what there is."
    if is_openai_path(request.path) and not request.path.startswith("/v1/"):
        host = request.header(b"host") or "HOST"
        hint = f"The base URL of OpenAI's clients ends in /v1 here: set base_url to http://{host}/v1."
    elif request.path.startswith("/v1/v1/"):
        hint = "The path has /v1 twice: leave it out of the path, or out of the base URL."
    elif request.path.startswith("/v1/"):
        found = (hint for path, hint in _INSTEAD.items() if request.path.startswith(path))
        hint = next(found, "Here are chat/completions, responses, messages, models and embeddings.")
    return NotFound(f"There is nothing at {request.path}.", hint)


def turn_error(turn: Turn, headers: RawHeaders) -> HttpError | None:
    """Return the reason why a turn has no answer, or None if it has one, which may be empty.

    The error is final, so clients that retry by themselves are told not to.
    """
    match turn.state:
        case TurnState.DONE:
            return None
        case TurnState.FAILED:
            error = turn.error or _INTERNAL
            if error.type == EmptyAnswer.type:
                return None
        case TurnState.CANCELLED:
            error = ErrorInfo("cancelled", f"The turn {turn.id} was cancelled.", "Send the message again.")
        case _:
            error = ErrorInfo(
                "draining",
                f"The gateway is shutting down and left the turn {turn.id} unfinished.",
                f"The next start takes it up; GET /api/turns/{turn.id} has its answer then.",
            )
    return HttpError.told(error, (*headers, (b"x-should-retry", b"false")))


# -- errors of `/v1` ----------------------------------------------------------------------------------------


def is_openai_path(path: str) -> bool:
    """Return whether a client of OpenAI's API calls this path, with or without `/v1`."""
    return path.startswith("/v1/") or path.startswith(_PATHS)


class OpenAiError(msgspec.Struct, frozen=True):
    """The member `error` of a body, or of an event in a stream."""

    type: str
    message: str
    code: str | None
    param: str | None
    hint: str

    @classmethod
    def of(cls, info: ErrorInfo) -> OpenAiError:
        hint = info.hint_in(_WORDS) or LOG_HINT
        code = _CODES.get(info.type) if info.code is UNSET else info.code
        if code is None and info.status == _RATE_LIMITED:
            code = "rate_limit_exceeded"
        param = None if info.param is UNSET else info.param
        if code is None and param:
            code = "invalid_value"
        message = f"{info.message} {hint}"
        if code == "context_length_exceeded":
            message += _TOO_LONG
        return cls(info.type, message, code, param, hint)


def openai_error_body(info: ErrorInfo) -> bytes:
    """Return `{"error": {…}}`, without a line end."""
    return _encode({"error": OpenAiError.of(info)})


# -- errors of `/v1/messages` -------------------------------------------------------------------------------


def is_anthropic_path(path: str) -> bool:
    return path.startswith("/v1/messages")


class AnthropicError(msgspec.Struct, frozen=True):
    """The member `error` of a body, or of an event in a stream. `type` is one of Anthropic's words."""

    type: str
    message: str

    @classmethod
    def of(cls, info: ErrorInfo) -> AnthropicError:
        told = OpenAiError.of(info)
        # Claude Code compacts the conversation when it finds the first words.
        message = (
            f"prompt is too long: {told.message}" if told.code == _CODES["context_too_long"] else told.message
        )
        return cls(_ANTHROPIC_TYPES.get(status_of(info), "api_error"), message)


class AnthropicErrorBody(msgspec.Struct, frozen=True):
    type: Literal["error"]
    error: AnthropicError
    request_id: str | UnsetType = UNSET


def anthropic_error_body(info: ErrorInfo, request_id: str | UnsetType = UNSET) -> bytes:
    """Return `{"type": "error", "error": {…}, "request_id"}`, without a line end. Events have no id."""
    return _encode(AnthropicErrorBody("error", AnthropicError.of(info), request_id))
