"""Which request parameters reach a model, and under which name: one table for every wire format.

Callers of the stateless API write chat completions, so a parameter is named as it is there. The format
"openai-chat" (and the built-in model) takes all of them unchanged, as encoded bytes. To add a parameter, add
a field to `RequestParameters` and a row to `NAMES`. A format that needs another *value* rewrites it in its
own module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

DROPPED = ""


class RequestParameters(msgspec.Struct, omit_defaults=True):
    """The parameters that a caller of the stateless API may set. They are per call and never stored."""

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

    def encode_parameters(self) -> bytes:
        """Return the given parameters as JSON members joined by commas, for `ModelCall.sampling`."""
        own = RequestParameters(*(getattr(self, name) for name in RequestParameters.__struct_fields__))
        return _encode(own)[1:-1]


class Names(NamedTuple):
    """The name of a parameter in each format. `DROPPED`: the format has none and would refuse the request.

    A dot stands between an object and its member.
    """

    responses: str
    anthropic: str


NAMES: Mapping[str, Names] = {
    # chat completions   openai-responses   anthropic-messages
    "temperature": Names("temperature", "temperature"),
    "top_p": Names("top_p", "top_p"),
    "stop": Names(DROPPED, "stop_sequences"),
    "seed": Names(DROPPED, DROPPED),
    "presence_penalty": Names(DROPPED, DROPPED),
    "frequency_penalty": Names(DROPPED, DROPPED),
    "logit_bias": Names(DROPPED, DROPPED),
    "response_format": Names("text.format", DROPPED),
    "tool_choice": Names("tool_choice", "tool_choice"),
    "parallel_tool_calls": Names("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    "verbosity": Names("text.verbosity", DROPPED),
    "user": Names("user", DROPPED),
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def translate(sampling: bytes, format: Literal["responses", "anthropic"]) -> dict[str, Any]:
    """Decode `ModelCall.sampling`. Return the values under the names of a format, without those it drops."""
    if not sampling:
        return {}
    translated = {}
    for name, value in _decode(b"{%b}" % sampling).items():
        names = NAMES.get(name)
        if names is not None and value is not None and (own := getattr(names, format)):
            translated[own] = value
    return translated
