"""Large answers of honest models are taken: an answer of 128,000 tokens is some 400 kB of text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.wire_suite import read_with
from talaria.core.specs import Completion
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses

LATEX = r"\frac{a_{n}}{b^{2}} + { x, y } " * 12_000
TABLE = json.dumps([{"name": f"n{n}", "number": n, "note": "x, {y}"} for n in range(5_500)], indent=1)
PAGE = "a, b, c; if x { y }\n" * 20_000
TEXTS = {"latex": LATEX, "table": TABLE, "page": PAGE}


def responses(*output: dict[str, Any]) -> Completion:
    answer = {"id": "resp_1", "status": "completed", "output": list(output)}
    event = {"type": "response.completed", "response": answer}
    return read_with(OpenAIResponses(), b"data: %b\n\n" % json.dumps(event).encode())[0]


def chat(message: dict[str, Any]) -> Completion:
    answer = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    return read_with(OpenAIChat(), json.dumps(answer).encode())[0]


@pytest.mark.parametrize("name", TEXTS)
def test_a_long_text_in_one_event(name: str) -> None:
    text = TEXTS[name]
    content = [{"type": "output_text", "text": text}]
    assert responses({"type": "message", "id": "m", "content": content}).message.text == text
    assert chat({"content": text}).message.text == text


@pytest.mark.parametrize("name", TEXTS)
def test_a_long_file_in_one_event(name: str) -> None:
    arguments = json.dumps({"path": "a", "content": TEXTS[name]})
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "write_file", "arguments": arguments}
    (made,) = responses(call).message.tool_calls
    assert made.arguments == arguments


def test_a_long_thought_in_one_piece() -> None:
    details = [{"type": "reasoning.text", "text": LATEX[:60_000], "index": 0}]
    assert chat({"content": "4", "reasoning_details": details}).message.text == "4"
