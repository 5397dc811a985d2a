"""Requests of the wire format "anthropic-messages": Claude's own API, and servers compatible with it.

Each message becomes one object with a list of blocks, written from that message alone:

- Thinking goes back where it stood, byte for byte. Reasoning of other formats is left out, because the
  provider refuses thinking that it has not signed.
- The arguments of a call go back verbatim if they are a JSON object, else as `{"_raw": "…"}`. Ids and names
  that the API would refuse are rewritten, the same way in a call and in its result.
- The API refuses text without a visible character. Such blocks are left out; an empty message says so.
- The API takes system text only in front of everything. `body` moves system messages that begin a stateless
  conversation there; a later one becomes a note by the user.

Cache marks stand on the last tool and on the system prompt, frozen with the prefix. Two more move along: on
the last message, and on the message that ended the request before. Every message that can end a request ends
in `}]}`, so a mark is inserted before these bytes; no older message changes.

Models differ by version. Up to Claude 4.5 thinking gets a budget of tokens; from 4.6 on the model decides,
and is told an effort. From 4.7 on sampling is refused, and thoughts are shown only on request. Models of
other makers count as old ones, an unknown Claude as the newest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, assert_never

import msgspec

from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Part,
    SystemMessage,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import ModelCall, Prefix
from talaria.core.tools import ToolSpec
from talaria.models.anthropic_answers import THINKING, AnthropicReader
from talaria.models.parameters import translate
from talaria.models.wire import Wire, answer_text, part_text, separated

VERSION = "2023-06-01"
MAX_OUTPUT = 32_000
EMPTY = "[empty message]"
NOTE = "[note from the system] "
CACHE_MARK = b',"cache_control":{"type":"ephemeral"}'
# A note has its members in reverse order, so that no text of a user can be mistaken for one.
_NOTE_HEAD = b'{"content":[{"type":"text","text":"' + NOTE.encode()
_NOTE_TAIL = b'],"role":"user"}'
_ASSISTANT = b'{"role":"assistant",'
_THOUGHTLESS = tuple(_ASSISTANT + b'"content":[{"type":"%b"' % kind for kind in (b"text", b"tool_use"))
_RESULTS = b'{"role":"user","content":[{"type":"tool_result"'
_END = b"}]}"
_OPENING = b'{"role":"user","content":[{"type":"text","text":"[the conversation goes on]"}]}'
_LOOK_BACK = 8
_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_PLACE = re.compile(rf"{THINKING}(?:@(\d+)\+(\d+))?")
_DATA_URL = re.compile(r"data:image/(jpe?g|png|gif|webp);base64,(.*)", re.DOTALL | re.IGNORECASE)

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


class AnthropicMessages(Wire):
    """Stateless: one instance serves every endpoint."""

    name = "anthropic-messages"
    path = "/messages"
    list_path = "/models?limit=1000"  # twenty otherwise

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix:
        return Prefix(
            _encode_system(prompt) if prompt.strip() else b"", _encode_tools([_tool(spec) for spec in tools])
        )

    def encode(self, message: Message) -> bytes:
        match message:
            case SystemMessage(text=text):
                note = NOTE + text if text.strip() else NOTE
                return _encode({"content": [_text_block(note)], "role": "user"})
            case UserMessage():
                return _encode({"role": "user", "content": _user(message)})
            case AssistantMessage():
                return _encode({"role": "assistant", "content": _assistant(message)})
            case ToolResults(results=results):
                return _encode({"role": "user", "content": [_result(result) for result in results]})
            case _:
                assert_never(message)

    def reader(self) -> AnthropicReader:
        return AnthropicReader()

    def headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def body(self, call: ModelCall) -> list[bytes]:
        """Return the pieces. The history is in between: neither copied nor parsed."""
        chunks = call.chunks
        notes = _leading_notes(chunks)
        prompt = _own_system(call.prefix.system)
        system = b",".join(part for part in (prompt, *map(_as_system, chunks[:notes])) if part)
        head = b'{"model":%b,' % _encode(call.model)
        if system:
            head += b'"system":[%b],' % system
        if tools := _own_tools(call.prefix.tools):
            head += b'"tools":%b,' % tools
        head += b'"messages":['
        if len(chunks) > notes and chunks[notes].startswith(_ASSISTANT):
            head += _OPENING + b","
        return [
            head,
            *_marked(chunks, notes),
            b"]," + _encode(_options(call))[1:-1] + b"}",
        ]


# -- joining the messages -----------------------------------------------------------------------------------


def _leading_notes(chunks: Sequence[bytes]) -> int:
    """Return how many system messages come first, not counting the last message of all."""
    count = 0
    while count < len(chunks) - 1 and chunks[count].startswith(_NOTE_HEAD):
        count += 1
    return count


def _as_system(note: bytes) -> bytes:
    block = note[len(_NOTE_HEAD) : -len(_NOTE_TAIL)]
    return b'{"type":"text","text":"' + block if not block.startswith(b'"') else b""


def _has_thought(chunks: Sequence[bytes]) -> bool:
    """Return whether the model began its turn with a thought, or begins it now.

    If another model began the turn, thinking with a budget is refused until the turn is over. A user message
    right after results does not end the turn: to the API both are one message.
    """
    began, goes_on = True, bool(chunks) and chunks[-1].startswith(_ASSISTANT)
    for chunk in reversed(chunks):
        if chunk.startswith(_RESULTS):
            goes_on = True
        elif chunk.startswith(_ASSISTANT):
            if not goes_on:
                break
            began, goes_on = not chunk.startswith(_THOUGHTLESS), False
    return began


def _marked(chunks: Sequence[bytes], start: int) -> list[bytes]:
    """Return the messages from `start` on, with cache marks on the last message and on the message where the
    previous request ended. The fixed marks are set in `_encode_system` and `_encode_tools`."""
    last = len(chunks) - 1
    if last < start:
        return []
    earlier = last
    for n in range(last - 1, max(start, last - _LOOK_BACK), -1):
        if chunks[n].startswith(_ASSISTANT):
            earlier = n - 1
            break
    pieces = [*chunks[start:earlier], _mark(chunks[earlier])]
    if earlier < last:
        pieces += [*chunks[earlier + 1 : last], _mark(chunks[last])]
    return separated(pieces)


def _mark(chunk: bytes) -> bytes:
    return chunk[: -len(_END)] + CACHE_MARK + _END if chunk.endswith(_END) else chunk


# -- what surrounds the messages ----------------------------------------------------------------------------

_ADAPTIVE, _NO_SAMPLING, _NEWEST = (4, 6), (4, 7), (99, 0)
_VERSION = re.compile(r"claude\D*?[-/.](\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
# An effort as thinking tokens, and as the word for models that take no number. "high" is the most.
_EFFORTS = {
    "minimal": (1024, "low"),
    "low": (4096, "low"),
    "medium": (12_288, "medium"),
    "high": (24_000, "high"),
    "xhigh": (24_000, "high"),
}
_CHOICES = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}


@lru_cache(maxsize=64)
def claude_version(model: str) -> tuple[int, int] | None:
    """Read the version from a name such as `claude-3-7-sonnet-20250219` or `anthropic/claude-opus-4.6`.

    Returns None for a model that is no Claude.
    """
    if "claude" not in model:
        return None
    found = _VERSION.search(model)
    return (int(found[1]), int(found[2] or 0)) if found else _NEWEST


def _options(call: ModelCall) -> dict[str, Any]:
    """Return the members of the request that belong to this call alone: limits, thinking, sampling."""
    given = translate(call.sampling, "anthropic")
    choice = _tool_choice(given) if call.prefix.tools else None
    options: dict[str, Any] = {"max_tokens": call.max_output or MAX_OUTPUT, "stream": True}
    effort = _EFFORTS.get(call.reasoning or "none")
    version = claude_version(call.model)
    is_adaptive = version is not None and version >= _ADAPTIVE
    is_forced = choice is not None and choice["type"] not in ("auto", "none")  # leaves no room for thought
    if effort is not None and not is_forced and (is_adaptive or _has_thought(call.chunks)):
        budget, word = effort
        # Thinking counts as output, but a caller's limit means the text alone.
        options["max_tokens"] = call.max_output + budget if call.max_output else MAX_OUTPUT
        if is_adaptive:
            options["thinking"] = {"type": "adaptive"}
            if version is not None and version >= _NO_SAMPLING:
                options["thinking"]["display"] = "summarized"
            options["output_config"] = {"effort": word}
        else:
            options["thinking"] = {"type": "enabled", "budget_tokens": budget}
    elif version is None or version < _NO_SAMPLING:
        # Models refuse both together. OpenAI's temperatures go up to two, these to one.
        if "temperature" in given:
            options["temperature"] = min(given["temperature"], 1.0)
        elif "top_p" in given:
            options["top_p"] = given["top_p"]
    stops = given.get("stop_sequences") or []
    stops = [stops] if isinstance(stops, str) else stops
    if stops := [stop for stop in stops if stop.strip()]:
        options["stop_sequences"] = stops
    if choice is not None:
        options["tool_choice"] = choice
    for name in ("thinking", "top_k", "service_tier", "output_config"):
        if name in given:
            options[name] = given[name]
    return options


def _tool_choice(given: Mapping[str, Any]) -> dict[str, Any] | None:
    choice: dict[str, Any] | None = None
    match given.get("tool_choice"):
        case str() as word:
            choice = _CHOICES.get(word)
        case {"function": {"name": str() as name}}:
            choice = {"type": "tool", "name": name}
    is_serial = given.get("tool_choice.disable_parallel_tool_use") is False  # it is `parallel_tool_calls`
    if is_serial and (choice is None or choice["type"] != "none"):
        return {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    return choice


def _own_system(system: bytes) -> bytes:
    """Return our own system prompt; rewrite one from before the provider's `api` was changed."""
    if not system.startswith(b'{"role":'):
        return system
    texts = [message.get("content", "") for message in msgspec.json.decode(b"[%b]" % system)]
    return b",".join(_encode_system(text) for text in texts if text.strip())


