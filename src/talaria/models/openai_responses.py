"""Requests of the wire format "openai-responses": OpenAI's responses API, stateless.

Nothing is stored at the provider: every request carries the whole conversation as a list of items, and the
model's reasoning comes back to it encrypted. A reasoning item is valid only before the item that it led to,
under that item's own id. So an answer with reasoning is written back item by item; every other message is
written without ids. Reasoning of other formats is left out.

The system prompt is the first item, in the same bytes as in "openai-chat". Tools in the form of that format
(from callers of our own API, or from before a provider's `api` was changed) are rewritten.
"""

from __future__ import annotations

import hashlib
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
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import ModelCall, Prefix
from talaria.core.tools import ToolSpec
from talaria.models.openai_responses_answers import ITEM, ItemPlace, ResponsesReader
from talaria.models.parameters import translate
from talaria.models.wire import Wire, answer_text, openai_content, openai_prefix, separated

MAX_CALL_ID = 64
MIN_OUTPUT = 16  # less is refused
_EFFORTS = frozenset({"minimal", "low", "medium", "high", "xhigh", "max"})
_NO_PARAMETERS = {"type": "object", "properties": {}}
_FLAT = b'[{"type":"function","name":'  # how our own tool lists begin
_NOTHING = frozenset({b"", b"null", b'""', b"[]"})
_ALWAYS = b',"stream":true,"store":false,"include":["reasoning.encrypted_content"]'

_encode = msgspec.json.Encoder().encode


class _Kept(msgspec.Struct, gc=False):
    """A reasoning item or an `ItemPlace`. A server that has stored nothing can use a reasoning item only if
    it
    has one of these two members, which are not decoded here."""

    type: str
    encrypted_content: msgspec.Raw = msgspec.Raw()
    content: msgspec.Raw = msgspec.Raw()

    def is_replayable(self) -> bool:
        return not (bytes(self.encrypted_content) in _NOTHING and bytes(self.content) in _NOTHING)


_decode_kept = msgspec.json.Decoder(_Kept).decode
_decode_place = msgspec.json.Decoder(ItemPlace).decode


class OpenAIResponses(Wire):
    """Stateless: one instance serves every endpoint."""

    name = "openai-responses"
    path = "/responses"

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix:
        return openai_prefix(prompt, [_tool(spec) for spec in tools])

    def encode(self, message: Message) -> bytes:
        match message:
            case SystemMessage(text=text, role=role):
                return _encode({"role": role, "content": text})
            case UserMessage():
                return _encode({"role": "user", "content": _content(message.parts, message.stamp)})
            case AssistantMessage():
                return b",".join(_assistant(message))
            case ToolResults(results=results):
                return b",".join(_encode(_output(result)) for result in results)
            case _:
                assert_never(message)

    def reader(self) -> ResponsesReader:
        return ResponsesReader()

    def body(self, call: ModelCall) -> list[bytes]:
        """Return the pieces. The history is in between: neither copied nor parsed."""
        head = b'{"model":%b,"input":[%b' % (_encode(call.model), call.prefix.system)
        if call.prefix.system and call.chunks:
            head += b","
        tools = call.prefix.tools
        if tools and not tools.startswith(_FLAT):
            tools = _flat_tools(tools)
        tail = b'],"tools":%b' % tools if tools else b"]"
        tail += _ALWAYS
        if members := _members(call):
            tail += b"," + _encode(members)[1:-1]
        return [head, *separated(call.chunks), tail + b"}"]


# -- what surrounds the messages ----------------------------------------------------------------------------


def _members(call: ModelCall) -> dict[str, Any]:
    """Return the members of the request that belong to this call alone."""
    members = translate(call.sampling, "responses")
    if call.reasoning in _EFFORTS:
        members["reasoning"] = {"effort": call.reasoning}
    if call.max_output is not None:
        members["max_output_tokens"] = max(MIN_OUTPUT, call.max_output)
    if (choice := members.get("tool_choice")) is not None:
        members["tool_choice"] = _tool_choice(choice)
    text = {
        name: members.pop(f"text.{name}") for name in ("format", "verbosity") if f"text.{name}" in members
    }
    if "format" in text:
        text["format"] = _flat(text["format"])
    return {**members, "text": text} if text else members


