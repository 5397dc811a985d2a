"""Requests and streams of `/v1/responses` cost time that grows no faster than their size."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import msgspec
import pytest

from channels.http.test_responses import EVENT
from support.complexity import assert_linear
from talaria.channels.http.api_calls import TurnAnswer
from talaria.channels.http.responses_input import Context, decode_items, references
from talaria.channels.http.responses_output import (
    PLAIN,
    ResponseEvents,
    ResponseForm,
    ResponseHead,
    input_items,
    item_id,
)
from talaria.core.events import Delta, Event, ReasoningDelta, RefusalDelta, ToolCallDelta, ToolStarted
from talaria.core.ids import TurnId
from talaria.core.messages import AssistantMessage, Reasoning, ToolCall

TURN = TurnId("turn_" + "0" * 26)
STORED = {TURN: AssistantMessage("text", tuple(ToolCall(f"s{n}", "f", "{}") for n in range(10_000)))}


def _called(n: int) -> list[dict[str, Any]]:
    calls = [{"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"} for i in range(n)]
    outputs = [{"type": "function_call_output", "call_id": f"c{i}", "output": "x"} for i in range(n)]
    return [*calls, *reversed(outputs)]


def _in_turns(n: int) -> list[dict[str, Any]]:
    pairs = zip(_called(n)[:n], reversed(_called(n)[n:]), strict=True)
    return [item for pair in pairs for item in pair]


ITEMS: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "messages": lambda n: [{"role": "user", "content": "x"} for _ in range(n)],
    "answers": lambda n: [{"role": "assistant", "content": "x"} for _ in range(n)],
    "thoughts": lambda n: [{"type": "reasoning", "summary": [{"text": "x"}]} for _ in range(n)],
    "calls, then outputs": _called,
    "calls and outputs in turns": _in_turns,
    "references": lambda n: [{"type": "item_reference", "id": item_id("msg", TURN, 0)} for _ in range(n)],
    "parts": lambda n: [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * n}],
}


@pytest.mark.parametrize("shape", ITEMS.values(), ids=ITEMS)
def test_reading_items_is_linear(shape: Callable[[int], list[dict[str, Any]]]) -> None:
    def make(size: int) -> list[msgspec.Raw]:
        return [msgspec.Raw(msgspec.json.encode(item)) for item in shape(size // 1000)]

    def work(raw: list[msgspec.Raw]) -> None:
        items = decode_items(raw)
        references(items)
        input_items(Context(items, STORED).messages, TURN)

    assert_linear(make, work)


EVENTS: dict[str, Callable[[int], list[Event]]] = {
    "text": lambda n: [Delta("x")] * n,
    "thoughts": lambda n: [ReasoningDelta("\x00")] * n,
    "both in turns": lambda n: [ReasoningDelta("x"), Delta("x")] * (n // 2),
    "text between tools": lambda n: [Delta("x"), ToolStarted("c", "n", "{}")] * (n // 2),
    "refusals between texts": lambda n: [Delta("x"), RefusalDelta("x")] * (n // 2),
    "one call": lambda n: [ToolCallDelta(0, "c", "f", ""), *([ToolCallDelta(0, "", "", "{")] * n)],
    "calls": lambda n: [ToolCallDelta(i, f"c{i}", "f", "{}") for i in range(n)],
    "calls in turns": lambda n: [
        ToolCallDelta(i, "" if k else f"c{i}", "" if k else "f", "{") for k in range(2) for i in range(n // 2)
    ],
}
FORMS = pytest.mark.parametrize("form", [PLAIN, ResponseForm(tells_refusals=True, seals=True)])


@pytest.mark.parametrize("shape", EVENTS.values(), ids=EVENTS)
def test_rendering_events_is_linear(shape: Callable[[int], list[Event]]) -> None:
    def work(events: list[Event]) -> int:
        encoder = ResponseEvents(ResponseHead(TURN, 1.0, "m", b'"user":null'))
        size = sum(len(encoder.encode(event)) for event in events)
        return size + len(encoder.end(TurnAnswer(AssistantMessage("x"))))

    assert_linear(lambda size: shape(size // 1000), work)


TOLD = b'"tools":[],"tool_choice":"auto","parallel_tool_calls":true'


@FORMS
@pytest.mark.parametrize("shape", EVENTS.values(), ids=EVENTS)
def test_every_sequence_of_events_fits_the_clients_types(
    shape: Callable[[int], list[Event]], form: ResponseForm
) -> None:
    encoder = ResponseEvents(ResponseHead(TURN, 1.0, "m", TOLD), form)
    sent = b"".join(map(encoder.encode, shape(6)))
    answer = AssistantMessage("x", (ToolCall("c", "f", "{}"),), (Reasoning("r", "", "{}"),))
    sent += encoder.end(TurnAnswer(answer, "length"))
    events = [msgspec.json.decode(block.partition(b"data: ")[2]) for block in sent.split(b"\n\n") if block]
    for n, event in enumerate(events):
        EVENT.validate_python(event, strict=True)
        assert event["sequence_number"] == n
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    items = events[-1]["response"]["output"]
    assert sorted(items, key=itemgetter("id")) == sorted(done, key=itemgetter("id"))
    sealed = [item for item in items if item.get("encrypted_content")]
    assert sealed == items[: form.seals]
    opened = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert opened == list(range(len(done)))
