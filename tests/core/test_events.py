from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from talaria.core.errors import ErrorInfo
from talaria.core.events import (
    EVENT_NAMES,
    FINAL_EVENTS,
    Cancelled,
    Compacted,
    DelegateChanged,
    Delta,
    Done,
    Event,
    Failed,
    FellBack,
    ModelLoading,
    QuestionAsked,
    QuestionDecided,
    Queued,
    ReasoningDelta,
    RefusalDelta,
    Reset,
    Retrying,
    ThoughtEnded,
    ToolCallDelta,
    ToolFinished,
    ToolOutput,
    ToolStarted,
    UsageReported,
)
from talaria.core.ids import DelegateId, QuestionId, TurnId
from talaria.core.messages import TokenUsage, ToolOutcome
from talaria.core.questions import QuestionKind, Span
from talaria.core.turns import TurnState

CONTRACT = {
    *("queued", "model.loading", "reasoning", "delta", "tool.started", "tool.output", "tool.finished"),
    *("tool.delta", "reasoning.ended", "approval.decided", "compacted", "delegate"),  # additions
    *("approval", "retry", "fallback", "usage", "reset", "done", "failed", "cancelled"),
}

EVENTS: list[Event] = [
    Queued(2),
    Delta("a"),
    ReasoningDelta("b"),
    ThoughtEnded("{}"),
    ToolCallDelta(0, "c", "read_file", "{"),
    ToolStarted("c", "read_file", "{}"),
    ToolOutput("c", "line"),
    DelegateChanged(
        "c", DelegateId("turn_a.1-1"), TurnId("turn_b"), "Read", TurnState.RUNNING, "a line", 1.5, "0.1"
    ),
    QuestionAsked(QuestionId("q"), QuestionKind.APPROVAL, "May it run?", (), "c", "act"),
    QuestionDecided(QuestionId("q"), "approve", Span.ONCE, "person"),
    ToolFinished("c", "read_file", ToolOutcome.OK, "…"),
    UsageReported(TokenUsage(1, 2, 3, 4), "small"),
    Retrying("openai/gpt", 2, 1.5, "It is busy."),
    FellBack("backup/gpt", "openai/gpt", "It is down."),
    ModelLoading("local/tiny", "fetching", 31.0, 128, 491),
    Compacted(24_000, 12_000),
    Reset(),
    Done("bye"),
    Failed(ErrorInfo("model", "It broke.", "Wait.")),
    Cancelled("so far"),
]


def test_events_have_the_names_of_the_contract() -> None:
    assert set(EVENT_NAMES.values()) <= CONTRACT
    assert len(set(EVENT_NAMES.values())) == len(EVENT_NAMES) - 1
    assert EVENT_NAMES[RefusalDelta] == EVENT_NAMES[Delta]


def test_every_event_has_a_name() -> None:
    assert set(EVENT_NAMES) - {RefusalDelta} == set(get_args(Event)) == {type(event) for event in EVENTS}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (ModelLoading("m", "fetching", 31.4, 128 * 10**6, 491 * 10**6), ", about 31 s (128 of 491 MB)."),
        (ModelLoading("m", "fetching", 300.0, 1 * 10**6, 491 * 10**6), ", about 5 min (1 of 491 MB)."),
        (ModelLoading("m", "verifying", 0.0, 491 * 10**6, 491 * 10**6), ", in a moment (491 of 491 MB)."),
        (ModelLoading("m", "waiting"), "Saved. I answer when the model is ready."),
        (ModelLoading("m", "loading"), "The model is being loaded."),
        (ModelLoading("m", "reading"), "The model is thinking."),
    ],
)
def test_how_long_a_model_takes_is_said_as_far_as_it_is_known(event: ModelLoading, said: str) -> None:
    assert event.sentence().endswith(said)
    assert event.is_on_its_way == event.sentence().startswith("Saved.")


def test_a_turn_ends_with_one_of_three_events() -> None:
    assert {EVENT_NAMES[kind] for kind in FINAL_EVENTS} == {"done", "failed", "cancelled"}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: EVENT_NAMES[type(event)])
def test_an_event_comes_back_from_its_bytes_under_its_name(event: Event) -> None:
    data = msgspec.json.encode(event)
    assert msgspec.json.decode(data)["type"] == EVENT_NAMES[type(event)]
    assert msgspec.json.decode(data, type=Event) == event
