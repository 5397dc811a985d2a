"""Requests of `/v1/responses`: their fields, and their input items as our messages.

`models.parameters` says what becomes of each field. A field that is not there is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from talaria.channels.http.api_calls import check_output_limit, check_tool_name, check_utf8, read_image
from talaria.channels.http.request import invalid_field, invalid_utf8, quoted
from talaria.channels.http.responses_output import (
    CALL,
    MESSAGE,
    REASONING,
    ItemRef,
    SealedReasoning,
    open_reasoning,
)
from talaria.core.errors import BadRequest
from talaria.core.ids import TurnId
from talaria.core.messages import (
    AssistantMessage,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.models.parameters import (
    PARAMETERS,
    RequestParameters,
    Rule,
    check_response,
    check_wire,
    refused,
)
from talaria.turns.live import CallOptions

_encode = msgspec.json.Encoder().encode
_NOTHING: Final = msgspec.Raw()

# -- fields -----------------------------------------------------------------------------------------------


class ReasoningWish(msgspec.Struct, omit_defaults=True):  # clients also send members of newer models
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextWish(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    format: msgspec.Raw = _NOTHING
    verbosity: Literal["low", "medium", "high"] | None = None


class CallerTool(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A tool of the caller. Models are not told `output_schema`; tools are never deferred here."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: msgspec.Raw = _NOTHING
    strict: bool | None = None
    output_schema: msgspec.Raw = _NOTHING
    defer_loading: Literal[False] | None = None

    def as_chat(self) -> bytes:
        """Return the tool in the form of chat completions."""
        function: dict[str, Any] = {"name": self.name, "description": self.description, "strict": self.strict}
        members = {name: value for name, value in function.items() if value is not None}
        if bytes(self.parameters) not in (b"", b"null"):
            members["parameters"] = msgspec.Raw(msgspec.json.format(self.parameters, indent=-1))
        return _encode({"type": "function", "function": members})

    def as_told(self) -> dict[str, Any]:
        """Return the tool as an answer repeats it."""
        parameters = self.parameters if bytes(self.parameters) else None
        told = {"type": "function", "name": self.name, "description": self.description}
        return {**told, "parameters": parameters, "strict": self.strict}


class _Named(msgspec.Struct):
    type: str = ""


class _JsonSchema(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    name: str
    schema: msgspec.Raw
    description: str | None = None
    strict: bool | None = None


class _Format(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]


class _Choice(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[_Named] | None = None


_decode_tool = msgspec.json.Decoder(CallerTool).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_format = msgspec.json.Decoder(_Format).decode
_decode_schema = msgspec.json.Decoder(_JsonSchema).decode
_decode_choice = msgspec.json.Decoder(Literal["none", "auto", "required"] | _Choice).decode

REFUSED: Final = tuple(name for name, row in PARAMETERS.items() if row.responses is Rule.REFUSED)
_LOGPROBS: Final = "message.output_text.logprobs"
_SEALED: Final = "reasoning.encrypted_content"


class Conversed(msgspec.Struct):
    id: str


class ResponsesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body. Some fields are here only to be refused by name."""

    input: str | list[msgspec.Raw] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: msgspec.Raw = _NOTHING
    tools: list[msgspec.Raw] | None = None
    tool_choice: msgspec.Raw = _NOTHING
    parallel_tool_calls: bool | None = None
    text: TextWish | None = None
    reasoning: ReasoningWish | None = None
    max_output_tokens: int | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    include: list[str] | None = None
    background: bool | None = None
    truncation: str | None = None
    prompt: dict[str, Any] | None = None
    top_logprobs: int | None = None
    context_management: list[Any] | None = None
    moderation: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    client_metadata: dict[str, Any] | None = None
    conversation: str | Conversed | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def check(self) -> None:
        """Raise `BadRequest` for values that the types of the fields allow and we do not."""
        if self.input is None or (not self.input and self.previous_response_id is None):
            raise BadRequest("The field `input` is missing or empty.", "Send a text or a list of items.")
        check_response((name, getattr(self, name)) for name in REFUSED)
        if _LOGPROBS in (self.include or ()):
            raise refused("include", f"{_LOGPROBS} is not supported here", "Leave it out.")
        check_output_limit("max_output_tokens", self.max_output_tokens)
        check_utf8((self.tool_choice, *(self.tools or ())))
        if self.text is not None:
            check_utf8((self.text.format,))

    def check_wire(self, find_wire: Callable[[], str]) -> None:
        """Raise `BadRequest` for what the model cannot be told. `find_wire` returns its wire format."""
        if self.read_format() is not None:
            check_wire("response_format", find_wire(), "text.format")

    def read_format(self) -> msgspec.Raw | None:
        """Return `text.format` as the `response_format` of chat completions. Raises `BadRequest`."""
        return None if self.text is None else _response_format(self.text.format)

    def items(self) -> list[InputItem]:
        """Return the input as items; see `decode_items` for what is raised."""
        if isinstance(self.input, str):
            return [MessageItem("user", self.input)]
        return decode_items(self.input or [])

    def function_tools(self) -> list[CallerTool]:
        """Raise `BadRequest` for a tool that is not the caller's own function, and for a name that is there
        twice."""
        found, names = list[CallerTool](), set[str]()
        for n, raw in enumerate(self.tools or ()):
            try:
                kind = _decode_named(raw).type
                if kind != "function":
                    raise BadRequest(
                        f"In the field `tools[{n}].type`: tools of the type {quoted(kind)} are not offered.",
                        "Send `X-Talaria-Tools: functions` to ignore such tools, or use those of a session: "
                        "X-Talaria-Session.",
                        param=f"tools[{n}].type",
                    )
                tool = _decode_tool(raw)
            except msgspec.DecodeError as error:
                raise invalid_field(str(error), f"tools[{n}]") from None
            check_tool_name(tool.name, names, f"tools[{n}].name")
            found.append(tool)
        return found

    def options(self) -> CallOptions:
        """Return the parameters of the call. Raises `BadRequest` for a malformed `text` or `tool_choice`."""
        text = self.text or TextWish()
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "response_format": self.read_format(),
            "tool_choice": _tool_choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "verbosity": text.verbosity,
            "user": self.user,
            "service_tier": self.service_tier,
            "prompt_cache_key": self.prompt_cache_key,
            "safety_identifier": self.safety_identifier,
        }
        rest = {}
        if self.prompt_cache_retention is not None:
            rest["prompt_cache_retention"] = msgspec.Raw(_encode(self.prompt_cache_retention))
        parameters = RequestParameters(**{name: value for name, value in given.items() if value is not None})
        return CallOptions(
            reasoning=self.reasoning.effort if self.reasoning is not None else None,
            max_output=self.max_output_tokens,
            sampling=parameters.encode_parameters(rest),
            streams_parts=bool(self.stream and self.tools),
        )

    @property
    def conversation_id(self) -> str | None:
        """The name of the session that answers."""
        given = self.conversation
        return given.id if isinstance(given, Conversed) else given

    @property
    def wants_sealed(self) -> bool:
        return _SEALED in (self.include or ())

    def told(self, tools: list[CallerTool]) -> bytes:
        """Return what every answer repeats of the request, but the model, as JSON members joined by commas.

        The bytes are on one line, as events need them.
        """
        text = self.text or TextWish()
        given = bytes(text.format)
        effort = None if self.reasoning is None else self.reasoning.effort
        summary = None if self.reasoning is None else self.reasoning.summary
        parallel = self.parallel_tool_calls
        choice = self.tool_choice if bytes(self.tool_choice) not in (b"", b"null") else "auto"
        told = {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": True if parallel is None else parallel,
            "reasoning": {"effort": effort, "summary": summary},
            "service_tier": self.service_tier,
            "store": self.is_stored,
            "temperature": self.temperature,
            "text": {
                "format": {"type": "text"} if given in (b"", b"null") else text.format,
                **({"verbosity": text.verbosity} if text.verbosity else {}),
            },
            "tool_choice": choice,
            "tools": [tool.as_told() for tool in tools],
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
            **({"conversation": {"id": self.conversation_id}} if self.conversation else {}),
        }
        return bytes(msgspec.json.format(_encode(told), indent=-1))[1:-1]


