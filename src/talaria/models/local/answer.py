"""Reading a tiny model's answer: one JSON object becomes an ordinary tool call, or text as it streams."""

from __future__ import annotations

import json
import re
import secrets
from enum import Enum, auto
from typing import assert_never

import msgspec

from talaria.core.messages import AssistantMessage, ToolCall
from talaria.core.models import Completion, ModelDelta, TextDelta
from talaria.models.failures import ProviderErrors
from talaria.models.openai_chat import ChatReader
from talaria.models.wire import AnswerDecoder

_REPLY = re.compile(r'\s*\{\s*"reply"\s*:\s*"')
_TOOL = re.compile(r'\s*\{\s*"tool"\s*:')
_EITHER_BEGUN = re.compile(r'\s*(\{\s*("(r(e(p(l(y("\s*(:\s*)?)?)?)?)?)?|t(o(o(l("\s*)?)?)?)?)?)?)?')
_UNITS = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_FIRST_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class _Kind(Enum):
    """What the text turns out to be."""

    OPEN = auto()
    REPLY = auto()
    PLAIN = auto()
    SILENT = auto()  # a tool call, or what follows a reply


class ReplyStream:
    """What of an answer is for the person, as it comes in: the text of `{"reply": "…"}`, nothing of a tool
    call, and all of a text that is neither."""

    def __init__(self) -> None:
        self._kind = _Kind.OPEN
        self._held = ""

    def feed(self, text: str) -> str:
        self._held += text
        if self._kind is _Kind.OPEN:
            self._recognise()
        match self._kind:
            case _Kind.OPEN | _Kind.SILENT:
                return ""
            case _Kind.PLAIN:
                said, self._held = self._held, ""
                return said
            case _Kind.REPLY:
                return self._read_reply()
            case _:
                assert_never(self._kind)

    def flush(self) -> str:
        """The end has come: what was held back because more might have followed."""
        said = self._held if self._kind in (_Kind.OPEN, _Kind.PLAIN) else ""
        self._held, self._kind = "", _Kind.SILENT
        return said

    def _recognise(self) -> None:
        if opening := _REPLY.match(self._held):
            self._kind, self._held = _Kind.REPLY, self._held[opening.end() :]
        elif _TOOL.match(self._held):
            self._kind = _Kind.SILENT
        elif not _EITHER_BEGUN.fullmatch(self._held):
            self._kind = _Kind.PLAIN

    def _read_reply(self) -> str:
        whole = _UNITS.match(self._held)
        assert whole is not None  # it matches nothing at least
        taken = whole.group()
        if self._held[len(taken) : len(taken) + 1] == '"':
            self._kind = _Kind.SILENT
        elif half := _FIRST_HALF.search(taken):  # of a surrogate pair, whose other half is still to come
            taken = taken[: half.start()]
        self._held = self._held[len(taken) :]
        return _unescape(taken)


def _unescape(text: str) -> str:
    said = json.loads(f'"{text}"', strict=False)
    assert isinstance(said, str)
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Object(msgspec.Struct):
    reply: str | None = None
    tool: str | None = None
    arguments: dict[str, object] = {}


class ObjectAnswer(AnswerDecoder):
    """A chat completion whose text is one of our objects. Of what it says only that is told which is for the
    person."""

    def __init__(self, model: str, errors: ProviderErrors) -> None:
        super().__init__(model, errors, ChatReader())
        self._stream = ReplyStream()

    def add_text(self, text: str) -> None:
        self.has_started = True
        self._text.append(text)
        if told := self._stream.feed(text):
            self._deltas.append(TextDelta(told))

    def end(self) -> list[ModelDelta]:
        deltas = super().end()
        return [*deltas, TextDelta(rest)] if (rest := self._stream.flush()) else deltas

    def completion(self) -> Completion:
        completion = super().completion()
        message = _unwrap(completion.message)
        stop = "tool_calls" if message.tool_calls else completion.stop
        return msgspec.structs.replace(completion, message=message, stop=stop)


def _unwrap(raw: AssistantMessage) -> AssistantMessage:
    try:
        found = msgspec.json.decode(raw.text, type=_Object)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # No object of ours, or one that was cut off: half a reply stands, half a call does not.
        stream = ReplyStream()
        return msgspec.structs.replace(raw, text=stream.feed(raw.text) + stream.flush())
    if found.tool is not None:
        call = ToolCall(
            f"call_{secrets.token_hex(12)}", found.tool, msgspec.json.encode(found.arguments).decode()
        )
        return msgspec.structs.replace(raw, text="", tool_calls=(call,))
    return raw if found.reply is None else msgspec.structs.replace(raw, text=found.reply)
