from __future__ import annotations

import msgspec

from talaria.core.entries import Entry, EntryBody, Hidden, ReasoningSet, Summary, SummaryDropped
from talaria.core.ids import SessionId
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.shown import ShownLog, settled_bodies

SESSION = SessionId("ses_1")
LONG = "x" * 5000


def log(*bodies: EntryBody) -> list[Entry]:
    return [Entry(SESSION, seq, 0, 0.0, None, body) for seq, body in enumerate(bodies, 1)]


def ask(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def texts(entries: list[Entry]) -> list[str]:
    return [getattr(shown.message, "text", "") for shown in ShownLog(entries).messages()]


EXCHANGE = (ask("a"), AssistantMessage("b"), ask("c"), AssistantMessage("d"))


def test_the_summary_in_force_stands_first_and_for_its_range() -> None:
    entries = log(*EXCHANGE, Summary(1, 2, "they greeted"), ask("e"))
    summary, *rest = texts(entries)
    assert summary.startswith(
        "[This summary (s5) stands for the earlier part of this conversation, e1 to e2."
    )
    assert "recall_expand" in summary and summary.endswith("they greeted")
    assert rest == ["c", "d", "e"]
    assert texts(entries[2:]) == [summary, *rest], "the entries behind the floor are enough"
    plain = next(ShownLog(entries).messages(can_recall=False)).message
    assert "recall" not in msgspec.json.encode(plain).decode()


def test_the_newest_summary_that_is_not_void_is_in_force() -> None:
    entries = log(
        *EXCHANGE, Summary(1, 2, "one"), ask("e"), AssistantMessage("f"), Summary(1, 4, "two", (5,))
    )

    def in_force(*more: EntryBody) -> int | None:
        return ShownLog([*entries, *log(*entries_of(entries), *more)[len(entries) :]]).summary_seq or None

    assert in_force() == 8
    assert in_force(Hidden(6, 8)) == 8, "an undo of the turn that compacted keeps the summary"
    assert in_force(Hidden(3, 7)) == 5
    assert in_force(Hidden(1, 7)) is None
    assert in_force(SummaryDropped(8)) == 5
    assert in_force(SummaryDropped(5)) is None
    assert in_force(SummaryDropped(5), Summary(1, 6, "again")) == 10
    assert ShownLog(entries).floor == 4
    assert ShownLog([]).floor == 0


def entries_of(entries: list[Entry]) -> list[EntryBody]:
    return [entry.body for entry in entries]


def test_stubs_keep_ids_calls_and_signed_thoughts() -> None:
    thought = Reasoning("thinking", "hm", '{"signature":"s"}')
    call = AssistantMessage(
        LONG, (ToolCall("c1", "write_file", LONG), ToolCall("c2", "now", "{}")), (thought,)
    )
    results = ToolResults(
        (
            ToolResult("c1", "write_file", LONG, parts=(Text(LONG), Image("data:x"))),
            ToolResult("c2", "now", "12"),
        )
    )
    picture = UserMessage((Text("look"), Image("data:image/png;base64,xx")))
    stubs = ("e1", "e2", "r3.1", "r3.2")
    shown = [each.message for each in ShownLog(log(picture, call, results, Summary(stubs=stubs))).messages()]
    told, said, given = shown
    assert isinstance(told, UserMessage) and [type(part) for part in told.parts] == [Text, Text]
    assert isinstance(said, AssistantMessage) and said.reasoning == (thought,)
    assert [each.id for each in said.tool_calls] == ["c1", "c2"]
    assert "e2" in msgspec.json.decode(said.tool_calls[0].arguments)["left_out"]
    assert said.tool_calls[1].arguments == "{}"
    assert isinstance(given, ToolResults)
    one, two = given.results
    assert (one.call_id, one.parts) == ("c1", ()) and "r3.1" in one.text and len(one.text) < 600
    assert two == results.results[1], "a short result stays as it is"


def test_folded_steps_are_one_line() -> None:
    steps: tuple[Message, ...] = (AssistantMessage("", (ToolCall("c", "now", "{}"),)), ToolResults(()))
    entries = log(ask("go"), *steps, *steps, *steps, Summary(folds=((2, 5),)))
    shown = list(ShownLog(entries).messages())
    assert [each.seq for each in shown] == [1, 2, 6, 7]
    assert texts(entries)[1] == "[Note: the steps e2 to e5 of this turn are left out to save room.]"


def test_a_branch_begins_with_the_summary_and_the_messages_behind_it() -> None:
    result = ToolResults((ToolResult("c", "now", LONG),))
    call = AssistantMessage("", (ToolCall("c", "now", "{}"),))
    entries = log(
        *EXCHANGE,
        ReasoningSet("low"),
        ask("e"),
        call,
        result,
        AssistantMessage("f"),
        Summary(1, 4, "s", stubs=("r8.1",)),
    )
    bodies = settled_bodies(SESSION, entries, 2)
    assert bodies[:-1] == (ReasoningSet("low"), ask("e"), call, result, AssistantMessage("f"))
    assert bodies[-1] == Summary(1, 4, "s", stubs=("r5.1",), of=SESSION)
    branch = log(AssistantMessage("the spec"), *bodies)
    assert (
        texts(branch)[0].startswith("[This summary (s7) stands for")
        and "ses_1/e1 to ses_1/e4" in texts(branch)[0]
    )
    assert texts(branch)[3:5] == ["", ""] and ShownLog(branch).floor == 0
    early = settled_bodies(SESSION, entries, 2, until=2)
    assert early == (ReasoningSet("low"), *EXCHANGE[:2]), "the summary says more than was said then"
