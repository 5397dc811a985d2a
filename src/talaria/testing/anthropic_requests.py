"""Reading an Anthropic messages request as the real server does: strictly, or just enough to answer it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from talaria.testing.anthropic_answers import sign
from talaria.testing.chat_requests import BadChatRequest, ChatRequest
from talaria.testing.script import Scene

_FIELDS = frozenset(
    {
        *("model", "messages", "max_tokens", "system", "tools", "tool_choice", "stream", "stop_sequences"),
        *("temperature", "top_p", "top_k", "thinking", "output_config", "metadata", "cache_control"),
    }
)
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_BLOCKS = {
    "user": frozenset({"text", "image", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
}
_MEMBERS = {
    "text": {"type", "text", "cache_control"},
    "image": {"type", "source", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
_VERSIONS = frozenset({"2023-06-01", "2026-10-21"})
MAX_MARKS = 4


class MissingKey(BadChatRequest):
    status = 401
    kind = "authentication_error"


def check_headers(headers: Mapping[str, str]) -> None:
    """`headers` by their names in lower case."""
    if not headers.get("x-api-key") and not headers.get("authorization", "").startswith("Bearer "):
        raise MissingKey("x-api-key header is required")
    version = headers.get("anthropic-version")
    _refuse_unless(version in _VERSIONS, f"anthropic-version: {version!r} is not a valid version")


def read_messages_strictly(body: bytes) -> ChatRequest:
    """The whole request, refused as the real server would refuse it. Raises `BadChatRequest`."""
    request = _decode(body)
    try:
        _check(request)
    except (AttributeError, TypeError, KeyError) as error:  # a shape that no check below expects
        raise BadChatRequest(f"The request has a wrong shape: {error}") from None
    return _chat_request(request)


def read_messages_loosely(body: bytes) -> ChatRequest:
    """The whole request without checks. Raises `BadChatRequest` for what is no JSON object."""
    return _chat_request(_decode(body))


def _decode(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadChatRequest(f"The request body is not valid JSON: {error}") from None


def _chat_request(request: dict[str, Any]) -> ChatRequest:
    return ChatRequest(str(request.get("model")), bool(request.get("stream")), _scene(request))


def _scene(request: dict[str, Any]) -> Scene:
    messages = [(m.get("role"), _blocks(m.get("content"))) for m in request.get("messages") or ()]
    asked = [
        n for n, (role, blocks) in enumerate(messages) if role == "user" and not _has(blocks, "tool_result")
    ]
    start = asked[-1] if asked else len(messages)
    steps = 0
    results: tuple[str, ...] = ()
    for role, blocks in messages[start + 1 :]:
        if role == "assistant" and _has(blocks, "tool_use"):
            steps += 1
        elif role == "user":
            results = tuple(_text(_blocks(b.get("content"))) for b in blocks if b["type"] == "tool_result")
    system = _text(_blocks(request.get("system")))
    user = _text(messages[start][1]) if asked else ""
    return Scene(user, steps, results, system, len(messages) + bool(system))


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _text(blocks: list[dict[str, Any]]) -> str:
    return "\n".join(block["text"] for block in blocks if isinstance(block.get("text"), str))


def _has(blocks: list[dict[str, Any]], kind: str) -> bool:
    return any(block.get("type") == kind for block in blocks)


# -- what is refused --------------------------------------------------------------------------------------


def _refuse_unless(condition: bool, complaint: str) -> None:
    if not condition:
        raise BadChatRequest(complaint)


def _check(request: dict[str, Any]) -> None:
    for field in request:
        _refuse_unless(field in _FIELDS, f"{field}: Extra inputs are not permitted")
    model, limit = request.get("model"), request.get("max_tokens")
    _refuse_unless(isinstance(model, str) and model != "", "model: Field required")
    _refuse_unless(isinstance(limit, int) and limit > 0, "max_tokens: Field required")
    _check_blocks("system", _blocks(request.get("system", [])), {"text"})
    _check_tools(request.get("tools", []))
    _check_thinking(request)
    both = "temperature" in request and "top_p" in request
    _refuse_unless(not both, "`temperature` and `top_p` cannot both be specified for this model.")
    for stop in request.get("stop_sequences", []):
        _refuse_unless(stop.strip() != "", "stop_sequences: each stop sequence must contain non-whitespace")
    _check_messages(request)
    marks = msgspec.json.encode(request).count(b'"cache_control":{')
    _refuse_unless(
        marks <= MAX_MARKS, f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    )


def _check_tools(tools: Any) -> None:
    _refuse_unless(isinstance(tools, list), "tools: Input should be a valid list")
    names = set()
    for n, tool in enumerate(tools):
        name, schema = tool.get("name"), tool.get("input_schema")
        extra = set(tool) - {"name", "description", "input_schema", "cache_control", "type", "strict"}
        _refuse_unless(not extra, f"tools.{n}: Extra inputs are not permitted")
        is_name = isinstance(name, str) and _NAME.fullmatch(name) is not None
        _refuse_unless(is_name, f"tools.{n}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        is_object = isinstance(schema, dict) and schema.get("type") == "object"
        _refuse_unless(is_object, f"tools.{n}.input_schema.type: Field required")
        _refuse_unless(name not in names, "tools: Tool names must be unique.")
        names.add(name)


def _check_thinking(request: dict[str, Any]) -> None:
    thinking = request.get("thinking") or {"type": "disabled"}
    choice = (request.get("tool_choice") or {}).get("type")
    _refuse_unless(
        choice is None or bool(request.get("tools")), "tool_choice may only be specified with tools"
    )
    if thinking["type"] == "disabled":
        return
    if thinking["type"] == "enabled":
        budget = thinking.get("budget_tokens", 0)
        _refuse_unless(budget >= 1024, "thinking.enabled.budget_tokens: Input should be at least 1024")
        _refuse_unless(
            request["max_tokens"] > budget, "`max_tokens` must be greater than `thinking.budget_tokens`"
        )
    else:
        extra = set(thinking) - {"type", "display"}
        _refuse_unless(not extra, f"thinking.{thinking['type']}: Extra inputs are not permitted")
    tuned = request.get("temperature", 1) != 1 or "top_p" in request
    _refuse_unless(not tuned, "`temperature` may only be set to 1 when thinking is enabled")
    _refuse_unless(
        choice not in ("any", "tool"), "Thinking may not be enabled when tool_choice forces tool use"
    )


def _check_messages(request: dict[str, Any]) -> None:
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadChatRequest("messages: at least one message is required")
    turns: list[tuple[str, list[dict[str, Any]]]] = []
    for n, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        _refuse_unless(role in _BLOCKS, f"messages.{n}.role: Input should be 'user' or 'assistant'")
        _refuse_unless(set(message) == {"role", "content"}, f"messages.{n}: Extra inputs are not permitted")
        is_content = isinstance(content, str | list) and bool(content)
        _refuse_unless(is_content, f"messages.{n}: all messages must have non-empty content")
        _check_blocks(f"messages.{n}.content", _blocks(content), _BLOCKS[role])
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(_blocks(content))
        else:
            turns.append((role, list(_blocks(content))))
    _refuse_unless(turns[0][0] == "user", 'messages: first message must use the "user" role')
    owed: set[str] = set()
    for n, (role, blocks) in enumerate(turns):
        owed = _check_user(n, blocks, owed) if role == "user" else _check_assistant(n, blocks)
    _refuse_unless(not owed, _owed(len(turns) - 1, owed))
    if (request.get("thinking") or {}).get("type") == "enabled":
        _check_running_turn(turns)


def _owed(n: int, owed: set[str]) -> str:
    return (
        f"messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(sorted(owed))}"
    )


def _check_user(n: int, blocks: list[dict[str, Any]], owed: set[str]) -> set[str]:
    count = 0
    for at, block in enumerate(blocks):
        if block["type"] != "tool_result":
            continue
        call_id = block.get("tool_use_id")
        where = f"messages.{n}.content.{at}"
        _refuse_unless(call_id in owed, f"{where}: unexpected `tool_use_id` found in `tool_result` blocks")
        _refuse_unless(at == count, f"{where}: `tool_result` blocks must come first")
        owed = owed - {call_id}
        count += 1
    _refuse_unless(not owed, _owed(n, owed))
    return set()


def _check_assistant(n: int, blocks: list[dict[str, Any]]) -> set[str]:
    last = blocks[-1]["type"]
    _refuse_unless("thinking" not in last, f"messages.{n}: The final block cannot be `{last}`")
    calls = [block for block in blocks if block["type"] == "tool_use"]
    ids = {str(call.get("id")) for call in calls}
    _refuse_unless(len(ids) == len(calls), f"messages.{n}: `tool_use` ids must be unique")
    return ids


def _check_running_turn(turns: list[tuple[str, list[dict[str, Any]]]]) -> None:
    """A model that thinks with a budget began its turn with a thought."""
    first: list[dict[str, Any]] | None = None
    for role, blocks in reversed(turns):
        if role == "assistant":
            first = blocks
        elif not _has(blocks, "tool_result"):
            break
    if first is not None and "thinking" not in first[0]["type"]:
        raise BadChatRequest(
            f"Expected `thinking` or `redacted_thinking`, but found `{first[0]['type']}`. When `thinking` is "
            "enabled, a final `assistant` message must start with a thinking block"
        )


def _check_blocks(where: str, blocks: list[dict[str, Any]], kinds: set[str] | frozenset[str]) -> None:
    for n, block in enumerate(blocks):
        at, kind = f"{where}.{n}", block.get("type")
        _refuse_unless(kind in kinds, f"{at}: Input tag {kind!r} found using 'type' does not match")
        extra = set(block) - _MEMBERS[str(kind)]
        _refuse_unless(not extra, f"{at}.{kind}: Extra inputs are not permitted: {sorted(extra)}")
        match block:
            case {"type": "text"}:
                is_text = isinstance(block.get("text"), str) and block["text"].strip() != ""
                _refuse_unless(is_text, f"{at}: text content blocks must contain non-whitespace text")
            case {"type": "thinking"}:
                is_signed = sign(str(block.get("thinking"))) == block.get("signature")
                _refuse_unless(is_signed, f"{at}: Invalid `signature` in `thinking` block")
            case {"type": "redacted_thinking"}:
                _check_sealed(at, str(block.get("data")))
            case {"type": "tool_use"}:
                fits = isinstance(block.get("name"), str) and _NAME.fullmatch(block["name"]) is not None
                _refuse_unless(fits, f"{at}.tool_use.name: String should match pattern")
                fits = _ID.fullmatch(str(block.get("id"))) is not None
                _refuse_unless(fits, f"{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
                _refuse_unless(
                    isinstance(block.get("input"), dict), f"{at}.tool_use.input: Input should be an object"
                )
            case {"type": "tool_result"}:
                _check_blocks(f"{at}.tool_result", _inner(block), {"text", "image"})
            case {"type": "image"}:
                _check_image(at, block.get("source"))


def _inner(result: dict[str, Any]) -> list[dict[str, Any]]:
    content = result.get("content", [])
    return content if isinstance(content, list) else []


def _check_sealed(at: str, data: str) -> None:
    signature, _, sealed = data.partition(".")
    try:
        is_ours = sign(bytes.fromhex(sealed).decode()) == signature
    except ValueError:
        is_ours = False
    _refuse_unless(is_ours, f"{at}: Invalid `data` in `redacted_thinking` block")


def _check_image(at: str, source: Any) -> None:
    match source:
        case {"type": "base64", "media_type": kind, "data": str() as data}:
            _refuse_unless(kind in _IMAGES and bool(data), f"{at}.image.source.base64: invalid image")
        case {"type": "url", "url": str() as url}:
            _refuse_unless(url.startswith("http"), f"{at}.image.source.url: Only HTTPS URLs are supported.")
        case _:
            raise BadChatRequest(f"{at}.image.source: Field required")
