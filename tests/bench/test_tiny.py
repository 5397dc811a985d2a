"""How answers of the built-in model are judged. The model itself is asked in the long form of the bench."""

from __future__ import annotations

import pytest

from bench.tiny import Chat, Dialogue, Request, load_cases
from talaria.core.messages import AssistantMessage, ToolCall
from talaria.models.local.tiny_prompt import offered_tools, opening_messages
from talaria.tools.builtin import builtin_tools
from talaria.tools.settings import ToolSettings

LIST = Request("List src.", "list_files", path=("src", "src/"))
TOLD = Dialogue("Read a.txt", "read_file", "{}", "Call Oskar.", ("oskar", "call|ring"))


def said(text: str) -> AssistantMessage:
    return AssistantMessage(text)


def called(name: str, arguments: str = "{}") -> AssistantMessage:
    return AssistantMessage("", (ToolCall("c", name, arguments),))


@pytest.mark.parametrize(
    ("case", "answer", "is_right"),
    [
        (LIST, called("list_files", '{"path": "src/"}'), True),
        (LIST, called("list_files"), False),
        (LIST, called("read_file", '{"path": "src"}'), False),
        (LIST, said("There is nothing."), False),
        (Request("Hello!", ""), said("Hello!"), True),
        (Request("Hello!", ""), said(" "), False),
        (Request("Hello!", ""), called("list_files"), False),
        (TOLD, said("It says: ring Oskar."), True),
        (TOLD, said("It says something of Oskar."), False),
        (TOLD, called("read_file"), False),
        (Chat("Thanks!"), said("You are welcome."), True),
        (Chat("Thanks!"), said("I cannot thank files; I can only look at them."), False),
        (Chat("Thanks!"), said("I'm sorry, I can't assist with that."), False),
        (Chat("Thanks!"), called("list_files"), False),
    ],
)
def test_an_answer_is_judged(
    case: Request | Dialogue | Chat, answer: AssistantMessage, is_right: bool
) -> None:
    assert case.is_right(answer) is is_right


def test_the_cases_are_as_many_as_the_docs_say_and_none_is_among_the_examples() -> None:
    cases = load_cases()
    assert (len(cases.request), len(cases.dialogue), len(cases.chat)) == (30, 12, 8)
    tools = builtin_tools(ToolSettings()).specs
    shown = {message["content"] for message in opening_messages("", offered_tools(tools))}
    assert all(case.say not in shown for case, _ in cases.each())
    assert sum(len(conversation) for _, conversation in cases.each()) == 30 + 12 * 3 + 4 + 4 * 5
