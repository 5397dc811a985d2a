"""`/v1/messages`: Anthropic's Messages API, whole or as a stream of events, and its counter of tokens.

Claude Code and other programs that know only this API use the gateway through it. A request is translated
into the form of the other APIs, so any model can answer it:

- The blocks of a message become our parts, calls and results. Neighbouring messages of one role are one
  message, as Anthropic treats them.
- Thinking keeps its signature in both directions. A thought of a model that signs nothing has an empty
  signature, by which it is recognized when it comes back.
- Tools become functions. Tools that Anthropic itself runs, such as its web search, are refused by name.
- Fields that only Claude knows (`thinking`, `top_k`, …) go to models of Anthropic unchanged. For other models
  the effort is translated, and the rest is left out and named in `X-Talaria-Ignored`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from talaria.access.callers import ApiCaller
from talaria.agent.compaction.plan import TOKENS_PER_BYTE
from talaria.channels.http.api_calls import (
    FUNCTION,
    TEXT_BREAK,
    ApiCall,
    ApiCalls,
    Conversation,
    Events,
    TurnAnswer,
    check_output_limit,
    check_tool_name,
    in_text_only,
    join_texts,
    read_image,
    read_tool_wish,
    tell_ignored,
)
from talaria.channels.http.errors import anthropic_error_body
from talaria.channels.http.request import Request, invalid_field
from talaria.channels.http.response import EventStream, Response, json_response
from talaria.core.errors import BadRequest, ErrorInfo
from talaria.core.events import Delta, Event, ReasoningDelta, ThoughtEnded, ToolCallDelta, UsageReported
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    TokenUsage,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.turns import Turn
from talaria.models.anthropic_answers import THINKING
from talaria.models.anthropic_messages import AnthropicMessages, call_id_for_anthropic, content_blocks
from talaria.models.parameters import check_wire, refused
from talaria.turns.intake import StatelessCall
from talaria.turns.live import CallOptions, LiveTurn

_encode = msgspec.json.Encoder().encode
_STOPS: Final = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_UNSIGNED: Final = "reasoning_content"  # the name under which chat completions keep such a thought, too
# The largest budget of each effort; a larger budget is the highest effort.
_BUDGETS: Final = ((4096, "low"), (12_288, "medium"))
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_IMAGE_BYTES: Final = 4800  # as many as the text of 1,600 tokens, about what Claude counts for a picture
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_ONLY_CLAUDE: Final = ("top_k", "service_tier", "thinking", "output_config")
# Fields that ask Anthropic to run something. Other fields that are not here are ignored, and named.
_REFUSED: Final = {
    "mcp_servers": "Configure MCP servers in the gateway: docs/mcp.md.",
    "container": "Leave it out: the gateway has no containers of Anthropic's.",
}


# -- the API ----------------------------------------------------------------------------------------------


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int


class AnthropicApi:
    def __init__(self, calls: ApiCalls) -> None:
        self._calls = calls

    async def create(self, request: Request) -> Response | EventStream:
        """Answer with a message. See `ApiCalls.answer`."""
        return await self._calls.answer(request, self._decode)

    async def count_tokens(self, request: Request) -> Response:
        """Answer with about how many tokens the request has: the gateway counts bytes, not tokens."""
        call = await self._decode(request)
        self._calls.check_count(call.conversation)
        tell_ignored(request, call.keep_tools(read_tool_wish(request, None)))
        context = whole_context(call.body.system, call.body.messages)
        tools = len(call.body.encoded_tools())
        return json_response(TokenCount(max(1, round((_size(context) + tools) * TOKENS_PER_BYTE))))

    async def _decode(self, request: Request) -> MessagesCall:
        request.has_anthropic_id = True
        body, rest = await request.json_and_rest(MessagesRequest, self._calls.max_body)
        body.check(rest)
        return MessagesCall(body, rest, self._calls)


class SentMessages(Conversation):
    field = "messages"
    size = "The conversation has {} messages."

    def __init__(self, messages: list[MessageIn]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    def roles(self) -> list[str]:
        """A message with nothing but the results of tools is not a message of the user."""
        return [
            ""
            if all(isinstance(block, ToolResultBlock) for _, block in _blocks(n, message))
            else message.role
            for n, message in enumerate(self._messages)
        ]

    def parts(self, n: int) -> tuple[Part, ...]:
        return tuple(_user_parts(_blocks(n, self._messages[n])))

    def text(self, n: int) -> str:
        blocks = _blocks(n, self._messages[n])
        return "".join(block.text for _, block in blocks if isinstance(block, TextBlock))


class MessagesCall(ApiCall):
    """A request for a message."""

    def __init__(self, body: MessagesRequest, rest: dict[str, msgspec.Raw], calls: ApiCalls) -> None:
        super().__init__(SentMessages(body.messages), body, rest, body.model, is_stream=bool(body.stream))
        self.body = body
        self._calls = calls

    async def stateless(self, caller: ApiCaller, model: str | None, key: str | None) -> StatelessCall:
        body, is_claude = self.body, False
        self.ignored = tuple(self.rest)
        if unusual := body.unusual_fields():
            wire = self._calls.find_wire(model)
            is_claude = wire == AnthropicMessages.name
            if "stop_sequences" in unusual:
                check_wire("stop", wire, "stop_sequences")
            if not is_claude:
                self.ignored += tuple(name for name in unusual if name in _ONLY_CLAUDE)
        return StatelessCall(
            sender=caller.sender,
            context=whole_context(body.system, body.messages),
            model=model,
            tools=body.encoded_tools(),
            options=body.options(is_claude=is_claude),
            key=key,
            owner=caller.owner,
        )

    def check_session(self, *, is_front_end: bool) -> tuple[str, ...]:
        """Every request of this API limits its output; a session's turn has its own limits instead."""
        self.body.max_tokens = None
        more, self.rest = tuple(self.rest), {}
        ignored = super().check_session(is_front_end=is_front_end) + more
        if self.body.answer_schema() is None:
            return ignored
        return (*ignored, *in_text_only("output_config.format", is_front_end=is_front_end))

    def prompt_field(self) -> str:
        return "system" if self.body.system else ""

    def tool_type(self, tool: SentTool) -> str:
        return tool.kind

    def stream(self, live: LiveTurn, *, is_stateless: bool) -> MessageEvents:
        return MessageEvents(live, self._named_model, tells_refusals=is_stateless)

    async def encode(
        self, live: LiveTurn, answer: TurnAnswer, events: Events, *, is_stateless: bool
    ) -> bytes:
        text = answer.message.text
        if not answer.has_one_call:
            text = await join_texts(events) or text
        head = (_message_id(live), self._named_model)
        return encode_message(*head, answer, text, tells_refusals=is_stateless)

    @property
    def _named_model(self) -> str:
        return self.model or self._calls.agent_name


