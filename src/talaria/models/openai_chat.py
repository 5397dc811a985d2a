"""The wire format "openai-chat": OpenAI chat completions, as OpenAI and every compatible server speak it.

A request is joined from bytes that were encoded once. Each message's bytes depend on that message alone; what
surrounds the messages depends on the call. `reasoning_details` always go back as they came, because providers
verify them. The plain reasoning fields go back only beside tool calls: thinking models need them there, and
servers that refuse them elsewhere ignore them there. Reasoning of other formats is left out.

Answers of servers differ, and the reader takes all of these:

- tool calls by index; without an index; whole at once; with the id or name repeated in every piece; several
  calls under one index; arguments as an object instead of text; without an id;
- thoughts as `reasoning_content`, `reasoning` or `reasoning_details`, or several of them at once;
- usage in its own last chunk, inside the last choice, or never; cached tokens under three names;
- no `[DONE]`, or no finish reason; a plain JSON answer although a stream was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import ModelCall, Prefix
from talaria.core.tools import ToolSpec
from talaria.models.answer_budget import MAX_DETAIL_VALUES, MAX_ID, SMALL_SHAPE
from talaria.models.failures import ErrorBody, is_error, parse_error
from talaria.models.wire import (
    AnswerDecoder,
    Wire,
    answer_text,
    count,
    openai_content,
    openai_prefix,
    part_text,
    read_counts,
    separated,
)

DETAILS = "reasoning_details"
MAX_DETAILS = 4096  # blocks, and members of them
_MAX_DETAILS_AT_ONCE = 1_000
_MAX_CHOICES = 256
_MAX_CALL_PIECES = 5_000  # in one event
_LONG_DETAIL = 1 << 10
_NULL = len("null")
_PLAIN = frozenset({"reasoning_content", "reasoning"})
_EFFORTS = frozenset({"minimal", "low", "medium", "high"})

_encode = msgspec.json.Encoder().encode


class OpenAIChat(Wire):
    """Stateless: one instance serves every endpoint."""

    name = "openai-chat"
    path = "/chat/completions"

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
                return b",".join(_results(results))
            case _:
                assert_never(message)

    def reader(self) -> ChatReader:
        return ChatReader()

    def body(self, call: ModelCall) -> list[bytes]:
        """Return the pieces. The history is in between: neither copied nor parsed."""
        head = b'{"model":%b,"messages":[%b' % (_encode(call.model), call.prefix.system)
        if call.prefix.system and call.chunks:
            head += b","
        tail = b'],"tools":%b' % call.prefix.tools if call.prefix.tools else b"]"
        tail += b',"stream":true,"stream_options":{"include_usage":true}'
        if call.reasoning in _EFFORTS:
            tail += b',"reasoning_effort":"%b"' % call.reasoning.encode()
        if call.max_output is not None:
            tail += b',"%b":%d' % (_limit_name(call.model), call.max_output)
        if call.sampling:
            tail += b"," + call.sampling
        return [head, *separated(call.chunks), tail + b"}"]


# -- writing requests ---------------------------------------------------------------------------------------


def _tool(spec: ToolSpec) -> dict[str, Any]:
    function = {
        "name": spec.name,
        "description": spec.description,
        "parameters": msgspec.Raw(spec.parameters.encode()),
    }
    return {"type": "function", "function": function}


def _user(message: UserMessage) -> dict[str, Any]:
    content = openai_content(message.parts, "text", _image, message.stamp)
    encoded: dict[str, Any] = {"role": "user", "content": content}
    if message.name is not None:
        encoded["name"] = message.name
    return encoded


def _image(image: Image) -> dict[str, Any]:
    url = {"url": image.url}
    if image.detail is not None:
        url["detail"] = image.detail
    return {"type": "image_url", "image_url": url}


def _results(results: tuple[ToolResult, ...]) -> list[bytes]:
    """A tool message takes no images. They are numbered and follow all results in a message by the user."""
    encoded: list[bytes] = []
    shown: list[dict[str, Any]] = []
    for result in results:
        text = result.text
        if result.parts:
            texts: list[str] = []
            for part in result.parts:
                if isinstance(part, Image):
                    number = len(shown) // 2 + 1
                    texts.append(f"[image {number}: see below]")
                    label = f"[image {number} from {result.name}]"
                    shown += [{"type": "text", "text": label}, _image(part)]
                else:
                    texts.append(part_text(part))
            text = "\n".join(texts)
        encoded.append(_encode({"role": "tool", "tool_call_id": result.call_id, "content": text}))
    if shown:
        encoded.append(_encode({"role": "user", "content": shown}))
    return encoded


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    text = answer_text(message) or (None if message.tool_calls else "")
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


# -- what some models want ----------------------------------------------------------------------------------

# While they think, these models refuse a tool call without the thoughts that led to it. A call that another
# model made, or that was made without thinking, gets a blank thought. MiMo also refuses a call without text.
_WANTS_THOUGHTS = re.compile(r"deepseek|kimi|mimo", re.IGNORECASE)
_WANTS_TEXT = re.compile(r"mimo", re.IGNORECASE)
_BLANK = Reasoning("reasoning_content", "", '" "')
# OpenAI's reasoning models refuse the older `max_tokens`, the only name that most other servers know.
_WANTS_NEW_LIMIT = re.compile(r"(?:gpt-5|o[134])(?:[-.]|$)")


def adapt_for_model(message: AssistantMessage, api: str, model: str) -> AssistantMessage:
    """Return an earlier answer in the form that this model accepts; for most models it is unchanged."""
    if not message.tool_calls or api != OpenAIChat.name or message.interrupted:
        return message
    if not message.reasoning and _WANTS_THOUGHTS.search(model):
        message = msgspec.structs.replace(message, reasoning=(_BLANK,))
    if not message.text and _WANTS_TEXT.search(model):
        message = msgspec.structs.replace(message, text=" ")
    return message


def _limit_name(model: str) -> bytes:
    return b"max_completion_tokens" if _WANTS_NEW_LIMIT.match(model) else b"max_tokens"


# -- reading answers ----------------------------------------------------------------------------------------


class _FunctionPiece(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, msgspec.Raw] | None = None


class _CallPiece(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _FunctionPiece | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: msgspec.Raw = msgspec.Raw()
    tool_calls: list[_CallPiece] | None = None
    refusal: str | None = None


def openai_usage(raw: msgspec.Raw) -> TokenUsage | None:
    """Read token counts under the names of chat completions, of the responses API, and of other servers.

    Return None if there are none. A count that is no whole number from 0 on is left out.
    """
    counts = read_counts(raw)
    if counts is None:
        return None
    read = counts.get("prompt_tokens_details") or counts.get("input_tokens_details")
    written = counts.get("completion_tokens_details") or counts.get("output_tokens_details")
    return TokenUsage(
        count(counts, "prompt_tokens") or count(counts, "input_tokens"),
        count(read, "cached_tokens")
        or count(counts, "prompt_cache_hit_tokens")
        or count(counts, "cached_tokens"),
        count(counts, "completion_tokens") or count(counts, "output_tokens"),
        count(written, "reasoning_tokens"),
    )


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    index: int | None = None
    usage: msgspec.Raw = msgspec.Raw()


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    id: str | None = None


class _PartialCall(msgspec.Struct):
    id: str = ""
    name: str = ""
    arguments: list[str] = []
    size: int = 0  # of the arguments
    index: int = 0  # among the calls
    may_be_told: bool = False  # it has an id of its own
    is_told: bool = False


class _PartialDetail(msgspec.Struct):
    """A block of `reasoning_details`: its members, and the pieces that followed for its texts."""

    members: dict[str, Any]
    pieces: dict[str, list[str]] = {}

    def joined(self) -> dict[str, Any]:
        texts = {name: "".join((self.members[name], *pieces)) for name, pieces in self.pieces.items()}
        return {**self.members, **texts}


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_details = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


class ChatReader(msgspec.Struct, eq=False):
    """See `models.wire.EventReader`."""

    _kept_details: int = 0  # blocks and members
    _thoughts: list[str] = []
    _thought_field: str = ""
    _details: list[_PartialDetail] = []
    _calls: list[_PartialCall] = []
    _calls_by_index: dict[int, _PartialCall] = {}
    _calls_by_id: dict[str, _PartialCall] = {}

    def read_event(self, event: bytes, answer: AnswerDecoder) -> None:
        if event == b"[DONE]":
            answer.close()
            return
        if len(event) > SMALL_SHAPE:
            answer.budget.check_shape(event)
        chunk = _decode_chunk(event)
        if chunk.error and is_error(chunk.error):
            raise answer.errors.in_stream(parse_error(chunk.error))
        if chunk.usage and len(chunk.usage) > _NULL and (usage := openai_usage(chunk.usage)) is not None:
            answer.usage = usage
        if chunk.id and not answer.id:
            answer.id = chunk.id[:MAX_ID]
        choices = chunk.choices or ()
        if len(choices) > _MAX_CHOICES:
            raise answer.budget.refused(f"has a piece with {len(choices)} choices")
        for choice in choices:
            if not choice.index:
                self._take_choice(choice, answer)

    def read_body(self, body: bytes, answer: AnswerDecoder) -> None:
        self.read_event(body, answer)
        answer.close()

    def finish(self, answer: AnswerDecoder) -> tuple[tuple[ToolCall, ...], tuple[Reasoning, ...]]:
        found = (ToolCall(call.id, call.name, "".join(call.arguments)) for call in self._calls)
        return answer.with_ids(found), self._reasoning()

    def _take_choice(self, choice: _Choice, answer: AnswerDecoder) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            self._take_thoughts(delta, answer)
            if text := delta.content:
                answer.add_text(text)
            elif text := delta.refusal:
                answer.add_refusal(text)
            if delta.tool_calls:
                self._take_calls(delta.tool_calls, answer)
        if choice.usage and len(choice.usage) > _NULL and (usage := openai_usage(choice.usage)) is not None:
            answer.usage = usage
        if choice.finish_reason:
            if choice.finish_reason == "error":
                raise answer.errors.in_stream(ErrorBody("the provider gave no reason"))
            answer.stop, answer.is_complete = choice.finish_reason, True

    # -- thoughts

    def _take_thoughts(self, delta: _Delta, answer: AnswerDecoder) -> None:
        text = delta.reasoning_content or delta.reasoning or ""
        if text and not self._thought_field:
            self._thought_field = "reasoning_content" if delta.reasoning_content else "reasoning"
        if delta.reasoning_details:
            found = self._take_details(delta.reasoning_details, answer)
            text = text or found
        if text:
            self._thoughts.append(text)
            answer.add_thought(text)

    def _take_details(self, raw: msgspec.Raw, answer: AnswerDecoder) -> str:
        """Take blocks, or pieces of them. Return the text of the first that has one."""
        answer.budget.check_shape(raw, _MAX_DETAILS_AT_ONCE, MAX_DETAIL_VALUES)
        details = _decode_details(raw) or ()
        if len(details) > _MAX_DETAILS_AT_ONCE:
            raise answer.budget.refused(f"has {len(details)} reasoning details at once")
        text, before = "", self._kept_details
        for detail in details:
            answer.has_started = True
            self._add_detail(detail)
            text = text or _detail_text(detail)
        if self._kept_details > MAX_DETAILS:
            raise answer.budget.refused(f"has more than {MAX_DETAILS} parts of reasoning")
        if self._kept_details > before or len(raw) > _LONG_DETAIL:
            answer.budget.keep_bytes(len(raw))
        else:
            answer.budget.hold(len(raw))
        answer.budget.pieces += len(details)
        return text

    def _add_detail(self, detail: dict[str, Any]) -> None:
        """Join the pieces of one block; keep whole blocks as they are, in order."""
        last = self._details[-1] if self._details else None
        if last is None or not _continues(last.members, detail):
            self._details.append(_PartialDetail(dict(detail)))
            self._kept_details += 1 + len(detail)
            return
        for name, value in detail.items():
            is_text = name in ("text", "summary") and isinstance(value, str)
            if is_text and isinstance(last.members.get(name), str):
                last.pieces.setdefault(name, []).append(value)
            elif value is not None:
                self._kept_details += name not in last.members
                last.members[name] = value
                last.pieces.pop(name, None)

    def _reasoning(self) -> tuple[Reasoning, ...]:
        text = "".join(self._thoughts)
        if self._details:
            raw = _encode([detail.joined() for detail in self._details])
            return (Reasoning(DETAILS, text, raw.decode()),)
        if text:
            return (Reasoning(self._thought_field, text, _encode(text).decode()),)
        return ()

    # -- tool calls

    def _take_calls(self, pieces: list[_CallPiece], answer: AnswerDecoder) -> None:
        if len(pieces) > _MAX_CALL_PIECES:
            raise answer.budget.refused(f"has {len(pieces)} pieces of tool calls at once")
        answer.budget.pieces += len(pieces) - 1
        for piece in pieces:
            self._take_call(piece, answer)

    def _take_call(self, piece: _CallPiece, answer: AnswerDecoder) -> None:
        answer.has_started = True
        function = piece.function or _FunctionPiece()
        call = self._find_call(piece, function)
        if call is None:
            answer.budget.add_call()
            call = _PartialCall(index=len(self._calls))
            self._calls.append(call)
            if piece.index is not None:
                self._calls_by_index[piece.index] = call
        if piece.id and not call.id:
            call.id = piece.id
            call.may_be_told = len(call.id) <= MAX_ID and call.id not in self._calls_by_id
            self._calls_by_id[call.id] = call
        if function.name and not call.name:
            call.name = function.name
        arguments, text = function.arguments, ""
        if arguments is not None:
            text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
            call.arguments.append(text)
            call.size += len(text)
            answer.budget.keep(text)
            answer.budget.check_arguments(call.size)
        if answer.tells_parts and call.may_be_told and call.name:
            if not call.is_told:
                call.is_told = True
                answer.tell_call(call.index, call.id, call.name, "".join(call.arguments))
            elif text:
                answer.tell_call(call.index, "", "", text)

    def _find_call(self, piece: _CallPiece, function: _FunctionPiece) -> _PartialCall | None:
        """Return the call that `piece` continues, or None if it begins one.

        Under a known index only a piece with another id *and* a name begins a call. Without an index a new id
        begins one; without an id, a name does.
        """
        if piece.index is not None:
            call = self._calls_by_index.get(piece.index)
            if call is not None and piece.id and call.id and piece.id != call.id:
                return None if function.name and call.name else call
            return call
        if piece.id:
            return self._calls_by_id.get(piece.id)
        return self._calls[-1] if self._calls and not function.name else None


def _continues(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    """Return whether `detail` is a piece of the same block: its identifying members do not differ."""
    if detail.get("type") not in ("reasoning.text", "reasoning.summary"):
        return False
    return all(
        detail.get(key) is None or last.get(key) is None or detail[key] == last[key]
        for key in ("type", "index", "id")
    )


def _detail_text(detail: dict[str, Any]) -> str:
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""
