"""Reading a request of the responses API as the real server does: what it would refuse is refused.

The server stores nothing. What it must know about its own reasoning is sealed into `encrypted_content`: which
item it led to, and a signature that nobody else makes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from talaria.testing.model_requests import (
    NAME,
    PICTURE,
    BadChatRequest,
    ChatRequest,
    decode,
    fit,
    make_request,
    need_unique_tools,
    refuse_unless,
)
from talaria.testing.script import read_scene

_KEY = b"talaria.testing"
_Filled = Annotated[str, Meta(min_length=1)]


class _Strict(Struct, forbid_unknown_fields=True):
    """What it does not list is an unknown parameter."""


class _InputText(_Strict, tag="input_text"):
    text: str


class _InputImage(_Strict, tag="input_image"):
    image_url: Annotated[str, Meta(pattern=PICTURE)]
    detail: Literal["auto", "low", "high", "original"] = "auto"


class _InputFile(_Strict, tag="input_file"):
    file_data: str = ""
    file_url: str = ""
    filename: str = ""


class _OutputText(_Strict, tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class _Refusal(_Strict, tag="refusal"):
    refusal: str


class _Item(_Strict):
    id: str = ""
    status: str = ""


class _Message(_Item, tag="message", kw_only=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_InputText | _InputImage | _OutputText | _Refusal]
    phase: Any = None


class _Call(_Item, tag="function_call", kw_only=True):
    id: Annotated[str, Meta(pattern="^fc")] = "fc"
    call_id: Annotated[str, Meta(min_length=1, max_length=64)]
    name: _Filled
    arguments: _Filled


class _Output(_Item, tag="function_call_output", kw_only=True):
    call_id: str
    output: str | Annotated[list[_InputText | _InputImage | _InputFile], Meta(min_length=1)]


class _Reasoning(_Item, tag="reasoning", kw_only=True):
    summary: list[Any]
    content: Any = None
    encrypted_content: str | None = None


class _Tool(_Strict, kw_only=True):
    type: Literal["function"]
    name: Annotated[str, Meta(pattern=NAME)]
    parameters: dict[str, Any]
    description: str = ""
    strict: bool | None = None


class _Request(Struct):
    model: _Filled
    input: Annotated[list[_Message | _Call | _Output | _Reasoning], Meta(min_length=1)]
    tools: list[_Tool] | None = None
    max_output_tokens: Annotated[int, Meta(ge=16)] | None = None
    store: bool = True


_OTHER_MEMBERS = frozenset(
    {
        *("include", "instructions", "metadata", "parallel_tool_calls", "prompt_cache_key", "reasoning"),
        *("safety_identifier", "service_tier", "stream", "stream_options", "temperature", "text"),
        *("tool_choice", "top_logprobs", "top_p", "truncation", "user"),
    }
)


def seal(reasoning_id: str, next_id: str) -> str:
    """The `encrypted_content` of a reasoning item that led to the item `next_id`."""
    sealed = f"{reasoning_id} {next_id}".encode()
    return base64.b64encode(_sign(sealed) + sealed).decode()


def read_responses(body: bytes) -> ChatRequest:
    """The whole request, refused as a real server would refuse it. Raises `BadChatRequest`."""
    request = decode(body)
    unknown = sorted(request.keys() - _OTHER_MEMBERS - set(_Request.__struct_fields__))
    refuse_unless(not unknown, f"Unknown parameter: {unknown[:1]}.")
    items = _items(request.get("input"))
    read = fit({**request, "input": items}, _Request)
    need_unique_tools(tool.name for tool in read.tools or ())
    _check(read)
    return make_request(request, read_scene(_as_chat(request.get("instructions"), items)))


def _items(given: Any) -> list[Any]:
    """An input that is a text is a message, and so is an item that does not say what it is."""
    if isinstance(given, str) and given:
        given = [{"role": "user", "content": given}]
    listed = given if isinstance(given, list) else []
    return [{"type": "message", **item} if isinstance(item, dict) else item for item in listed]


def _as_chat(instructions: Any, items: list[Any]) -> list[dict[str, Any]]:
    """In the shape that scripts are read from; calls beside each other are one step."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        match item:
            case {"type": "function_call"}:
                if messages and "tool_calls" in messages[-1]:
                    messages[-1]["tool_calls"].append(item)
                else:
                    messages.append({"role": "assistant", "tool_calls": [item]})
            case {"type": "function_call_output"}:
                messages.append({"role": "tool", "content": item.get("output")})
            case {"type": "message"}:
                messages.append(item)
    return messages


def _check(request: _Request) -> None:
    """Goes through the items once. `owed` are calls without an output so far, `expected` is the id of the
    item that the reasoning before this one led to."""
    owed: list[str] = []
    expected = ""
    for n, item in enumerate(request.input):
        refuse_unless(not expected or item.id == expected, _unpaired(n - 1, expected))
        if item.id.endswith("_thought"):  # so are those called that reasoning led to
            text = f"Item '{item.id}' was provided without its required 'reasoning' item."
            refuse_unless(item.id == expected, text)
        expected = ""
        match item:
            case _Message():
                refuse_unless(not owed, f"No tool output found for function call {owed[:1]}.")
                _check_parts(n, item)
            case _Call(call_id=call_id):
                refuse_unless(call_id not in owed, f"Duplicate function call {call_id}.")
                owed.append(call_id)
            case _Output(call_id=call_id):
                text = f"No tool call found for function call output with call_id {call_id}."
                refuse_unless(call_id in owed, text)
                owed.remove(call_id)
            case _Reasoning():
                expected = _led_to(item, is_stored=request.store)
    refuse_unless(not expected, _unpaired(len(request.input) - 1, expected))
    refuse_unless(not owed, f"No tool output found for function call {owed[:1]}.")


def _led_to(item: _Reasoning, *, is_stored: bool) -> str:
    """The id of the item that this reasoning led to."""
    if not item.encrypted_content:
        where = "" if is_stored else " Items are not persisted when `store` is set to false."
        raise BadChatRequest(f"Item with id '{item.id}' not found.{where}")
    try:
        opened = base64.b64decode(item.encrypted_content, validate=True)
    except ValueError:
        opened = b""
    own_id, _, next_id = opened[32:].decode("utf-8", "replace").partition(" ")
    is_ours = hmac.compare_digest(opened[:32], _sign(opened[32:])) and own_id == item.id
    refuse_unless(is_ours, f"The encrypted content for item {item.id} could not be verified.")
    return next_id


def _unpaired(n: int, expected: str) -> str:
    return (
        f"Item 'input[{n}]' of type 'reasoning' was provided without its required following item {expected}."
    )


def _check_parts(n: int, message: _Message) -> None:
    """What the model said and what it was told are written differently."""
    for part in message.content if isinstance(message.content, list) else ():
        is_said = isinstance(part, _OutputText | _Refusal)
        refuse_unless(is_said == (message.role == "assistant"), f"Invalid type in 'input[{n}].content'.")


def _sign(sealed: bytes) -> bytes:
    return hmac.digest(_KEY, sealed, hashlib.sha256)
