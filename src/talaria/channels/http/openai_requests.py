"""Requests for chat completions: their fields, and their messages as ours.

`models.parameters` says what becomes of each field, also of those that are not named here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, assert_never

import msgspec

from talaria.channels.http.request import invalid_field, invalid_utf8
from talaria.core.errors import BadRequest
from talaria.core.messages import (
    AssistantMessage,
    Image,
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
from talaria.core.spending import MOST_COUNTED
from talaria.models.parameters import (
    REFUSED_IN_SESSION,
    RequestParameters,
    check_session,
    check_stateless,
    kept,
)
from talaria.turns.live import CallOptions

_encode = msgspec.json.Encoder().encode
_NO_RAW = msgspec.Raw()
_SOME_WIRES = ("stop", "logit_bias", "response_format", "n", "logprobs")  # fields that some cannot be told

# -- fields -----------------------------------------------------------------------------------------------


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
        for name in ("max_tokens", "max_completion_tokens"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_COUNTED:
                expected = "at least 1" if value < 1 else f"at most {MOST_COUNTED}"
                raise BadRequest(f"In the field `{name}`: expected {expected}.", "Leave it out.")
        _check_utf8((self.response_format, self.tool_choice, *(self.tools or ())))

    def check_session(
        self, rest: Mapping[str, msgspec.Raw], *, is_front_end: bool = False
    ) -> tuple[str, ...]:
        """Raise `BadRequest` for what a call with a session cannot keep; `rest` are the other fields. Return
        the names of those that are ignored for a front end."""
        own = ((name, getattr(self, name, None)) for name in REFUSED_IN_SESSION)
        return check_session((*own, *rest.items()), is_front_end=is_front_end)

    def check_stateless(self, rest: Mapping[str, msgspec.Raw], find_wire: Callable[[], str]) -> None:
        """Raise `BadRequest` for what the model cannot be told. `find_wire` returns its wire format."""
        own = [(name, value) for name in _SOME_WIRES if (value := getattr(self, name)) not in (None, _NO_RAW)]
        if own or rest:
            check_stateless((*own, *rest.items()), find_wire())
            _check_utf8(rest.values())

    def options(self, rest: Mapping[str, msgspec.Raw]) -> CallOptions:
        return CallOptions(
            reasoning=self.reasoning_effort,
            max_output=self.max_completion_tokens or self.max_tokens,
            sampling=self.encode_parameters(kept(rest)),
            streams_calls=bool(self.stream and self.tools),
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
            if name in names:
                raise BadRequest(
                    f"In the field `tools[{n}].function.name`: {name!r} is there twice.",
                    "Give every tool a name of its own.",
                )
            names.add(name)
        return b"[%b]" % b",".join(bytes(msgspec.json.format(raw, indent=-1)) for raw in self.tools)


def _check_utf8(values: Iterable[msgspec.Raw]) -> None:
    """Raise `BadRequest` for JSON that is not decoded on the way to the model and could not be."""
    for raw in values:
        try:
            str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise invalid_utf8(error) from None


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    type: Literal["function"]
    function: _Function


_TOOL = msgspec.json.Decoder(_Tool)

# -- messages as ours -------------------------------------------------------------------------------------


def last_user_parts(messages: list[MessageIn]) -> tuple[Part, ...]:
    """Return the last user message, which is all that a session takes of a request: the gateway has the rest.

    Raises `BadRequest` if there is none.
    """
    for n in range(len(messages) - 1, -1, -1):
        message = messages[n]
        if isinstance(message, UserIn):
            parts = _parts(message.content, n)
            if not any(not isinstance(part, Text) or part.text.strip() for part in parts):
                raise BadRequest(f"In the field `messages[{n}].content`: it is empty.", "Write something.")
            return parts
    raise BadRequest(
        "In the field `messages`: there is no message with the role user.",
        "With X-Talaria-Session the last user message is what the session is sent.",
    )


def spoken_before(messages: list[MessageIn]) -> Iterator[UserMessage | str]:
    """Yield the messages of the user and the texts of the assistant before the last message of the user."""
    last = max(n for n, message in enumerate(messages) if isinstance(message, UserIn))
    for message in messages[:last]:
        if isinstance(message, UserIn):
            yield UserMessage(_shown_parts(message.content))
        elif isinstance(message, AssistantIn):
            yield _text(message.content or message.refusal or "")


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
        parts.append(_image(part.image_url, f"messages[{n}].content[{i}]"))
    return (*parts, Text("".join(texts))) if texts else tuple(parts)


def _shown_parts(content: str | list[TextPart | ImagePart]) -> tuple[Part, ...]:
    """Return the parts of an earlier message. An image that could not be sent to a model is left out."""
    if isinstance(content, str):
        return (Text(content),)
    shown = [part for part in content if isinstance(part, TextPart) or _is_image(part.image_url)]
    return _parts(shown, 0)


def _is_image(image: ImageUrl) -> bool:
    return image.url.startswith(("https:", "data:image/"))


def _image(image: ImageUrl, field: str) -> Image:
    if not _is_image(image):
        raise BadRequest(
            f"In the field `{field}.image_url.url`: it is neither https: nor data:image/….",
            "Send the image itself as a data: URL.",
        )
    return Image(image.url, image.detail)
