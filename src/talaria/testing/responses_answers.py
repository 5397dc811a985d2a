"""How an act of the scripted model looks on the wire of the responses API."""

from __future__ import annotations

from typing import Any

import msgspec

from talaria.core.messages import TokenUsage, ToolCall
from talaria.testing.responses_requests import seal
from talaria.testing.script import Act, Fault

_encode = msgspec.json.Encoder().encode

_BROKEN = b'data: {"type":"response.output_text.delta","delta":"oh\n\n'
_PIECES = frozenset(
    {
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.reasoning_summary_text.delta",
    }
)


def stream_response(act: Act, response_id: str, model: str, usage: TokenUsage) -> tuple[list[bytes], bool]:
    """The server-sent events of `act`, and whether the connection is lost after them."""
    begun = _response(response_id, model, "in_progress", [], None)
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    match act.fault:
        case Fault.MALFORMED:
            return [*_numbered(events), _BROKEN], False
        case Fault.ERROR_IN_STREAM:
            text = "The scripted server had an error."
            error = {"type": "error", "code": "server_error", "message": text, "param": None}
            return _numbered([*events, error]), False
    items = _items(act, response_id)
    for index, item in enumerate(items):
        events += _item_events(act, item, index)
    if act.fault is Fault.HALF_CALL:
        call = ToolCall("call_half", "terminal", '{"comm')
        events += _item_events(act, _call_item(call, "fc_half"), len(items))[:-2]
        return _numbered(events), True
    if act.fault is Fault.CUT:
        return _numbered(_cut(events, act.cut_after)), True
    whole = _response(response_id, model, "completed", items, usage)
    return _numbered([*events, {"type": "response.completed", "response": whole}]), False


def whole_response(act: Act, response_id: str, model: str, usage: TokenUsage) -> bytes:
    """The answer to a request that did not ask for a stream."""
    return _encode(_response(response_id, model, "completed", _items(act, response_id), usage))


def _response(
    response_id: str, model: str, status: str, output: list[dict[str, Any]], usage: TokenUsage | None
) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": output,
        "parallel_tool_calls": True,
        "store": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None if usage is None else _usage(usage),
    }


def _items(act: Act, response_id: str) -> list[dict[str, Any]]:
    """What was thought stands first, paired with the item behind it by that one's id."""
    items: list[dict[str, Any]] = []
    pair = "_thought" if act.thought else ""
    if act.text or not act.calls:
        part = {"type": "output_text", "text": act.text, "annotations": [], "logprobs": []}
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
    for n, call in enumerate(act.calls):
        items.append(_call_item(call, f"fc_{response_id}_{n}{pair}"))
        pair = ""
    if act.thought:
        item_id = f"rs_{response_id}"
        thought: dict[str, Any] = {"type": "reasoning", "id": item_id}
        thought["summary"] = [{"type": "summary_text", "text": act.thought}]
        thought["encrypted_content"] = seal(item_id, items[0]["id"])
        items.insert(0, thought)
    return items


def _call_item(call: ToolCall, item_id: str) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": item_id,
        "status": "completed",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _item_events(act: Act, item: dict[str, Any], index: int) -> list[dict[str, Any]]:
    here = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "reasoning":
            opened, middle = _thought_events(item, here)
        case "message":
            opened, middle = _text_events(act, item, here)
        case _:
            opened, middle = _argument_events(item, here)
    return [
        {"type": "response.output_item.added", "output_index": index, "item": opened},
        *middle,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


Events = tuple[dict[str, Any], list[dict[str, Any]]]


def _thought_events(item: dict[str, Any], here: dict[str, Any]) -> Events:
    """What is sealed so far is not yet the whole, as with the real one."""
    [part] = item["summary"]
    here = {**here, "summary_index": 0}
    empty = {**part, "text": ""}
    return {**item, "summary": [], "encrypted_content": "incomplete"}, [
        {"type": "response.reasoning_summary_part.added", **here, "part": empty},
        {"type": "response.reasoning_summary_text.delta", **here, "delta": part["text"]},
        {"type": "response.reasoning_summary_text.done", **here, "text": part["text"]},
        {"type": "response.reasoning_summary_part.done", **here, "part": part},
    ]


def _text_events(act: Act, item: dict[str, Any], here: dict[str, Any]) -> Events:
    [part] = item["content"]
    here = {**here, "content_index": 0}
    delta = {"type": "response.output_text.delta", **here, "logprobs": []}
    return {**item, "status": "in_progress", "content": []}, [
        {"type": "response.content_part.added", **here, "part": {**part, "text": ""}},
        *({**delta, "delta": piece, "obfuscation": "xyz"} for piece in act.pieces()),
        {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **here, "part": part},
    ]


def _argument_events(item: dict[str, Any], here: dict[str, Any]) -> Events:
    arguments = item["arguments"]
    middle = len(arguments) // 2
    delta = {"type": "response.function_call_arguments.delta", **here}
    return {**item, "status": "in_progress", "arguments": ""}, [
        *({**delta, "delta": part} for part in (arguments[:middle], arguments[middle:]) if part),
        {
            "type": "response.function_call_arguments.done",
            **here,
            "name": item["name"],
            "arguments": arguments,
        },
    ]


def _cut(events: list[dict[str, Any]], pieces: int) -> list[dict[str, Any]]:
    """Up to where one piece more would have come."""
    kept = []
    for event in events:
        if event["type"] in _PIECES:
            if not pieces:
                break
            pieces -= 1
        kept.append(event)
    return kept


def _numbered(events: list[dict[str, Any]]) -> list[bytes]:
    return [
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode({**event, "sequence_number": n}))
        for n, event in enumerate(events)
    ]


def _usage(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
    }
