"""Rows that version 0.1.0 wrote: they decode, and go to a provider in the same bytes as they did then."""

from __future__ import annotations

import msgspec
import pytest

from talaria.core.entries import EntryBody
from talaria.core.messages import Image, Part, Text, ToolOutcome, ToolResult, ToolResults
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.wire import Wire

ENTRY = (
    '{"type":"tool_results","results":[{"call_id":"call_1","name":"read_file","text":"Größe \\"1\\"\\n",'
    '"outcome":"ok"},{"call_id":"call_2","name":"todo","text":"","outcome":"ok"},{"call_id":"call_3",'
    '"name":"write_file","text":"Error: no. 🎉","outcome":"error"},{"call_id":"call_4","name":"f",'
    '"text":"gone","outcome":"unknown"}]}'
)
STEP = '{"call_id":"call_3","name":"write_file","text":"Error: no. 🎉","outcome":"error"}'
SENT = {
    "openai-chat": (
        '{"role":"tool","tool_call_id":"call_1","content":"Größe \\"1\\"\\n"},'
        '{"role":"tool","tool_call_id":"call_2","content":""},'
        '{"role":"tool","tool_call_id":"call_3","content":"Error: no. 🎉"},'
        '{"role":"tool","tool_call_id":"call_4","content":"gone"}'
    ),
    "openai-responses": (
        '{"type":"function_call_output","call_id":"call_1","output":"Größe \\"1\\"\\n"},'
        '{"type":"function_call_output","call_id":"call_2","output":""},'
        '{"type":"function_call_output","call_id":"call_3","output":"Error: no. 🎉"},'
        '{"type":"function_call_output","call_id":"call_4","output":"gone"}'
    ),
    "anthropic-messages": (
        '{"role":"user","content":['
        '{"type":"tool_result","tool_use_id":"call_1","content":"Größe \\"1\\"\\n"},'
        '{"type":"tool_result","tool_use_id":"call_2"},'
        '{"type":"tool_result","tool_use_id":"call_3","content":"Error: no. 🎉","is_error":true},'
        '{"type":"tool_result","tool_use_id":"call_4","content":"gone","is_error":true}]}'
    ),
}


@pytest.mark.parametrize("wire", [OpenAIChat(), OpenAIResponses(), AnthropicMessages()])
def test_results_of_the_first_version_are_sent_in_the_same_bytes(wire: Wire) -> None:
    entry = msgspec.json.decode(ENTRY, type=EntryBody)
    assert isinstance(entry, ToolResults)
    assert wire.encode(entry).decode() == SENT[wire.name]
    again = msgspec.json.decode(msgspec.json.encode(entry), type=EntryBody)
    assert again == entry


def test_a_step_of_the_first_version_has_its_result() -> None:
    expected = ToolResult("call_3", "write_file", "Error: no. 🎉", ToolOutcome.ERROR)
    assert msgspec.json.decode(STEP, type=ToolResult) == expected


def test_the_first_version_can_read_results_that_have_images() -> None:
    """It passes over members that it does not know, so going back costs the images and nothing else."""
    parts: tuple[Part, ...] = (Text("a picture"), Image("data:image/png;base64,AAAA"))
    row = msgspec.json.decode(msgspec.json.encode(ToolResult.of("c", "read_file", parts)))
    assert row.pop("parts")
    assert row == {"call_id": "c", "name": "read_file", "text": "a picture\n[image]", "outcome": "ok"}
