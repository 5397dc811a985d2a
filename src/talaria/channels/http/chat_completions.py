"""`/v1/chat/completions` and `/v1/models`: OpenAI's chat completions, whole or as a stream of chunks.

`models.parameters` says what becomes of each field of a request, also of those that are not named here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, assert_never

import msgspec

from talaria.access.callers import ApiCaller
from talaria.channels.http.api_calls import (
    TEXT_BREAK,
    ApiCall,
    ApiCalls,
    Conversation,
    Events,
    TurnAnswer,
    check_output_limit,
    check_tool_name,
    check_utf8,
    is_image,
    join_texts,
    read_image,
)
from talaria.channels.http.errors import openai_error_body
from talaria.channels.http.request import Request, invalid_field
from talaria.channels.http.response import EventStream, Response, json_response
from talaria.core.errors import BadRequest, ErrorInfo
from talaria.core.events import (
    Delta,
    Event,
    FellBack,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    UsageReported,
)
from talaria.core.messages import (
    AssistantMessage,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    TokenUsage,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.turns import Turn
from talaria.models.parameters import RequestParameters, check_stateless, kept
from talaria.turns.intake import StatelessCall
from talaria.turns.live import CallOptions, LiveTurn

_encode = msgspec.json.Encoder().encode
_NO_RAW: Final = msgspec.Raw()
_SOME_WIRES: Final = (
    "stop",
    "logit_bias",
    "response_format",
    "n",
    "logprobs",
)  # fields that some cannot be told
_DONE: Final = b"data: [DONE]\n\n"
_FINISHES: Final = frozenset({"stop", "length", "tool_calls", "content_filter"})


# -- the API ----------------------------------------------------------------------------------------------


class ModelCard(msgspec.Struct, frozen=True):
    """A model, with the members that OpenAI's clients read and those that Anthropic's clients read."""

    id: str
    display_name: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "talaria"
    type: Literal["model"] = "model"
    created_at: str = "1970-01-01T00:00:00Z"


class ModelCards(msgspec.Struct, frozen=True):
    data: tuple[ModelCard, ...]
    first_id: str
    last_id: str
    object: Literal["list"] = "list"
    has_more: bool = False


class ChatApi:
    def __init__(self, calls: ApiCalls) -> None:
        self._calls = calls
        self._gateway = calls.gateway

    async def models(self, request: Request) -> Response:
        catalog = self._gateway.catalog
        names = dict.fromkeys((self._calls.agent_name, *catalog.names(), *catalog.listed()))
        cards = tuple(ModelCard(name, name) for name in names)
        return json_response(ModelCards(cards, cards[0].id, cards[-1].id))

    async def model(self, request: Request) -> Response:
        """Answer with one model, which may be any that a call can name. Raises `NotFound`."""
        name = request.params["model"]
        self._gateway.catalog.resolve(name)
        return json_response(ModelCard(name, name))

    async def complete(self, request: Request) -> Response | EventStream:
        """Answer a chat completion. See `ApiCalls.answer`."""
        return await self._calls.answer(request, self._decode)

    async def _decode(self, request: Request) -> ChatCall:
        body, rest = await request.json_and_rest(CompletionRequest, self._calls.max_body)
        body.check()
        return ChatCall(body, rest, self._calls)


class ChatMessages(Conversation):
    field = "messages"
    size = "The conversation has {} messages."

    def __init__(self, messages: list[MessageIn]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def roles(self) -> list[str]:
        return [_ROLES.get(type(message), "") for message in self._messages]

    def parts(self, n: int) -> tuple[Part, ...]:
        return _parts(self._user(n).content, n)

    def shown_parts(self, n: int) -> tuple[Part, ...]:
        """Images that could not be sent to a model are left out."""
        content = self._user(n).content
        if isinstance(content, str):
            return (Text(content),)
        return _parts(
            [part for part in content if isinstance(part, TextPart) or is_image(part.image_url.url)], n
        )

    def text(self, n: int) -> str:
        message = self._messages[n]
        assert isinstance(message, AssistantIn)
        return _text(message.content or message.refusal or "")

    def _user(self, n: int) -> UserIn:
        message = self._messages[n]
        assert isinstance(message, UserIn)
        return message


class ChatCall(ApiCall):
    """A request for a chat completion."""

    def __init__(self, body: CompletionRequest, rest: dict[str, msgspec.Raw], calls: ApiCalls) -> None:
        super().__init__(ChatMessages(body.messages), body, rest, body.model, is_stream=bool(body.stream))
        self._body = body
        self._calls = calls

    async def stateless(self, caller: ApiCaller, model: str | None, key: str | None) -> StatelessCall:
        body = self._body
        body.check_stateless(self.rest, lambda: self._calls.find_wire(model))
        return StatelessCall(
            sender=caller.sender,
            context=whole_context(body.messages),
            model=model,
            tools=body.encoded_tools(),
            options=body.options(self.rest),
            key=key,
            owner=caller.owner,
        )

    def stream(self, live: LiveTurn, *, is_stateless: bool) -> CompletionChunks:
        wants_usage = self._body.wants_usage
        return CompletionChunks(
            self._head(live), lambda: live.model, with_usage=wants_usage, tells_refusals=is_stateless
        )

    async def encode(
        self, live: LiveTurn, answer: TurnAnswer, events: Events, *, is_stateless: bool
    ) -> bytes:
        text = answer.message.text
        if not answer.has_one_call:
            text = await join_texts(events) or text
        return encode_completion(self._head(live), answer, text, tells_refusals=is_stateless)

    def _head(self, live: LiveTurn) -> CompletionHead:
        turn = live.turn
        return CompletionHead(
            f"chatcmpl-{turn.id}", int(turn.accepted_at), self.model or self._calls.agent_name
        )


# -- fields of a request -----------------------------------------------------------------------------------


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ImageUrl(msgspec.Struct):
    url: str
    detail: str | None = None


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class SystemIn(msgspec.Struct, tag_field="role", tag="system"):
    content: str | list[TextPart]


class DeveloperIn(msgspec.Struct, tag_field="role", tag="developer"):
    content: str | list[TextPart]


class UserIn(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[TextPart | ImagePart]
    name: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class CallIn(msgspec.Struct):
    id: str
    function: CalledFunction


class AssistantIn(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | list[TextPart | RefusalPart] | None = None
    tool_calls: list[CallIn] | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    function_call: CalledFunction | None = None  # the older form of one tool call


class ToolIn(msgspec.Struct, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str | list[TextPart]


class FunctionIn(msgspec.Struct, tag_field="role", tag="function"):
    """The older form of a tool message: the result of the `function_call` right before it."""

    name: str
    content: str | None = None


MessageIn = SystemIn | DeveloperIn | UserIn | AssistantIn | ToolIn | FunctionIn
_ROLES: Final[Mapping[type[MessageIn], str]] = {
    UserIn: "user",
    AssistantIn: "assistant",
    SystemIn: "system",
    DeveloperIn: "developer",
}


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class CompletionRequest(RequestParameters, forbid_unknown_fields=True):
    messages: list[MessageIn] = msgspec.field(default_factory=list)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[msgspec.Raw] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    n: int | None = None
    logprobs: bool | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def check(self) -> None:
        """Raise `BadRequest` for values that the types of the fields allow and we do not."""
        if not self.messages:
            raise BadRequest("The field `messages` is missing or empty.", "Send at least one message.")
        check_output_limit("max_tokens", self.max_tokens)
        check_output_limit("max_completion_tokens", self.max_completion_tokens)
        check_utf8((self.response_format, self.tool_choice, *(self.tools or ())))

    def check_stateless(self, rest: Mapping[str, msgspec.Raw], find_wire: Callable[[], str]) -> None:
        """Raise `BadRequest` for what the model cannot be told. `find_wire` returns its wire format."""
        own = [(name, value) for name in _SOME_WIRES if (value := getattr(self, name)) not in (None, _NO_RAW)]
        if own or rest:
            check_stateless((*own, *rest.items()), find_wire())
            check_utf8(rest.values())

    def options(self, rest: Mapping[str, msgspec.Raw]) -> CallOptions:
        return CallOptions(
            reasoning=self.reasoning_effort,
            max_output=self.max_completion_tokens or self.max_tokens,
            sampling=self.encode_parameters(kept(rest)),
            streams_parts=bool(self.stream and self.tools),
        )

    def encoded_tools(self) -> bytes:
        """Return compact JSON in the caller's order, or nothing. Raises `BadRequest` for tools that no model
        takes."""
        if not self.tools:
            return b""
        names: set[str] = set()
        for n, raw in enumerate(self.tools):
            try:
                name = _TOOL.decode(raw).function.name
            except msgspec.DecodeError as error:
                raise invalid_field(str(error), f"tools[{n}]") from None
            check_tool_name(name, names, f"tools[{n}].function.name")
        return b"[%b]" % b",".join(bytes(msgspec.json.format(raw, indent=-1)) for raw in self.tools)


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: _Function


_TOOL = msgspec.json.Decoder(_Tool)

# -- messages as ours -------------------------------------------------------------------------------------


def whole_context(messages: list[MessageIn]) -> tuple[Message, ...]:
    """Return all messages of a stateless call. Adjacent tool messages become one `ToolResults`, in the order
    of the calls that they answer. Raises `BadRequest` if calls and results do not match."""
    context: list[Message] = []
    n = 0
    while n < len(messages):
        message = messages[n]
        match message:
            case SystemIn(content=content):
                context.append(SystemMessage(_text(content)))
            case DeveloperIn(content=content):
                context.append(SystemMessage(_text(content), "developer"))
            case UserIn(content=content, name=name):
                context.append(UserMessage(_parts(content, n), name=name))
            case AssistantIn(function_call=CalledFunction() as called, tool_calls=None):
                said = _assistant(message, (ToolCall(f"call_{n}", called.name, called.arguments),))
                context.append(said)
                result = messages[n + 1] if n + 1 < len(messages) else None
                if not isinstance(result, FunctionIn) or result.name != called.name:
                    raise BadRequest(
                        f"In the field `messages[{n}].function_call`: the call has no result.",
                        f"Send a message with the role function and the name {called.name} behind it.",
                        param=f"messages[{n}].function_call",
                    )
                context.append(ToolResults((ToolResult(f"call_{n}", called.name, result.content or ""),)))
                n += 1
            case AssistantIn():
                said = _assistant(message)
                context.append(said)
                if said.tool_calls:
                    end = n + 1
                    while end < len(messages) and isinstance(messages[end], ToolIn):
                        end += 1
                    context.append(_results(said.tool_calls, messages[n + 1 : end], n))
                    n = end - 1
            case ToolIn() | FunctionIn():
                raise BadRequest(
                    f"In the field `messages[{n}]`: it answers no call of an assistant message before it.",
                    "Put results right behind the assistant message with their calls.",
                )
            case _:
                assert_never(message)
        n += 1
    return tuple(context)


def _results(calls: tuple[ToolCall, ...], messages: list[MessageIn], asked_at: int) -> ToolResults:
    names = {call.id: call.name for call in calls}
    results: dict[str, ToolResult] = {}
    for n, message in enumerate(messages, asked_at + 1):
        assert isinstance(message, ToolIn)
        call_id = message.tool_call_id
        if call_id not in names or call_id in results:
            why = "has its result already" if call_id in results else f"is no call of messages[{asked_at}]"
            raise BadRequest(
                f"In the field `messages[{n}].tool_call_id`: {call_id!r} {why}.",
                "Send exactly one tool message for each call.",
            )
        results[call_id] = ToolResult(call_id, names[call_id], _text(message.content))
    for call in calls:
        if call.id not in results:
            raise BadRequest(
                f"In the field `messages[{asked_at}].tool_calls`: the call {call.id!r} has no result.",
                "Send exactly one tool message for each call, right behind the calls.",
            )
    return ToolResults(tuple(results[call.id] for call in calls))


def _assistant(message: AssistantIn, calls: tuple[ToolCall, ...] = ()) -> AssistantMessage:
    thought = message.reasoning_content
    return AssistantMessage(
        text=_text(message.content or message.refusal or ""),
        tool_calls=calls
        or tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
        ),
        reasoning=(Reasoning("reasoning_content", thought, _encode(thought).decode()),) if thought else (),
    )


def _text(content: str | list[TextPart] | list[TextPart | RefusalPart]) -> str:
    """The parts of a text are one text, with nothing in between."""
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _parts(content: str | list[TextPart | ImagePart], n: int) -> tuple[Part, ...]:
    """Texts without an image in between are one text."""
    if isinstance(content, str):
        return (Text(content),)
    parts: list[Part] = []
    texts: list[str] = []
    for i, part in enumerate(content):
        if isinstance(part, TextPart):
            texts.append(part.text)
            continue
        if texts:
            parts.append(Text("".join(texts)))
            texts = []
        image, field = part.image_url, f"messages[{n}].content[{i}].image_url.url"
        parts.append(read_image(image.url, image.detail, field))
    return (*parts, Text("".join(texts))) if texts else tuple(parts)


# -- answers ----------------------------------------------------------------------------------------------


class CompletionHead(msgspec.Struct, frozen=True):
    """The members that every chunk of a completion repeats. `model` is the model that the caller named, for
    an answer that no model made."""

    id: str
    created: int
    model: str


def finish_reason(answer: TurnAnswer) -> str:
    """Return a reason that clients know. Some servers say "stop" beside tool calls, and others have their own
    reasons."""
    calls = answer.message.tool_calls
    if answer.stop in _FINISHES and not (answer.stop == "stop" and calls):
        return answer.stop
    return "tool_calls" if calls else "stop"


def encode_completion(
    head: CompletionHead, answer: TurnAnswer, text: str, *, tells_refusals: bool = False
) -> bytes:
    """Return the whole completion. With `tells_refusals`, a text in which the model declines is a refusal and
    not the content."""
    calls, is_refusal = answer.message.tool_calls, tells_refusals and answer.message.refused is True
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if is_refusal else text or (None if calls else ""),
        "refusal": text if is_refusal else None,
    }
    if thought := "".join(thought.text for thought in answer.message.reasoning):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(answer)}
    whole = {
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": answer.model or head.model,
        "choices": [choice],
        "usage": _usage(answer.usage or TokenUsage()),
    }
    if answer.files:
        whole["files"] = answer.files
    return _encode(whole) + b"\n"


class CompletionChunks:
    """Encodes the chunks of one completion. The first chunk carries the role.

    `find_model` returns the turn's model, once it is known. With `tells_refusals`, a text in which the model
    declines is not the content.
    """

    def __init__(
        self,
        head: CompletionHead,
        find_model: Callable[[], str],
        *,
        with_usage: bool,
        tells_refusals: bool = False,
    ) -> None:
        self._named = head
        self._find_model = find_model
        self._tells_refusals = tells_refusals
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
                    text = TEXT_BREAK + text
                self._has_text = True
                if self._tells_refusals and type(event) is RefusalDelta:
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

    def end(self, answer: TurnAnswer) -> bytes:
        """Return the last chunks: text that was never streamed, tool calls, finish reason, usage."""
        chunks, message = [], answer.message
        if answer.model and not self._head:
            self._head = self._make_head(answer.model)
        if not self._has_text and message.text:
            name = b"refusal" if self._tells_refusals and message.refused is True else b"content"
            chunks.append(self._delta(b'{"%b":%b}' % (name, _encode(message.text))))
        if missing := self._missing_calls(message.tool_calls):
            chunks.append(self._delta(b'{"tool_calls":%b}' % _encode(missing)))
        files = b',"files":%b' % _encode(answer.files) if answer.files else b""
        chunks.append(self._delta(b"{}", _encode(finish_reason(answer)), files))
        if self._with_usage:
            usage = _encode(_usage(answer.usage or TokenUsage()))
            chunks.append(b'%b"choices":[],"usage":%b}\n\n' % (self._head, usage))
        chunks.append(_DONE)
        return b"".join(chunks)

    def fail(self, error: ErrorInfo, turn: Turn) -> bytes:
        """Return the end of a stream that fails after its status was sent; clients look for `error`."""
        return b"data: %b\n\n%b" % (openai_error_body(error), _DONE)

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
        named = self._named
        return b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            _encode(named.id),
            named.created,
            _encode(model or named.model),
        )

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
