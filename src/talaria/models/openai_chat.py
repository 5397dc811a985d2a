"""The wire format "openai-chat": OpenAI chat completions, as OpenAI and every compatible server speak it.

A request is spliced from bytes that were encoded once: what surrounds the messages depends on the call, each
message's bytes on that message alone. Reasoning goes back as it came: `reasoning_details` always, because
providers verify them; the plain fields only beside tool calls, where thinking models need them and where the
servers that refuse them elsewhere ignore them. What another wire format thought is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    ToolCall,
    ToolResults,
    UserMessage,
)
from talaria.core.models import ModelCall
from talaria.core.specs import Prefix
from talaria.core.tools import ToolSpec
from talaria.models.answer import Answer
from talaria.models.dialects import limit_member
from talaria.models.failures import ProviderErrors
from talaria.models.openai_answer import DETAILS, ChatReader
from talaria.models.wording import bearer, openai_content, openai_prefix, spoken

_PLAIN = frozenset({"reasoning_content", "reasoning"})
_EFFORTS = frozenset({"minimal", "low", "medium", "high"})

_encode = msgspec.json.Encoder().encode


class OpenAIChat:
    """Stateless: one instance serves every endpoint."""

    name = "openai-chat"
    path = "/chat/completions"
    list_path = "/models"

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix:
        return openai_prefix(prompt, [_tool(spec) for spec in tools])

    def encode(self, message: Message) -> bytes:
        match message:
            case SystemMessage(text=text, role=role):
                return _encode({"role": role, "content": text})
            case UserMessage():
                return _encode(_user(message))
            case AssistantMessage():
                return _encode(_assistant(message))
            case ToolResults(results=results):
                return b",".join(
                    _encode({"role": "tool", "tool_call_id": result.call_id, "content": result.text})
                    for result in results
                )
            case _:
                assert_never(message)

    def headers(self, key: str) -> dict[str, str]:
        return bearer(key)

    def body(self, call: ModelCall) -> list[bytes]:
        """Three pieces; the one in the middle is the history, joined once and looked at by nobody."""
        head = b'{"model":%b,"messages":[%b' % (_encode(call.model), call.prefix.system)
        if call.prefix.system and call.chunks:
            head += b","
        tail = b'],"tools":%b' % call.prefix.tools if call.prefix.tools else b"]"
        tail += b',"stream":true,"stream_options":{"include_usage":true}'
        if call.reasoning in _EFFORTS:
            tail += b',"reasoning_effort":"%b"' % call.reasoning.encode()
        if call.max_output is not None:
            tail += b',"%b":%d' % (limit_member(call.model), call.max_output)
        if call.sampling:
            tail += b"," + call.sampling
        return [head, b",".join(call.chunks), tail + b"}"]

    def answer(self, model: str, errors: ProviderErrors) -> Answer:
        return Answer(model, errors, ChatReader())


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {
        "name": spec.name,
        "description": spec.description,
        "parameters": msgspec.Raw(spec.parameters.encode()),
    }
    return {"type": "function", "function": function}


def _user(message: UserMessage) -> dict[str, Any]:
    encoded: dict[str, Any] = {"role": "user", "content": openai_content(message, "text", _image)}
    if message.name is not None:
        encoded["name"] = message.name
    return encoded


def _image(image: Image) -> dict[str, Any]:
    url = {"url": image.url}
    if image.detail is not None:
        url["detail"] = image.detail
    return {"type": "image_url", "image_url": url}


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    text = spoken(message) or (None if message.tool_calls else "")
    encoded: dict[str, Any] = {"role": "assistant", "content": text}
    for thought in message.reasoning:
        if thought.field == DETAILS or (message.tool_calls and thought.field in _PLAIN):
            encoded[thought.field] = msgspec.Raw(thought.raw.encode())
    if message.tool_calls:
        encoded["tool_calls"] = [_call(call) for call in message.tool_calls]
    return encoded


def _call(call: ToolCall) -> dict[str, Any]:
    # Servers refuse an empty string where the arguments of a call without any are meant.
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return {"id": call.id, "type": "function", "function": function}