# -- fields of a request ----------------------------------------------------------------------------------


class Base64Source(msgspec.Struct, tag_field="type", tag="base64"):
    media_type: str
    data: str


class UrlSource(msgspec.Struct, tag_field="type", tag="url"):
    url: str


class TextSource(msgspec.Struct, tag_field="type", tag="text"):
    data: str


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    source: Base64Source | UrlSource


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document"):
    source: Base64Source | UrlSource | TextSource
    title: str | None = None


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    data: str


Block = (
    TextBlock | ImageBlock | DocumentBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedBlock
)
NamedBlock = tuple[str, Block]
"""A block and its field in the request, such as `messages[2].content[0]`."""


class MessageIn(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class Thinking(msgspec.Struct):
    """The members of `thinking` that are translated for other models than Claude."""

    type: str
    budget_tokens: int | None = None


class OutputConfig(msgspec.Struct):
    """The members of `output_config` that are translated for other models than Claude."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class SentTool(msgspec.Struct):
    """A tool of the caller's. Other types are tools that Anthropic runs or defines."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None

    @property
    def kind(self) -> str:
        return FUNCTION if self.type in (None, "custom") else str(self.type)


class MessagesRequest(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[MessageIn] = msgspec.field(default_factory=list)
    model: str | None = None
    max_tokens: int | None = None
    system: str | list[TextBlock] | None = None
    stream: bool | None = None
    tools: list[SentTool] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: list[str] | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    top_k: int | None = None
    service_tier: str | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None

    def check(self, rest: dict[str, msgspec.Raw]) -> None:
        """Raise `BadRequest` for fields and values that the gateway cannot act on."""
        _member(self.thinking, Thinking, "thinking")
        _member(self.output_config, OutputConfig, "output_config")
        if not self.messages:
            raise BadRequest("The field `messages` is missing or empty.", "Send at least one message.")
        check_output_limit("max_tokens", self.max_tokens)
        for name in rest.keys() & _REFUSED.keys():
            raise refused(name, "it is not supported here", _REFUSED[name])

    def unusual_fields(self) -> list[str]:
        """Return the names of the given fields that not every model takes."""
        return [name for name in ("stop_sequences", *_ONLY_CLAUDE) if getattr(self, name) not in (None, [])]

    def options(self, *, is_claude: bool) -> CallOptions:
        given: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p}
        given["stop"] = self.stop_sequences or None
        reasoning = None
        if (choice := self.tool_choice) is not None:
            named = {"type": "function", "function": {"name": choice.name}}
            given["tool_choice"] = named if choice.type == "tool" else _CHOICES[choice.type]
            given["parallel_tool_calls"] = False if choice.disable_parallel_tool_use else None
        if is_claude:
            given |= {name: getattr(self, name) for name in _ONLY_CLAUDE}
            reasoning = "none" if self.thinking is not None else None  # `thinking` itself goes along
        else:
            reasoning = self._effort()
            given["response_format"] = self.answer_schema()
        members = {name: value for name, value in given.items() if value is not None}
        return CallOptions(
            reasoning, self.max_tokens, _encode(members)[1:-1], streams_parts=bool(self.stream)
        )

    def encoded_tools(self) -> bytes:
        """Return the tools as functions of chat completions, or nothing. Raises `BadRequest`."""
        names: set[str] = set()
        functions = []
        for n, tool in enumerate(self.tools or ()):
            if tool.kind != FUNCTION:
                raise refused(
                    f"tools[{n}].type",
                    f"{tool.type!r} is a tool of Anthropic's own, which the gateway does not have",
                    "Send `X-Talaria-Tools: functions` to ignore such tools, or define one with `name` and "
                    "`input_schema`.",
                )
            check_tool_name(tool.name, names, f"tools[{n}].name")
            function: dict[str, Any] = {"name": tool.name}
            if tool.description is not None:
                function["description"] = tool.description
            if tool.strict is not None:
                function["strict"] = tool.strict
            function["parameters"] = tool.input_schema or {"type": "object"}
            functions.append({"type": "function", "function": function})
        return _encode(functions) if functions else b""

    def _effort(self) -> str | None:
        thinking = _member(self.thinking, Thinking, "thinking")
        output = _member(self.output_config, OutputConfig, "output_config")
        if thinking is not None and thinking.type == "disabled":
            return "none"
        if output is not None and output.effort in _EFFORTS:
            return _EFFORTS[output.effort]
        if thinking is None:
            return None
        budget = thinking.budget_tokens
        if budget is None:
            return "medium"
        return next((word for most, word in _BUDGETS if budget <= most), "high")

    def answer_schema(self) -> dict[str, Any] | None:
        """Return the schema of the answer as the `response_format` of chat completions."""
        output = _member(self.output_config, OutputConfig, "output_config")
        wanted = output.format if output is not None else None
        if wanted is None or wanted.get("type") != "json_schema":
            return None
        schema = {"name": "answer", "schema": wanted.get("schema", {}), "strict": True}
        return {"type": "json_schema", "json_schema": schema}


_Member = TypeVar("_Member")


def _member(given: dict[str, Any] | None, kind: type[_Member], field: str) -> _Member | None:
    """Return a field as its type. Raises `BadRequest`, which names the field."""
    if given is None:
        return None
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise invalid_field(str(error), field) from None


# -- messages as ours -------------------------------------------------------------------------------------


def whole_context(system: str | list[TextBlock] | None, messages: list[MessageIn]) -> tuple[Message, ...]:
    """Return all messages of a stateless call. Raises `BadRequest` if calls and results do not match."""
    context: list[Message] = []
    if prompt := system if isinstance(system, str) else "\n\n".join(block.text for block in system or ()):
        context.append(SystemMessage(prompt))
    calls: tuple[ToolCall, ...] = ()  # that have no result yet
    for role, blocks in _by_role(messages):
        results = [each for each in blocks if isinstance(each[1], ToolResultBlock)] if role == "user" else []
        if calls or results:
            context.append(_results(calls, results, blocks[0][0]))
            calls = ()
        if role == "assistant":
            said = _assistant(blocks)
            calls = said.tool_calls
            context.append(said)
        elif parts := tuple(_user_parts(blocks)):
            text = "\n\n".join(part.text for part in parts if isinstance(part, Text))
            context.append(SystemMessage(text) if role == "system" else UserMessage(parts))
    if calls:
        context.append(_results(calls, [], f"messages[{len(messages) - 1}]"))
    return tuple(context)


def _by_role(messages: list[MessageIn]) -> Iterator[tuple[str, list[NamedBlock]]]:
    """Yield the blocks of neighbouring messages of one role together."""
    role, found = "", list[NamedBlock]()
    for n, message in enumerate(messages):
        if message.role != role:
            if found:
                yield role, found
            role, found = message.role, []
        found += _blocks(n, message)
    if found:
        yield role, found


def _blocks(n: int, message: MessageIn) -> list[NamedBlock]:
    if isinstance(message.content, str):
        return [(f"messages[{n}].content", TextBlock(message.content))]
    return [(f"messages[{n}].content[{i}]", block) for i, block in enumerate(message.content)]


def _user_parts(blocks: Sequence[NamedBlock]) -> Iterator[Part]:
    """Yield the parts of a user's message, without results of tools."""
    for field, block in blocks:
        match block:
            case TextBlock(text=text):
                yield Text(text)
            case ImageBlock(source=Base64Source(media_type=kind, data=data)):
                yield read_image(f"data:{kind};base64,{data}", None, f"{field}.source")
            case ImageBlock(source=UrlSource(url=url)):
                yield read_image(url, None, f"{field}.source.url")
            case DocumentBlock(source=TextSource(data=text), title=title):
                yield Text(f"{title}\n\n{text}" if title else text)
            case DocumentBlock():
                raise BadRequest(
                    f"In the field `{field}.source`: only documents of the type text are supported.",
                    "Send the text of the document, or its pages as images.",
                    param=f"{field}.source",
                )
            case ToolResultBlock():
                pass
            case _:
                raise _misplaced(field, "only an assistant message has it")


def _assistant(blocks: Sequence[NamedBlock]) -> AssistantMessage:
    text, calls, thoughts = "", list[ToolCall](), list[Reasoning]()
    known = set[str]()
    for field, block in blocks:
        match block:
            case TextBlock(text=more):
                text += more
            case ToolUseBlock(id=call_id, name=name, input=arguments):
                if call_id in known:
                    raise _misplaced(f"{field}.id", f"{call_id!r} is there twice")
                known.add(call_id)
                calls.append(ToolCall(call_id, name, bytes(arguments).decode("utf-8", "replace")))
            case ThinkingBlock(thinking=thought, signature=""):
                thoughts.append(Reasoning(_UNSIGNED, thought, _encode(thought).decode()))
            case ThinkingBlock() | RedactedBlock():
                place = f"@{len(text)}+{len(calls)}" if text or calls else ""
                thought = block.thinking if isinstance(block, ThinkingBlock) else ""
                thoughts.append(Reasoning(THINKING + place, thought, _encode(block).decode()))
            case _:
                raise _misplaced(field, "only a user message has it")
    return AssistantMessage(text, tuple(calls), tuple(thoughts))


def _results(calls: Sequence[ToolCall], blocks: Sequence[NamedBlock], field: str) -> ToolResults:
    """Return the results in the order of their calls. `field` is the place where they are expected."""
    names = {call.id: call.name for call in calls}
    found: dict[str, ToolResult] = {}
    for place, block in blocks:
        assert isinstance(block, ToolResultBlock)
        call_id = block.tool_use_id
        if call_id not in names or call_id in found:
            why = "has its result already" if call_id in found else "is not a call of the message before it"
            raise _misplaced(f"{place}.tool_use_id", f"{call_id!r} {why}")
        content = block.content if block.content is not None else ""
        said = [TextBlock(content)] if isinstance(content, str) else content
        parts = tuple(_user_parts([(f"{place}.content[{i}]", each) for i, each in enumerate(said)]))
        outcome = ToolOutcome.ERROR if block.is_error else ToolOutcome.OK
        found[call_id] = ToolResult.of(call_id, names[call_id], parts, outcome)
    for call in calls:
        if call.id not in found:
            raise BadRequest(
                f"In the field `{field}`: the tool_use {call.id!r} has no tool_result.",
                "Begin the next user message with one tool_result block for each tool_use block.",
                param=field,
            )
    return ToolResults(tuple(found[call.id] for call in calls))


def _misplaced(field: str, why: str) -> BadRequest:
    hint = "Send assistant and user messages in the order in which the API returned and took them."
    return BadRequest(f"In the field `{field}`: {why}.", hint, param=field)


def _size(context: Sequence[Message]) -> int:
    """Return the bytes of a conversation as Anthropic gets it, with `_IMAGE_BYTES` for each image."""
    wire, size = AnthropicMessages(), 0
    for message in context:
        match message:
            case UserMessage(parts=parts):
                texts = tuple(part for part in parts if isinstance(part, Text))
                size += _IMAGE_BYTES * (len(parts) - len(texts)) + len(wire.encode(UserMessage(texts)))
            case ToolResults(results=results):
                images = sum(isinstance(part, Image) for result in results for part in result.parts)
                texts_only = tuple(msgspec.structs.replace(result, parts=()) for result in results)
                size += _IMAGE_BYTES * images + len(wire.encode(ToolResults(texts_only)))
            case _:
                size += len(wire.encode(message))
    return size


# -- answers ----------------------------------------------------------------------------------------------


def _message_id(live: LiveTurn) -> str:
    return f"msg_{live.turn.id}"


def encode_message(
    message_id: str, named_model: str, answer: TurnAnswer, text: str, *, tells_refusals: bool = False
) -> bytes:
    """Return the whole message. `text` is everything that the turn said. With `tells_refusals`, the reason of
    the end says that the model has declined."""
    message = answer.message
    blocks = _thoughts(message)
    if text == message.text:
        blocks += content_blocks(message)
    else:
        blocks += content_blocks(msgspec.structs.replace(message, text="", tool_calls=()))
        blocks += content_blocks(AssistantMessage(text, message.tool_calls))
    whole: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": answer.model or named_model,
        "content": blocks,
        "stop_reason": _stop_reason(answer, tells_refusals=tells_refusals),
        "stop_sequence": None,
        "usage": _usage(answer.usage or TokenUsage()),
    }
    if answer.files:
        whole["files"] = answer.files
    return _encode(whole) + b"\n"


