"""Reading a chat completion request as a server does: strictly, or just enough to answer it."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from talaria.testing.script import Scene, read_scene, read_steps

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PICTURE = re.compile(r"data:image/(?:png|jpe?g|gif|webp);base64,[A-Za-z0-9+/]+=*\Z")
_USER = b'{"role":"user",'
_HEAD = re.compile(rb'\{"model":("(?:[^"\\]|\\.)*")')
_AFTER = ('],"tools":', '],"stream":')
_TAIL = 4096
_scan_json = json.JSONDecoder().raw_decode


class BadChatRequest(Exception):
    """What a real server would answer with `status`, calling it a `kind` of error."""

    status = 400
    kind = "invalid_request_error"


class ChatRequest(msgspec.Struct, frozen=True):
    model: str
    stream: bool
    scene: Scene


def read_strictly(body: bytes) -> ChatRequest:
    """The whole request, refused as a real server would refuse it. Raises `BadChatRequest`."""
    request = _decode(body)
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadChatRequest("'messages' must be a list with at least one message.")
    if not isinstance(request.get("model"), str) or not request["model"]:
        raise BadChatRequest("You must provide a model parameter.")
    _check_tools(request.get("tools"))
    _check_messages(messages)
    return ChatRequest(request["model"], bool(request.get("stream")), read_scene(messages))


def read_fast(body: bytes) -> ChatRequest | None:
    """What follows the last user message, found from the end, so that a long history costs nothing.

    In compact JSON these bytes stand for nothing else: inside a string the quotes would be escaped. None
    when the request is not written that way, or when the script asks about the whole of it.
    """
    start = body.rfind(_USER)
    head = _HEAD.match(body)
    if start < 0 or head is None:
        return None
    try:
        text = body[start:].decode()
        user, at = _scan_json(text, 0)
        later = []
        while text[at] == ",":
            message, at = _scan_json(text, at + 1)
            later.append(message)
    except (ValueError, IndexError):
        return None
    content = user.get("content")
    if not text.startswith(_AFTER, at) or not isinstance(content, str):
        return None
    if "[[system" in content or "[[history" in content:
        return None
    steps, results = read_steps(later)
    stream = body.find(b'"stream":true', max(start, len(body) - _TAIL)) > 0
    return ChatRequest(msgspec.json.decode(head[1]), stream, Scene(content, steps, results))


def read_leniently(body: bytes) -> ChatRequest:
    """The whole request without checks. Raises `BadChatRequest` for what is no JSON object."""
    request = _decode(body)
    messages = [message for message in request.get("messages") or () if isinstance(message, dict)]
    return ChatRequest(str(request.get("model")), bool(request.get("stream")), read_scene(messages))


def _decode(body: bytes) -> dict[str, Any]:
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadChatRequest(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(request, dict):
        raise BadChatRequest("The body of a request must be a JSON object.")
    return request


def _check_tools(tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        raise BadChatRequest("'tools' must be a list with at least one tool.")
    seen = set()
    for n, tool in enumerate(tools):
        name = (tool.get("function") or {}).get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise BadChatRequest(f"Invalid 'tools[{n}].function.name': {name!r}.")
        if name in seen:
            raise BadChatRequest(f"Tool names must be unique: {name!r} is there twice.")
        seen.add(name)


def _check_messages(messages: list[Any]) -> None:
    owed: set[str] = set()
    for n, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in _ROLES:
            raise BadChatRequest(f"Invalid 'messages[{n}].role': {role!r} is not one of {sorted(_ROLES)}.")
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in owed:
                raise BadChatRequest(
                    f"Invalid 'messages[{n}]': role 'tool' must answer a call of the preceding 'tool_calls', "
                    f"and {call_id!r} is none."
                )
            owed.discard(call_id)
            continue
        _check_nothing_owed(owed)
        if role == "assistant":
            owed = _check_assistant(n, message)
        else:
            _check_content(n, message.get("content"))
    _check_nothing_owed(owed)


def _check_content(n: int, content: Any) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        raise BadChatRequest(f"Invalid 'messages[{n}].content': expected a string or a list of parts.")
    for part in content:
        match part:
            case {"type": "text", "text": str()}:
                pass
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                if not url.startswith(("https://", "http://")) and not _PICTURE.match(url):
                    raise BadChatRequest(f"Invalid 'messages[{n}].content': no image can be had at its URL.")
            case _:
                raise BadChatRequest(f"Invalid 'messages[{n}].content': unknown kind of part.")


def _check_nothing_owed(owed: set[str]) -> None:
    if owed:
        raise BadChatRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages for each "
            f"'tool_call_id'. These have none: {', '.join(sorted(owed))}."
        )


def _check_assistant(n: int, message: dict[str, Any]) -> set[str]:
    calls = message.get("tool_calls")
    if calls is None:
        if not isinstance(message.get("content"), str | list):
            raise BadChatRequest(f"Invalid 'messages[{n}].content': expected a string without 'tool_calls'.")
        return set()
    if not isinstance(calls, list) or not calls:
        raise BadChatRequest(f"Invalid 'messages[{n}].tool_calls': expected at least one call.")
    ids = set()
    for call in calls:
        function = call.get("function") or {}
        if not isinstance(function.get("arguments"), str) or not isinstance(function.get("name"), str):
            raise BadChatRequest(f"Invalid 'messages[{n}].tool_calls': a call needs a name and arguments.")
        if call.get("id") in ids or not isinstance(call.get("id"), str):
            raise BadChatRequest(f"Invalid 'messages[{n}].tool_calls': ids must be unique strings.")
        ids.add(call["id"])
    return ids
