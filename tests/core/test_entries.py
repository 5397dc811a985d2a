from __future__ import annotations

from functools import reduce
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.entries import (
    MEMORY_TOOL,
    Entry,
    EntryBody,
    Hidden,
    ReasoningSet,
    Revision,
    SpecSet,
    Summary,
    SummaryDropped,
    TitleSet,
    advance,
    exchanges,
    hidden_seqs,
    tells_of_memory,
)
from talaria.core.ids import SessionId, SpecId
from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.shown import settled_bodies
from talaria.store.sql.rows import decode_body, encode

text = st.text(max_size=20)
parts = (
    st.builds(Text, text)
    | st.builds(Image, text, st.none() | text)
    | st.builds(File, text, text, text, st.integers(0, 2**60))
)
bodies: st.SearchStrategy[EntryBody] = st.one_of(
    st.builds(SystemMessage, text, text),
    st.builds(UserMessage, st.lists(parts, max_size=3).map(tuple), text, st.none() | text),
    st.builds(
        AssistantMessage,
        text,
        st.lists(st.builds(ToolCall, text, text, text), max_size=3).map(tuple),
        st.lists(st.builds(Reasoning, text, text, text), max_size=3).map(tuple),
        text,
        st.booleans(),
    ),
    st.builds(
        ToolResults,
        st.lists(st.builds(ToolResult, text, text, text, st.sampled_from(ToolOutcome)), max_size=3).map(
            tuple
        ),
    ),
    st.builds(SpecSet, text.map(SpecId)),
    st.builds(TitleSet, text),
    st.builds(ReasoningSet, text),
    st.builds(Hidden, st.integers(1, 20), st.integers(1, 20)),
    st.builds(Summary, st.integers(1, 20), st.integers(1, 20), text, untrusted=st.booleans()),
    st.builds(SummaryDropped, st.integers(1, 20)),
)


@settings(deadline=None)
@given(bodies)
def test_a_body_comes_back_from_its_bytes_as_it_was(body: EntryBody) -> None:
    data = encode(body)
    assert decode_body(data) == body
    assert type(decode_body(data)) is type(body)
    assert encode(decode_body(data)) == data


def test_every_kind_of_body_has_its_own_tag() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(EntryBody)}
    assert tags == {
        "system",
        "user",
        "assistant",
        "tool_results",
        "spec",
        "title",
        "reasoning",
        "hidden",
        "note",
        "summary",
        "summary_dropped",
        "announcement",
    }


def test_a_tool_calls_arguments_are_kept_byte_for_byte() -> None:
    arguments = '{ "a" :1,\t"a": 2 } not json \u2028'
    body = AssistantMessage(tool_calls=(ToolCall("c", "t", arguments),))
    decoded = decode_body(encode(body))
    assert isinstance(decoded, AssistantMessage)
    assert decoded.tool_calls[0].arguments == arguments


@pytest.mark.parametrize("data", ["", "{}", '{"type":"other"}', '{"type":"user"}', "[]"])
def test_what_is_not_a_body_is_refused(data: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_body(data)


def test_every_append_counts_and_only_a_later_spec_or_an_undo_rewrites() -> None:
    bodies: list[EntryBody] = [
        SpecSet(SpecId("spec_1")),
        UserMessage((Text("hi"),)),
        AssistantMessage("hello"),
        TitleSet("greeting"),
        SpecSet(SpecId("spec_2")),
        ToolResults(()),
        ReasoningSet("high"),
        Hidden(2, 3),
    ]
    seen = [Revision(0, 0)]
    for body in bodies:
        seen.append(advance(seen[-1], body))
    assert [str(revision) for revision in seen] == [
        "0.0",
        "0.1",
        "0.2",
        "0.3",
        "0.4",
        "1.5",
        "1.6",
        "1.7",
        "2.8",
    ]


@settings(deadline=None)
@given(st.lists(bodies, max_size=12))
def test_revisions_only_ever_grow(appended: list[EntryBody]) -> None:
    revision = Revision(0, 0)
    for body in appended:
        later = advance(revision, body)
        assert later > revision
        assert later.seq == revision.seq + 1
        revision = later
    assert revision == reduce(advance, appended, Revision(0, 0))


@settings(deadline=None)
@given(bodies)
def test_a_model_sees_messages_and_nothing_else(body: EntryBody) -> None:
    entry = Entry(SessionId("ses_1"), 1, 0, 0.0, None, body)
    assert entry.message is (body if isinstance(body, Message) else None)


def log(*bodies: EntryBody) -> list[Entry]:
    return [Entry(SessionId("ses_x"), seq, 0, 0.0, None, body) for seq, body in enumerate(bodies, 1)]


def test_results_of_the_memory_tool_may_tell_of_a_change_of_memory() -> None:
    memory, other = (ToolResult("c", name, "Saved.") for name in (MEMORY_TOOL, "shell"))
    bodies = ToolResults((other, memory)), ToolResults((other,)), AssistantMessage("memory")
    assert [tells_of_memory(entry) for entry in log(*bodies)] == [True, False, False]


def test_exchanges_are_what_the_model_sees_of_a_log() -> None:
    one, two = UserMessage((Text("one"),)), UserMessage((Text("two"),))
    entries = log(
        SpecSet(SpecId("spec_1")),
        one,
        AssistantMessage(tool_calls=(ToolCall("c", "t", "{}"),)),
        ToolResults(()),
        AssistantMessage("first"),
        TitleSet("t"),
        two,
        AssistantMessage("second"),
    )
    assert [(each.first, each.last, each.said) for each in exchanges(entries)] == [(2, 5, one), (7, 8, two)]
    undone = [*entries, *log(*(TitleSet("pad"),) * 8, Hidden(7, 8))[8:]]
    assert hidden_seqs(undone) == {7, 8}
    assert [each.said for each in exchanges(undone)] == [one]
    assert exchanges([]) == []


def test_a_branch_begins_with_the_settled_part_of_the_log() -> None:
    def entries(*bodies: EntryBody) -> list[Entry]:
        return [Entry(SessionId("s"), seq, 1, 0.0, None, body) for seq, body in enumerate(bodies, 1)]

    ask, more, answer = UserMessage((Text("a"),)), UserMessage((Text("b"),)), AssistantMessage("x")
    call = AssistantMessage("", (ToolCall("1", "now", "{}"),))
    results = ToolResults((ToolResult("1", "now", "12"),))
    low, high = ReasoningSet("low"), ReasoningSet("high")

    def branch(log: list[Entry]) -> tuple[EntryBody, ...]:
        return settled_bodies(SessionId("s"), log, 2)

    assert branch(entries()) == ()
    assert branch(entries(ask)) == ()
    assert branch(entries(ask, answer)) == (ask, answer)
    assert branch(entries(ask, answer, more)) == (ask, answer)
    assert branch(entries(ask, answer, more, call, results)) == (ask, answer)
    assert branch(entries(ask, call, results, answer)) == (ask, call, results, answer)
    assert branch(entries(low, ask, high, answer)) == (high, ask, answer)
    assert branch(entries(ask, answer, more, answer, Hidden(3, 4))) == (ask, answer)