def _stop_reason(answer: TurnAnswer, *, tells_refusals: bool) -> str:
    if tells_refusals and answer.message.refused is True:
        return "refusal"
    is_call = answer.stop == "stop" and answer.message.tool_calls  # some servers say "stop" beside calls
    return "tool_use" if is_call else _STOPS.get(answer.stop, "end_turn")


def _thoughts(message: AssistantMessage) -> list[Any]:
    """Return the thoughts that no provider has signed."""
    return [
        ThinkingBlock(thought.text)
        for thought in message.reasoning
        if thought.text and not thought.field.startswith(THINKING)
    ]


def _usage(usage: TokenUsage) -> dict[str, Any]:
    """Anthropic counts cached and stored tokens apart from `input_tokens`."""
    return {
        "input_tokens": max(0, usage.input - usage.cached - usage.stored),
        "cache_creation_input_tokens": usage.stored,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


class MessageEvents:
    """Encodes the events of one message.

    A block of text or thinking ends when another block begins. Blocks of calls end with the message, because
    some servers write several calls at the same time.
    """

    def __init__(self, live: LiveTurn, named_model: str, *, tells_refusals: bool) -> None:
        self._live = live
        self._named_model = named_model
        self._tells_refusals = tells_refusals
        self._count = 0  # of the blocks that have begun
        self._open = ""  # the type of the block of text or thinking that has not ended
        self._has_begun = False
        self._has_text = False
        self._has_thought = False
        self._needs_break = False
        self._calls: dict[int, tuple[int, int]] = {}  # by number: the block, and how much of the arguments

    def encode(self, event: Event) -> bytes:
        """Return the events for an event of the turn, or nothing."""
        match event:
            case Delta(text=text) if text:
                if self._needs_break:
                    self._needs_break, text = False, TEXT_BREAK + text
                self._has_text = True
                return self._piece("text", {"type": "text_delta", "text": text})
            case ReasoningDelta(text=text) if text:
                self._has_thought = True
                return self._piece("thinking", {"type": "thinking_delta", "thinking": text})
            case ThoughtEnded(raw=raw):
                return self._end_thought(raw.encode())
            case ToolCallDelta():
                return self._call_piece(event)
            case UsageReported():
                self._needs_break = self._has_text
        return b""

    def end(self, answer: TurnAnswer) -> bytes:
        """Return the last events: blocks that were never streamed, the reason of the end, the usage."""
        message, pieces = answer.message, list[bytes]()
        if not self._has_thought:
            pieces += [self._whole(_encode(block)) for block in _thoughts(message)]
        if not self._has_text and message.text:
            pieces.append(self._piece("text", {"type": "text_delta", "text": message.text}))
        for n, call in enumerate(message.tool_calls):
            sent = self._calls.get(n, (0, 0))[1]
            if n not in self._calls or sent < len(call.arguments):
                pieces.append(self._call_piece(ToolCallDelta(n, call.id, call.name, call.arguments[sent:])))
        pieces.append(self._close())
        pieces += [_event("content_block_stop", {"index": index}) for index, _ in self._calls.values()]
        stop = _stop_reason(answer, tells_refusals=self._tells_refusals)
        delta = {"stop_reason": stop, "stop_sequence": None}
        last: dict[str, Any] = {"delta": delta, "usage": _usage(answer.usage or TokenUsage())}
        if answer.files:
            last["files"] = answer.files
        pieces += [self._start(answer.model), _event("message_delta", last), _event("message_stop", {})]
        return b"".join(pieces)

    def fail(self, error: ErrorInfo, turn: Turn) -> bytes:
        """Return the end of a stream that fails after its status was sent."""
        return b"event: error\ndata: %b\n\n" % anthropic_error_body(error)

    def _start(self, model: str = "") -> bytes:
        """Return the first event, once."""
        if self._has_begun:
            return b""
        self._has_begun = True
        message: dict[str, Any] = {
            "id": _message_id(self._live),
            "type": "message",
            "role": "assistant",
            "model": model or self._live.model or self._named_model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(TokenUsage()),
        }
        return _event("message_start", {"message": message})

    def _begin(self, block: Any) -> bytes:
        """Return the end of the open block, and the beginning of another."""
        begun = self._start() + self._close() + _block_start(self._count, block)
        self._count += 1
        return begun

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return _event("content_block_stop", {"index": self._count - 1})

    def _piece(self, kind: str, delta: dict[str, str]) -> bytes:
        """Return a piece of text or of a thought, in the open block if it is of this kind."""
        begun = b""
        if self._open != kind:
            begun = self._begin(TextBlock("") if kind == "text" else ThinkingBlock(""))
            self._open = kind
        return begun + _event("content_block_delta", {"index": self._count - 1, "delta": delta})

    def _whole(self, raw: bytes) -> bytes:
        """Return a block that is not streamed piece by piece."""
        thought = msgspec.json.decode(raw)
        if thought.get("type") != "thinking":
            return self._begin(msgspec.Raw(raw)) + _event("content_block_stop", {"index": self._count - 1})
        said = self._piece("thinking", {"type": "thinking_delta", "thinking": thought["thinking"]})
        return said + self._sign(thought.get("signature", ""))

    def _end_thought(self, raw: bytes) -> bytes:
        """Return the signature of the open thought; for a thought that was not streamed, all of it."""
        thought = msgspec.json.decode(raw)
        if self._open != "thinking" or thought.get("type") != "thinking":
            return self._whole(raw)
        return self._sign(thought.get("signature", ""))

    def _sign(self, signature: str) -> bytes:
        delta = {"type": "signature_delta", "signature": signature}
        signed = (
            _event("content_block_delta", {"index": self._count - 1, "delta": delta}) if signature else b""
        )
        return signed + self._close()

    def _call_piece(self, event: ToolCallDelta) -> bytes:
        begun = b""
        if event.index not in self._calls:
            use = ToolUseBlock(call_id_for_anthropic(event.call_id), event.name, msgspec.Raw(b"{}"))
            begun = self._begin(use)
            self._calls[event.index] = (self._count - 1, 0)
        index, sent = self._calls[event.index]
        self._calls[event.index] = (index, sent + len(event.arguments))
        if not event.arguments:
            return begun
        delta = {"type": "input_json_delta", "partial_json": event.arguments}
        return begun + _event("content_block_delta", {"index": index, "delta": delta})


def _block_start(index: int, block: Any) -> bytes:
    return _event("content_block_start", {"index": index, "content_block": block})


def _event(name: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **members}))
