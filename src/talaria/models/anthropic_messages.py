"""The wire format "anthropic-messages": Claude's own API, and servers compatible with it.

Each message becomes one object with a list of blocks, written from that message alone:
- thinking goes back where it stood, byte for byte; what another wire format thought is left out, because
  the provider refuses thinking that it has not signed;
- a call's arguments go back verbatim when they are a JSON object, else as `{"_raw": "…"}`; ids and names that
  the API would refuse are rewritten, the same way in a call and in its result;
- the API refuses text without a visible character: such blocks are left out, and a message that would be
  empty says so;
- it knows system text only in front of everything: a system message that begins a stateless conversation is
  moved there when the body is put together, a later one is told to the model as a note by the user.

Cache marks stand on the last tool and the system prompt, frozen with the prefix, and move along on the last
message and on the one that ended the request before. Every message that can end a request ends in `}]}`, so a
mark is put in front of these bytes; nothing older is touched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
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
from talaria.core.models import ModelCall
from talaria.core.specs import Prefix
from talaria.core.tools import ToolSpec
from talaria.models.anthropic_answer import THINKING, AnthropicReader
from talaria.models.anthropic_options import (
    CACHE_MARK,
    encode_system,
    encode_tools,
    options,
    own_system,
    own_tools,
)
from talaria.models.failures import ProviderErrors
from talaria.models.wire import AnswerDecoder, answer_text, part_text

VERSION = "2023-06-01"
EMPTY = "[empty message]"
NOTE = "[note from the system] "
# A note has its members the other way round, so that no text of a user can be taken for one.
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


class AnthropicMessages:
    """Stateless: one instance serves every endpoint."""

    name = "anthropic-messages"
    path = "/messages"
    list_path = "/models?limit=1000"  # twenty otherwise

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix:
        return Prefix(
            encode_system(prompt) if prompt.strip() else b"", encode_tools([_tool(spec) for spec in tools])
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

    def headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}

    def body(self, call: ModelCall) -> list[bytes]:
        """A few pieces; the long one is the history, joined once and looked at by nobody."""
        chunks = call.chunks
        notes = _leading_notes(chunks)
        prompt = own_system(call.prefix.system)
        system = b",".join(part for part in (prompt, *map(_as_system, chunks[:notes])) if part)
        head = b'{"model":%b,' % _encode(call.model)
        if system:
            head += b'"system":[%b],' % system
        if tools := own_tools(call.prefix.tools):
            head += b'"tools":%b,' % tools
        head += b'"messages":['
        if len(chunks) > notes and chunks[notes].startswith(_ASSISTANT):
            head += _OPENING + b","
        return [
            head,
            *_marked(chunks, notes),
            b"]," + options(call, has_thought=not call.reasoning or _has_thought(chunks)) + b"}",
        ]

    def decoder(self, model: str, errors: ProviderErrors) -> AnswerDecoder:
        return AnswerDecoder(model, errors, AnthropicReader())


# -- splicing ---------------------------------------------------------------------------------------------


def _leading_notes(chunks: Sequence[bytes]) -> int:
    """How many system messages come first; the last message of all has to stay one."""
    count = 0
    while count < len(chunks) - 1 and chunks[count].startswith(_NOTE_HEAD):
        count += 1
    return count


def _as_system(note: bytes) -> bytes:
    block = note[len(_NOTE_HEAD) : -len(_NOTE_TAIL)]
    return b'{"type":"text","text":"' + block if not block.startswith(b'"') else b""


def _has_thought(chunks: Sequence[bytes]) -> bool:
    """Whether the model may think now: at the start of its turn, or when it began this one with a thought.

    Where another model began it, thinking with a budget would be refused until the turn is over. A user who
    speaks right after results does not end it: to the API both are one message.
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
    """The messages from `start` on, with the moving marks: on the last one, and on the one in front of the
    last answer, which is where the request before this one ended."""
    last = len(chunks) - 1
    if last < start:
        return []
    earlier = last
    for n in range(last - 1, max(start, last - _LOOK_BACK), -1):
        if chunks[n].startswith(_ASSISTANT):
            earlier = n - 1
            break
    pieces = [b",".join(chunks[start:earlier])] if earlier > start else []
    pieces.append(_mark(chunks[earlier]))
    if earlier < last:
        pieces += [*chunks[earlier + 1 : last], _mark(chunks[last])]
    return [piece for n, part in enumerate(pieces) for piece in ((b",", part) if n else (part,))]


def _mark(chunk: bytes) -> bytes:
    return chunk[: -len(_END)] + CACHE_MARK + _END if chunk.endswith(_END) else chunk


# -- messages ---------------------------------------------------------------------------------------------


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "description": spec.description,
        "input_schema": msgspec.Raw(spec.parameters.encode()),
    }


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _user(message: UserMessage) -> list[dict[str, Any]]:
    """A stamp and a name stand in front of the first text."""
    lead = (f"[{message.stamp}] " if message.stamp else "") + (f"{message.name}: " if message.name else "")
    return _blocks(message.parts, lead) or [_text_block(EMPTY)]


def _blocks(parts: Sequence[Part], lead: str = "") -> list[dict[str, Any]]:
    """Texts that follow each other are one block."""
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
    if not blocks or isinstance(blocks[-1], msgspec.Raw):
        blocks.append(_text_block(EMPTY))  # thinking may not be the last thing said
    return blocks


def _call(call: ToolCall) -> dict[str, Any]:
    name = _NOT_NAME.sub("_", call.name)[:128] or "_"
    return {"type": "tool_use", "id": _id(call.id), "name": name, "input": _input(call.arguments)}


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
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": _id(result.call_id)}
    is_error = result.outcome is not ToolOutcome.OK
    if result.parts and not is_error:  # the API refuses an error that has anything but text
        if blocks := _blocks(result.parts):
            block["content"] = blocks
    elif result.text.strip():
        block["content"] = result.text
    if is_error:
        block["is_error"] = True
    return block


def _id(call_id: str) -> str:
    """Other servers make ids like `functions.read_file:0`, which this API refuses."""
    if _ID.fullmatch(call_id):
        return call_id
    return "toolu_" + hashlib.sha256(call_id.encode()).hexdigest()[:24]