def _flat_tools(tools: bytes) -> bytes:
    """Rewrite a tool list of chat completions. Tools that are flat already stay as they are.

    `strict` is written out, because its default here is true.
    """
    flat = []
    for tool in map(_flat, msgspec.json.decode(tools)):
        if isinstance(tool, dict) and tool.get("type") == "function":
            tool.setdefault("parameters", _NO_PARAMETERS)
            tool.setdefault("strict", False)
        flat.append(tool)
    return _encode(flat)


def _flat(value: Any) -> Any:
    """Rewrite `{"type": T, T: {…}}` as `{"type": T, …}`."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return value
    inner = value.get(value["type"])
    return {"type": value["type"], **inner} if isinstance(inner, dict) else dict(value)


def _tool_choice(choice: Any) -> Any:
    flat = _flat(choice)
    if isinstance(flat, dict) and isinstance(flat.get("tools"), list):
        flat["tools"] = [_flat(tool) for tool in flat["tools"]]
    return flat


# -- messages -----------------------------------------------------------------------------------------------


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": msgspec.Raw(spec.parameters.encode()),
        "strict": False,
    }


def _image(image: Image) -> dict[str, Any]:
    return {"type": "input_image", "image_url": image.url, "detail": image.detail or "auto"}


def _content(parts: Sequence[Part], stamp: str = "") -> str | list[dict[str, Any]]:
    return openai_content(parts, "input_text", _image, stamp)


def _output(result: ToolResult) -> dict[str, Any]:
    output = _content(result.parts) if result.parts else result.text
    return {"type": "function_call_output", "call_id": _call_id(result.call_id), "output": output}


# -- answers ------------------------------------------------------------------------------------------------


def _assistant(message: AssistantMessage) -> list[bytes]:
    if message.interrupted:
        return [_encode({"role": "assistant", "content": answer_text(message)})]
    if items := _as_it_came(message):
        return items
    items = []
    if message.text or not message.tool_calls:
        items.append(_encode({"role": "assistant", "content": message.text}))
    items.extend(_encode(_call(call, "")) for call in message.tool_calls)
    return items


def _as_it_came(message: AssistantMessage) -> list[bytes]:
    """Return the items in their order; none if the message does not come from this format."""
    calls = {call.id: call for call in message.tool_calls}
    items: list[bytes] = []
    thoughts: list[bytes] = []  # waiting for the item that they led to
    told = 0
    for kept in message.reasoning:
        if kept.field != ITEM:
            continue
        raw = kept.raw.encode()
        item = _decode_kept(raw)
        if item.type == "reasoning":
            if item.is_replayable():
                thoughts.append(raw)
            continue
        place = _decode_place(raw)
        if place.type == "function_call":
            if (call := calls.pop(place.call_id, None)) is None:
                thoughts.clear()
                continue
            encoded = _call(call, place.id if thoughts else "")
        else:
            encoded = _message(message.text[place.start : place.end], place, paired=bool(thoughts))
            told = max(told, place.end)
        items += [*thoughts, _encode(encoded)]
        thoughts.clear()
    if told < len(message.text) or not items:
        return []
    return [*items, *(_encode(_call(call, "")) for call in calls.values())]


def _message(text: str, place: ItemPlace, *, paired: bool) -> dict[str, Any]:
    encoded: dict[str, Any] = {"role": "assistant", "content": text}
    if paired and place.id:
        part = {"type": "output_text", "text": text, "annotations": []}
        encoded = {
            "type": "message",
            "id": place.id,
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    if place.phase:
        encoded["phase"] = place.phase
    return encoded


def _call(call: ToolCall, item_id: str) -> dict[str, Any]:
    encoded = {"type": "function_call", "call_id": _call_id(call.id), "name": call.name}
    # Servers refuse an empty string where the arguments of a call without any are meant.
    encoded["arguments"] = call.arguments or "{}"
    if item_id:
        encoded["id"] = item_id
    return encoded


def _call_id(call_id: str) -> str:
    """Shorten an id of another provider that is longer than this API allows."""
    if len(call_id) <= MAX_CALL_ID:
        return call_id
    return "call_" + hashlib.sha256(call_id.encode()).hexdigest()[:40]
