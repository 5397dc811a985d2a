"""Anthropic messages, as a server sees them.

Thoughts are signed; a thought that begins with "(sealed)" comes as a redacted block.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from talaria.core.messages import TokenUsage
from talaria.testing.model_api import (
    AnswerEvents,
    Event,
    ModelApi,
    ScriptedReply,
    ScriptedRequest,
    WrongKey,
    cut_in_half,
    decode,
    encode,
    make_request,
    require,
    require_unique_tools,
    validate,
)
from talaria.testing.script import ScriptContext, ScriptedAnswer

SEALED = "(sealed)"
_VERSIONS = frozenset({"2023-06-01", "2026-10-21"})
_MAX_MARKS = 4
_Visible = Annotated[str, Meta(pattern=r"\S")]
_Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
_Mark = dict[str, Any] | None


class _Strict(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The base of all schemas. A member that is not listed is refused."""


class _Text(_Strict, tag="text"):
    text: _Visible
    cache_control: _Mark = None


class _Base64(_Strict, tag="base64"):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Annotated[str, Meta(min_length=1)]


class _Url(_Strict, tag="url"):
    url: Annotated[str, Meta(pattern="^http")]


class _Image(_Strict, tag="image"):
    source: _Base64 | _Url
    cache_control: _Mark = None


class _Result(_Strict, tag="tool_result"):
    tool_use_id: str
    content: str | list[_Text | _Image] = ""
    is_error: bool = False
    cache_control: _Mark = None


class _Call(_Strict, tag="tool_use"):
    id: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]+$")]
    name: _Name
    input: dict[str, Any]
    cache_control: _Mark = None


class _Thought(_Strict, tag="thinking"):
    thinking: str
    signature: str


class _Redacted(_Strict, tag="redacted_thinking"):
    data: str


class _User(_Strict, tag_field="role", tag="user"):
    content: (
        Annotated[str, Meta(min_length=1)] | Annotated[list[_Text | _Image | _Result], Meta(min_length=1)]
    )


class _Assistant(_Strict, tag_field="role", tag="assistant"):
    content: (
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[_Text | _Thought | _Redacted | _Call], Meta(min_length=1)]
    )


class _Tool(_Strict):
    name: _Name
    input_schema: dict[str, Any]
    description: str = ""
    cache_control: _Mark = None
    type: str | None = None
    strict: bool | None = None


class _Disabled(_Strict, tag="disabled"):
    pass


class _Adaptive(_Strict, tag="adaptive"):
    display: str = ""


class _Enabled(_Strict, tag="enabled"):
    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: str = ""


class _Request(_Strict):
    model: Annotated[str, Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)]
    messages: Annotated[list[_User | _Assistant], Meta(min_length=1)]
    system: str | list[_Text] = ""
    tools: list[_Tool] = []
    tool_choice: dict[str, Any] | None = None
    stream: bool = False
    stop_sequences: list[_Visible] = []
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    thinking: _Disabled | _Adaptive | _Enabled | None = None
    output_config: Any = None
    metadata: Any = None
    cache_control: _Mark = None


_Blocks = list[Any]
_Block = dict[str, Any]


def sign(thought: str) -> str:
    """Return the signature of a thought. A changed thought does not fit it."""
    return base64.b64encode(hashlib.sha256(b"scripted\0" + thought.encode()).digest()).decode()


