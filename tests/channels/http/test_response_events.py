"""The response object and the events of its stream, encoded without a gateway."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from channels.http.test_response_items import ANSWER, TURN, said
from talaria.channels.http.responses_events import Outcome, ResponseEvents, ResponseHead, outcome_of
from talaria.channels.http.responses_items import item_id, output_items, response_id
from talaria.core.errors import ErrorInfo
from talaria.core.events import Delta, ReasoningDelta, Reset, ToolStarted
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.messages import Text, TokenUsage
from talaria.core.turns import Inbound, Sender, Turn, TurnState

INBOUND = Inbound(ChatKey("http/call/x"), Sender("x"), (Text("hi"),))
HEAD = ResponseHead(TURN, 12.9, b'"model":"m"')


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
    assert error == {"code": code, "message": "It broke. Mend it."}


def streamed(*pieces: bytes) -> list[Any]:
    blocks = b"".join(pieces).decode().split("\n\n")[:-1]
    return [json.loads(block.partition("\ndata: ")[2]) for block in blocks]


def kinds(events: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_what_was_not_streamed_comes_at_the_end() -> None:
    events = ResponseEvents(HEAD)
    found = streamed(events.encode(ReasoningDelta("h")), events.end(ANSWER, Outcome("completed")))
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
        events.encode(ReasoningDelta("late")), events.end(answer, Outcome("completed")),
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
    found = streamed(*pieces, events.end(said("two"), Outcome("completed")))
    output = found[-1]["response"]["output"]
    assert [item["content"][0]["text"] for item in output] == ["one", "two"]
    assert [item["id"] for item in output] == [item_id("msg", TURN, n) for n in (0, 1)]
    assert [item["status"] for item in output] == ["completed", "completed"]


def test_an_empty_answer_has_an_empty_message() -> None:
    found = streamed(ResponseEvents(HEAD).end(said(""), Outcome("completed")))
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
    found = streamed(events.encode(Delta("par")), events.end(said("par"), outcome_of("length", None, None)))
    assert events.has_text
    assert kinds(found)[-1] == "incomplete"
    assert found[-1]["response"]["output"][0]["status"] == "incomplete"
