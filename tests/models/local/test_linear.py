"""Reading a request back takes time that grows with its length, whatever it says."""

from __future__ import annotations

import pytest

from support.complexity import assert_linear
from talaria.core.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import ModelCall
from talaria.models.local.answering import pick_lines
from talaria.models.local.local_chat import LocalChat, read_request
from talaria.models.local.router import router_call

WIRE = LocalChat()


@pytest.mark.parametrize("piece", ["\n[", "[", "]", "\n", "x", "\n[2026-11-16 09:00 UTC]", '\\"', "(done: "])
def test_a_long_request_is_read_in_linear_time(piece: str) -> None:
    def make(size: int) -> list[bytes]:
        text = piece * (size // len(piece))
        said: list[Message] = [
            UserMessage((Text(text),), stamp="2026-11-16 09:00 UTC"),
            AssistantMessage("", (ToolCall("c", "read_file", text),)),
            ToolResults((ToolResult("c", "read_file", text),)),
        ]
        return [WIRE.encode(message) for message in said]

    def work(chunks: list[bytes]) -> None:
        request = read_request(chunks)
        router_call(ModelCall("tiny", WIRE.render_prefix("", ()), chunks), request.words, 0.0)

    assert_linear(make, work)


@pytest.mark.parametrize("line", ["{}", "the same beginning {}", "x" * 200 + "{}", "the same"])
def test_the_lines_of_a_long_file_are_looked_at_in_linear_time(line: str) -> None:
    def make(size: int) -> str:
        return "\n".join(line.format(n) for n in range(size // len(line)))

    assert_linear(make, pick_lines)
    assert pick_lines("one\n\ntwo\ntwo words") == ["one", "two words"]
