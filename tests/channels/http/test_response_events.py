"""The response object and the events of its stream, encoded without a gateway."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from channels.http.test_response_items import ANSWER, TURN, said
from talaria.channels.http.api_calls import TurnAnswer
from talaria.channels.http.responses_input import Context, decode_items
from talaria.channels.http.responses_output import (
    PLAIN,
    Outcome,
    ResponseEvents,
    ResponseForm,
    ResponseHead,
    item_id,
    outcome_of,
    output_items,
    response_id,
)
from talaria.core.errors import ErrorInfo
from talaria.core.events import (
    Delta,
    FellBack,
    ReasoningDelta,
    RefusalDelta,
    Reset,
    ToolCallDelta,
    ToolStarted,
)
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.messages import AssistantMessage, Reasoning, Text, TokenUsage, ToolCall
from talaria.core.turns import Inbound, Sender, Turn, TurnState

INBOUND = Inbound(ChatKey("http/call/x"), Sender("x"), (Text("hi"),))
HEAD = ResponseHead(TURN, 12.9, "m", b'"user":null')


def ended(state: TurnState) -> Turn:
    return Turn(TURN, INBOUND.chat_key, SessionId("s"), state, INBOUND, 1.0)


def whole(outcome: Outcome, **more: Any) -> Any:
    return json.loads(msgspec.structs.replace(HEAD, **more).encode(outcome, []))


def test_the_members_of_a_response() -> None:
    usage = TokenUsage(input=9, output=3, cached=4, stored=2, reasoning=1)
    found = whole(outcome_of("stop", usage, 15.9), previous=TurnId("turn_" + "1" * 26))
    assert (found["id"], found["object"], found["background"], found["model"]) == (
        response_id(TURN), "response", False, "m",
    )  # fmt: skip
    assert (found["created_at"], found["completed_at"], found["status"]) == (12, 15, "completed")
    assert (found["error"], found["incomplete_details"]) == (None, None)
    assert found["previous_response_id"] == "resp_" + "1" * 26
    assert found["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 12,
    }
    for stop, reason in (("length", "max_output_tokens"), ("content_filter", "content_filter")):
        found = whole(outcome_of(stop, None, None))
        assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": reason})
        assert (found["usage"], found["completed_at"], found["previous_response_id"]) == (None, None, None)


@pytest.mark.parametrize(
    ("type", "status", "code"),
    [
        ("model_error", None, "server_error"),
        ("model_error", 429, "rate_limit_exceeded"),
        ("over_budget", None, "rate_limit_exceeded"),
        ("context_too_long", 400, "invalid_prompt"),
    ],
)
def test_a_failure_has_a_code_of_the_type(type: str, status: int | None, code: str) -> None:
    error = whole(
        Outcome("failed", error=ErrorInfo(type, "It broke.", "Mend it.", status=status or msgspec.UNSET))
    )["error"]
    assert error["code"] == code
    assert error["message"].startswith("It broke. Mend it.")


def streamed(*pieces: bytes) -> list[Any]:
    blocks = b"".join(pieces).decode().split("\n\n")[:-1]
    return [json.loads(block.partition("\ndata: ")[2]) for block in blocks]


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_what_was_not_streamed_comes_at_the_end() -> None:
    events = ResponseEvents(HEAD)
    found = streamed(events.encode(ReasoningDelta("h")), events.end(TurnAnswer(ANSWER)))
    thoughts = [event["delta"] for event in found if event["type"].endswith("summary_text.delta")]
    assert thoughts == ["h", "m"]
    assert [event["text"] for event in found if event["type"].endswith("output_text.done")] == ["I look."]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[-1]["response"]["output"] == output_items(ANSWER, TURN)
    added = [event for event in found if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1, 2]
    assert (added[2]["item"]["arguments"], added[2]["item"]["status"]) == ("", "in_progress")


def test_nothing_is_streamed_twice() -> None:
    events = ResponseEvents(HEAD)
    answer = said("yes", thought="hm")
    found = streamed(
        events.encode(ReasoningDelta("hm")), events.encode(Delta("yes")),
        events.encode(ReasoningDelta("late")), events.end(TurnAnswer(answer)),
    )  # fmt: skip
    assert kinds(found).count("reasoning_summary_text.delta") == 1
    assert kinds(found).count("output_text.delta") == 1
    assert kinds(found).count("created") == 1
    assert found[-1]["response"]["output"] == output_items(answer, TURN)


def test_each_text_of_a_turn_is_a_message_of_its_own() -> None:
    events = ResponseEvents(HEAD)
    tool = ToolStarted("c1", "weather", "")
    pieces = [events.encode(event) for event in (Delta("one"), tool, tool, Delta("two"), Reset())]
    assert pieces[2] == b""
    found = streamed(*pieces, events.end(TurnAnswer(said("two"))))
    output = found[-1]["response"]["output"]
    assert [item["content"][0]["text"] for item in output] == ["one", "two"]
    assert [item["id"] for item in output] == [item_id("msg", TURN, n) for n in (0, 1)]
    assert [item["status"] for item in output] == ["completed", "completed"]


def test_an_empty_answer_has_an_empty_message() -> None:
    found = streamed(ResponseEvents(HEAD).end(TurnAnswer(said(""))))
    assert kinds(found) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert found[0]["response"]["status"] == "in_progress"


@pytest.mark.parametrize("state", [TurnState.FAILED, TurnState.CANCELLED])
def test_a_failure_closes_the_open_item(state: TurnState) -> None:
    turn, error, events = ended(state), ErrorInfo("model", "why", "hint"), ResponseEvents(HEAD)
    found = streamed(events.encode(Delta("par")), events.fail(error, turn))
    assert kinds(found)[-2:] == ["output_item.done", "failed"]
    (item,) = found[-1]["response"]["output"]
    assert (item["status"], found[-1]["response"]["status"]) == ("incomplete", state.value)
    empty = streamed(ResponseEvents(HEAD).fail(error, turn))
    assert kinds(empty) == ["created", "in_progress", "failed"]


def test_an_answer_that_was_cut_is_incomplete() -> None:
    events = ResponseEvents(HEAD)
    found = streamed(events.encode(Delta("par")), events.end(TurnAnswer(said("par"), "length")))
    assert events.has_text
    assert kinds(found)[-1] == "incomplete"
    assert found[-1]["response"]["output"][0]["status"] == "incomplete"


def test_arguments_are_streamed_as_they_come() -> None:
    events, calls = ResponseEvents(HEAD), (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}"))
    pieces = [
        ToolCallDelta(0, "a", "f", ""), ToolCallDelta(0, "", "", '{"x"'), ToolCallDelta(1, "b", "g", "{}")
    ]  # fmt: skip
    found = streamed(
        events.encode(Delta("I look.")),
        *map(events.encode, pieces),
        events.end(TurnAnswer(said("I look.", *calls), "tool_calls")),
    )
    arguments = [
        (event["output_index"], event["delta"])
        for event in found
        if event["type"].endswith("arguments.delta")
    ]
    assert arguments == [(1, '{"x"'), (2, "{}"), (1, ": 1}")]
    assert found[-1]["response"]["output"] == output_items(said("I look.", *calls), TURN)
    done = [event["item"]["id"] for event in found if event["type"].endswith("output_item.done")]
    assert done == [item["id"] for item in found[-1]["response"]["output"]]


def test_a_streamed_call_that_the_answer_does_not_have_is_incomplete() -> None:
    events, call = ResponseEvents(HEAD), ToolCall("a", "f", "{}")
    piece = events.encode(ToolCallDelta(0, "z", "f", "{"))
    found = streamed(piece, events.end(TurnAnswer(said("", call), "tool_calls")))
    items = found[-1]["response"]["output"]
    assert [(item["call_id"], item["arguments"], item["status"]) for item in items] == [
        ("z", "{", "incomplete"), ("a", "{}", "completed"),
    ]  # fmt: skip
    failed = ResponseEvents(HEAD)
    piece = failed.encode(ToolCallDelta(0, "z", "f", "{"))
    found = streamed(piece, failed.fail(ErrorInfo("model", "why"), ended(TurnState.FAILED)))
    assert [item["status"] for item in found[-1]["response"]["output"]] == ["incomplete"]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_refusal_is_told_as_one_if_it_is_wanted(is_streamed: bool) -> None:
    answer = msgspec.structs.replace(said("No."), refused=True)
    pieces = [RefusalDelta("N"), RefusalDelta("o.")] if is_streamed else []
    for form in (PLAIN, ResponseForm(tells_refusals=True)):
        events = ResponseEvents(HEAD, form)
        sent = b"".join(map(events.encode, pieces))
        found = streamed(sent, events.end(TurnAnswer(answer)))
        (item,) = found[-1]["response"]["output"]
        (part,) = item["content"]
        if form is PLAIN:
            assert part["text"] == "No."
        else:
            assert part == {"type": "refusal", "refusal": "No."}
            assert "refusal.delta" in kinds(found)
            assert output_items(answer, TURN) == [item]


def test_the_model_is_the_one_that_answers() -> None:
    events = ResponseEvents(HEAD, find_model=lambda: "p/one")
    before = events.encode(Delta("x"))
    events.encode(FellBack("p/two", "p/one", "why"))
    answer = msgspec.structs.replace(said("x"), model="three", provider="p")
    found = streamed(before, events.end(TurnAnswer(answer)))
    assert (found[0]["response"]["model"], found[-1]["response"]["model"]) == ("p/one", "p/three")
    failed = ResponseEvents(HEAD, find_model=lambda: "p/one")
    failed.encode(FellBack("p/two", "p/one", "why"))
    found = streamed(failed.fail(ErrorInfo("model", "why"), ended(TurnState.FAILED)))
    assert found[-1]["response"]["model"] == "p/two"


@pytest.mark.parametrize("thought", ["", "hm"])
@pytest.mark.parametrize("is_streamed", [True, False])
def test_sealed_reasoning_comes_first_and_can_be_sent_back(thought: str, is_streamed: bool) -> None:
    reasoning = (Reasoning("f", thought, '{"signature":"x"}'),)
    answer = AssistantMessage("text", (), reasoning, "m", provider="p")
    events = ResponseEvents(HEAD, ResponseForm(seals=True))
    pieces = [ReasoningDelta(thought)] * bool(thought) + [Delta("text")] if is_streamed else []
    sent = b"".join(map(events.encode, pieces))
    found = streamed(sent, events.end(TurnAnswer(answer)))
    items = found[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message"]
    assert [part["text"] for part in items[0]["summary"]] == [thought] * bool(thought)
    again = Context(decode_items([msgspec.Raw(json.dumps(item).encode()) for item in items]), {})
    assert again.messages == (answer,)


@pytest.mark.parametrize("sealed", ["gAAAA", "talaria1.%%%", "talaria1.AAAA", "talaria1.W10="])
def test_a_seal_of_another_server_is_left_out(sealed: str) -> None:
    thought = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    items = [thought, {"role": "assistant", "content": "text"}]
    context = Context(decode_items([msgspec.Raw(json.dumps(item).encode()) for item in items]), {})
    assert context.messages == (AssistantMessage("text"),)
