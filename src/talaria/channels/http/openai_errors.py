"""Errors of `/v1`, as OpenAI's clients read them.

The body is `{"error": {"message", "type", "code", "param", "hint"}}`. Clients show the message alone, so the
hint is in it too. Callers of an API cannot type commands, so a hint for them names none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from talaria.commands.slash import ALIASES, SLASH_COMMANDS
from talaria.core.errors import ErrorInfo

LOG_HINT = "The gateway's log may say more."
# The words that clients look for, by the type of the error, if the error brings none itself.
_CODES: Mapping[str, str] = {
    "context_too_long": "context_length_exceeded",
    "over_budget": "insufficient_quota",
    "unauthorized": "invalid_api_key",
}
_RATE_LIMITED = 429
# LangChain and LiteLLM look for these words in the message, and not at the code.
_TOO_LONG = " (context_length_exceeded: the input is longer than the model's context length)"
# Paths that OpenAI's clients add to a base URL. Without /v1 they are unknown, and the caller is told so.
_PATHS = ("/chat/completions", "/responses", "/completions", "/embeddings", "/models")
# The words of hints for people, and those for callers.
_INSTEAD = (
    ("Send `/model local`, or run", "Name another `model`, or run"),
    ("Choose another with /model", "Name another `model`"),
    ("Choose another model with /model", "Name another `model`"),
    ("Try another model with /model", "Name another `model`"),
    ("choose another model with /model", "name another `model`"),
    ("Start a new conversation with /new", "Send fewer or shorter messages, or begin another session"),
    ("Start a new session with /new", "Begin another session"),
    ("Start a new one with /new", "Begin another session"),
    ("Send /new for a session with a budget of its own", "Begin another session, with a budget of its own"),
    ("Ask to go on from there, or send /retry to have it answered anew", "Send the request again"),
    ("or send /stop", "or cancel its turn with POST /api/turns/ID/cancel"),
)
_RESUME = re.compile(r"Send `/resume [^`]*` to the chat first, or write")
_COMMAND = re.compile(rf"(?<![\w/.])/(?:{'|'.join(map(re.escape, (*SLASH_COMMANDS, *ALIASES)))})\b")
_SENTENCE_END = re.compile(r"(?<=[.!?]) ")

_encode = msgspec.json.Encoder().encode


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
        hint = hint_for_caller(info.hint) or LOG_HINT
        code = _CODES.get(info.type) if info.code is UNSET else info.code
        if code is None and info.status == _RATE_LIMITED:
            code = "rate_limit_exceeded"
        param = None if info.param is UNSET else info.param
        message = f"{info.message} {hint}"
        if code == "context_length_exceeded":
            message += _TOO_LONG
        return cls(info.type, message, code, param, hint)


def openai_error_body(info: ErrorInfo) -> bytes:
    """Return `{"error": {…}}`, without a line end."""
    return _encode({"error": OpenAiError.of(info)})


def hint_for_caller(hint: str) -> str:
    """Return the hint without commands. A sentence that names one nevertheless is left out."""
    if "/" not in hint:
        return hint
    for typed, instead in _INSTEAD:
        hint = hint.replace(typed, instead)
    hint = _RESUME.sub("Write", hint)
    if _COMMAND.search(hint) is None:
        return hint
    return " ".join(part for part in _SENTENCE_END.split(hint) if _COMMAND.search(part) is None)
