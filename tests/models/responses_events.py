"""Answers of the responses API as bytes, event by event, and what is read from them."""

from __future__ import annotations

import json
from typing import Any

from talaria.core.models import Completion, TextDelta, ThoughtDelta
from talaria.models.faults import Faults
from talaria.models.openai_responses_answer import ResponsesAnswer


def event(kind: str, **members: Any) -> bytes:
    data = json.dumps({"type": f"response.{kind}", **members}).encode()
    return b"event: response.%b\ndata: %b\n\n" % (kind.encode(), data)


def added(index: int, item: dict[str, Any]) -> bytes:
    return event("output_item.added", output_index=index, item=item)


def done(index: int, item: dict[str, Any]) -> bytes:
    return event("output_item.done", output_index=index, item=item)


def text(index: int, delta: str) -> bytes:
    return event("output_text.delta", output_index=index, content_index=0, delta=delta)


def arguments(index: int, delta: str) -> bytes:
    return event("function_call_arguments.delta", output_index=index, delta=delta)


def message(said: str, item_id: str = "msg_1", **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": said, "annotations": []}] if said else []
    return {"type": "message", "id": item_id, "role": "assistant", "content": content, **more}


def function(name: str, args: str = "", call_id: str = "c1", **more: Any) -> dict[str, Any]:
    call = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": args}
    return {**call, **more}


def reasoning(*summary: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": part} for part in summary]
    return {"type": "reasoning", "id": "rs_1", "summary": parts, **more}


def response(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "output": list(output), **more}


def completed(*output: dict[str, Any], **more: Any) -> bytes:
    return event("completed", response=response(*output, **more))


CREATED = event("created", response=response(status="in_progress"))
END = completed()


def read(*pieces: bytes) -> tuple[Completion, list[TextDelta | ThoughtDelta]]:
    answer = ResponsesAnswer("m", Faults("acme", "m"))
    deltas = [delta for piece in pieces for delta in answer.feed(piece)]
    deltas += answer.end()
    return answer.completion(), [delta for delta in deltas if isinstance(delta, (TextDelta, ThoughtDelta))]


def calls_of(*pieces: bytes) -> list[tuple[str, str, str]]:
    completion, _ = read(*pieces)
    return [(call.id, call.name, call.arguments) for call in completion.message.tool_calls]
