"""Answers of the responses API in every shape that servers send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.wire_suite import as_event, read_with
from talaria.core.errors import AnswerTooLarge, ModelRefused, ModelUnavailable
from talaria.core.messages import TokenUsage, ToolCall
from talaria.core.specs import Completion, TextDelta, ThoughtDelta
from talaria.models.openai_responses import OpenAIResponses


def event(kind: str, **members: Any) -> bytes:
    data = json.dumps({"type": f"response.{kind}", **members}).encode()
    return b"event: response.%b\ndata: %b\n\n" % (kind.encode(), data)


def added(index: int, item: dict[str, Any]) -> bytes:
    return event("output_item.added", output_index=index, item=item)


def done(index: int, item: dict[str, Any]) -> bytes:
    return event("output_item.done", output_index=index, item=item)


def text(index: int, delta: str) -> bytes:
    return event("output_text.delta", output_index=index, content_index=0, delta=delta)


def arguments(index: int, delta: str) -> bytes:
    return event("function_call_arguments.delta", output_index=index, delta=delta)


def message(said: str, item_id: str = "msg_1", **more: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": said, "annotations": []}] if said else []
    return {"type": "message", "id": item_id, "role": "assistant", "content": content, **more}


def function(name: str, args: str = "", call_id: str = "c1", **more: Any) -> dict[str, Any]:
    call = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": args}
    return {**call, **more}


def reasoning(*summary: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "summary_text", "text": part} for part in summary]
    return {"type": "reasoning", "id": "rs_1", "summary": parts, **more}


def response(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "output": list(output), **more}


def completed(*output: dict[str, Any], **more: Any) -> bytes:
    return event("completed", response=response(*output, **more))


CREATED = event("created", response=response(status="in_progress"))
END = completed()


def read(*pieces: bytes) -> tuple[Completion, list[TextDelta | ThoughtDelta]]:
    completion, deltas = read_with(OpenAIResponses(), *pieces)
    return completion, [delta for delta in deltas if isinstance(delta, (TextDelta, ThoughtDelta))]


def calls_of(*pieces: bytes) -> list[tuple[str, str, str]]:
    completion, _ = read(*pieces)
    return [(call.id, call.name, call.arguments) for call in completion.message.tool_calls]


class TestText:
    def test_pieces_become_the_text(self) -> None:
        completion, deltas = read(
            CREATED,
            added(0, message("")),
            event("content_part.added", output_index=0, part={"type": "output_text", "text": ""}),
            text(0, "Hel"),
            text(0, "lo"),
            event("output_text.done", output_index=0, text="Hello"),
            done(0, message("Hello")),
            completed(message("Hello")),
        )
        assert completion.message.text == "Hello"
        assert deltas == [TextDelta("Hel"), TextDelta("lo")]
        assert (completion.stop, completion.message.reasoning) == ("stop", ())

    @pytest.mark.parametrize(
        "pieces",
        [
            (text(0, "Hello"), END),
            (done(0, message("Hello")), END),
            (added(0, message("")), completed(message("Hello"))),
            (completed(message("Hello")),),
            (text(0, "Hel"), done(0, message("Hello")), END),
            (text(0, "Hel"), completed(message("Hello"))),
            (text(3, "Hello"), done(3, message("Hello")), completed(message("Hello"))),
            (done(3, message("Hello")), completed(reasoning(), message("Hello"))),
            (done(1, {**message("Hello"), "id": None}), completed({**message("Hello"), "id": None})),
        ],
    )
    def test_servers_may_leave_events_out(self, pieces: tuple[bytes, ...]) -> None:
        completion, deltas = read(*pieces)
        assert completion.message.text == "Hello"
        assert "".join(delta.text for delta in deltas) == "Hello"

    def test_events_without_an_index_mean_the_last_item(self) -> None:
        strip = [json.loads(data.partition(b"data: ")[2]) for data in (text(0, "Hi"), arguments(0, "{}"))]
        for value in strip:
            del value["output_index"]
        said, args = (b"data: %b\n\n" % json.dumps(value).encode() for value in strip)
        call = event("output_item.added", item=function("a"))
        completion, _ = read(said, said, call, args, END)
        assert completion.message.text == "HiHi"
        assert completion.message.tool_calls == (ToolCall("c1", "a", "{}"),)

    def test_what_was_streamed_stays_when_the_whole_says_otherwise(self) -> None:
        completion, deltas = read(text(0, "Hello "), done(0, message("Hello")), END)
        assert completion.message.text == "Hello "
        assert deltas == [TextDelta("Hello ")]

    def test_two_messages_are_two_paragraphs(self) -> None:
        completion, deltas = read(
            text(0, "One."), done(0, message("One.")), text(1, "Two."), done(1, message("Two.", "msg_2")), END
        )
        assert completion.message.text == "One.\n\nTwo."
        assert "".join(delta.text for delta in deltas) == "One.\n\nTwo."

    def test_two_messages_with_phases_go_back_as_two(self) -> None:
        first, second = message("One.", phase="commentary"), message("Two.", "msg_2", phase="final_answer")
        completion, _ = read(text(0, "One."), done(0, first), text(1, "Two."), done(1, second), END)
        assert json.loads(b"[%b]" % OpenAIResponses().encode(completion.message)) == [
            {"role": "assistant", "content": "One.", "phase": "commentary"},
            {"role": "assistant", "content": "Two.", "phase": "final_answer"},
        ]

    def test_a_refusal_is_text(self) -> None:
        part = {"type": "refusal", "refusal": "I will not."}
        completion, _ = read(
            event("refusal.delta", output_index=0, delta="I will"), done(0, message("", content=[part])), END
        )
        assert completion.message.text == "I will not."

    def test_unknown_events_items_and_members_do_not_matter(self) -> None:
        search = {"type": "web_search_call", "arguments": {"x": 1}, "content": "odd", "id": 7}
        completion, _ = read(
            b": keep-alive\n\n",
            event("surprise", delta={"x": 1}, item=[1], response=3, output_index="?"),
            b'data: {"no": "type"}\n\n',
            added(0, search),
            done(0, search),
            text(1, "yes"),
            done(1, message("yes", content=[{"type": "output_text", "text": "yes", "annotations": [{}]}])),
            completed(search, message("yes"), tools=[{}], instructions=["x"]),
            b"data: [DONE]\n\n",
        )
        assert completion.message.text == "yes"

    def test_an_answer_without_an_end_was_cut_off(self) -> None:
        for pieces in ((), (CREATED, text(0, "x")), (done(0, message("x")), b"data: [DONE]\n\n")):
            with pytest.raises(ModelUnavailable, match="the answer was cut off"):
                read(*pieces)


class TestWholeAnswers:
    def test_a_server_may_ignore_the_wish_to_stream(self) -> None:
        body = response(
            reasoning("hm", encrypted_content="e=="),
            message("Look:"),
            function("a", "{}"),
            usage={"input_tokens": 3, "output_tokens": 4},
        )
        data = json.dumps(body, indent=1).encode()
        completion, deltas = read(b"\n", data[:10], data[10:])
        assert deltas == [ThoughtDelta("hm"), TextDelta("Look:")]
        assert completion.message.tool_calls == (ToolCall("c1", "a", "{}"),)
        assert completion.usage == TokenUsage(3, 0, 4, 0)
        assert json.loads(completion.message.reasoning[0].raw)["encrypted_content"] == "e=="

    def test_one_that_is_not_finished_was_cut_off(self) -> None:
        with pytest.raises(ModelUnavailable, match="cut off"):
            read(json.dumps(response(status="in_progress")).encode())


class TestToolCalls:
    @pytest.mark.parametrize(
        "pieces",
        [
            (added(0, function("a")), arguments(0, '{"x"'), arguments(0, ":1}"), END),
            (added(0, function("a")), arguments(0, '{"x":1}'), done(0, function("a")), END),
            (added(0, function("a")), arguments(0, "lost"), done(0, function("a", '{"x":1}')), END),
            (done(0, function("a", '{"x":1}')), END),
            (completed(function("a", '{"x":1}')),),
        ],
    )
    def test_in_pieces_or_at_once(self, pieces: tuple[bytes, ...]) -> None:
        assert calls_of(*pieces) == [("c1", "a", '{"x":1}')]

    def test_side_by_side(self) -> None:
        assert calls_of(
            added(0, function("a")),
            added(1, function("b", call_id="c2")),
            arguments(1, "{"),
            arguments(0, '{"x":1}'),
            arguments(1, "}"),
            END,
        ) == [("c1", "a", '{"x":1}'), ("c2", "b", "{}")]

    def test_an_id_that_is_missing_or_taken_is_made_up_the_same_way_every_time(self) -> None:
        pieces = (done(0, function("a", "{}")), done(1, function("a", "{}")), END)
        [(first, *_), (second, *_)] = calls_of(*pieces)
        assert (first, second[:5]) == ("c1", "call_")
        assert calls_of(*pieces)[1][0] == second

    def test_a_call_without_a_name_cannot_be_read(self) -> None:
        with pytest.raises(ModelUnavailable, match="without a name"):
            read(arguments(0, "{}"), END)

    def test_they_are_the_reason_to_stop(self) -> None:
        assert read(done(0, function("a", "{}")), END)[0].stop == "tool_calls"


class TestReasoning:
    def test_an_item_is_kept_verbatim_with_the_places_of_the_others(self) -> None:
        raw = '{"id":"rs_1" , "type":"reasoning","summary":[],"encrypted_content":"gAAA\\u003d","new":[1.0]}'
        opened = reasoning(encrypted_content="half")
        completion, deltas = read(
            added(0, opened),
            b'data: {"type":"response.output_item.done","output_index":0,"item":%b}\n\n' % raw.encode(),
            done(1, message("Hello", phase="commentary")),
            done(2, function("a", "{}")),
            completed(reasoning(encrypted_content="again"), message("Hello"), function("a", "{}")),
        )
        assert deltas == [TextDelta("Hello")]
        first, *others = completion.message.reasoning
        assert first.raw == raw
        assert {kept.field for kept in completion.message.reasoning} == {"responses.item"}
        assert [json.loads(kept.raw) for kept in others] == [
            {"type": "message", "id": "msg_1", "phase": "commentary", "end": 5},
            {"type": "function_call", "id": "fc_1", "call_id": "c1"},
        ]

    def test_parts_of_a_summary_are_paragraphs(self) -> None:
        def piece(index: int, delta: str) -> bytes:
            return event("reasoning_summary_text.delta", output_index=0, summary_index=index, delta=delta)

        completion, deltas = read(
            piece(0, "a"), piece(0, "b"), piece(1, "c"), done(0, reasoning("ab", "c")), END
        )
        assert "".join(delta.text for delta in deltas) == "ab\n\nc"
        assert all(isinstance(delta, ThoughtDelta) for delta in deltas)
        assert completion.message.reasoning[0].text == "ab\n\nc"
        assert read(done(0, reasoning("ab", "c")), END)[0].message.reasoning[0].text == "ab\n\nc"

    def test_thoughts_in_full_and_as_a_summary_are_told_once(self) -> None:
        _, deltas = read(
            event("reasoning_text.delta", output_index=0, content_index=0, delta="long"),
            event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="short"),
            END,
        )
        assert deltas == [ThoughtDelta("long")]


class TestTheEnd:
    @pytest.mark.parametrize(
        ("reason", "stop"),
        [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("steered", "steered")],
    )
    def test_an_incomplete_answer_says_why(self, reason: str, stop: str) -> None:
        last = response(message("par"), status="incomplete", incomplete_details={"reason": reason})
        completion, _ = read(text(0, "par"), event("incomplete", response=last))
        assert (completion.message.text, completion.stop) == ("par", stop)
        assert read(json.dumps(last).encode())[0].stop == stop

    def test_usage(self) -> None:
        usage = {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 8},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 11,
        }
        assert read(completed(usage=usage))[0].usage == TokenUsage(9, 8, 2, 1)
        assert read(completed(usage=None))[0].usage == TokenUsage()

    def test_an_error_is_one_in_every_shape(self) -> None:
        error = {"code": "insufficient_quota", "message": "No more"}
        failed = response(status="failed", error=error)
        for last in (
            event("failed", response=failed),
            *map(as_event, ({"type": "error", **error}, {"type": "error", "error": error}, {"error": error})),
        ):
            with pytest.raises(ModelRefused, match="No more"):
                read(CREATED, text(0, "x"), last)
        with pytest.raises(ModelRefused, match="No more"):
            read(json.dumps(failed).encode())

    def test_a_failure_without_a_reason_is_one(self) -> None:
        for status in ("failed", "cancelled"):
            with pytest.raises(ModelUnavailable, match=status):
                read(json.dumps(response(status=status, error=None)).encode())

    @pytest.mark.parametrize(
        "data",
        [
            b'{"type":"response.output_text.delta","delta":3}',
            b'{"type":"response.completed"}',
            b'{"type":"response.completed","response":3}',
            b'{"type":"response.output_item.done","item":{"type":"message","content":3}}',
            b'{"type":"response.output_item.done","item":{"type":"reasoning","encrypted_content":"\xff"}}',
        ],
    )
    def test_what_is_no_event_cannot_be_read(self, data: bytes) -> None:
        with pytest.raises(ModelUnavailable, match="cannot be read"):
            read(b"data: " + data + b"\n\n", END)

    def test_an_item_cannot_change_its_kind(self) -> None:
        with pytest.raises(ModelUnavailable, match="cannot be read"):
            read(text(0, "x"), arguments(0, "{}"), END)

    def test_nothing_follows_the_end(self) -> None:
        assert read(text(0, "x"), END, text(0, "y"), b"data: {\n\n")[0].message.text == "x"


SAID = "one\ntwo Grüße 🎉"
RECORDED = b"".join(
    [
        CREATED,
        added(0, reasoning()),
        event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="hm 🎉"),
        done(0, reasoning("hm 🎉", encrypted_content="gAAA==")),
        b": ping\r\n\r\n",
        added(1, message("")),
        text(1, SAID[:5]).replace(b"\n", b"\r\n"),
        text(1, SAID[5:]),
        done(1, message(SAID)),
        added(2, function("a")),
        arguments(2, '{"x":'),
        arguments(2, ' "ü"}'),
        done(2, function("a", '{"x": "ü"}')),
        completed(reasoning("hm 🎉"), message(SAID), function("a", '{"x": "ü"}'), usage={"input_tokens": 7}),
    ]
)


@settings(max_examples=200)
@given(st.sets(st.integers(0, 12)))
def test_lost_events_never_change_what_was_said(lost: set[int]) -> None:
    """All that the answer says at its end is said, once, whichever of the events before it came."""
    events = RECORDED.replace(b"\r\n", b"\n").split(b"\n\n")
    kept = [part + b"\n\n" for n, part in enumerate(events[:-2]) if n not in lost]
    said = read(*kept, events[-2] + b"\n\n")[0].message
    assert [(call.name, call.arguments) for call in said.tool_calls] == [("a", '{"x": "ü"}')]
    # Text that was shown already is not taken back, so a lost first piece stays lost.
    assert said.text == (SAID[5:] if {6, 7} & lost == {6} else SAID)


def test_the_shape_of_an_item_is_bounded() -> None:
    parts = [{"type": "output_text", "text": "x"}] * 9_000
    whole = {"type": "message", "id": "m", "content": parts}
    assert len(read(completed(whole))[0].message.text) == 9_000
    with pytest.raises(AnswerTooLarge, match="too many values"):
        read(done(0, {"type": "message", "id": "m", "content": [*parts, *parts]}))