def encode_tools(tools: list[CallerTool]) -> bytes:
    """Return the tools as a list of chat completions, or nothing."""
    return b"[%b]" % b",".join(tool.as_chat() for tool in tools) if tools else b""


def _response_format(given: msgspec.Raw) -> msgspec.Raw | None:
    if bytes(given) in (b"", b"null"):
        return None
    try:
        kind = _decode_format(given).type
        if kind == "text":
            return None
        if kind == "json_object":
            return msgspec.Raw(b'{"type":"json_object"}')
        wish = _decode_schema(given)
    except msgspec.DecodeError as error:
        raise invalid_field(str(error), "text.format") from None
    inner = msgspec.structs.asdict(wish)
    del inner["type"]
    members = {name: value for name, value in inner.items() if value is not None}
    return msgspec.Raw(_encode({"type": "json_schema", "json_schema": members}))


def _tool_choice(given: msgspec.Raw) -> msgspec.Raw | None:
    """Rewrite the choice for chat completions, where the names of functions stand one level deeper."""
    if bytes(given) in (b"", b"null"):
        return None
    try:
        choice = _decode_choice(given)
        if isinstance(choice, str):
            return given
        if choice.type == "function":
            return msgspec.Raw(_encode({"type": "function", "function": {"name": choice.name or ""}}))
        allowed = _decode_allowed(given)
    except msgspec.DecodeError as error:
        raise invalid_field(str(error), "tool_choice") from None
    tools = [{"type": "function", "function": {"name": tool.name}} for tool in allowed.tools]
    return msgspec.Raw(
        _encode({"type": "allowed_tools", "allowed_tools": {"mode": allowed.mode, "tools": tools}})
    )


