"""Reading one chat completion as its bytes arrive, streamed or whole.

Servers differ, and each of these is met in the wild:
- tool calls by index; without an index; whole at once; with the id or name repeated in every piece; several
  calls under one index; arguments as an object instead of text; without an id;
- thoughts as `reasoning_content`, `reasoning` or `reasoning_details`, or several of them at once;
- usage in its own last chunk, inside the last choice, or never; cached tokens under three names;
- no `[DONE]`, or no finish reason; a plain JSON answer although a stream was asked for.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from talaria.core.messages import AssistantMessage, Reasoning, TokenUsage, ToolCall
from talaria.core.models import Completion, ModelDelta, TextDelta, ThoughtDelta
from talaria.models.faults import Faults, complaint_from
from talaria.models.inflow import Inflow
from talaria.net.sse import SseEvent

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


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
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


class _Call:
    """A tool call in the making."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class OpenAIAnswer:
    """One answer; see `models.wire.Answer`."""

    __slots__ = (
        "_calls",
        "_closed",
        "_details",
        "_faults",
        "_id",
        "_inflow",
        "_model",
        "_stop",
        "_text",
        "_thought_field",
        "_thoughts",
        "_usage",
    )

    def __init__(self, model: str, faults: Faults) -> None:
        self._model = model
        self._faults = faults
        self._inflow = Inflow(faults)
        self._closed = False
        self._id = ""
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._thought_field = ""
        self._details: list[dict[str, Any]] = []
        self._calls: list[_Call] = []
        self._usage: _Usage | None = None
        self._stop = ""

    @property
    def has_begun(self) -> bool:
        return bool(self._text or self._thoughts or self._details or self._calls)

    @property
    def is_whole(self) -> bool:
        return bool(self._stop) or self._closed

    @property
    def is_closed(self) -> bool:
        return self._closed

    def feed(self, data: bytes) -> list[ModelDelta]:
        return self._take(self._inflow.feed(data))

    def end(self) -> list[ModelDelta]:
        body = self._inflow.whole()
        if body is None:
            return self._take(self._inflow.flush())
        deltas: list[ModelDelta] = []
        self._take_json(body, deltas)
        self._closed = True
        return deltas

    def completion(self) -> Completion:
        if not self.is_whole:
            raise self._faults.cut_off()
        calls = self._finished_calls()
        message = AssistantMessage("".join(self._text), calls, self._reasoning(), self._model)
        return Completion(
            message, _token_usage(self._usage), self._stop or ("tool_calls" if calls else "stop")
        )

    # -- the stream

    def _take(self, events: list[SseEvent]) -> list[ModelDelta]:
        deltas: list[ModelDelta] = []
        for event in events:
            if event.data == b"[DONE]":
                self._closed = True
            elif not self._closed:
                self._take_json(event.data, deltas)
        return deltas

    def _take_json(self, data: bytes, deltas: list[ModelDelta]) -> None:
        try:
            chunk = _decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._faults.malformed(str(error)) from None
        if chunk.error:
            raise self._faults.in_stream(complaint_from(chunk.error))
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.id and not self._id:
            self._id = chunk.id
        for choice in chunk.choices or ():
            if not choice.index:
                self._take_choice(choice, deltas)

    def _take_choice(self, choice: _Choice, deltas: list[ModelDelta]) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            self._take_thoughts(delta, deltas)
            if text := delta.content or delta.refusal:
                self._text.append(text)
                deltas.append(TextDelta(text))
            for piece in delta.tool_calls or ():
                self._take_call(piece)
        if choice.usage is not None:
            self._usage = choice.usage
        if choice.finish_reason:
            if choice.finish_reason == "error":
                raise self._faults.in_stream(complaint_from("the provider gave no reason"))
            self._stop = choice.finish_reason

    # -- thoughts

    def _take_thoughts(self, delta: _Delta, deltas: list[ModelDelta]) -> None:
        text = ""
        for field in ("reasoning_content", "reasoning"):
            if text := getattr(delta, field) or "":
                self._thought_field = self._thought_field or field
                break
        for detail in delta.reasoning_details or ():
            self._add_detail(detail)
            if not text:
                text = _detail_text(detail)
        if text:
            self._thoughts.append(text)
            deltas.append(ThoughtDelta(text))

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

    def _take_call(self, piece: _CallPiece) -> None:
        function = piece.function or _Function()
        call = self._find_call(piece, function)
        if piece.id and not call.id:
            call.id = piece.id
        if function.name and not call.name:
            call.name = function.name
        if isinstance(function.arguments, str):
            call.arguments.append(function.arguments)
        elif function.arguments is not None:
            call.arguments.append(msgspec.json.encode(function.arguments).decode())

    def _find_call(self, piece: _CallPiece, function: _Function) -> _Call:
        """The call that `piece` goes on with, or a new one.

        Only a piece that brings its own id *and* name can begin another call under a known index, and
        without an index a new id or, with no id at all, a name begins one.
        """
        for call in reversed(self._calls):
            if piece.index is not None:
                if call.index != piece.index:
                    continue
                if piece.id and call.id and piece.id != call.id and function.name and call.name:
                    break
                return call
            if piece.id:
                if piece.id == call.id:
                    return call
            elif not function.name:
                return call
            else:
                break
        if len(self._calls) >= MAX_CALLS:
            raise self._faults.malformed(f"more than {MAX_CALLS} tool calls at once")
        self._calls.append(_Call(piece.index))
        return self._calls[-1]

    def _finished_calls(self) -> tuple[ToolCall, ...]:
        ids: set[str] = set()
        calls = []
        for n, call in enumerate(self._calls):
            if not call.name:
                raise self._faults.malformed("a tool call without a name")
            arguments = "".join(call.arguments)
            call_id = call.id
            if not call_id or call_id in ids:
                call_id = _make_id(self._id, n, call.name, arguments)
            ids.add(call_id)
            calls.append(ToolCall(call_id, call.name, arguments))
        return tuple(calls)


def _make_id(completion_id: str, n: int, name: str, arguments: str) -> str:
    """The same answer always gives the same ids."""
    seed = msgspec.json.encode((completion_id, n, name, arguments))
    return "call_" + hashlib.sha256(seed).hexdigest()[:24]


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


def _token_usage(usage: _Usage | None) -> TokenUsage:
    if usage is None:
        return TokenUsage()
    prompt, output = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = (prompt and prompt.cached_tokens) or usage.prompt_cache_hit_tokens or usage.cached_tokens or 0
    return TokenUsage(
        usage.prompt_tokens or 0,
        cached,
        usage.completion_tokens or 0,
        (output and output.reasoning_tokens) or 0,
    )
