"""`/v1`: chat completions as OpenAI's clients send and read them, whole or as a stream of chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal

import msgspec

from talaria.access.callers import ApiCaller
from talaria.channels.http.call_answers import CallAnswers
from talaria.channels.http.front_ends import (
    NamedSession,
    SessionHeaders,
    check_end,
    drop_tools,
    ignores_tools,
    tell_ignored,
)
from talaria.channels.http.openai_errors import openai_error_body
from talaria.channels.http.openai_requests import (
    AssistantIn,
    CompletionRequest,
    last_user_parts,
    spoken_before,
    whole_context,
)
from talaria.channels.http.request import HttpError, Request
from talaria.channels.http.response import EventStream, Response, StreamTiming, json_response
from talaria.channels.http.retries import submit_once
from talaria.channels.http.settings import HttpSettings
from talaria.commands.slash import asks_model
from talaria.core.errors import ErrorInfo
from talaria.core.events import (
    Delta,
    Event,
    FellBack,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    UsageReported,
)
from talaria.core.files import SentFile
from talaria.core.messages import AssistantMessage, Part, TokenUsage, ToolCall
from talaria.core.turns import Inbound, Turn, TurnState
from talaria.gateway import Gateway
from talaria.operations.sessions import SessionLookup
from talaria.turns.histories import sent_exchanges
from talaria.turns.intake import StatelessCall, is_ephemeral
from talaria.turns.live import LiveTurn

_DONE: Final = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class ModelCard(msgspec.Struct, frozen=True):
    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "talaria"


class ModelCards(msgspec.Struct, frozen=True):
    data: tuple[ModelCard, ...]
    object: Literal["list"] = "list"


class OpenAiApi:
    def __init__(self, gateway: Gateway, settings: HttpSettings, timing: StreamTiming) -> None:
        self._gateway = gateway
        self._turns = gateway.turns
        self._agent_name = gateway.settings.agent.name
        self._max_body = settings.max_body
        self._answers = CallAnswers(gateway, timing)
        self._headers = SessionHeaders(settings.session_header)
        self._lookup = SessionLookup(gateway)

    async def models(self, request: Request) -> Response:
        catalog = self._gateway.catalog
        names = dict.fromkeys((self._agent_name, *catalog.names(), *catalog.listed()))
        return json_response(ModelCards(tuple(map(ModelCard, names))))

    async def model(self, request: Request) -> Response:
        """Answer with one model, which may be any that a call can name. Raises `NotFound`."""
        name = request.params["model"]
        self._gateway.catalog.resolve(name)
        return json_response(ModelCard(name))

    async def complete(self, request: Request) -> Response | EventStream:
        """Answer a chat completion. See `CallAnswers.answer` for a client that leaves."""
        key, session = request.idempotency_key(), self._headers.find(request)
        request.hashes_body = session is not None and key is None
        body, rest = await request.json_and_rest(CompletionRequest, self._max_body)
        body.check()
        live = await self._accept(request, session, body, rest, key)
        turn = live.turn
        completion = _Completion(f"chatcmpl-{turn.id}", int(turn.accepted_at), body.model or self._agent_name)
        chunks = None
        if body.stream:
            chunks = _Chunks(completion, lambda: live.model, with_usage=body.wants_usage)
            chunks.tells_refusals = is_ephemeral(turn)

        async def finish() -> bytes:
            result = await self._result(live, live.turn)
            if live.turn.files:
                result = msgspec.structs.replace(result, files=live.turn.files)
            return _encode_whole(completion, result) if chunks is None else chunks.end(result)

        return await self._answers.answer(request, live, chunks, finish, is_stateless=is_ephemeral(turn))

    async def _accept(
        self,
        request: Request,
        session: NamedSession | None,
        body: CompletionRequest,
        rest: dict[str, msgspec.Raw],
        key: str | None,
    ) -> LiveTurn:
        """Accept the message of a session, or a stateless call: one without a session, or a task of it."""
        model, parts, history = self._wanted_model(body), tuple[Part, ...](), None
        if session is not None:
            parts = last_user_parts(body.messages)
            if session.is_front_end and not session.is_task:
                self._check_count(body)
                history = sent_exchanges(spoken_before(body.messages))
            if session.has_task(history or (), parts, is_stream=bool(body.stream)):
                model = model or await self._lookup.model(session.name, request.call)
                session = None
            elif history is not None:
                check_end(is_answer=isinstance(body.messages[-1], AssistantIn))
        ignored = drop_tools(body, rest) if ignores_tools(request, session) else ()
        if session is None:
            tell_ignored(request, ignored)
            return await self._call(request.caller, body, rest, key, model)
        tell_ignored(request, ignored + body.check_session(rest, is_front_end=session.is_front_end))
        chat = await self._lookup.chat(session.name, request.call)
        inbound = Inbound(chat, request.caller.sender, parts, key, model)
        return await submit_once(self._turns, request, inbound, history)

    def _check_count(self, body: CompletionRequest) -> None:
        limits = self._gateway.limits
        if len(body.messages) > limits.now.completion_messages:
            raise HttpError(
                "too_large",
                f"The conversation has {len(body.messages)} messages.",
                limits.refuse("completion_messages"),
            )

    async def _call(
        self,
        caller: ApiCaller,
        body: CompletionRequest,
        rest: Mapping[str, msgspec.Raw],
        key: str | None,
        model: str | None,
    ) -> LiveTurn:
        gateway = self._gateway
        body.check_stateless(
            rest, lambda: gateway.providers.wire(gateway.catalog.resolve(model).provider).name
        )
        self._check_count(body)
        return await self._turns.call(
            StatelessCall(
                sender=caller.sender,
                context=whole_context(body.messages),
                model=model,
                tools=body.encoded_tools(),
                options=body.options(rest),
                key=key,
                owner=caller.owner,
            )
        )

    def _wanted_model(self, body: CompletionRequest) -> str | None:
        return None if body.model in (None, "", self._agent_name) else body.model

    async def _result(self, live: LiveTurn, turn: Turn) -> _Result:
        """Return the answer of a turn: the texts of all its model calls, as a stream brings them. For a
        repeated key it comes from the store."""
        usage = turn.usage or TokenUsage()
        completion, is_call = live.completion, is_ephemeral(turn)
        if completion is not None and (is_call or (len(live.steps) == 1 and not live.is_resumed)):
            return _Result.of((completion.message,), completion.stop, usage, is_call=is_call)
        if (live.is_recorded or live.is_resumed) and asks_model(turn.command):
            said = [
                entry.body
                for entry in await self._gateway.store.turn_log(turn.session_id, turn.id)
                if isinstance(entry.body, AssistantMessage)
            ]
            if said:
                return _Result.of(said, said[-1].cut or "", usage, is_call=is_call)
        if completion is not None:
            told = _Result.of((completion.message,), completion.stop, usage)
            return msgspec.structs.replace(told, text=await _joined_text(live) or told.text)
        if turn.state is TurnState.FAILED:  # empty in the end; other failures are errors, see `turn_error`
            return _Result(await _joined_text(live), usage=usage, model=live.model)
        return _Result(turn.reply or "", usage=usage)


# -- completions on the wire ------------------------------------------------------------------------------


_BREAK: Final = "\n\n"  # between the texts of two model calls
_FINISHES: Final = frozenset({"stop", "length", "tool_calls", "content_filter"})


class _Result(msgspec.Struct, frozen=True):
    """The answer of a turn. `model` answered, as provider/name; empty if no model did. `files` were sent with
    it."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    finish: str = "stop"
    usage: TokenUsage = TokenUsage()
    model: str = ""
    is_refusal: bool = False
    files: tuple[SentFile, ...] = ()

    @classmethod
    def of(
        cls, said: Sequence[AssistantMessage], stop: str, usage: TokenUsage, *, is_call: bool = False
    ) -> _Result:
        """`is_call`: it is the answer of a stateless call, where a refusal is told as such."""
        last = said[-1]
        text = _BREAK.join(message.text for message in said if message.text)
        reasoning = "".join(thought.text for thought in last.reasoning)
        # Some servers say "stop" beside tool calls, and others have reasons of their own.
        finish = stop if stop in _FINISHES and not (stop == "stop" and last.tool_calls) else ""
        finish = finish or ("tool_calls" if last.tool_calls else "stop")
        model = f"{last.provider}/{last.model}" if last.provider else last.model
        is_refusal = is_call and last.refused is True
        return cls(text, last.tool_calls, reasoning, finish, usage, model, is_refusal)


