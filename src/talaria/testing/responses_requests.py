"""Reading a request of the responses API as a server does: strictly, or just enough to answer it.

The server stores nothing. What it must know about its own reasoning is sealed into `encrypted_content`: which
item it led to, and a signature that nobody else makes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Any

import msgspec

from talaria.testing.chat_requests import BadChatRequest, ChatRequest
from talaria.testing.script import read_scene

MAX_CALL_ID = 64
MIN_OUTPUT = 16
_KEY = b"talaria.testing"
_ROLES = frozenset({"system", "developer", "user", "assistant"})
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MEMBERS = frozenset(
    {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "model",
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    }
)
_ITEM_MEMBERS = {
    "message": frozenset({"type", "role", "content", "id", "status", "phase"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "status"}),
    "function_call_output": frozenset({"type", "id", "call_id", "output", "status"}),
    "reasoning": frozenset({"type", "id", "summary", "content", "encrypted_content", "status"}),
}
_PARTS = {
    "input_text": frozenset({"type", "text"}),
    "input_image": frozenset({"type", "image_url", "detail"}),
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
}


def seal(reasoning_id: str, next_id: str) -> str:
    """The `encrypted_content` of a reasoning item that led to the item `next_id`."""
    sealed = f"{reasoning_id} {next_id}".encode()
    return base64.b64encode(_sign(sealed) + sealed).decode()


def read_responses_strictly(body: bytes) -> ChatRequest:
    """The whole request, refused as a real server would refuse it. Raises `BadChatRequest`."""
    request = _decode(body)
    _only(request, _MEMBERS, "")
    if not isinstance(request.get("model"), str) or not request["model"]:
        raise BadChatRequest("Missing required parameter: 'model'.")
    given = request.get("input")
    if not isinstance(given, str | list) or not given:
        raise BadChatRequest("Missing required parameter: 'input'.")
    limit = request.get("max_output_tokens")
    if limit is not None and limit < MIN_OUTPUT:
        raise BadChatRequest(f"Invalid 'max_output_tokens': expected a value >= {MIN_OUTPUT}, got {limit}.")
    _check_tools(request.get("tools"))
    items = _items(given)
    _Checker(items, bool(request.get("store", True))).check()
    return _request(request, items)


def read_responses_leniently(body: bytes) -> ChatRequest:
    """The whole request without checks. Raises `BadChatRequest` for what is no JSON object."""
    request = _decode(body)
    return _request(request, [item for item in _items(request.get("input")) if isinstance(item, dict)])


def _decode(body: bytes) -> dict[str, Any]:
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadChatRequest(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(request, dict):
        raise BadChatRequest("The body of a request must be a JSON object.")
    return request


def _items(given: Any) -> list[Any]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())


def _request(request: dict[str, Any], items: list[dict[str, Any]]) -> ChatRequest:
    messages = _as_chat(items)
    if request.get("instructions"):
        messages.insert(0, {"role": "system", "content": request["instructions"]})
    return ChatRequest(str(request.get("model")), bool(request.get("stream")), read_scene(messages))


def _as_chat(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the shape that scripts are read from; calls beside each other are one step."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match item.get("type", "message"):
            case "function_call":
                if messages and "tool_calls" in messages[-1]:
                    messages[-1]["tool_calls"].append(item)
                else:
                    messages.append({"role": "assistant", "content": None, "tool_calls": [item]})
            case "function_call_output":
                messages.append({"role": "tool", "content": item.get("output")})
            case "message":
                messages.append({"role": item.get("role"), "content": item.get("content")})
    return messages


def _only(value: dict[str, Any], known: frozenset[str], where: str) -> None:
    if unknown := sorted(value.keys() - known):
        raise BadChatRequest(f"Unknown parameter: '{where}{unknown[0]}'.")


def _check_tools(tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list):
        raise BadChatRequest("Invalid type for 'tools': expected a list.")
    seen = set()
    for n, tool in enumerate(tools):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise BadChatRequest(f"Invalid value for 'tools[{n}].type': this server knows 'function' only.")
        _only(tool, frozenset({"type", "name", "description", "parameters", "strict"}), f"tools[{n}].")
        name = tool.get("name")
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise BadChatRequest(f"Invalid 'tools[{n}].name': {name!r}.")
        if not isinstance(tool.get("parameters"), dict):
            raise BadChatRequest(f"Missing required parameter: 'tools[{n}].parameters'.")
        if name in seen:
            raise BadChatRequest(f"Tool names must be unique: {name!r} is there twice.")
        seen.add(name)


class _Checker:
    """Goes through the items once, from the first to the last."""

    def __init__(self, items: list[Any], is_stored: bool) -> None:
        self._items = items
        self._is_stored = is_stored
        self._owed: list[str] = []  # calls without an output so far
        self._expected = ""  # the id of the item that the reasoning before this one led to

    def check(self) -> None:
        for n, item in enumerate(self._items):
            kind = item.get("type", "message") if isinstance(item, dict) else None
            if kind not in _ITEM_MEMBERS:
                raise BadChatRequest(f"Invalid value for 'input[{n}].type': {kind!r}.")
            _only(item, _ITEM_MEMBERS[kind], f"input[{n}].")
            if kind != "reasoning":
                self._check_pair(n, item)
            match kind:
                case "message":
                    self._check_nothing_owed()
                    _check_message(n, item)
                case "function_call":
                    self._check_call(n, item)
                case "function_call_output":
                    self._check_output(n, item)
                case "reasoning":
                    self._check_reasoning(n, item)
        if self._expected:
            raise BadChatRequest(_unpaired(len(self._items) - 1, self._expected))
        self._check_nothing_owed()

    def _check_pair(self, n: int, item: dict[str, Any]) -> None:
        """An item that reasoning led to is known by the second half of its id."""
        item_id = item.get("id") or ""
        if self._expected and item_id != self._expected:
            raise BadChatRequest(_unpaired(n - 1, self._expected))
        if item_id.endswith("_thought") and not self._expected:
            raise BadChatRequest(f"Item '{item_id}' was provided without its required 'reasoning' item.")
        self._expected = ""

    def _check_nothing_owed(self) -> None:
        if self._owed:
            raise BadChatRequest(f"No tool output found for function call {self._owed[0]}.")

    def _check_call(self, n: int, item: dict[str, Any]) -> None:
        for name in ("call_id", "name", "arguments"):
            if not isinstance(item.get(name), str) or not item[name]:
                raise BadChatRequest(f"Missing required parameter: 'input[{n}].{name}'.")
        call_id = item["call_id"]
        if len(call_id) > MAX_CALL_ID:
            raise BadChatRequest(f"Invalid 'input[{n}].call_id': string too long.")
        if not item.get("id", "fc_").startswith("fc_"):
            raise BadChatRequest(f"Invalid 'input[{n}].id': expected an ID that begins with 'fc'.")
        if call_id in self._owed:
            raise BadChatRequest(f"Duplicate function call {call_id}.")
        self._owed.append(call_id)

    def _check_output(self, n: int, item: dict[str, Any]) -> None:
        call_id = item.get("call_id")
        if call_id not in self._owed:
            raise BadChatRequest(f"No tool call found for function call output with call_id {call_id}.")
        if not isinstance(item.get("output"), str | list):
            raise BadChatRequest(f"Missing required parameter: 'input[{n}].output'.")
        self._owed.remove(call_id)

    def _check_reasoning(self, n: int, item: dict[str, Any]) -> None:
        if self._expected:
            raise BadChatRequest(_unpaired(n - 1, self._expected))
        item_id = item.get("id")
        if not isinstance(item.get("summary"), list):
            raise BadChatRequest(f"Missing required parameter: 'input[{n}].summary'.")
        sealed = item.get("encrypted_content")
        if not sealed:
            where = "" if self._is_stored else " Items are not persisted when `store` is set to false."
            raise BadChatRequest(f"Item with id '{item_id}' not found.{where}")
        self._expected = _open(n, sealed, item_id)


def _open(n: int, sealed: Any, item_id: Any) -> str:
    """The id of the item that this reasoning led to."""
    try:
        opened = base64.b64decode(sealed, validate=True)
    except (ValueError, TypeError):
        opened = b""
    own_id, _, next_id = opened[32:].decode("utf-8", "replace").partition(" ")
    if not hmac.compare_digest(opened[:32], _sign(opened[32:])) or own_id != item_id:
        raise BadChatRequest(f"The encrypted content for item {item_id} could not be verified (input[{n}]).")
    return next_id


def _unpaired(n: int, expected: str) -> str:
    return (
        f"Item 'input[{n}]' of type 'reasoning' was provided without its required following item {expected}."
    )


def _check_message(n: int, item: dict[str, Any]) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise BadChatRequest(f"Invalid value for 'input[{n}].role': {role!r} is not one of {sorted(_ROLES)}.")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise BadChatRequest(f"Invalid type for 'input[{n}].content': expected a string or a list of parts.")
    for m, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _PARTS or (role == "assistant") != (kind in ("output_text", "refusal")):
            raise BadChatRequest(f"Invalid value for 'input[{n}].content[{m}].type': {kind!r}.")
        _only(part, _PARTS[kind], f"input[{n}].content[{m}].")


def _sign(sealed: bytes) -> bytes:
    return hmac.digest(_KEY, sealed, hashlib.sha256)
