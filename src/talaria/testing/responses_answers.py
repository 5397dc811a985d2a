"""How an act of the scripted model looks on the wire of the responses API."""

from __future__ import annotations

from typing import Any

from talaria.core.messages import TokenUsage
from talaria.testing.responses_requests import seal
from talaria.testing.script import Act
from talaria.testing.telling import Event, Telling, cut_in_half, encode, write_event


def tell_response(act: Act, response_id: str, model: str, usage: TokenUsage) -> Telling:
    begun = _response(response_id, model, "in_progress", [], None)
    items = _items(act, response_id)
    whole = _response(response_id, model, "completed", items, usage)
    text = "The scripted server had an error."
    return Telling(
        [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ],
        [event for index, item in enumerate(items) for event in _item_events(act, item, index)],
        [{"type": "response.completed", "response": whole}],
        {"type": "error", "code": "server_error", "message": text, "param": None},
    )


def write_numbered(event: Event, n: int) -> bytes:
    return write_event({**event, "sequence_number": n}, n)


def whole_response(act: Act, response_id: str, model: str, usage: TokenUsage) -> bytes:
    """The answer to a request that did not ask for a stream."""
    return encode(_response(response_id, model, "completed", _items(act, response_id), usage))


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
        called = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        item_id = f"fc_{response_id}_{n}{pair}"
        items.append({"type": "function_call", "id": item_id, "status": "completed", **called})
        pair = ""
    if act.thought:
        item_id = f"rs_{response_id}"
        thought: dict[str, Any] = {"type": "reasoning", "id": item_id}
        thought["summary"] = [{"type": "summary_text", "text": act.thought}]
        thought["encrypted_content"] = seal(item_id, items[0]["id"])
        items.insert(0, thought)
    return items


def _item_events(act: Act, item: dict[str, Any], index: int) -> list[Event]:
    """What is sealed into a thought that only begins is not yet the whole, as with the real one."""
    here: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "reasoning":
            opened = {**item, "summary": [], "encrypted_content": "incomplete"}
            here["summary_index"] = 0
            names = ("reasoning_summary_text", "reasoning_summary_part")
            middle = _part_events(names, item["summary"][0], [act.thought], here)
        case "message":
            opened = {**item, "status": "in_progress", "content": []}
            here["content_index"] = 0
            names = ("output_text", "content_part")
            middle = _part_events(names, item["content"][0], act.pieces(), here)
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
    """A part of an item from its beginning to its end. `names` are what its text and its frame are called."""
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
