"""The contract of `agent.compaction.engine.ContextEngine`. A test class gives `engine`."""

from __future__ import annotations

import pytest

from talaria.agent.compaction.engine import ContextEngine
from talaria.agent.compaction.plan import CompactionRequest, WindowLimits, find_fault
from talaria.agent.side_calls import SideCall
from talaria.core.entries import Entry, Summary
from talaria.core.errors import TalariaError
from talaria.core.ids import SessionId
from talaria.core.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)

_SESSION = SessionId("ses_1")
_LIMITS = WindowLimits(window=4000, at=3000, target=2000, kept=800, most=3500)


def conversation(turns: int, size: int = 600) -> list[Entry]:
    """Return the log of so many turns, each with a call of a tool and `size` characters of its result."""
    bodies: list[Message] = []
    for number in range(turns):
        call = ToolCall(f"c{number}", "look", "{}")
        bodies += [
            UserMessage((Text(f"question {number}"),)),
            AssistantMessage("", (call,)),
            ToolResults((ToolResult(call.id, call.name, f"result {number} " + "x" * size),)),
            AssistantMessage(f"answer {number}"),
        ]
    return [Entry(_SESSION, seq, 0, float(seq), None, body) for seq, body in enumerate(bodies, 1)]


def request(entries: list[Entry], *, is_wished: bool = False) -> CompactionRequest:
    def measure(message: Message) -> int:
        return len(str(message)) // 4

    tokens = sum(measure(entry.message) for entry in entries if entry.message is not None)
    return CompactionRequest(entries, _LIMITS, tokens, 100, measure, 1, 4000, is_wished=is_wished)


async def _ask(call: SideCall) -> str:
    return "They talked about questions."


async def _fail(call: SideCall) -> str:
    raise TalariaError("There is no model.", "Come back later.")


class ContextEngineSuite:
    """An engine only chooses. Its choice is a summary that the log can take, or none."""

    @pytest.mark.parametrize("turns", [1, 2, 3, 12, 40])
    async def test_each_choice_is_one_that_the_log_can_take(self, engine: ContextEngine, turns: int) -> None:
        entries = conversation(turns)
        before = list(entries)
        summary = await engine.compact(request(entries), _ask)
        assert entries == before, "the log is not the engine's to change"
        assert summary is None or find_fault(entries, summary) == ""

    async def test_a_long_conversation_gets_shorter(self, engine: ContextEngine) -> None:
        summary = await engine.compact(request(conversation(40)), _ask)
        assert isinstance(summary, Summary)
        assert summary.last or summary.stubs or summary.folds

    async def test_a_second_compaction_goes_on_from_the_first(self, engine: ContextEngine) -> None:
        entries = conversation(40)
        first = await engine.compact(request(entries), _ask)
        assert first is not None
        after = [*entries, Entry(_SESSION, len(entries) + 1, 0, 0.0, None, first)]
        more = [
            Entry(_SESSION, len(after) + entry.seq, 0, 0.0, None, entry.body) for entry in conversation(40)
        ]
        second = await engine.compact(request([*after, *more]), _ask)
        assert second is not None
        assert find_fault([*after, *more], second) == ""
        assert second.last >= first.last

    async def test_a_model_that_fails_is_told_or_not_needed(self, engine: ContextEngine) -> None:
        entries = conversation(40)
        try:
            summary = await engine.compact(request(entries, is_wished=True), _fail)
        except TalariaError:
            return
        assert summary is None or find_fault(entries, summary) == ""

    def test_its_tools_are_a_source_that_is_not_built_in(self, engine: ContextEngine) -> None:
        assert engine.tools is None or not engine.tools.is_builtin
