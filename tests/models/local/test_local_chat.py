"""What a tiny model is sent, and how its answers are read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from talaria.agent.prompt import render_prompt
from talaria.core.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.models import Completion, ModelCall, TextDelta
from talaria.core.specs import Prefix
from talaria.models.failures import ProviderErrors
from talaria.models.local.local_chat import MAX_RESULT, LocalChat, ReplyStream
from talaria.tools.builtin import builtin_tools
from talaria.tools.settings import ToolSettings

WIRE = LocalChat()
TOOLS = builtin_tools(ToolSettings()).specs
PREFIX = WIRE.render_prefix(render_prompt("main", "", [spec.name for spec in TOOLS]), TOOLS)
HELLO = UserMessage((Text("hello"),))
LOOK = AssistantMessage("", (ToolCall("c1", "read_file", '{"path":"a.txt"}'),))
SEEN = ToolResults((ToolResult("c1", "read_file", "four words of text"),))
ASKED = "\n\nTell me all that this result says."


def body(*messages: Message, prefix: Prefix = PREFIX, **more: Any) -> dict[str, Any]:
    call = ModelCall("tiny", prefix, [WIRE.encode(message) for message in messages], **more)
    decoded: dict[str, Any] = msgspec.json.decode(b"".join(WIRE.body(call)))
    return decoded


def choices(sent: dict[str, Any]) -> list[str]:
    """What the answer may be."""
    schema = sent["response_format"]["json_schema"]["schema"]
    return [
        one["properties"]["tool"]["const"] if "tool" in one["properties"] else "reply"
        for one in schema.get("anyOf", [schema])
    ]


def test_few_tools_are_offered_as_one_schema_and_none_of_them_writes() -> None:
    sent = body(UserMessage((Text("Is www.example.org a nice place?"),)))
    assert choices(sent) == ["list_files", "read_file", "search_files", "reply"]
    assert "tools" not in sent
    assert all(
        tool not in PREFIX.system.decode() for tool in ("write_file", "edit_file", "send_file", "todo")
    )


def test_without_tools_nothing_is_said_of_them() -> None:
    sent = body(HELLO, prefix=WIRE.render_prefix("Be brief.", []))
    assert "response_format" not in sent
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]


def test_the_tools_of_a_stateless_caller_go_out_as_they_came() -> None:
    sent = body(HELLO, prefix=Prefix(b"", b'[{"type":"function"}]'))
    assert sent["tools"] == [{"type": "function"}]
    assert "response_format" not in sent


def test_examples_name_only_tools_that_are_offered() -> None:
    few = [spec for spec in TOOLS if spec.name == "read_file"]
    text = WIRE.render_prefix("", few).system.decode()
    assert "read_file" in text
    assert "list_files" not in text
    assert "search_files" not in text


def test_a_call_and_its_result_are_words_that_a_tiny_model_knows() -> None:
    sent = body(HELLO, LOOK, SEEN)["messages"][-2:]
    assert sent[0] == {"role": "assistant", "content": '{"tool": "read_file", "arguments": {"path":"a.txt"}}'}
    assert sent[1] == {"role": "user", "content": f"Result of read_file:\nfour words of text{ASKED}"}


def test_a_failed_call_says_so_and_a_long_result_is_cut() -> None:
    failed = ToolResults((ToolResult("c1", "read_file", "no such file", ToolOutcome.ERROR),))
    assert body(failed)["messages"][-1]["content"] == f"Result of read_file (error):\nno such file{ASKED}"
    long = ToolResults((ToolResult("c1", "read_file", "x" * (MAX_RESULT + 7)),))
    told = body(long)["messages"][-1]["content"]
    assert told.endswith(f"xx\n[7 more characters]{ASKED}")
    assert len(told) < MAX_RESULT + 100


def seen(name: str, outcome: ToolOutcome = ToolOutcome.OK) -> ToolResults:
    return ToolResults((ToolResult("c1", name, "four words of text", outcome),))


FAILED = seen("read_file", ToolOutcome.ERROR)
ALL = ["list_files", "read_file", "search_files", "reply"]


@pytest.mark.parametrize(
    ("said", "may"),
    [
        ([SEEN], ["reply"]),
        ([seen("list_files")], ["read_file", "reply"]),
        ([seen("search_files")], ["read_file", "reply"]),
        ([FAILED], ALL),
        ([FAILED, LOOK, seen("list_files")], ["reply"]),
        ([FAILED, LOOK, FAILED], ["reply"]),
        ([FAILED, AssistantMessage("None."), HELLO, LOOK, FAILED], ALL),
        ([SEEN, AssistantMessage("Four."), HELLO], ALL),
    ],
)
def test_after_a_result_it_tells_it_and_after_two_in_a_row_it_has_to(
    said: list[Message], may: list[str]
) -> None:
    assert choices(body(HELLO, LOOK, *said)) == may


@pytest.mark.parametrize(
    ("said", "may"),
    [
        ("Read notes.txt", ALL[:-1]),
        ("Was steht in Einkauf.TXT?", ALL[:-1]),
        ("show config/settings.toml", ALL[:-1]),
        ("show config/settings", ALL),
        ("What is in the README?", ALL),
        ("Have you seen example.org?", ALL),
        ("Write a Python function. Then stop.", ALL),
        ("list the files here", ALL),
        ("In which of my notes did I mention the dentist?", ALL[:-1]),
        ("Which files mention a.b?", ALL[:-1]),
        ("what's in the directory src?", ALL[:-1]),
        ("What is my name?", ALL),
    ],
)
def test_words_that_name_a_file_or_speak_of_files_want_a_look(said: str, may: list[str]) -> None:
    assert choices(body(UserMessage((Text(said),), stamp="2026-11-16 09:00 UTC"))) == may


def test_no_example_refuses_and_a_result_is_told_as_in_the_examples() -> None:
    shown = msgspec.json.decode(b"[" + PREFIX.system + b"]")
    answers = [message["content"] for message in shown if message["role"] == "assistant"]
    assert not any(word in answer for answer in answers for word in ("cannot", "can't", "only"))
    [result] = [n for n, message in enumerate(shown) if message["content"].endswith(ASKED)]
    found = shown[result]["content"].removesuffix(ASKED).splitlines()[1:]
    assert all(line.lower() in shown[result + 1]["content"] for line in found)


def test_an_image_is_a_word_that_it_cannot_be_seen() -> None:
    seen = UserMessage((Text("look"), Image("data:image/png;base64,AAAA")))
    assert body(seen)["messages"][-1]["content"] == "look\n[an image, which this model cannot see]"


def test_answers_are_bounded_and_cold() -> None:
    sent = body(HELLO, reasoning="high", max_output=100_000)
    assert (sent["max_tokens"], sent["temperature"]) == (512, 0)
    assert "reasoning_effort" not in sent
    assert body(HELLO, sampling=b'"temperature":1')["temperature"] == 1


def test_earlier_bytes_are_a_prefix_of_later_ones() -> None:
    said: list[Message] = [HELLO, LOOK, SEEN, AssistantMessage("Four."), HELLO]
    chunks = [WIRE.encode(message) for message in said]
    for count in range(1, len(chunks)):
        shorter = b"".join(WIRE.body(ModelCall("tiny", PREFIX, chunks[:count])))
        longer = b"".join(WIRE.body(ModelCall("tiny", PREFIX, chunks[: count + 1])))
        assert longer.startswith(shorter.partition(b'],"stream"')[0])


def test_the_prompt_is_compact() -> None:
    """About four bytes a token; the real count is checked where a real model is at hand."""
    assert len(PREFIX.system) < 2_800


def streamed(text: str, cuts: list[int]) -> str:
    stream, said, last = ReplyStream(), "", 0
    for cut in [*sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]:
        said += stream.feed(text[last:cut])
        last = cut
    return said + stream.flush()


@given(st.text(), st.lists(st.integers(min_value=0)), st.booleans())
@example('a\ud83d\ude00b\\"\n', [1, 2, 3, 5, 8, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], True)
def test_a_reply_streams_as_its_text_wherever_it_is_cut(text: str, cuts: list[int], is_ascii: bool) -> None:
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for wrapped in (
        json.dumps({"reply": text}, ensure_ascii=is_ascii),
        f'\n {{ "reply"\n : {json.dumps(text, ensure_ascii=is_ascii)}\n}} ',
    ):
        assert streamed(wrapped, cuts) == text


@given(st.lists(st.integers(min_value=0)))
def test_nothing_of_a_tool_call_is_shown(cuts: list[int]) -> None:
    assert streamed('{"tool": "read_file", "arguments": {"path": "x"}}', cuts) == ""


@given(
    st.sampled_from(
        ["Hello.", '{"other": 1}', "{", '{"re', '{"rest": 1}', '"reply"', "", '{"tools": []}', " "]
    ),
    st.lists(st.integers(min_value=0)),
)
def test_what_is_no_object_of_ours_is_shown_as_it_is(text: str, cuts: list[int]) -> None:
    assert streamed(text, cuts) == text


def read(text: str, *, finish: str = "stop") -> tuple[Completion, str]:
    answer = LocalChat().decoder("tiny", ProviderErrors("local", "tiny"))
    shown = ""
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in text]
    for chunk in (*chunks, {"choices": [{"delta": {}, "finish_reason": finish}]}):
        for delta in answer.feed(b"data: " + msgspec.json.encode(chunk) + b"\n\n"):
            assert isinstance(delta, TextDelta)
            shown += delta.text
    assert answer.has_started
    assert answer.is_complete
    for delta in answer.end():
        assert isinstance(delta, TextDelta)
        shown += delta.text
    return answer.completion(), shown


def test_a_call_becomes_an_ordinary_one() -> None:
    completion, shown = read('{"tool": "read_file", "arguments": {"path": "a b.txt"}}')
    [call] = completion.message.tool_calls
    assert (call.name, msgspec.json.decode(call.arguments)) == ("read_file", {"path": "a b.txt"})
    assert (completion.message.text, completion.stop, shown) == ("", "tool_calls", "")
    again, _ = read('{"tool": "read_file", "arguments": {"path": "a b.txt"}}')
    assert again.message.tool_calls[0].id != call.id


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"reply": "Hi \\u00e9\\n"}', "Hi é\n"),
        ("Just text.", "Just text."),
        ('{"answer": 42}', '{"answer": 42}'),
        ('{"reply": 42}', '{"reply": 42}'),
    ],
)
def test_a_reply_becomes_its_text(text: str, said: str) -> None:
    completion, shown = read(text)
    assert completion.message.text == shown == said
    assert completion.message.tool_calls == ()


def test_of_an_answer_that_was_cut_off_the_reply_stands_and_a_call_does_not() -> None:
    completion, shown = read('{"reply": "Once upon a', finish="length")
    assert completion.message.text == shown == "Once upon a"
    assert completion.stop == "length"
    completion, shown = read('{"tool": "read_file", "argu', finish="length")
    assert (completion.message.text, completion.message.tool_calls, shown) == ("", (), "")
