"""OpenAI's responses API, as a server sees it.

The server stores nothing. The `encrypted_content` of a reasoning item says which item the reasoning led to,
with a signature that only this server makes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from talaria.core.messages import TokenUsage
from talaria.testing.model_api import (
    NAME,
    PICTURE,
    AnswerEvents,
    Event,
    ModelApi,
    RequestRefused,
    ScriptedReply,
    ScriptedRequest,
    cut_in_half,
    decode,
    encode,
    make_request,
    require,
    require_unique_tools,
    validate,
)
from talaria.testing.script import ScriptedAnswer, read_context

_KEY = b"talaria.testing"
_Filled = Annotated[str, Meta(min_length=1)]


class _Strict(Struct, forbid_unknown_fields=True):
    """The base of all schemas. A member that is not listed is refused."""


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


class ResponsesApi(ModelApi):
    wire = "openai-responses"
    path = "/v1/responses"
    id_prefix = "resp_"

    def read(self, body: bytes) -> ScriptedRequest:
        request = decode(body)
        unknown = sorted(request.keys() - _OTHER_MEMBERS - set(_Request.__struct_fields__))
        require(not unknown, f"Unknown parameter: {unknown[:1]}.")
        items = _input_items(request.get("input"))
        read = validate({**request, "input": items}, _Request)
        require_unique_tools(tool.name for tool in read.tools or ())
        _check(read)
        return make_request(request, read_context(_as_chat(request.get("instructions"), items)))

    def events(self, reply: ScriptedReply) -> AnswerEvents:
        begun = _response(reply, "in_progress", [], None)
        items = _output_items(reply)
        whole = _response(reply, "completed", items, reply.usage)
        text = "The scripted server had an error."
        return AnswerEvents(
            [
                {"type": "response.created", "response": begun},
                {"type": "response.in_progress", "response": begun},
            ],
            [event for n, item in enumerate(items) for event in _item_events(reply.answer, item, n)],
            [{"type": "response.completed", "response": whole}],
            {"type": "error", "code": "server_error", "message": text, "param": None},
        )

    def whole(self, reply: ScriptedReply) -> bytes:
        return encode(_response(reply, "completed", _output_items(reply), reply.usage))

    def write(self, event: Event, n: int) -> bytes:
        return super().write({**event, "sequence_number": n}, n)


# -- requests ---------------------------------------------------------------------------------------------


def _input_items(given: Any) -> list[Any]:
    """Return the input as items. A text is a message, and so is an item without a type."""
    if isinstance(given, str) and given:
        given = [{"role": "user", "content": given}]
    listed = given if isinstance(given, list) else []
    return [{"type": "message", **item} if isinstance(item, dict) else item for item in listed]


def _as_chat(instructions: Any, items: list[Any]) -> list[dict[str, Any]]:
    """Convert the items to chat completions, which scripts are read from. Neighbouring calls are one step."""
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
    """Check the order of the items. `owed` are calls without an output so far; `expected` is the id of the
    item that must follow a reasoning item. Raises `RequestRefused`."""
    owed: list[str] = []
    expected = ""
    for n, item in enumerate(request.input):
        require(not expected or item.id == expected, _unpaired(n - 1, expected))
        if item.id.endswith("_thought"):  # the suffix of items that follow reasoning
            text = f"Item '{item.id}' was provided without its required 'reasoning' item."
            require(item.id == expected, text)
        expected = ""
        match item:
            case _Message():
                require(not owed, f"No tool output found for function call {owed[:1]}.")
                _check_parts(n, item)
            case _Call(call_id=call_id):
                require(call_id not in owed, f"Duplicate function call {call_id}.")
                owed.append(call_id)
            case _Output(call_id=call_id):
                text = f"No tool call found for function call output with call_id {call_id}."
                require(call_id in owed, text)
                owed.remove(call_id)
            case _Reasoning():
                expected = _led_to(item, is_stored=request.store)
    require(not expected, _unpaired(len(request.input) - 1, expected))
    require(not owed, f"No tool output found for function call {owed[:1]}.")


def _led_to(item: _Reasoning, *, is_stored: bool) -> str:
    """Return the id of the item that this reasoning led to. Raises `RequestRefused`."""
    if not item.encrypted_content:
        where = "" if is_stored else " Items are not persisted when `store` is set to false."
        raise RequestRefused(f"Item with id '{item.id}' not found.{where}")
    try:
        opened = base64.b64decode(item.encrypted_content, validate=True)
    except ValueError:
        opened = b""
    own_id, _, next_id = opened[32:].decode("utf-8", "replace").partition(" ")
    is_ours = hmac.compare_digest(opened[:32], _sign(opened[32:])) and own_id == item.id
    require(is_ours, f"The encrypted content for item {item.id} could not be verified.")
    return next_id


def _unpaired(n: int, expected: str) -> str:
    return (
        f"Item 'input[{n}]' of type 'reasoning' was provided without its required following item {expected}."
    )


def _check_parts(n: int, message: _Message) -> None:
    """Check the types of the parts: text of the assistant is output, any other is input."""
    for part in message.content if isinstance(message.content, list) else ():
        is_said = isinstance(part, _OutputText | _Refusal)
        require(is_said == (message.role == "assistant"), f"Invalid type in 'input[{n}].content'.")


def _sign(sealed: bytes) -> bytes:
    return hmac.digest(_KEY, sealed, hashlib.sha256)


# -- answers ----------------------------------------------------------------------------------------------


def _response(
    reply: ScriptedReply, status: str, output: list[dict[str, Any]], usage: TokenUsage | None
) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "store": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None if usage is None else _usage(usage),
    }


def _output_items(reply: ScriptedReply) -> list[dict[str, Any]]:
    """Return the items of an answer. A reasoning item comes first and names the item behind it."""
    answer, response_id = reply.answer, reply.id
    items: list[dict[str, Any]] = []
    pair = "_thought" if answer.thought else ""
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "type": "message",
                "id": f"msg_{response_id}{pair}",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
        pair = ""
    for n, call in enumerate(answer.calls):
        called = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        item_id = f"fc_{response_id}_{n}{pair}"
        items.append({"type": "function_call", "id": item_id, "status": "completed", **called})
        pair = ""
    if answer.thought:
        item_id = f"rs_{response_id}"
        thought: dict[str, Any] = {"type": "reasoning", "id": item_id}
        thought["summary"] = [{"type": "summary_text", "text": answer.thought}]
        thought["encrypted_content"] = seal(item_id, items[0]["id"])
        items.insert(0, thought)
    return items


def _item_events(answer: ScriptedAnswer, item: dict[str, Any], index: int) -> list[Event]:
    """Return the events of one item. A reasoning item that begins has no usable `encrypted_content` yet, as
    with the real server."""
    here: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "reasoning":
            opened = {**item, "summary": [], "encrypted_content": "incomplete"}
            here["summary_index"] = 0
            names = ("reasoning_summary_text", "reasoning_summary_part")
            middle = _part_events(names, item["summary"][0], [answer.thought], here)
        case "message":
            opened = {**item, "status": "in_progress", "content": []}
            here["content_index"] = 0
            names = ("output_text", "content_part")
            middle = _part_events(names, item["content"][0], answer.pieces(), here)
        case _:
            opened = {**item, "status": "in_progress", "arguments": ""}
            kind = "response.function_call_arguments"
            whole = {"name": item["name"], "arguments": item["arguments"]}
            middle = [
                {"type": f"{kind}.delta", **here, "delta": part} for part in cut_in_half(item["arguments"])
            ]
            middle.append({"type": f"{kind}.done", **here, **whole})
    return [
        {"type": "response.output_item.added", "output_index": index, "item": opened},
        *middle,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def _part_events(
    names: tuple[str, str], part: dict[str, Any], pieces: list[str], here: dict[str, Any]
) -> list[Event]:
    """Return the events of one part of an item. `names` are the names of its text and of its frame."""
    text, frame = names
    more: Event = {"logprobs": []} if "logprobs" in part else {}
    deltas = [
        {"type": f"response.{text}.delta", **here, **more, "delta": piece, "obfuscation": "xyz"}
        for piece in pieces
    ]
    return [
        {"type": f"response.{frame}.added", **here, "part": {**part, "text": ""}},
        *deltas,
        {"type": f"response.{text}.done", **here, **more, "text": part["text"]},
        {"type": f"response.{frame}.done", **here, "part": part},
    ]


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
