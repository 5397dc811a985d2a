"""What belongs to one call of the responses API, from the members of a chat completion request.

Callers of our stateless API write chat completions. Members that the responses API has under another name or
in another shape are rewritten; what it does not have (`stop`, `seed`, penalties, `logit_bias`) is left out,
because it would refuse the whole request.
"""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.models import ModelCall

MIN_OUTPUT = 16  # less is refused
_EFFORTS = frozenset({"minimal", "low", "medium", "high", "xhigh", "max"})
_SAME = (
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "top_logprobs",
)
_NO_PARAMETERS = {"type": "object", "properties": {}}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def sampling_members(call: ModelCall) -> bytes:
    """Encoded members of the request, joined by commas, or nothing."""
    given = _decode(b"{%b}" % call.sampling) if call.sampling else {}
    members: dict[str, Any] = {name: given[name] for name in _SAME if given.get(name) is not None}
    effort = call.reasoning or given.get("reasoning_effort")
    if effort in _EFFORTS:
        members["reasoning"] = {"effort": effort}
    limit = call.max_output or given.get("max_completion_tokens") or given.get("max_tokens")
    if isinstance(limit, int):
        members["max_output_tokens"] = max(MIN_OUTPUT, limit)
    if (choice := given.get("tool_choice")) is not None:
        members["tool_choice"] = _tool_choice(choice)
    text: dict[str, Any] = {}
    if (shape := given.get("response_format")) is not None:
        text["format"] = _flat(shape)
    if given.get("verbosity") is not None:
        text["verbosity"] = given["verbosity"]
    if text:
        members["text"] = text
    return _encode(members)[1:-1]


def flat_tools(tools: bytes) -> bytes:
    """A tool list of chat completions as this API wants it; what is flat already stays as it is.

    `strict` is written out, because it is on here unless it is said to be off.
    """
    flat = []
    for tool in map(_flat, msgspec.json.decode(tools)):
        if isinstance(tool, dict) and tool.get("type") == "function":
            tool.setdefault("parameters", _NO_PARAMETERS)
            tool.setdefault("strict", False)
        flat.append(tool)
    return _encode(flat)


def _flat(value: Any) -> Any:
    """`{"type": T, T: {…}}` as `{"type": T, …}`."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return value
    inner = value.get(value["type"])
    return {"type": value["type"], **inner} if isinstance(inner, dict) else dict(value)


def _tool_choice(choice: Any) -> Any:
    flat = _flat(choice)
    if isinstance(flat, dict) and isinstance(flat.get("tools"), list):
        flat["tools"] = [_flat(tool) for tool in flat["tools"]]
    return flat