class MessagesApi(ModelApi):
    wire = "anthropic-messages"
    path = "/v1/messages"
    id_prefix = "msg_"

    def read(self, body: bytes) -> ScriptedRequest:
        request = decode(body)
        read = validate(request, _Request)
        require_unique_tools(tool.name for tool in read.tools)
        for tool in read.tools:
            require(tool.input_schema.get("type") == "object", "tools.input_schema.type: Field required")
        _check_options(read)
        _check_turns(read)
        marks = msgspec.json.encode(read).count(b'"cache_control":{')
        require(marks <= _MAX_MARKS, f"A maximum of 4 blocks with cache_control may be provided: {marks}.")
        return make_request(request, _read_context(request))

    def check_headers(self, headers: Mapping[str, str]) -> None:
        if not headers.get("x-api-key") and not headers.get("authorization", "").startswith("Bearer "):
            raise WrongKey("x-api-key header is required")
        version = headers.get("anthropic-version")
        require(version in _VERSIONS, f"anthropic-version: {version!r} is not a valid version")

    def events(self, reply: ScriptedReply) -> AnswerEvents:
        usage = reply.usage
        body: list[Event] = [{"type": "ping"}]
        for index, (opened, deltas, _) in enumerate(_make_blocks(reply.answer)):
            body.append({"type": "content_block_start", "index": index, "content_block": opened})
            body += ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
            body.append({"type": "content_block_stop", "index": index})
        start = {**_envelope(reply), "content": [], "usage": _usage(usage, 1)}
        delta = {"stop_reason": _stop_reason(reply.answer), "stop_sequence": None}
        error = {"type": "overloaded_error", "message": "The scripted server had an error."}
        return AnswerEvents(
            [{"type": "message_start", "message": start}],
            body,
            [
                {"type": "message_delta", "delta": delta, "usage": _usage(usage, usage.output)},
                {"type": "message_stop"},
            ],
            {"type": "error", "error": error},
        )

    def whole(self, reply: ScriptedReply) -> bytes:
        content = [whole for _, _, whole in _make_blocks(reply.answer)]
        usage = _usage(reply.usage, reply.usage.output)
        stop = _stop_reason(reply.answer)
        return encode({**_envelope(reply), "content": content, "usage": usage, "stop_reason": stop})

    def refusal(self, message: str, kind: str) -> bytes:
        kind = "api_error" if kind == "server_error" else kind
        error = {"type": kind, "message": message}
        return encode({"type": "error", "error": error, "request_id": "req_scripted"})


# -- requests ---------------------------------------------------------------------------------------------


def _read_context(request: dict[str, Any]) -> ScriptContext:
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
    return ScriptContext(user, steps, results, system, len(messages) + bool(system))


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _text(blocks: list[dict[str, Any]]) -> str:
    return "\n".join(block["text"] for block in blocks if isinstance(block.get("text"), str))


def _has(blocks: list[dict[str, Any]], kind: str) -> bool:
    return any(block.get("type") == kind for block in blocks)


def _check_options(request: _Request) -> None:
    both = request.temperature is not None and request.top_p is not None
    require(not both, "`temperature` and `top_p` cannot both be specified for this model.")
    choice = (request.tool_choice or {}).get("type")
    require(choice is None or bool(request.tools), "tool_choice may only be specified with tools")
    thinking = request.thinking
    if thinking is None or isinstance(thinking, _Disabled):
        return
    if isinstance(thinking, _Enabled):
        fits = request.max_tokens > thinking.budget_tokens
        require(fits, "`max_tokens` must be greater than `thinking.budget_tokens`")
    is_tuned = request.temperature not in (None, 1) or request.top_p is not None
    require(not is_tuned, "`temperature` may only be set to 1 when thinking is enabled")
    forces = choice in ("any", "tool")
    require(not forces, "Thinking may not be enabled when tool_choice forces tool use")


def _check_turns(request: _Request) -> None:
    """Check each turn. Neighbouring messages of the same role are one turn."""
    turns: list[tuple[type, _Blocks]] = []
    for message in request.messages:
        content = message.content
        blocks: _Blocks = [_Text(content)] if isinstance(content, str) else list(content)
        if turns and turns[-1][0] is type(message):
            turns[-1][1].extend(blocks)
        else:
            turns.append((type(message), blocks))
    require(turns[0][0] is _User, 'messages: first message must use the "user" role')
    owed: set[str] = set()
    for n, (role, blocks) in enumerate(turns):
        owed = _check_user(n, blocks, owed) if role is _User else _check_assistant(n, blocks)
    _need_nothing_owed(len(turns) - 1, owed)
    if isinstance(request.thinking, _Enabled):
        _check_running_turn(turns)


