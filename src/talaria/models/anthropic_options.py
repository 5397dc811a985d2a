"""What surrounds the messages of an Anthropic call: thinking, limits, sampling and callers' own tools.

Models differ by version. Up to Claude 4.5 thinking is given a budget of tokens; from 4.6 on the model
decides, and is told an effort. From 4.7 on sampling is refused, and thoughts are shown only on request.
Models of other makers behind this API are treated like the old ones; an unknown Claude like the newest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from talaria.core.models import ModelCall
from talaria.models.parameters import translate

MAX_OUTPUT = 32_000
CACHE_MARK = b',"cache_control":{"type":"ephemeral"}'
_ADAPTIVE, _UNTUNED, _NEWEST = (4, 6), (4, 7), (99, 0)
_VERSION = re.compile(r"claude\D*?[-/.](\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
# Thinking tokens, and the word for models that take no number. What asks for more than "high" gets "high".
_EFFORTS = {
    "minimal": (1024, "low"),
    "low": (4096, "low"),
    "medium": (12_288, "medium"),
    "high": (24_000, "high"),
    "xhigh": (24_000, "high"),
}
_CHOICES = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}

_NOT_PARALLEL = "tool_choice.disable_parallel_tool_use"

_encode = msgspec.json.Encoder().encode


class _Function(msgspec.Struct, frozen=True):
    name: str = ""
    description: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


class _Tool(_Function, frozen=True):
    """Chat completions have a function inside a tool, responses are flat."""

    function: _Function | None = None


class _SystemText(msgspec.Struct, frozen=True):
    content: str = ""


_decode_tools = msgspec.json.Decoder(list[_Tool]).decode
_decode_schema = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_messages = msgspec.json.Decoder(list[_SystemText]).decode


@lru_cache(maxsize=64)
def claude_version(model: str) -> tuple[int, int] | None:
    """From any of its names: `claude-3-7-sonnet-20250219`, `anthropic/claude-opus-4.6`. None: no Claude."""
    if "claude" not in model:
        return None
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else _NEWEST


def options(call: ModelCall, *, has_thought: bool) -> bytes:
    """The encoded members behind the messages, the first one without a comma in front of it.

    `has_thought` says whether the model's turn began with a thought; if not, it gets no budget for more.
    """
    given = translate(call.sampling, "anthropic")
    choice = _tool_choice(given) if call.prefix.tools else None
    members: dict[str, Any] = {"max_tokens": call.max_output or MAX_OUTPUT, "stream": True}
    effort = _EFFORTS.get(call.reasoning or "none")
    version = claude_version(call.model)
    is_free = choice is None or choice["type"] in ("auto", "none")  # a forced call leaves no room for thought
    if effort is not None and is_free and (has_thought or _is_adaptive(version)):
        # Thinking counts as output, and a caller's limit means what is said.
        members["max_tokens"] = call.max_output + effort[0] if call.max_output else MAX_OUTPUT
        members |= _thinking(version, *effort)
    elif version is None or version < _UNTUNED:
        members |= _tuning(given)
    stops = given.get("stop_sequences") or []
    stops = [stops] if isinstance(stops, str) else stops
    if stops := [stop for stop in stops if stop.strip()]:
        members["stop_sequences"] = stops
    if choice is not None:
        members["tool_choice"] = choice
    return _encode(members)[1:-1]


def own_system(system: bytes) -> bytes:
    """Our own system prompt as it is; one from before the provider's `api` was changed, rewritten."""
    if not system.startswith(b'{"role":'):
        return system
    texts = [message.content for message in _decode_messages(b"[%b]" % system)]
    return b",".join(encode_system(text) for text in texts if text.strip())


def encode_system(text: str) -> bytes:
    return _encode({"type": "text", "text": text})[:-1] + CACHE_MARK + b"}"


def own_tools(tools: bytes) -> bytes:
    """Our own tool list as it is; one in a shape of OpenAI, as stateless callers send it, rewritten."""
    if not tools or tools.endswith(CACHE_MARK + b"}]"):
        return tools
    return encode_tools([_own_tool(tool) for tool in _decode_tools(tools)])


def encode_tools(tools: list[dict[str, Any]]) -> bytes:
    """With a mark on the last one, behind which the provider's cache holds the whole list."""
    return _encode(tools)[:-2] + CACHE_MARK + b"}]" if tools else b""


def _is_adaptive(version: tuple[int, int] | None) -> bool:
    return version is not None and version >= _ADAPTIVE


def _thinking(version: tuple[int, int] | None, budget: int, effort: str) -> dict[str, Any]:
    if version is None or not _is_adaptive(version):
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}
    shown = {"display": "summarized"} if version >= _UNTUNED else {}
    return {"thinking": {"type": "adaptive", **shown}, "output_config": {"effort": effort}}


def _tuning(given: Mapping[str, Any]) -> dict[str, Any]:
    """One of the two, since models refuse both together; OpenAI's temperatures go up to two, these to one."""
    if "temperature" in given:
        return {"temperature": min(given["temperature"], 1.0)}
    return {"top_p": given["top_p"]} if "top_p" in given else {}


def _tool_choice(given: Mapping[str, Any]) -> dict[str, Any] | None:
    choice: dict[str, Any] | None = None
    match given.get("tool_choice"):
        case str() as word:
            choice = _CHOICES.get(word)
        case {"function": {"name": str() as name}}:
            choice = {"type": "tool", "name": name}
    if given.get(_NOT_PARALLEL) is False and (choice is None or choice["type"] != "none"):
        return {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    return choice


def _own_tool(tool: _Tool) -> dict[str, Any]:
    function = tool.function or tool
    own: dict[str, Any] = {"name": function.name}
    if bytes(function.description) not in (b"", b"null"):
        own["description"] = function.description
    try:
        schema = _decode_schema(function.parameters)
    except msgspec.DecodeError:  # none was given
        schema = {}
    own["input_schema"] = {"type": "object", **schema}
    return own
