"""What every wire format must do: on the way out its bytes stay, on the way in any bytes are an answer or an
error of ours. Subclasses give the `wire`, and one answer with `TEXT` and `CALLS` as its server streams it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from talaria.core.errors import ModelError, ModelUnavailable
from talaria.core.messages import (
    AssistantMessage,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import CallDelta, Completion, ModelCall, ModelDelta, Prefix, TextDelta
from talaria.core.tools import ToolSpec
from talaria.models.failures import ProviderErrors
from talaria.models.wire import Wire

TEXT = "Grüße,\nzwei Zeilen 🎉 und\tmehr"
CALLS = (ToolCall("call_1", "read_file", '{"path": "a ü"}'), ToolCall("call_2", "todo", "{}"))
TOOLS = [ToolSpec("b", "B.", '{"type": "object"}'), ToolSpec("a", "A.", '{"type":"object","title":"a"}')]
HELLO = UserMessage((Text("hello"),))
CALLED = AssistantMessage("look", (ToolCall("c1", "a", '{"x": "ü"}'),))
FILE = File("f.pdf", "inbox/f.pdf", "application/pdf", 9)
LOG: tuple[Message, ...] = (
    UserMessage((Text("one"),), "Mon"),
    CALLED,
    ToolResults((ToolResult("c1", "a", "text"),)),
    AssistantMessage("answer"),
    UserMessage((Text("two"), Image("data:image/png;base64,AAAA")), "Tue"),
    CALLED,
    ToolResults((ToolResult.of("c1", "a", (Text("see"), Image("data:image/png;base64,BBBB"), FILE)),)),
    AssistantMessage("par", interrupted=True),
    SystemMessage("Hurry."),
    HELLO,
)
THOUGHTS = (
    Reasoning("reasoning_content", "hm", '"secret"'),
    Reasoning("reasoning_details", "hm", '[{"type":"reasoning.text","text":"secret"}]'),
    Reasoning("thinking", "hm", '{"type":"thinking","thinking":"secret","signature":"s"}'),
    Reasoning("unsigned_thinking", "hm", '"secret"'),
    Reasoning("responses.item", "hm", '{"type":"reasoning","summary":[],"encrypted_content":"secret"}'),
)

NOISE = (
    b": keep-alive\n\n",
    b'event: someday\ndata: {"type": "someday"}\n\n',
    b"retry: 10\n\n",
    b"\n",
    b"id: 7\n\n",
)
DEEP = b"[" * 5000
BROKEN = [b"{", b"nonsense", b"[1]", b'"x"', b"\xff\xfe", b"{}x", b'{"type":', b"null", b"7"]
BROKEN += [DEEP, b'{"error":' + DEEP]
CUTS = st.lists(st.integers(0, 20_000), max_size=20)
KEYS = re.findall(
    r"\S+",
    "type choices delta content tool_calls function item output output_index index error usage text id name "
    "response message content_block input stop_reason summary encrypted_content arguments phase",
)
KINDS = re.findall(
    r"\S+",
    "message_start content_block_start content_block_delta message_delta message error reasoning text "
    "response.output_text.delta response.output_item.added response.output_item.done response.completed "
    "function_call thinking tool_use",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=5) | st.sampled_from(KINDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
EVENTS = JSON | st.builds(
    lambda kind, members: {**members, "type": kind},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
)
# Each subclass runs the tests of the suite for itself.
fuzzed = settings(max_examples=150, suppress_health_check=[HealthCheck.differing_executors])


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


def as_event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def read_with(wire: Wire, *pieces: bytes) -> tuple[Completion, list[ModelDelta]]:
    """The answer, and what was told of it while it came."""
    answer = wire.decoder("m", ProviderErrors("acme", "m"))
    deltas = [delta for piece in pieces for delta in answer.feed(piece)]
    deltas += answer.end()
    return answer.completion(), deltas


class WireSuite:
    wire: Wire
    own_thoughts: tuple[str, ...] = ()
    tells_parts = True  # may be told as they come, and are told at the end otherwise

    def events(self) -> list[bytes]:
        raise NotImplementedError

    def bare(self, body: bytes) -> bytes:
        """Without marks that move along with the conversation."""
        return body

    # -- on the way out

    def body(self, *log: Message, prefix: Prefix | None = None, **call: Any) -> bytes:
        chunks = [self.wire.encode(message) for message in log]
        return b"".join(self.wire.body(ModelCall("m", prefix or Prefix(b"", b""), chunks, **call)))

    @pytest.mark.parametrize("is_wished", [True, False])
    def test_calls_are_told_as_they_come_if_that_is_wished(self, is_wished: bool) -> None:
        answer = self.wire.decoder("m", ProviderErrors("acme", "m"))
        answer.tells_parts = is_wished
        told: dict[int, list[str]] = {}
        for event in self.events():
            for delta in answer.feed(event):
                if isinstance(delta, CallDelta):
                    call = told.setdefault(delta.index, [delta.call_id, delta.name, ""])
                    call[2] += delta.arguments
                    assert call[:2] == [delta.call_id, delta.name] or delta.call_id == delta.name == ""
        answer.end()
        calls = answer.completion().message.tool_calls
        whole = {n: [call.id, call.name, call.arguments] for n, call in enumerate(calls)}
        assert told == (whole if is_wished and self.tells_parts else {})

    def test_the_prefix_keeps_the_order_of_tools_and_their_schemas_verbatim(self) -> None:
        prefix = self.wire.render_prefix("Be kind.", TOOLS)
        assert prefix == self.wire.render_prefix("Be kind.", TOOLS)
        places = [prefix.tools.index(spec.parameters.encode()) for spec in TOOLS]
        assert places == sorted(places)
        assert prefix.tools in self.body(HELLO, prefix=prefix)

    def test_an_empty_prompt_and_no_tools_leave_no_trace(self) -> None:
        assert self.wire.render_prefix("", []) == Prefix(b"", b"")
        assert "tools" not in json.loads(self.body(HELLO))

    @pytest.mark.parametrize("prompt", ["", "Be kind."])
    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_a_body_is_json_with_and_without_each_part(self, prompt: str, count: int) -> None:
        body = self.body(*[HELLO] * count, prefix=self.wire.render_prefix(prompt, []))
        assert json.loads(body)["model"] == "m"
        assert (body.count(b"hello"), body.count(b"Be kind.")) == (count, bool(prompt))

    def test_the_key_goes_into_its_header(self) -> None:
        assert any("sk-1" in value for value in self.wire.headers("sk-1").values())
        assert not any("sk-1" in value or "None" in value for value in self.wire.headers("").values())

    @pytest.mark.parametrize("lead", [None, SystemMessage("Be brief."), AssistantMessage("Welcome.")])
    def test_a_later_body_begins_with_the_conversation_of_the_earlier_one(self, lead: Message | None) -> None:
        prefix = self.wire.render_prefix("Be kind.", TOOLS)
        first = [lead] if lead else []
        efforts = ("none", "low", "high", None, "medium") * 2
        bodies = [
            self.body(*first, *LOG[:n], prefix=prefix, reasoning=effort)
            for n, effort in zip(range(1, len(LOG) + 1), efforts, strict=False)
        ]
        assert all(prefix.tools in body for body in bodies)
        for message, (earlier, later) in zip(LOG, pairwise(map(self.bare, bodies)), strict=False):
            last = self.wire.encode(message)
            assert later.startswith(earlier[: earlier.rindex(last) + len(last)] + b",")

    @pytest.mark.parametrize("thought", THOUGHTS, ids=lambda thought: thought.field)
    def test_thoughts_of_another_format_are_left_out(self, thought: Reasoning) -> None:
        with_it = AssistantMessage("look", CALLED.tool_calls, (thought,))
        is_sent = b"secret" in self.wire.encode(with_it)
        assert is_sent == (thought.field in self.own_thoughts)
        assert is_sent or self.wire.encode(with_it) == self.wire.encode(CALLED)

    @pytest.mark.parametrize("outcome", ToolOutcome)
    def test_a_result_of_parts_tells_all_its_texts_and_files(self, outcome: ToolOutcome) -> None:
        image = Image("data:image/png;base64,BBBB")
        result = ToolResult.of("c1", "a", (Text("before"), image, Text("after"), FILE), outcome)
        body = self.body(HELLO, CALLED, ToolResults((result,)))
        places = [body.index(text) for text in (b"before", b"after", b"inbox/f.pdf")]
        assert places == sorted(places)
        assert body.count(b"BBBB") <= 1

    def test_a_result_of_nothing_but_text_is_written_as_a_text(self) -> None:
        parts: tuple[Part, ...] = (Text("one"), Text("two"))
        plain = ToolResults((ToolResult("c1", "a", "one\ntwo"),))
        assert self.wire.encode(ToolResults((ToolResult.of("c1", "a", parts),))) == self.wire.encode(plain)

    # -- on the way in

    def read(self, pieces: list[bytes]) -> Completion:
        completion, deltas = read_with(self.wire, *pieces)
        told = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        assert completion.message.text == told
        json.loads(b"[%b]" % self.wire.encode(completion.message))  # what was kept can be sent back
        return completion

    def outcome(self, pieces: list[bytes]) -> Completion | type[ModelError]:
        try:
            return self.read(pieces)
        except ModelError as error:
            return type(error)

    def test_the_answer_is_whole_as_it_was_written(self) -> None:
        completion = self.read(self.events())
        calls = [(call.name, json.loads(call.arguments)) for call in completion.message.tool_calls]
        assert completion.message.text == TEXT
        assert calls == [(call.name, json.loads(call.arguments)) for call in CALLS]
        assert completion.stop == "tool_calls"

    @fuzzed
    @given(
        end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
        cuts=CUTS,
        noise=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(NOISE))),
    )
    def test_splits_line_ends_and_noise_change_nothing(
        self, end: bytes, cuts: list[int], noise: list[tuple[int, bytes]]
    ) -> None:
        told = self.events()
        for at, what in noise:
            told.insert(at % len(told), what)
        data = b"".join(told).replace(b"\n", end)
        assert self.outcome(split(data, cuts)) == self.read(self.events())

    def test_the_last_event_may_lack_its_blank_line(self) -> None:
        data = b"".join(self.events()).rstrip(b"\n")
        assert self.read([data]).message == self.read(self.events()).message

    @fuzzed
    @given(at=st.integers(0, 20_000), cuts=CUTS)
    def test_a_stream_that_ends_early_is_the_whole_answer_or_none(self, at: int, cuts: list[int]) -> None:
        data = b"".join(self.events())
        found = self.outcome(split(data[: at % (len(data) + 1)], cuts))
        whole = self.read(self.events()).message
        assert found is ModelUnavailable or (isinstance(found, Completion) and found.message == whole)

    def test_an_answer_without_an_end_was_cut_off(self) -> None:
        for pieces in ([], [b"\n"], self.events()[:2]):
            with pytest.raises(ModelUnavailable, match="the answer was cut off"):
                self.read(pieces)

    @pytest.mark.parametrize("data", BROKEN, ids=lambda data: data[:9])
    def test_what_is_no_event_cannot_be_read(self, data: bytes) -> None:
        with pytest.raises(ModelUnavailable, match="cannot be read"):
            self.read([b"data: " + data + b"\n\n", *self.events()])

    def test_half_of_an_answer_that_is_no_stream_cannot_be_read(self) -> None:
        with pytest.raises(ModelUnavailable, match="cannot be read"):
            self.read([b'{"type": "message", "cho'])

    @fuzzed
    @given(at=st.integers(0, 60), broken=st.sampled_from(BROKEN), cuts=CUTS)
    def test_an_event_that_is_no_json_ends_the_answer_and_never_changes_it(
        self, at: int, broken: bytes, cuts: list[int]
    ) -> None:
        told = self.events()
        told.insert(at % (len(told) + 1), b"data: " + broken + b"\n\n")
        found = self.outcome(split(b"".join(told), cuts))
        assert isinstance(found, type) or found.message == self.read(self.events()).message

    @fuzzed
    @given(
        changes=st.lists(st.tuples(st.integers(0, 20_000), st.binary(max_size=4)), max_size=6),
        cut=st.integers(0),
    )
    def test_broken_bytes_raise_model_errors_only(self, changes: list[tuple[int, bytes]], cut: int) -> None:
        broken = b"".join(self.events())
        for at, new in changes:
            place = at % (len(broken) + 1)
            broken = broken[:place] + new + broken[place + 1 :]
        assert self.outcome(split(broken, [cut])) == self.outcome([broken])

    @fuzzed
    @given(data=st.binary(max_size=200), values=st.lists(EVENTS, max_size=4), cuts=CUTS)
    def test_any_bytes_and_any_json_raise_model_errors_only(
        self, data: bytes, values: list[Any], cuts: list[int]
    ) -> None:
        told = b"".join(map(as_event, values))
        self.outcome(split(data + told + b"".join(self.events()), cuts))
        self.outcome(split(told + data, cuts))


__all__ = ["CALLS", "TEXT", "WireSuite", "as_event", "read_with"]
