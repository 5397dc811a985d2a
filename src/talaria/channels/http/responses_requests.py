"""Requests for responses: their fields, and what each becomes in a call of ours.

`models.parameters` says what becomes of each field. A field that is not there is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from talaria.channels.http.request import invalid_field, quoted
from talaria.channels.http.responses_items import InputItem, MessageItem, decode_items
from talaria.core.errors import BadRequest
from talaria.core.spending import MOST_COUNTED
from talaria.models.parameters import (
    PARAMETERS,
    REFUSED_IN_SESSION,
    RequestParameters,
    Rule,
    check_response,
    check_session,
    check_wire,
    refused,
)
from talaria.turns.live import CallOptions

_encode = msgspec.json.Encoder().encode
_NOTHING: Final = msgspec.Raw()


class ReasoningWish(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
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
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    top_logprobs: int | None = None
    context_management: list[Any] | None = None
    moderation: dict[str, Any] | None = None
    max_tool_calls: int | None = None

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
        if self.max_output_tokens is not None and not 1 <= self.max_output_tokens <= MOST_COUNTED:
            expected = "at least 1" if self.max_output_tokens < 1 else f"at most {MOST_COUNTED}"
            raise BadRequest(f"In the field `max_output_tokens`: expected {expected}.", "Leave it out.")

    def check_session(self, *, is_front_end: bool = False) -> tuple[str, ...]:
        """Raise `BadRequest` for what a call with a session cannot keep. Return the names of the parameters
        that are ignored for a front end."""
        given = ((name, getattr(self, name, None)) for name in REFUSED_IN_SESSION)
        ignored = check_session(given, is_front_end=is_front_end)
        if self._format() is not None:
            if is_front_end:
                return (*ignored, "text.format")
            raise refused(
                "text.format",
                "a session answers in text",
                "Leave it out, or leave out X-Talaria-Session and send the whole conversation.",
            )
        return ignored

    def check_wire(self, find_wire: Callable[[], str]) -> None:
        """Raise `BadRequest` for what the model cannot be told. `find_wire` returns its wire format."""
        if self._format() is not None:
            check_wire("response_format", find_wire(), "text.format")

    def _format(self) -> msgspec.Raw | None:
        return None if self.text is None else _response_format(self.text.format)

    def items(self) -> list[InputItem]:
        """Return the input as items; see `decode_items` for what is raised."""
        if isinstance(self.input, str):
            return [MessageItem("user", self.input)]
        return decode_items(self.input or [])

    def function_tools(self) -> list[CallerTool]:
        """Raise `BadRequest` for a tool that is not the caller's own function, and for a name that is there
        twice."""
        found: dict[str, CallerTool] = {}
        for n, raw in enumerate(self.tools or ()):
            try:
                kind = _decode_named(raw).type
                if kind != "function":
                    raise BadRequest(
                        f"In the field `tools[{n}].type`: tools of the type {quoted(kind)} are not offered.",
                        'Send tools of the type "function", or use those of a session: X-Talaria-Session.',
                    )
                tool = _decode_tool(raw)
            except msgspec.DecodeError as error:
                raise invalid_field(str(error), f"tools[{n}]") from None
            if tool.name in found:
                raise BadRequest(
                    f"In the field `tools[{n}].name`: {tool.name!r} is there twice.",
                    "Give every tool a name of its own.",
                )
            found[tool.name] = tool
        return list(found.values())

    def options(self) -> CallOptions:
        """Return the parameters of the call. Raises `BadRequest` for a malformed `text` or `tool_choice`."""
        text = self.text or TextWish()
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "response_format": self._format(),
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
            streams_calls=bool(self.stream and self.tools),
        )

    @property
    def wants_sealed(self) -> bool:
        return _SEALED in (self.include or ())

    def told(self, tools: list[CallerTool]) -> bytes:
        """Return what every answer repeats of the request, but the model, as JSON members joined by commas.

        The bytes are valid UTF-8 on one line, as events need them. Raises `UnicodeDecodeError`.
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
        }
        return str(msgspec.json.format(_encode(told), indent=-1), "utf-8")[1:-1].encode()


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
