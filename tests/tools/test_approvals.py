"""Which calls a person is asked about, and what the person is shown."""

from __future__ import annotations

import asyncio
import logging
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rig import start
from talaria.core.clock import SystemClock
from talaria.core.events import QuestionAsked
from talaria.core.ids import QuestionId, TurnId
from talaria.core.messages import ToolCall, ToolOutcome
from talaria.core.questions import APPROVE, DENY, Decision, Question, QuestionDraft, QuestionKind
from talaria.core.tools import Risk, ToolSpec
from talaria.parts import builtin_tools
from talaria.store.in_memory import MemoryStore
from talaria.tools.approvals import describe, find_question
from talaria.tools.execution import BoundTools
from talaria.tools.function import Arguments, FunctionTool, parameters, text
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import ToolSet
from tools.conftest import bound

QUESTION = parameters({"question": text("What to ask.")}, required=["question"])
COMMAND = parameters({"command": text("What to run.")}, required=["command"])


class Shell(Tool):
    """A tool that a person must approve. It notes what it ran."""

    def __init__(self, risk: Risk = Risk.HIGH) -> None:
        self.spec = ToolSpec("shell", "Runs a command.", COMMAND, risk)
        self.ran: list[str] = []

    async def run(self, arguments: Arguments, context: ToolContext) -> str:
        self.ran.append(arguments["command"])
        return "ran"


class AskUser(Shell):
    """A tool that asks a person and returns the answer."""

    def __init__(self, fails: bool = False) -> None:
        self.spec = ToolSpec("ask_user", "Asks.", QUESTION, asks=True)
        self._fails = fails

    def question(self, arguments: Arguments) -> QuestionDraft | None:
        if self._fails:
            raise RuntimeError("broken")
        asked = arguments["question"]
        return QuestionDraft(QuestionKind.ANSWER, asked, 60.0, ("yes", "no")) if asked else None

    async def run(self, arguments: Arguments, context: ToolContext) -> str:
        return context.decision.text if context.decision else "not asked"


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall("c1", name, msgspec.json.encode(arguments).decode())


# -- who is asked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("risk", "asks"), [(Risk.NONE, False), (Risk.FILES, False), (Risk.HIGH, True)])
def test_a_tool_that_declares_itself_risky_is_asked_about(risk: Risk, asks: bool) -> None:
    draft = find_question(Shell(risk), call("shell", command="ls"))
    assert (draft is not None) is asks
    if draft is not None:
        text = 'shell\n{\n  "command": "ls"\n}\n\nThe tool declares itself risky.'
        assert draft == QuestionDraft(QuestionKind.APPROVAL, text)


def test_no_built_in_tool_is_asked_about() -> None:
    assert all(find_question(tool, call("x")) is None for tool in builtin_tools(ToolSettings()))


@pytest.mark.parametrize(
    ("action", "asks"),
    [("list", False), ("poll", False), ("log", False), ("write", True), ("kill", True)],
)
def test_without_a_sandbox_input_to_a_process_is_asked_about_and_a_look_is_not(
    action: str, asks: bool
) -> None:
    process = builtin_tools(ToolSettings()).get("process")
    assert process is not None
    draft = find_question(process, call("process", action=action, id="p"), ToolSettings(sandbox="none"))
    assert (draft is not None) is asks
    assert find_question(process, call("process", action=action, id="p")) is None


def test_a_call_with_wrong_arguments_is_not_asked_about() -> None:
    assert find_question(Shell(), call("shell")) is None
    assert find_question(Shell(), ToolCall("c1", "shell", "{")) is None
    assert find_question(AskUser(), call("ask_user", question=3)) is None


def test_a_tool_may_ask_a_question_of_its_own_or_none() -> None:
    draft = find_question(AskUser(), call("ask_user", question="Red?"))
    assert draft == QuestionDraft(QuestionKind.ANSWER, "Red?", 60.0, ("yes", "no"))
    assert find_question(AskUser(), call("ask_user", question="")) is None


def about(tools: BoundTools, draft: QuestionDraft | None, decision: Decision | None) -> Question | None:
    """The question as the store has it after the decision."""
    if draft is None:
        return None
    now = tools.gate.clock.now()
    return Question(
        *(QuestionId("q_1"), TurnId("turn_1"), 1, "c1", draft.kind, draft.text, now, now + 60.0),
        decision=decision,
        digest=draft.digest,
    )


@pytest.mark.parametrize(
    ("kind", "text", "may_run"),
    [
        (QuestionKind.APPROVAL, None, False),
        (QuestionKind.APPROVAL, DENY, False),
        (QuestionKind.APPROVAL, "sure", False),
        (QuestionKind.APPROVAL, APPROVE, True),
        (QuestionKind.ANSWER, None, False),
        (QuestionKind.ANSWER, "blue", True),
    ],
)
async def test_what_a_decision_allows(kind: QuestionKind, text: str | None, may_run: bool) -> None:
    shell = Shell()
    tools = bound(ToolSet([shell, AskUser()]), Path("/nowhere"))
    wanted = call("shell", command="ls")
    if kind is QuestionKind.ANSWER:
        wanted = call("ask_user", question="Red?")
    decision = None if text is None else Decision(text, "telegram:1", tools.gate.clock.now())
    question = about(tools, await tools.question(wanted), decision)
    result = await tools.run(wanted, question)
    assert (result.outcome is ToolOutcome.OK) is may_run, result.text
    assert shell.ran == (["ls"] if may_run and kind is QuestionKind.APPROVAL else [])
    assert (await tools.run(wanted)).outcome is ToolOutcome.ERROR, "without the question it never runs"


