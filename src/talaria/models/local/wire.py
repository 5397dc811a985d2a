"""The wire format "local-chat": chat completions for a tiny model, as the built-in one's server speaks them.

Where a big model gets tools, this one gets a JSON schema of what it may answer, and examples in its prompt.
The schema stands where the tool list would: rendered once, frozen with the prefix. Calls go back into the
history as the object that made them, results as the person's next words: small models know no other roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import msgspec

from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    Text,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import ModelCall
from talaria.core.specs import Prefix
from talaria.core.tools import ToolSpec
from talaria.models.failures import ProviderErrors
from talaria.models.local.answer import ObjectAnswer
from talaria.models.local.choices import narrowed
from talaria.models.local.prompt import answer_schema, offered, opening, told
from talaria.models.openai_chat import OpenAIChat

MAX_OUTPUT = 512
MAX_RESULT = 2_000  # characters that a tiny model is shown of one result
_UNSEEN = Text("[an image, which this model cannot see]")

_CHAT = OpenAIChat()
_encode = msgspec.json.Encoder().encode


class LocalChat:
    """Stateless, as every wire format."""

    name = "local-chat"
    path = OpenAIChat.path
    list_path = OpenAIChat.list_path

    def headers(self, key: str) -> dict[str, str]:
        return _CHAT.headers(key)

    def render_prefix(self, prompt: str, tools: Sequence[ToolSpec]) -> Prefix:
        few = offered(tools)
        system = b",".join(map(_encode, opening(prompt, few)))
        return Prefix(system, _encode(answer_schema(few)) if few else b"")

    def encode(self, message: Message) -> bytes:
        match message:
            case UserMessage(parts=parts) if any(isinstance(part, Image) for part in parts):
                seen = tuple(_UNSEEN if isinstance(part, Image) else part for part in parts)
                return _CHAT.encode(msgspec.structs.replace(message, parts=seen))
            case AssistantMessage(tool_calls=calls) if calls:
                objects = (
                    f'{{"tool": "{call.name}", "arguments": {call.arguments or "{}"}}}' for call in calls
                )
                return _encode({"role": "assistant", "content": "\n".join(objects)})
            case ToolResults(results=results):
                return b",".join(_encode({"role": "user", "content": _told(result)}) for result in results)
            case SystemMessage() | UserMessage() | AssistantMessage():
                return _CHAT.encode(message)
            case _:
                assert_never(message)

    def body(self, call: ModelCall) -> list[bytes]:
        schema, prefix = call.prefix.tools, call.prefix
        sampling = call.sampling or b'"temperature":0'
        if _is_ours(schema):
            may = narrowed(schema, call.chunks)
            sampling += b',"response_format":{"type":"json_schema","json_schema":{"schema":%b}}' % may
            prefix = Prefix(prefix.system, b"")
        limit = min(call.max_output or MAX_OUTPUT, MAX_OUTPUT)
        return _CHAT.body(
            msgspec.structs.replace(call, prefix=prefix, sampling=sampling, max_output=limit, reasoning=None)
        )

    def decoder(self, model: str, errors: ProviderErrors) -> ObjectAnswer:
        return ObjectAnswer(model, errors)


def _is_ours(tools: bytes) -> bool:
    """A schema of ours, and not the tool list of a stateless caller."""
    return tools.startswith(b"{")


def _told(result: ToolResult) -> str:
    text, rest = result.text[:MAX_RESULT], len(result.text) - MAX_RESULT
    cut = f"\n[{rest} more characters]" if rest > 0 else ""
    failed = "" if result.outcome is ToolOutcome.OK else f" ({result.outcome})"
    return told(result.name, text + cut, failed)
