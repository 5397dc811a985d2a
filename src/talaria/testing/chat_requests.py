"""Reading a chat completion request as a server does: strictly, or just enough to answer it."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from talaria.testing.model_requests import (
    NAME,
    PICTURE,
    BadChatRequest,
    ChatRequest,
    decode,
    fit,
    make_request,
    need_unique_tools,
    refuse_unless,
)
from talaria.testing.script import Scene, read_scene, read_steps

_USER = b'{"role":"user",'
_HEAD = re.compile(rb'\{"model":("(?:[^"\\]|\\.)*")')
_AFTER = ('],"tools":', '],"stream":')
_TAIL = 4096
_scan_json = json.JSONDecoder().raw_decode


class _Function(Struct):
    name: Annotated[str, Meta(pattern=NAME)]


class _Tool(Struct):
    function: _Function


class _Called(Struct):
    name: str
    arguments: str


class _Call(Struct):
    id: str
    function: _Called


class _Text(Struct, tag="text"):
    text: str


class _Picture(Struct):
    url: Annotated[str, Meta(pattern=PICTURE)]


class _Image(Struct, tag="image_url"):
    image_url: _Picture


_Content = str | Annotated[list[_Text | _Image], Meta(min_length=1)]


class _User(Struct, tag_field="role", tag="user"):
    content: _Content


class _System(_User, tag="system"):
    pass


class _Developer(_User, tag="developer"):
    pass


class _Assistant(Struct, tag_field="role", tag="assistant"):
    content: _Content | None = None
    tool_calls: Annotated[list[_Call], Meta(min_length=1)] | None = None


class _Result(Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str | Annotated[list[_Text], Meta(min_length=1)]


class _Request(Struct):
    model: Annotated[str, Meta(min_length=1)]
    messages: Annotated[list[_User | _System | _Developer | _Assistant | _Result], Meta(min_length=1)]
    tools: Annotated[list[_Tool], Meta(min_length=1)] | None = None


def read_strictly(body: bytes) -> ChatRequest:
    """The whole request, refused as a real server would refuse it. Raises `BadChatRequest`."""
    request = decode(body)
    read = fit(request, _Request)
    need_unique_tools(tool.function.name for tool in read.tools or ())
    owed: set[str] = set()
    for n, message in enumerate(read.messages):
        if isinstance(message, _Result):
            answers = message.tool_call_id in owed
            refuse_unless(answers, f"Invalid 'messages[{n}]': a tool message must answer a call before it.")
            owed.discard(message.tool_call_id)
            continue
        _need_nothing_owed(owed)
        if isinstance(message, _Assistant):
            calls = message.tool_calls or []
            says = message.content is not None or bool(calls)
            refuse_unless(says, f"Invalid 'messages[{n}].content': expected a string without 'tool_calls'.")
            owed = {call.id for call in calls}
            refuse_unless(len(owed) == len(calls), f"Invalid 'messages[{n}].tool_calls': ids must be unique.")
    _need_nothing_owed(owed)
    return make_request(request, read_scene(request["messages"]))


def read_loosely(body: bytes) -> ChatRequest:
    """Just enough to answer it. Raises `BadChatRequest` for what is no JSON object."""
    fast = read_fast(body)
    if fast is not None:
        return fast
    request = decode(body)
    return make_request(
        request, read_scene([m for m in request.get("messages") or () if isinstance(m, dict)])
    )


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
        later: list[dict[str, Any]] = []
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


def _need_nothing_owed(owed: set[str]) -> None:
    if owed:
        raise BadChatRequest(
            "An assistant message with 'tool_calls' must be followed by tool messages for each "
            f"'tool_call_id'. These have none: {', '.join(sorted(owed))}."
        )