def _encode_system(text: str) -> bytes:
    return _encode(_text_block(text))[:-1] + CACHE_MARK + b"}"


def _own_tools(tools: bytes) -> bytes:
    """Return our own tool list; rewrite one in a form of OpenAI, as stateless callers send it."""
    if not tools or tools.endswith(CACHE_MARK + b"}]"):
        return tools
    return _encode_tools([_rewritten_tool(tool) for tool in msgspec.json.decode(tools)])


def _rewritten_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = (
        tool.get("function") or tool
    )  # chat completions have a function inside a tool, responses do not
    own: dict[str, Any] = {"name": function.get("name", "")}
    if function.get("description") is not None:
        own["description"] = function["description"]
    schema = function.get("parameters")
    own["input_schema"] = {"type": "object", **(schema if isinstance(schema, dict) else {})}
    return own


def _encode_tools(tools: list[dict[str, Any]]) -> bytes:
    """Encode the list with a mark on its last tool, so that the provider's cache holds the whole list."""
    return _encode(tools)[:-2] + CACHE_MARK + b"}]" if tools else b""


# -- messages -----------------------------------------------------------------------------------------------


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "description": spec.description,
        "input_schema": msgspec.Raw(spec.parameters.encode()),
    }


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _user(message: UserMessage) -> list[dict[str, Any]]:
    """Put the time stamp and the name before the first text."""
    lead = (f"[{message.stamp}] " if message.stamp else "") + (f"{message.name}: " if message.name else "")
    return _blocks(message.parts, lead) or [_text_block(EMPTY)]


