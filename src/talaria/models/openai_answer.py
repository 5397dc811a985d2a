"""Reading one chat completion as its bytes arrive, streamed or whole.

Servers differ, and each of these is met in the wild:
- tool calls by index; without an index; whole at once; with the id or name repeated in every piece; several
  calls under one index; arguments as an object instead of text; without an id;
- thoughts as `reasoning_content`, `reasoning` or `reasoning_details`, or several of them at once;
- usage in its own last chunk, inside the last choice, or never; cached tokens under three names;
- no `[DONE]`, or no finish reason; a plain JSON answer although a stream was asked for.
"""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.messages import Reasoning, TokenUsage, ToolCall
from talaria.models.answer import Answer
from talaria.models.failures import parse_error

DETAILS = "reasoning_details"
MAX_CALLS = 512


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallPiece(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[_CallPiece] | None = None
    refusal: str | None = None


class Details(msgspec.Struct, gc=False):
    """Of a count of tokens; the responses API has them too."""

    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    index: int | None = None
    usage: _Usage | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    id: str | None = None


class _Call(msgspec.Struct):
    """A tool call in the making."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = []


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChatReader:
    """See `models.answer.Reader`."""

    __slots__ = ("_calls", "_details", "_thought_field", "_thoughts")

    def __init__(self) -> None:
        self._thoughts: list[str] = []
        self._thought_field = ""
        self._details: list[dict[str, Any]] = []
        self._calls: list[_Call] = []

    def take(self, event: bytes, answer: Answer) -> None:
        if event == b"[DONE]":
            answer.close()
            return
        chunk = _decode_chunk(event)
        if chunk.error:
            raise answer.errors.in_stream(parse_error(chunk.error))
        if chunk.usage is not None:
            answer.usage = _token_usage(chunk.usage)
        if chunk.id and not answer.id:
            answer.id = chunk.id
        for choice in chunk.choices or ():
            if not choice.index:
                self._take_choice(choice, answer)

    def take_whole(self, body: bytes, answer: Answer) -> None:
        self.take(body, answer)
        answer.close()

    def finish(self, answer: Answer) -> tuple[tuple[ToolCall, ...], tuple[Reasoning, ...]]:
        found = (ToolCall(call.id, call.name, "".join(call.arguments)) for call in self._calls)
        return answer.name_calls(found), self._reasoning()

    def _take_choice(self, choice: _Choice, answer: Answer) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            self._take_thoughts(delta, answer)
            if text := delta.content or delta.refusal:
                answer.say(text)
            for piece in delta.tool_calls or ():
                self._take_call(piece, answer)
        if choice.usage is not None:
            answer.usage = _token_usage(choice.usage)
        if choice.finish_reason:
            if choice.finish_reason == "error":
                raise answer.errors.in_stream(parse_error("the provider gave no reason"))
            answer.stop, answer.is_whole = choice.finish_reason, True

    # -- thoughts

    def _take_thoughts(self, delta: _Delta, answer: Answer) -> None:
        text = delta.reasoning_content or delta.reasoning or ""
        if text and not self._thought_field:
            self._thought_field = "reasoning_content" if delta.reasoning_content else "reasoning"
        for detail in delta.reasoning_details or ():
            answer.has_begun = True
            self._add_detail(detail)
            if not text:
                text = _detail_text(detail)
        if text:
            self._thoughts.append(text)
            answer.think(text)

    def _add_detail(self, detail: dict[str, Any]) -> None:
        """Pieces of one block become that block again; whole blocks stay as they are, in order."""
        last = self._details[-1] if self._details else None
        if last is None or not _continues(last, detail):
            self._details.append(dict(detail))
            return
        for key, value in detail.items():
            if key in ("text", "summary") and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] += value
            elif value is not None:
                last[key] = value

    def _reasoning(self) -> tuple[Reasoning, ...]:
        text = "".join(self._thoughts)
        if self._details:
            return (Reasoning(DETAILS, text, msgspec.json.encode(self._details).decode()),)
        if text:
            return (Reasoning(self._thought_field, text, msgspec.json.encode(text).decode()),)
        return ()

    # -- tool calls

    def _take_call(self, piece: _CallPiece, answer: Answer) -> None:
        answer.has_begun = True
        function = piece.function or _Function()
        call = self._find_call(piece, function)
        if call is None:
            if len(self._calls) >= MAX_CALLS:
                raise answer.errors.malformed(f"more than {MAX_CALLS} tool calls at once")
            self._calls.append(call := _Call(piece.index))
        if piece.id and not call.id:
            call.id = piece.id
        if function.name and not call.name:
            call.name = function.name
        if isinstance(function.arguments, str):
            call.arguments.append(function.arguments)
        elif function.arguments is not None:
            call.arguments.append(msgspec.json.encode(function.arguments).decode())

    def _find_call(self, piece: _CallPiece, function: _Function) -> _Call | None:
        """The call that `piece` goes on with; None when it begins one.

        Only a piece that brings its own id *and* name can begin another call under a known index, and
        without an index a new id or, with no id at all, a name begins one.
        """
        for call in reversed(self._calls):
            if piece.index is not None:
                if call.index != piece.index:
                    continue
                is_another = piece.id and call.id and piece.id != call.id and function.name and call.name
                return None if is_another else call
            if piece.id:
                if piece.id == call.id:
                    return call
            else:
                return None if function.name else call
        return None


def _continues(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    if detail.get("type") not in ("reasoning.text", "reasoning.summary"):
        return False
    return all(
        detail.get(key) is None or last.get(key) is None or detail[key] == last[key]
        for key in ("type", "index", "id")
    )


def _detail_text(detail: dict[str, Any]) -> str:
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""


def _token_usage(usage: _Usage) -> TokenUsage:
    prompt, output = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = (prompt and prompt.cached_tokens) or usage.prompt_cache_hit_tokens or usage.cached_tokens or 0
    return TokenUsage(
        usage.prompt_tokens or 0,
        cached,
        usage.completion_tokens or 0,
        (output and output.reasoning_tokens) or 0,
    )