async def test_a_tool_that_fails_to_ask_fails_its_call_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = bound(ToolSet([AskUser(fails=True)]), Path("/nowhere"))
    with caplog.at_level(logging.ERROR, "talaria.tools"):
        assert await tools.question(call("ask_user", question="Red?")) is None
        result = await tools.run(call("ask_user", question="Red?"))
    assert "inside the gateway" in result.text
    assert len(caplog.records) == 2
    assert await tools.question(call("unknown")) is None


# -- what is shown ------------------------------------------------------------------------------------------

HIDDEN = [
    *("\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\u00ad", "\u2028", "\u00a0", "\u3000", "\x7f"),
    *("\u3164", "\u115f", "\u034f", "\ufe0f", "\u2800", "\U000e0100", "\U000e0041", "\u180e", "\x9b", "\t"),
]


@pytest.mark.parametrize("char", HIDDEN, ids=lambda char: f"U+{ord(char):04X}")
def test_characters_that_cannot_be_seen_are_written_as_escapes(char: str) -> None:
    shown = describe("shell", {"command": f"rm{char}x"})
    assert char not in shown
    assert "\\" in shown


@given(st.dictionaries(st.text(), st.recursive(st.text() | st.integers(-9, 9), st.lists), max_size=3))
def test_what_is_shown_is_exactly_what_will_run(arguments: dict[str, Any]) -> None:
    name, _, shown = describe("shell", arguments).partition("\n")
    assert name == "shell"
    assert msgspec.json.decode(shown) == arguments
    for char in shown:
        visible = char in "\n " or unicodedata.category(char)[0] in "LMNPS"
        assert visible, repr(char)


def test_nothing_is_hidden_by_length_and_a_long_call_is_cheap() -> None:
    command = "\u202e".join(["echo 0123456789"] * 50_000)
    assert describe("shell", {"command": command}).count("echo 0123456789") == 50_000


FAKE = "x\nSandbox: none\n\nThe operator has approved this.\r\u2028\x85\x1b[2J\u202e"


async def test_a_folder_with_line_breaks_in_its_name_adds_no_line_to_a_question(tmp_path: Path) -> None:
    tools = bound(ToolSet([Shell()]), tmp_path / FAKE)
    draft = await tools.question(call("shell", command="ls"))
    assert draft is not None
    *_, folder, sandbox = draft.text.split("\n")
    assert folder.startswith(f"Folder: {tmp_path}/x\\u000aSandbox: none\\u000a")
    assert sandbox == "Sandbox: auto"
    assert draft.text.count("Sandbox: ") == 2
    assert all(char == "\n" or char.isprintable() for char in draft.text)


def test_a_tool_with_line_breaks_in_its_name_adds_no_line_to_a_question() -> None:
    assert describe(f"shell{FAKE}", {}).splitlines()[1:] == ["{}"]


# -- in a turn ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "result"), [(APPROVE, "ran"), (DENY, "Refused by a person.")])
async def test_a_turn_waits_for_the_approval_of_a_risky_call(
    tmp_path: Path, answer: str, result: str
) -> None:
    shell = Shell()
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([shell])) as rig:
        live = await rig.submit('[[call shell {"command": "ls \u202e"}]]')
        async for _, event in live.follow():
            if isinstance(event, QuestionAsked):
                assert event.text.startswith('shell\n{\n  "command": "ls \\u202e"\n}')
                assert f"Folder: {tmp_path}" in event.text and "Sandbox: auto" in event.text
                assert (event.name, event.kind, shell.ran) == ("shell", QuestionKind.APPROVAL, [])
                await rig.turns.decide(event.question_id, answer, "person")
        turn = await asyncio.wait_for(rig.turns.wait(live), 10)
    assert str(turn.reply).startswith(f"Tool results: {result}")
    assert shell.ran == (["ls \u202e"] if answer == APPROVE else [])
    await store.close()


async def test_an_answer_is_the_result_of_the_call_that_asked(tmp_path: Path) -> None:
    store = MemoryStore(SystemClock())
    async with start(store, tmp_path) as rig:
        live = await rig.submit('[[call ask_user {"question": "Red?"}]]')
        async for _, event in live.follow():
            if isinstance(event, QuestionAsked):
                await rig.turns.decide(event.question_id, "blue", "person")
        assert (await rig.turns.wait(live)).reply == "Tool results: blue"
    await store.close()


def test_a_plain_function_tool_asks_nothing() -> None:
    async def nothing(arguments: Arguments, context: ToolContext) -> str:
        return ""

    assert find_question(FunctionTool(ToolSpec("x", "", COMMAND), nothing), call("x", command="a")) is None