def _blocks(parts: Sequence[Part], lead: str = "") -> list[dict[str, Any]]:
    """Encode parts, joining neighbouring texts into one block."""
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []

    def flush() -> None:
        nonlocal lead
        text = lead + "\n".join(texts)
        texts.clear()
        lead = ""
        if text.strip():
            blocks.append(_text_block(text))

    for part in parts:
        if isinstance(part, Image):
            block = _image(part)
            if isinstance(block, str):
                texts.append(block)
            else:
                flush()
                blocks.append(block)
        else:
            texts.append(part_text(part))
    flush()
    return blocks


def _image(image: Image) -> dict[str, Any] | str:
    if found := _DATA_URL.fullmatch(image.url):
        kind = found[1].lower().replace("jpg", "jpeg")
        source = {"type": "base64", "media_type": f"image/{kind}", "data": found[2]}
    elif image.url.startswith(("https://", "http://")):
        source = {"type": "url", "url": image.url}
    else:
        return "[an image in a format that this model cannot see]"
    return {"type": "image", "source": source}


def _assistant(message: AssistantMessage) -> list[Any]:
    blocks = content_blocks(message)
    if not blocks or isinstance(blocks[-1], msgspec.Raw):
        blocks.append(_text_block(EMPTY))  # thinking may not be the last block
    return blocks


def content_blocks(message: AssistantMessage) -> list[Any]:
    """Return the text, the calls and the signed thoughts of a message, in the order in which they came."""
    text = answer_text(message)
    blocks: list[Any] = []
    said = called = 0

    def go_on(to_text: int, to_call: int) -> None:
        nonlocal said, called
        if (piece := text[said:to_text]).strip():
            blocks.append(_text_block(piece))
        blocks.extend(map(_call, message.tool_calls[called:to_call]))
        said, called = max(said, to_text), max(called, to_call)

    for thought in message.reasoning:
        if place := _PLACE.fullmatch(thought.field):
            go_on(int(place[1] or 0), int(place[2] or 0))
            blocks.append(msgspec.Raw(thought.raw.encode()))
    go_on(len(text), len(message.tool_calls))
    return blocks


def _call(call: ToolCall) -> dict[str, Any]:
    name = _NOT_NAME.sub("_", call.name)[:128] or "_"
    return {
        "type": "tool_use",
        "id": call_id_for_anthropic(call.id),
        "name": name,
        "input": _input(call.arguments),
    }


def _input(arguments: str) -> Any:
    if not arguments.strip():
        return {}
    try:
        raw = arguments.encode()
        _decode_object(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {"_raw": arguments}
    return msgspec.Raw(raw)


def _result(result: ToolResult) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id_for_anthropic(result.call_id)}
    is_error = result.outcome is not ToolOutcome.OK
    if result.parts and not is_error:  # the API refuses an error that has anything but text
        if blocks := _blocks(result.parts):
            block["content"] = blocks
    elif result.text.strip():
        block["content"] = result.text
    if is_error:
        block["is_error"] = True
    return block


def call_id_for_anthropic(call_id: str) -> str:
    """Other servers make ids like `functions.read_file:0`, which this API refuses."""
    if _ID.fullmatch(call_id):
        return call_id
    return "toolu_" + hashlib.sha256(call_id.encode()).hexdigest()[:24]
