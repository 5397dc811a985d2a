"""Chat completions as OpenAI's clients read them: whole, and as a stream of chunks."""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.channels.http.errors import error_body
from talaria.core.errors import ErrorInfo
from talaria.core.events import Delta, Event, ReasoningDelta, ToolStarted
from talaria.core.messages import TokenUsage, ToolCall

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"


class Outcome(msgspec.Struct, frozen=True):
    """How a turn ended that has an answer."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    finish: str = "stop"
    usage: TokenUsage = TokenUsage()


class Frame(msgspec.Struct, frozen=True):
    """What every piece of one completion repeats. `model` is what the caller asked for."""

    turn_id: str
    created: int
    model: str

    @property
    def id(self) -> str:
        return f"chatcmpl-{self.turn_id}"


def whole(frame: Frame, outcome: Outcome) -> bytes:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": outcome.text or (None if outcome.calls else ""),
        "refusal": None,
    }
    if outcome.thought:
        message["reasoning_content"] = outcome.thought
    if outcome.calls:
        message["tool_calls"] = [_call(call) for call in outcome.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": outcome.finish}
    return _encode(
        {
            "id": frame.id,
            "object": "chat.completion",
            "created": frame.created,
            "model": frame.model,
            "choices": [choice],
            "usage": _usage(outcome.usage),
        }
    )


class Chunks:
    """Writes one completion's chunks: the role comes with the first piece, whatever that is."""

    def __init__(self, frame: Frame, *, with_usage: bool) -> None:
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            _encode(frame.id),
            frame.created,
            _encode(frame.model),
        )
        self._with_usage = with_usage
        self._is_begun = False
        self._has_text = False
        self._needs_break = False

    def piece(self, event: Event) -> bytes:
        """What an event adds to the answer, if anything. Text before and after tool calls is kept apart."""
        match event:
            case Delta(text=text):
                if self._needs_break:
                    self._needs_break = False
                    text = "\n\n" + text
                self._has_text = True
                return self._delta(b'{"content":%b}' % _encode(text))
            case ReasoningDelta(text=text):
                return self._delta(b'{"reasoning_content":%b}' % _encode(text))
            case ToolStarted():
                self._needs_break = self._has_text
        return b""

    def end(self, outcome: Outcome) -> bytes:
        """The last pieces: what was never streamed, the calls, the reason, the usage."""
        pieces = []
        if not self._has_text and outcome.text:
            pieces.append(self._delta(b'{"content":%b}' % _encode(outcome.text)))
        if outcome.calls:
            calls = [{"index": n, **_call(call)} for n, call in enumerate(outcome.calls)]
            pieces.append(self._delta(b'{"tool_calls":%b}' % _encode(calls)))
        pieces.append(self._delta(b"{}", _encode(outcome.finish)))
        if self._with_usage:
            pieces.append(b'%b"choices":[],"usage":%b}\n\n' % (self._head, _encode(_usage(outcome.usage))))
        pieces.append(_DONE)
        return b"".join(pieces)

    def failure(self, error: ErrorInfo) -> bytes:
        """When the status is spent: clients look for an `error` object."""
        return b"data: %b\n\n%b" % (error_body(error), _DONE)

    def _delta(self, delta: bytes, finish: bytes = b"null") -> bytes:
        usage = b',"usage":null' if self._with_usage else b""
        chunk = b'%b"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}]%b}\n\n'
        written = chunk % (self._head, delta, finish, usage)
        if self._is_begun:
            return written
        self._is_begun = True
        return chunk % (self._head, b'{"role":"assistant","content":""}', b"null", usage) + written


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