class _AllowedTool(msgspec.Struct):
    type: Literal["function"]
    name: str


class _Allowed(msgspec.Struct):
    mode: Literal["auto", "required"]
    tools: list[_AllowedTool]


_decode_allowed = msgspec.json.Decoder(_Allowed).decode


# -- input items ------------------------------------------------------------------------------------------


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str


class PlainText(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(msgspec.Struct, tag_field="type", tag="input_file"):
    pass


class InputAudio(msgspec.Struct, tag_field="type", tag="input_audio"):
    pass


ContentPart = InputText | OutputText | PlainText | Refusal | InputImage | InputFile | InputAudio
ItemContent = str | list[ContentPart]


class _Kind(msgspec.Struct):
    type: str = "message"
    role: str | None = None


class MessageItem(msgspec.Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent
    id: str | None = None


class CallItem(msgspec.Struct):
    call_id: str
    name: str
    arguments: str


class OutputItem(msgspec.Struct):
    call_id: str
    output: ItemContent


class ThoughtPart(msgspec.Struct):
    text: str


class ReasoningItem(msgspec.Struct):
    id: str | None = None
    summary: list[ThoughtPart] = []
    content: list[ThoughtPart] | None = None
    encrypted_content: str | None = None


class ReferenceItem(msgspec.Struct):
    id: str


InputItem = MessageItem | CallItem | OutputItem | ReasoningItem | ReferenceItem
_DECODERS: Mapping[str, msgspec.json.Decoder[InputItem]] = {
    "message": msgspec.json.Decoder(MessageItem),
    "function_call": msgspec.json.Decoder(CallItem),
    "function_call_output": msgspec.json.Decoder(OutputItem),
    "reasoning": msgspec.json.Decoder(ReasoningItem),
    "item_reference": msgspec.json.Decoder(ReferenceItem),
}
_decode_kind = msgspec.json.Decoder(_Kind).decode


def decode_items(raw_items: Sequence[msgspec.Raw]) -> list[InputItem]:
    """Raise `BadRequest` for an item that is malformed or of a kind that the gateway does not take."""
    items = []
    for n, raw in enumerate(raw_items):
        try:
            kind = _decode_kind(raw).type
            if (decoder := _DECODERS.get(kind)) is None:
                raise BadRequest(
                    f"In the field `input[{n}].type`: items of the type {quoted(kind)} are not taken here.",
                    f"Send {', '.join(_DECODERS)}.",
                )
            items.append(decoder.decode(raw))
        except msgspec.DecodeError as error:
            raise invalid_field(str(error), f"input[{n}]") from None
        except UnicodeDecodeError as error:
            raise invalid_utf8(error) from None
    return items


def references(items: Sequence[InputItem]) -> list[ItemRef]:
    """Return the output items of stored responses that these items refer to. Raises `BadRequest` for a
    reference that can be none.

    The id of a reasoning item counts as a reference too: the stored thought is whole, and the item is not.
    """
    found = []
    for n, item in enumerate(items):
        match item:
            case ReferenceItem(id=id):
                if (ref := ItemRef.parse(id)) is None:
                    raise no_such_item(n, id)
                found.append(ref)
            case ReasoningItem(id=id):
                if (ref := ItemRef.parse(id)) is not None and ref.kind == REASONING:
                    found.append(ref)
    return found


def referred_size(ref: ItemRef, answer: AssistantMessage) -> int:
    """Return how many characters a reference brings into the conversation."""
    if ref.kind == REASONING:
        return sum(len(thought.raw) for thought in answer.reasoning)
    if ref.kind == MESSAGE:
        return len(answer.text)
    return len(answer.tool_calls[ref.n].arguments) if ref.n < len(answer.tool_calls) else 0


def no_such_item(n: int, item: str) -> BadRequest:
    return BadRequest(
        f"In the field `input[{n}].id`: there is no stored item {quoted(item)}.",
        "Send the item itself; responses with `store: false` are not kept.",
    )


# -- input items as messages ------------------------------------------------------------------------------


class Context:
    """Puts messages together from items, in their order.

    Neighbouring items of the assistant become one message, up to the output of one of its calls: the model
    saw that before its next call. The outputs stand right behind the message, wherever they were among the
    items. `stored` are the answers of stored responses by turn. `pending` are the calls of the response that
    this input continues; their outputs come first.
    """

    def __init__(
        self,
        items: Sequence[InputItem],
        stored: Mapping[TurnId, AssistantMessage],
        pending: tuple[ToolCall, ...] = (),
    ) -> None:
        self._stored = stored
        self._messages: list[Message] = []
        self._text: list[str] = []
        self._thoughts: list[Reasoning] = []
        self._thinker = ("", "")  # the provider and model of the thoughts, if they are known
        self._calls: list[ToolCall] = []
        self._is_answered = False  # one of these calls has its output among the items so far
        self._outputs = _outputs(items)
        if pending:
            self._messages.append(self._results(pending))
        for n, item in enumerate(items):
            self._take(n, item)
        self._flush()
        for n, item in self._outputs.values():
            raise BadRequest(
                f"In the field `input[{n}].call_id`: {item.call_id!r} is no call of this conversation.",
                "Send the function_call item too, or the response that made it as `previous_response_id`.",
            )

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def _take(self, n: int, item: InputItem) -> None:
        match item:
            case MessageItem(role="assistant", content=content):
                self._say(item_text(content, n))
            case MessageItem(role="user", content=content):
                self._flush()
                self._messages.append(UserMessage(item_parts(content, f"input[{n}].content")))
            case MessageItem(role=role, content=content):
                self._flush()
                self._messages.append(SystemMessage(item_text(content, n), role))
            case CallItem():
                self._call(ToolCall(item.call_id, item.name, item.arguments))
            case OutputItem():
                self._is_answered = bool(self._calls)
            case ReasoningItem():
                self._think(item)
            case ReferenceItem(id=id):
                self._refer(n, id)

    def _say(self, text: str) -> None:
        if self._calls or self._text:
            self._flush()
        self._text.append(text)

    def _call(self, call: ToolCall) -> None:
        if self._is_answered:
            self._flush()
        self._calls.append(call)

    def _think(self, item: ReasoningItem) -> None:
        if self._calls or self._text or self._thoughts:
            self._flush()
        ref = ItemRef.parse(item.id)
        if ref is not None and (answer := self._stored.get(ref.turn_id)) is not None:
            self._recall(answer)
        elif (sealed := open_reasoning(item.encrypted_content)) is not None:
            self._recall(sealed)
        elif text := "\n\n".join(part.text for part in (*item.summary, *(item.content or ()))):
            self._thoughts.append(Reasoning("reasoning_content", text, _encode(text).decode()))

    def _recall(self, answer: AssistantMessage | SealedReasoning) -> None:
        """Take the reasoning of an answer as it was. Another model is not sent it."""
        self._thoughts += answer.reasoning
        self._thinker = (answer.provider, answer.model)

    def _refer(self, n: int, name: str) -> None:
        ref = ItemRef.parse(name)
        answer = self._stored.get(ref.turn_id) if ref is not None else None
        if ref is None or answer is None:
            raise no_such_item(n, name)
        if ref.kind == REASONING and answer.reasoning:
            self._think(ReasoningItem(name))
        elif ref.kind == MESSAGE and answer.text:
            self._say(answer.text)
        elif ref.kind == CALL and ref.n < len(answer.tool_calls):
            self._call(answer.tool_calls[ref.n])
        else:
            raise no_such_item(n, name)

    def _flush(self) -> None:
        """End the assistant's message, if there is one. Thoughts that led to nothing are left out."""
        calls = tuple(self._calls)
        if self._text or calls:
            text, (provider, model) = "".join(self._text), self._thinker
            thoughts = tuple(self._thoughts)
            self._messages.append(AssistantMessage(text, calls, thoughts, model, provider=provider))
        if calls:
            self._messages.append(self._results(calls))
        self._text, self._thoughts, self._calls, self._thinker = [], [], [], ("", "")
        self._is_answered = False

    def _results(self, calls: tuple[ToolCall, ...]) -> ToolResults:
        results = []
        for call in calls:
            if (found := self._outputs.pop(call.id, None)) is None:
                raise BadRequest(
                    f"In the field `input`: the function call {call.id!r} ({call.name}) has no output.",
                    "Send one function_call_output item for each call.",
                )
            n, item = found
            results.append(ToolResult.of(call.id, call.name, item_parts(item.output, f"input[{n}].output")))
        return ToolResults(tuple(results))


def _outputs(items: Sequence[InputItem]) -> dict[str, tuple[int, OutputItem]]:
    outputs: dict[str, tuple[int, OutputItem]] = {}
    for n, item in enumerate(items):
        if isinstance(item, OutputItem):
            if item.call_id in outputs:
                raise BadRequest(
                    f"In the field `input[{n}].call_id`: {item.call_id!r} has its output already.",
                    "Send one function_call_output item for each call.",
                )
            outputs[item.call_id] = (n, item)
    return outputs


def item_text(content: ItemContent, n: int) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        match part:
            case InputText(text=text) | OutputText(text=text) | PlainText(text=text) | Refusal(refusal=text):
                texts.append(text)
            case _:
                raise BadRequest(
                    f"In the field `input[{n}].content[{i}]`: only text can stand here.",
                    "Images belong into a message with the role user.",
                )
    return "\n".join(texts)


def item_parts(content: ItemContent, field: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part(part: ContentPart, field: str) -> Part:
    match part:
        case InputText(text=text) | OutputText(text=text) | PlainText(text=text) | Refusal(refusal=text):
            return Text(text)
        case InputImage(image_url=url, detail=detail):
            return read_image(url, detail, f"{field}.image_url")
        case InputFile():
            raise BadRequest(f"In the field `{field}`: input_file is not taken here.", "Send its text.")
        case InputAudio():
            raise BadRequest(f"In the field `{field}`: input_audio is not taken here.", "Send text.")