async def _joined_text(live: LiveTurn) -> str:
    """Return the text that a stream of the settled turn brings."""
    joined = _JoinedText()
    async with aclosing(live.follow()) as events:
        async for _, event in events:
            match event:
                case Delta(text=text):
                    joined.add(text)
                case UsageReported():
                    joined.end_call()
    return "".join(joined.texts)


class _JoinedText:
    """Joins the texts of the model calls of one turn."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._needs_break = False

    def add(self, text: str) -> None:
        if self._needs_break:
            self._needs_break = False
            self.texts.append(_BREAK)
        self.texts.append(text)

    def end_call(self) -> None:
        self._needs_break = bool(self.texts)


class _Completion(msgspec.Struct, frozen=True):
    """The members that every chunk of a completion repeats. `model` is the model that the caller named, for
    an answer that no model made."""

    id: str
    created: int
    model: str


def _encode_whole(completion: _Completion, result: _Result) -> bytes:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if result.is_refusal else result.text or (None if result.calls else ""),
        "refusal": result.text if result.is_refusal else None,
    }
    if result.reasoning:
        message["reasoning_content"] = result.reasoning
    if result.calls:
        message["tool_calls"] = [_tool_call(call) for call in result.calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": result.finish}
    whole = {
        "id": completion.id,
        "object": "chat.completion",
        "created": completion.created,
        "model": result.model or completion.model,
        "choices": [choice],
        "usage": _usage(result.usage),
    }
    if result.files:
        whole["files"] = result.files
    return _encode(whole) + b"\n"


class _Chunks:
    """Encodes the chunks of one completion. The first chunk carries the role.

    `find_model` returns the turn's model, once it is known. With `tells_refusals`, a text in which the model
    declines is not the content.
    """

    def __init__(self, completion: _Completion, find_model: Callable[[], str], *, with_usage: bool) -> None:
        self._completion = completion
        self._find_model = find_model
        self.tells_refusals = False
        self._head = b""  # is made when the turn has a model
        self._with_usage = with_usage
        self._has_begun = False
        self._has_text = False
        self._needs_break = False
        self._told: dict[int, tuple[str, int]] = {}  # calls by number: the id, and how much of the arguments

    def encode(self, event: Event) -> bytes:
        """Return the chunk for an event, or nothing. The texts of two model calls are kept apart."""
        match event:
            case Delta(text=text):
                if self._needs_break:
                    self._needs_break = False
                    text = _BREAK + text
                self._has_text = True
                if self.tells_refusals and type(event) is RefusalDelta:
                    return self._delta(b'{"refusal":%b}' % _encode(text))
                return self._delta(b'{"content":%b}' % _encode(text))
            case ReasoningDelta(text=text):
                return self._delta(b'{"reasoning_content":%b}' % _encode(text))
            case ToolCallDelta():
                return self._call_piece(event)
            case UsageReported():
                self._needs_break = self._has_text
            case FellBack(model=model):
                self._head = self._make_head(model)
        return b""

    def end(self, result: _Result) -> bytes:
        """Return the last chunks: text that was never streamed, tool calls, finish reason, usage."""
        chunks = []
        if result.model and not self._head:
            self._head = self._make_head(result.model)
        if not self._has_text and result.text:
            name = b"refusal" if result.is_refusal else b"content"
            chunks.append(self._delta(b'{"%b":%b}' % (name, _encode(result.text))))
        if missing := self._missing_calls(result.calls):
            chunks.append(self._delta(b'{"tool_calls":%b}' % _encode(missing)))
        files = b',"files":%b' % _encode(result.files) if result.files else b""
        chunks.append(self._delta(b"{}", _encode(result.finish), files))
        if self._with_usage:
            chunks.append(b'%b"choices":[],"usage":%b}\n\n' % (self._head, _encode(_usage(result.usage))))
        chunks.append(_DONE)
        return b"".join(chunks)

    def _call_piece(self, event: ToolCallDelta) -> bytes:
        call_id, length = self._told.get(event.index, (event.call_id, 0))
        self._told[event.index] = (call_id, length + len(event.arguments))
        if event.call_id:
            call = {"index": event.index, **_tool_call(ToolCall(call_id, event.name, event.arguments))}
        else:
            call = {"index": event.index, "function": {"arguments": event.arguments}}
        return self._delta(b'{"tool_calls":[%b]}' % _encode(call))

    def _missing_calls(self, calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
        """Return the calls, and rests of arguments, that were not streamed."""
        missing: list[dict[str, Any]] = []
        free = max((*self._told, len(calls) - 1), default=0) + 1
        for n, call in enumerate(calls):
            told_id, length = self._told.get(n, ("", 0))
            if told_id != call.id:
                missing.append({"index": n if n not in self._told else free + n, **_tool_call(call)})
            elif length < len(call.arguments):
                missing.append({"index": n, "function": {"arguments": call.arguments[length:]}})
        return missing

    def _make_head(self, model: str) -> bytes:
        completion = self._completion
        return b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            _encode(completion.id),
            completion.created,
            _encode(model or completion.model),
        )

    def fail(self, error: ErrorInfo, turn: Turn) -> bytes:
        """Return the end of a stream that fails after its status was sent; clients look for `error`."""
        return b"data: %b\n\n%b" % (openai_error_body(error), _DONE)

    def _delta(self, delta: bytes, finish: bytes = b"null", more: bytes = b"") -> bytes:
        if not self._head:
            self._head = self._make_head(self._find_model())
        usage = b',"usage":null' if self._with_usage else b""
        chunk = b'%b"choices":[{"index":0,"delta":%b,"logprobs":null,"finish_reason":%b}]%b}\n\n'
        encoded = chunk % (self._head, delta, finish, usage + more)
        if self._has_begun:
            return encoded
        self._has_begun = True
        return chunk % (self._head, b'{"role":"assistant","content":""}', b"null", usage) + encoded


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
