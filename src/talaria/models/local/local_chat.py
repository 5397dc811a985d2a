"""The wire format "local-chat": chat completions for the built-in model, which is tiny.

A tiny model gets no tools. It gets a JSON schema of what it may answer, and examples in its prompt
(`tiny_prompt`). The schema takes the place of the tool list: it is rendered once and frozen with the prefix.
An answer is one JSON object, which becomes an ordinary tool call or text. In the history a call is the object
that made it, and a result is the next message of the person: small models know no other roles.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from enum import Enum, auto
from typing import assert_never

import msgspec

from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import Completion, ModelCall, ModelDelta, TextDelta
from talaria.core.specs import Prefix
from talaria.core.tools import ToolSpec
from talaria.models.answer_budget import AnswerBudget
from talaria.models.failures import DECODE_ERRORS, ProviderErrors
from talaria.models.local.tiny_prompt import (
    allowed_answers,
    answer_schema,
    offered_tools,
    opening_messages,
    result_text,
)
from talaria.models.openai_chat import ChatReader, OpenAIChat
from talaria.models.wire import AnswerDecoder

MAX_OUTPUT = 512
MAX_RESULT = 2_000  # characters of one result that a tiny model is shown
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
        offered = offered_tools(tools)
        system = b",".join(map(_encode, opening_messages(prompt, offered)))
        return Prefix(system, _encode(answer_schema(offered)) if offered else b"")

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
                return b",".join(_encode({"role": "user", "content": _result(result)}) for result in results)
            case SystemMessage() | UserMessage() | AssistantMessage():
                return _CHAT.encode(message)
            case _:
                assert_never(message)

    def body(self, call: ModelCall) -> list[bytes]:
        schema, prefix = call.prefix.tools, call.prefix
        sampling = call.sampling or b'"temperature":0'
        if schema.startswith(b"{"):  # otherwise it is the tool list of a stateless caller
            allowed = allowed_answers(schema, call.chunks)
            sampling += b',"response_format":{"type":"json_schema","json_schema":{"schema":%b}}' % allowed
            prefix = Prefix(prefix.system, b"")
        limit = min(call.max_output or MAX_OUTPUT, MAX_OUTPUT)
        return _CHAT.body(
            msgspec.structs.replace(call, prefix=prefix, sampling=sampling, max_output=limit, reasoning=None)
        )

    def decoder(
        self, model: str, errors: ProviderErrors, budget: AnswerBudget | None = None
    ) -> ObjectDecoder:
        return ObjectDecoder(model, errors, budget)


def _result(result: ToolResult) -> str:
    text, rest = result.text[:MAX_RESULT], len(result.text) - MAX_RESULT
    cut = f"\n[{rest} more characters]" if rest > 0 else ""
    failed = "" if result.outcome is ToolOutcome.OK else f" ({result.outcome})"
    return result_text(result.name, text + cut, failed)


# -- reading answers ----------------------------------------------------------------------------------------

_REPLY = re.compile(r'\s*\{\s*"reply"\s*:\s*"')
_TOOL = re.compile(r'\s*\{\s*"tool"\s*:')
_LONGEST_OPENING = 1_000  # characters, most of them spaces
_EITHER_BEGUN = re.compile(r'\s*(\{\s*("(r(e(p(l(y("\s*(:\s*)?)?)?)?)?)?|t(o(o(l("\s*)?)?)?)?)?)?)?')
_CHARACTERS = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_FIRST_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class _StreamState(Enum):
    UNDECIDED = auto()
    REPLY = auto()
    PLAIN = auto()
    HIDDEN = auto()  # a tool call, or what follows a reply


class ReplyStream:
    """Picks the text for the person out of an answer as it arrives.

    The text of `{"reply": "…"}` is shown, a tool call is not, and any other answer is shown whole.
    """

    def __init__(self) -> None:
        self._state = _StreamState.UNDECIDED
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the text that can be shown now."""
        if self._state is _StreamState.HIDDEN:
            return ""
        self._held += text
        if self._state is _StreamState.UNDECIDED:
            self._recognise()
        match self._state:
            case _StreamState.UNDECIDED | _StreamState.HIDDEN:
                return ""
            case _StreamState.PLAIN:
                shown, self._held = self._held, ""
                return shown
            case _StreamState.REPLY:
                return self._read_reply()
            case _:
                assert_never(self._state)

    def flush(self) -> str:
        """Return the text that was held back, after the last piece."""
        shown = self._held if self._state in (_StreamState.UNDECIDED, _StreamState.PLAIN) else ""
        self._held, self._state = "", _StreamState.HIDDEN
        return shown

    def _recognise(self) -> None:
        if opening := _REPLY.match(self._held):
            self._state, self._held = _StreamState.REPLY, self._held[opening.end() :]
        elif _TOOL.match(self._held):
            self._state = _StreamState.HIDDEN
        elif len(self._held) > _LONGEST_OPENING or not _EITHER_BEGUN.fullmatch(self._held):
            self._state = _StreamState.PLAIN

    def _read_reply(self) -> str:
        """Decode the whole characters of a JSON string, and hold the rest back."""
        found = _CHARACTERS.match(self._held)
        assert found is not None  # it matches nothing at least
        taken = found.group()
        if self._held[len(taken) : len(taken) + 1] == '"':
            self._state = _StreamState.HIDDEN
        elif half := _FIRST_SURROGATE.search(taken):  # the second half of the pair is still to come
            taken = taken[: half.start()]
        self._held = self._held[len(taken) :]
        text: str = json.loads(f'"{taken}"', strict=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _AnswerObject(msgspec.Struct):
    reply: str | None = None
    tool: str | None = None
    arguments: dict[str, object] = {}


class ObjectDecoder(AnswerDecoder):
    """Decodes a chat completion whose text is a JSON object: a tool call, or a reply that streams as text."""

    def __init__(self, model: str, errors: ProviderErrors, budget: AnswerBudget | None = None) -> None:
        super().__init__(model, errors, ChatReader(), budget)
        self._stream = ReplyStream()

    def add_text(self, text: str) -> None:
        self.has_started = True
        self._text.append(text)
        if shown := self._stream.feed(text):
            self._deltas.append(TextDelta(shown))

    def end(self) -> list[ModelDelta]:
        deltas = super().end()
        return [*deltas, TextDelta(rest)] if (rest := self._stream.flush()) else deltas

    def completion(self) -> Completion:
        completion = super().completion()
        message = _unwrap(completion.message)
        stop = "tool_calls" if message.tool_calls else completion.stop
        return msgspec.structs.replace(completion, message=message, stop=stop)


def _unwrap(raw: AssistantMessage) -> AssistantMessage:
    """Return the message that the object means. Of an answer that was cut off only a reply is kept."""
    try:
        found = msgspec.json.decode(raw.text, type=_AnswerObject)
    except DECODE_ERRORS:
        stream = ReplyStream()
        return msgspec.structs.replace(raw, text=stream.feed(raw.text) + stream.flush())
    if found.tool is not None:
        call = ToolCall(f"call_{secrets.token_hex(12)}", found.tool, _encode(found.arguments).decode())
        return msgspec.structs.replace(raw, text="", tool_calls=(call,))
    return raw if found.reply is None else msgspec.structs.replace(raw, text=found.reply)