def _need_nothing_owed(n: int, owed: set[str]) -> None:
    text = "`tool_use` ids were found without `tool_result` blocks immediately after"
    require(not owed, f"messages.{n}: {text}: {', '.join(sorted(owed))}")


def _check_user(n: int, blocks: _Blocks, owed: set[str]) -> set[str]:
    results = [block for block in blocks if isinstance(block, _Result)]
    for result in results:
        text = f"messages.{n}: unexpected `tool_use_id` found in `tool_result` blocks"
        require(result.tool_use_id in owed, text)
        owed = owed - {result.tool_use_id}
        is_text = isinstance(result.content, str) or all(isinstance(part, _Text) for part in result.content)
        text = f"messages.{n}: all content must be type 'text' if 'is_error' is true"
        require(is_text or not result.is_error, text)
    require(blocks[: len(results)] == results, f"messages.{n}: `tool_result` blocks must come first")
    _need_nothing_owed(n, owed)
    return set()


def _check_assistant(n: int, blocks: _Blocks) -> set[str]:
    is_thought = isinstance(blocks[-1], _Thought | _Redacted)
    require(not is_thought, f"messages.{n}: The final block cannot be `thinking`")
    for block in blocks:
        match block:
            case _Thought(thinking, signature):
                is_ours = sign(thinking) == signature
                require(is_ours, f"messages.{n}: Invalid `signature` in `thinking` block")
            case _Redacted(data):
                require(_is_sealed(data), f"messages.{n}: Invalid `data` in `redacted_thinking` block")
    calls = [block.id for block in blocks if isinstance(block, _Call)]
    require(len(set(calls)) == len(calls), f"messages.{n}: `tool_use` ids must be unique")
    return set(calls)


def _is_sealed(data: str) -> bool:
    signature, _, sealed = data.partition(".")
    try:
        return sign(bytes.fromhex(sealed).decode()) == signature
    except ValueError:
        return False


def _check_running_turn(turns: list[tuple[type, _Blocks]]) -> None:
    """Check that the running turn begins with a thought, as a model with a thinking budget begins it."""
    first = None
    for role, blocks in reversed(turns):
        if role is _Assistant:
            first = blocks[0]
        elif not any(isinstance(block, _Result) for block in blocks):
            break
    text = "When `thinking` is enabled, a final `assistant` message must start with a thinking block"
    require(first is None or isinstance(first, _Thought | _Redacted), text)


# -- answers ----------------------------------------------------------------------------------------------


def _envelope(reply: ScriptedReply) -> dict[str, Any]:
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _make_blocks(answer: ScriptedAnswer) -> list[tuple[_Block, list[_Block], _Block]]:
    """Return each block as it begins, its deltas, and the whole block."""
    blocks: list[tuple[_Block, list[_Block], _Block]] = []
    if answer.thought.startswith(SEALED):
        redacted = {
            "type": "redacted_thinking",
            "data": f"{sign(answer.thought)}.{answer.thought.encode().hex()}",
        }
        blocks.append((redacted, [], redacted))
    elif answer.thought:
        signed = {"type": "thinking", "thinking": answer.thought, "signature": sign(answer.thought)}
        deltas = [
            {"type": "thinking_delta", "thinking": answer.thought},
            {"type": "signature_delta", "signature": signed["signature"]},
        ]
        blocks.append(({**signed, "thinking": "", "signature": ""}, deltas, signed))
    if pieces := answer.pieces():
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        blocks.append(({"type": "text", "text": ""}, deltas, {"type": "text", "text": answer.text}))
    for call in answer.calls:
        start: _Block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        parts = ["", *cut_in_half(call.arguments)]
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        blocks.append((start, deltas, {**start, "input": _input(call.arguments)}))
    return blocks


def _input(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _stop_reason(answer: ScriptedAnswer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _usage(usage: TokenUsage, output: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.input - usage.cached - usage.stored,
        "cache_creation_input_tokens": usage.stored,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }
