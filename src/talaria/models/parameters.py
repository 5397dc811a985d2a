"""The treatment of each parameter of a request: one table for `/v1` and for every wire format.

Callers of the stateless API write chat completions, so a parameter is named as it is there. The format
"openai-chat" (and the built-in model) takes all of them unchanged, as encoded bytes. A parameter that is not
in the table is for one provider: it goes to models of that format as it is, and is refused elsewhere.

To add a parameter, add a row to `PARAMETERS`. A field of `RequestParameters` makes its type checked and
reading it cheaper. A format that needs another *value* rewrites it in its own module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple

import msgspec

from talaria.core.errors import BadRequest

DROPPED: Final = ""
"""The format has no such parameter, and the answer means the same without it."""
NO_WAY: Final = "!"
"""The format has no such parameter, and the answer would mean something else without it: 400."""
PASSES_ALL: Final = "openai-chat"


class RequestParameters(msgspec.Struct, omit_defaults=True):
    """The parameters that a caller of the stateless API often sets. They are per call and never stored."""

    temperature: int | float | None = None
    top_p: int | float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: int | float | None = None
    frequency_penalty: int | float | None = None
    logit_bias: dict[str, int | float] | None = None
    response_format: msgspec.Raw = msgspec.Raw()
    tool_choice: msgspec.Raw = msgspec.Raw()
    parallel_tool_calls: bool | None = None
    verbosity: str | None = None
    user: str | None = None
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    def encode_parameters(self, rest: Mapping[str, msgspec.Raw] | None = None) -> bytes:
        """Return the given parameters, and `rest`, as JSON members joined by commas, for
        `ModelCall.sampling`."""
        own = RequestParameters(*(getattr(self, name) for name in RequestParameters.__struct_fields__))
        members = _encode(own)[1:-1]
        if not rest:
            return members
        more = _encode(rest)[1:-1]
        return b"%b,%b" % (members, more) if members else more


class Rule(StrEnum):
    """An action of the gateway."""

    READ = "read"  # by the gateway itself
    PASSED = "passed on"
    REFUSED = "refused"
    IGNORED = "ignored"
    ABSENT = "—"  # in this API there is no such parameter


class Parameter(NamedTuple):
    """The treatment of a parameter: in a stateless chat completion, in a call with a session, in a response;
    and its name in the formats "openai-responses" and "anthropic-messages".

    A dot in a name stands between an object and its member. A refused parameter is taken with null, and with
    the `harmless` values.
    """

    chat: Rule
    session: Rule
    responses: Rule
    to_responses: str = DROPPED
    to_anthropic: str = DROPPED
    harmless: tuple[Any, ...] = ()


_READ, _PASSED, _REFUSED, _IGNORED, _ABSENT = Rule.READ, Rule.PASSED, Rule.REFUSED, Rule.IGNORED, Rule.ABSENT
_TEXT_ONLY: Final = ({"type": "text"},)

PARAMETERS: Mapping[str, Parameter] = {
    # name                        chat      session   responses  openai-responses  anthropic-messages
    "messages": Parameter(_READ, _READ, _ABSENT),
    "input": Parameter(_ABSENT, _READ, _READ),
    "instructions": Parameter(_ABSENT, _IGNORED, _READ),
    "previous_response_id": Parameter(_ABSENT, _REFUSED, _READ),
    "model": Parameter(_READ, _READ, _READ),
    "stream": Parameter(_READ, _READ, _READ),
    "stream_options": Parameter(_READ, _READ, _READ),
    "tools": Parameter(_READ, _REFUSED, _READ, harmless=([],)),
    "tool_choice": Parameter(
        _PASSED, _REFUSED, _PASSED, "tool_choice", "tool_choice", harmless=("auto", "none")
    ),
    "parallel_tool_calls": Parameter(
        _PASSED, _IGNORED, _PASSED, "parallel_tool_calls", "tool_choice.disable_parallel_tool_use"
    ),
    "max_tokens": Parameter(_READ, _REFUSED, _ABSENT),
    "max_completion_tokens": Parameter(_READ, _REFUSED, _ABSENT),
    "max_output_tokens": Parameter(_ABSENT, _REFUSED, _READ),
    "reasoning_effort": Parameter(_READ, _IGNORED, _ABSENT),
    "reasoning": Parameter(_PASSED, _IGNORED, _READ, "reasoning"),
    "thinking": Parameter(_PASSED, _IGNORED, _ABSENT, to_anthropic="thinking"),
    "response_format": Parameter(_PASSED, _REFUSED, _ABSENT, "text.format", NO_WAY, _TEXT_ONLY),
    "text": Parameter(_ABSENT, _READ, _READ),
    "verbosity": Parameter(_PASSED, _IGNORED, _ABSENT, "text.verbosity"),
    "temperature": Parameter(_PASSED, _IGNORED, _PASSED, "temperature", "temperature"),
    "top_p": Parameter(_PASSED, _IGNORED, _PASSED, "top_p", "top_p"),
    "output_config": Parameter(_PASSED, _IGNORED, _ABSENT, to_anthropic="output_config"),
    "top_k": Parameter(_PASSED, _IGNORED, _ABSENT, to_anthropic="top_k"),
    "min_p": Parameter(_PASSED, _IGNORED, _ABSENT),
    "presence_penalty": Parameter(_PASSED, _IGNORED, _ABSENT),
    "frequency_penalty": Parameter(_PASSED, _IGNORED, _ABSENT),
    "seed": Parameter(_PASSED, _IGNORED, _ABSENT),
    "stop_sequences": Parameter(_ABSENT, _REFUSED, _ABSENT, harmless=([],)),
    "stop": Parameter(_PASSED, _REFUSED, _ABSENT, NO_WAY, "stop_sequences", ([],)),
    "logit_bias": Parameter(_PASSED, _REFUSED, _ABSENT, NO_WAY, NO_WAY, ({},)),
    "user": Parameter(_PASSED, _IGNORED, _PASSED, "user"),
    "safety_identifier": Parameter(_PASSED, _IGNORED, _PASSED, "safety_identifier"),
    "metadata": Parameter(_PASSED, _IGNORED, _READ, "metadata"),
    "store": Parameter(_PASSED, _IGNORED, _READ),
    "service_tier": Parameter(_PASSED, _IGNORED, _PASSED, "service_tier", "service_tier"),
    "prompt_cache_key": Parameter(_PASSED, _IGNORED, _PASSED, "prompt_cache_key"),
    "prompt_cache_retention": Parameter(_PASSED, _IGNORED, _PASSED, "prompt_cache_retention"),
    "provider": Parameter(_PASSED, _IGNORED, _ABSENT),
    "include": Parameter(_ABSENT, _IGNORED, _READ),
    "n": Parameter(_REFUSED, _REFUSED, _ABSENT, harmless=(1,)),
    "logprobs": Parameter(_REFUSED, _REFUSED, _ABSENT, harmless=(False,)),
    "top_logprobs": Parameter(_REFUSED, _REFUSED, _REFUSED, harmless=(0,)),
    "audio": Parameter(_REFUSED, _REFUSED, _ABSENT),
    "modalities": Parameter(_REFUSED, _REFUSED, _ABSENT, harmless=(["text"],)),
    "prediction": Parameter(_REFUSED, _REFUSED, _ABSENT),
    "web_search_options": Parameter(_REFUSED, _REFUSED, _ABSENT),
    "functions": Parameter(_REFUSED, _REFUSED, _ABSENT, harmless=([],)),
    "function_call": Parameter(_REFUSED, _REFUSED, _ABSENT, harmless=("auto", "none")),
    "models": Parameter(_REFUSED, _REFUSED, _ABSENT, harmless=([],)),
    "background": Parameter(_ABSENT, _ABSENT, _REFUSED, harmless=(False,)),
    "truncation": Parameter(_ABSENT, _ABSENT, _REFUSED, harmless=("disabled",)),
    "conversation": Parameter(_ABSENT, _ABSENT, _READ),
    "prompt": Parameter(_ABSENT, _ABSENT, _REFUSED),
    "context_management": Parameter(_ABSENT, _ABSENT, _REFUSED),
    "moderation": Parameter(_REFUSED, _REFUSED, _REFUSED),
    "max_tool_calls": Parameter(_ABSENT, _ABSENT, _REFUSED),
    "client_metadata": Parameter(_ABSENT, _IGNORED, _IGNORED),
}
# Advice for the caller of a refused parameter.
_INSTEAD: Mapping[str, str] = {
    "n": "Ask for one choice at a time.",
    "functions": "Send `tools`, with functions in them.",
    "function_call": "Send `tool_choice`.",
    "models": "Name one `model`; fallbacks are in [model] in config.toml.",
    "background": "Leave it out, and read the answer from a stream or with `GET /v1/responses/ID`.",
    "truncation": "Leave it out. A conversation that is too long is refused, never shortened.",
    "prompt": "Send its text as `instructions` or `input`.",
    "max_tool_calls": "It counts tools of the provider's own, which are not offered here. Leave it out.",
    "tools": "Leave it out, or send `X-Talaria-Tools: ignore`; or leave out X-Talaria-Session and send the "
    "whole conversation.",
}
_IN_SESSION: Final = (
    "A session's turn is many model calls. Leave it out, or leave out X-Talaria-Session and send the whole "
    "conversation."
)
TOOL_PARAMETERS: Final = ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call")
REFUSED_IN_SESSION: Final = tuple(name for name, row in PARAMETERS.items() if row.session is Rule.REFUSED)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def check_session(given: Iterable[tuple[str, Any]], *, is_front_end: bool = False) -> tuple[str, ...]:
    """Raise `BadRequest` for a parameter that a call with a session cannot keep. Values are decoded, or
    `Raw`.

    A front end sends such parameters by itself, and its users cannot leave them out. Those of its parameters
    that a stateless call would keep are ignored instead; their names are returned.
    """
    ignored = []
    for name, value in given:
        row = PARAMETERS.get(name)
        if row is not None and (row.session is not Rule.REFUSED or _is_harmless(row, value)):
            continue
        if is_front_end and (row is None or row.chat is not Rule.REFUSED):
            ignored.append(name)
        elif row is None:
            raise refused(name, "a session calls its model without it", "Leave it out.")
        else:
            raise refused(name, "it is not supported with a session", _INSTEAD.get(name, _IN_SESSION))
    return tuple(ignored)


def is_given(name: str, value: Any) -> bool:
    """Return whether a value wishes for something: it is neither missing nor harmless."""
    return not _is_harmless(PARAMETERS[name], value)


def check_response(given: Iterable[tuple[str, Any]]) -> None:
    """Raise `BadRequest` for a parameter that a response cannot keep."""
    for name, value in given:
        row = PARAMETERS[name]
        if row.responses is Rule.REFUSED and not _is_harmless(row, value):
            raise refused(name, "it is not supported here", _INSTEAD.get(name, "Leave it out."))


def check_wire(name: str, wire: str, field: str) -> None:
    """Raise `BadRequest` if models of this wire format cannot be told a parameter that came as `field`."""
    if _name_in(PARAMETERS[name], wire) == NO_WAY:
        raise refused(
            field,
            f"the API of this model ({wire}) has no such parameter",
            "Leave it out, or name another `model`.",
        )


def check_stateless(given: Iterable[tuple[str, Any]], wire: str) -> None:
    """Raise `BadRequest` for a parameter that a stateless chat completion to a model of this wire format
    cannot keep."""
    for name, value in given:
        row = PARAMETERS.get(name)
        if row is None or row.chat is Rule.ABSENT:
            if wire != PASSES_ALL:
                raise refused(name, f"the API of this model ({wire}) has no such parameter", "Leave it out.")
        elif row.chat is Rule.REFUSED:
            if not _is_harmless(row, value):
                raise refused(name, "it is not supported here", _INSTEAD.get(name, "Leave it out."))
        elif _name_in(row, wire) == NO_WAY and not _is_harmless(row, value):
            raise refused(
                name,
                f"the API of this model ({wire}) has no such parameter",
                "Leave it out, or name another `model`.",
            )


def kept(given: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the parameters that go to the model, of those that were checked: without null, and without
    refused ones that had a harmless value."""
    return {
        name: value
        for name, value in given.items()
        if bytes(value) != b"null" and (name not in PARAMETERS or PARAMETERS[name].chat is Rule.PASSED)
    }


def refused(name: str, why: str, hint: str) -> BadRequest:
    return BadRequest(f"In the field `{name}`: {why}.", hint, code="unsupported_parameter", param=name)


def _name_in(row: Parameter, wire: str) -> str:
    match wire:
        case "openai-responses":
            return row.to_responses
        case "anthropic-messages":
            return row.to_anthropic
        case _:
            return DROPPED


def _is_harmless(row: Parameter, value: Any) -> bool:
    if isinstance(value, msgspec.Raw):
        if not bytes(value):
            return True
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
    return value is None or any(type(value) is type(one) and value == one for one in row.harmless)


def translate(sampling: bytes, format: Literal["responses", "anthropic"]) -> dict[str, Any]:
    """Decode `ModelCall.sampling`. Return the values under the names of a format, without those it drops."""
    if not sampling:
        return {}
    translated = {}
    for name, value in _decode(b"{%b}" % sampling).items():
        row = PARAMETERS.get(name)
        if row is None or value is None:
            continue
        own = row.to_responses if format == "responses" else row.to_anthropic
        if own and own != NO_WAY:
            translated[own] = value
    return translated
