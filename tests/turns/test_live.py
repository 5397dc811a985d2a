"""A live turn's events, the messages that join it, and what is known of the turns of a chat."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from talaria.core.errors import ErrorInfo
from talaria.core.events import (
    Cancelled,
    DelegateChanged,
    Delta,
    Done,
    Event,
    Failed,
    ModelLoading,
    Queued,
    ReasoningDelta,
    Reset,
    ToolCallDelta,
    ToolOutput,
)
from talaria.core.ids import ChatKey, DelegateId, SessionId, TurnId
from talaria.core.messages import Text, UserMessage
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.observe.metrics import Metrics
from talaria.testing.clock import FakeClock
from talaria.turns.agents import LiveSteering
from talaria.turns.live import LiveTurn, LiveTurns, final_event, merge_events
from talaria.turns.states import LiveState

CHAT = ChatKey("agent:main:http:api:one")
LONG = "x" * 100_000


def make_turn(
    name: str = "turn_1", state: TurnState = TurnState.ACCEPTED, chat: ChatKey = CHAT, **more: Any
) -> Turn:
    return Turn(TurnId(name), chat, SessionId("ses_1"), state, Inbound(chat, Sender("7"), ()), 0.0, **more)


@pytest.mark.parametrize(
    ("last", "event", "merged"),
    [
        (Delta("a"), Delta("b"), Delta("ab")),
        (Delta(LONG), Delta("b"), None),
        (Delta("a"), ReasoningDelta("b"), None),
        (ReasoningDelta("a"), ReasoningDelta("b"), ReasoningDelta("ab")),
        (ToolOutput("1", "a"), ToolOutput("1", "b"), ToolOutput("1", "ab")),
        (ToolOutput("1", "a"), ToolOutput("2", "b"), None),
        (ToolOutput("1", LONG), ToolOutput("1", "b"), None),
        (Delta("a"), ToolOutput("1", "b"), None),
        (ToolCallDelta(0, "c", "n", "a"), ToolCallDelta(0, "", "", "b"), ToolCallDelta(0, "c", "n", "ab")),
        (ToolCallDelta(0, "c", "n", "a"), ToolCallDelta(1, "", "", "b"), None),
        (ToolCallDelta(0, "c", "n", "a"), ToolCallDelta(0, "d", "n", "b"), None),
        (ToolCallDelta(0, "c", "n", LONG), ToolCallDelta(0, "", "", "b"), None),
        (Delta("a"), ToolCallDelta(0, "", "", "b"), None),
        (ModelLoading("m", "fetching", 9.0), ModelLoading("m", "loading"), ModelLoading("m", "loading")),
        (Delta("a"), ModelLoading("m", "loading"), None),
        (Delta("a"), Reset(), None),
        (Reset(), Reset(), None),
    ],
)
def test_unread_neighbours_that_say_the_same_become_one(
    last: Event, event: Event, merged: Event | None
) -> None:
    assert merge_events(last, event) == merged


@pytest.mark.parametrize(
    ("turn", "event"),
    [
        (make_turn(state=TurnState.DONE, reply="hi"), Done("hi")),
        (make_turn(state=TurnState.DONE), Done("")),
        (make_turn(state=TurnState.CANCELLED, reply="ha"), Cancelled("ha")),
        (make_turn(state=TurnState.CANCELLED), Cancelled("")),
        (make_turn(state=TurnState.FAILED, error=ErrorInfo("t", "No.")), Failed(ErrorInfo("t", "No."))),
    ],
)
def test_a_settled_turn_has_one_last_event(turn: Turn, event: Event) -> None:
    assert final_event(turn) == event


def of_delegate(line: str, name: str = "turn_1.2-1") -> DelegateChanged:
    return DelegateChanged("call_1", DelegateId(name), TurnId("turn_2"), "Look", TurnState.RUNNING, line, 1.0)


async def test_of_a_delegate_only_the_last_event_is_kept_for_those_who_come_late() -> None:
    live = LiveTurn(make_turn(), FakeClock())
    for line in ("a", "b"):
        live.emit_below(of_delegate(line))
        live.emit_below(of_delegate(line, "turn_1.2-2"))
    early = asyncio.create_task(read(live))
    await asyncio.sleep(0)
    live.emit_below(of_delegate("c"))
    live.emit(Delta("over"))
    live.start()
    live.settle(make_turn(state=TurnState.DONE))
    others = [of_delegate("b", "turn_1.2-2")]
    ended = [Delta("over"), Done("")]
    assert [event for _, event in await early] == [of_delegate("b"), *others, of_delegate("c"), *ended]
    assert [event for _, event in await read(live)] == [*others, of_delegate("c"), *ended]


async def read(live: LiveTurn, after: int = 0) -> list[tuple[int, Event]]:
    return [item async for item in live.follow(after)]


async def test_followers_get_all_events_and_those_that_come_later_from_their_place() -> None:
    live = LiveTurn(make_turn(), FakeClock())
    live.emit(Queued(1))
    live.emit(Delta("a"))
    live.emit(Delta("b"))
    first = asyncio.create_task(read(live))
    second = asyncio.create_task(read(live, 1))
    await asyncio.sleep(0)
    live.emit(Delta("c"))
    await asyncio.sleep(0)
    live.start()
    live.settle(make_turn(state=TurnState.DONE, reply="abc"))
    expected = [(1, Queued(1)), (2, Delta("ab")), (3, Delta("c")), (4, Done("abc"))]
    assert await first == expected
    assert await second == expected[1:]
    assert await read(live, 3) == expected[3:]
    assert live.settled.result().reply == "abc"


async def test_a_turn_that_is_let_go_ends_its_followers_without_a_last_event() -> None:
    live = LiveTurn(make_turn(), FakeClock())
    following = asyncio.create_task(read(live))
    await asyncio.sleep(0)
    live.emit(Delta("a"))
    live.let_go()
    assert await following == [(1, Delta("a"))]
    assert live.settled.result() is live.turn


async def test_a_turn_that_an_earlier_process_began_starts_with_a_reset() -> None:
    resumed = LiveTurn(make_turn(attempts=1), FakeClock())
    assert resumed.is_resumed
    resumed.let_go()
    assert await read(resumed) == [(1, Reset())]
    assert not LiveTurn(make_turn(), FakeClock()).is_resumed


async def test_a_turn_that_is_known_from_its_row_has_its_last_event_only() -> None:
    done = LiveTurn.recorded(make_turn(state=TurnState.DONE, reply="hi", attempts=1), FakeClock())
    assert (done.state, await read(done, 5)) == (LiveState.SETTLED, [(6, Done("hi"))])
    elsewhere = LiveTurn.recorded(make_turn(state=TurnState.RUNNING, attempts=1), FakeClock())
    assert (elsewhere.state, await read(elsewhere)) == (LiveState.LET_GO, [])
    assert elsewhere.settled.done()


async def test_messages_that_join_are_waited_for_and_told_until_they_are_taken() -> None:
    live = LiveTurn(make_turn(), FakeClock())
    steering = LiveSteering(live, lambda turn: UserMessage((Text(turn.id),)))
    assert steering.waiting() == []
    arriving = asyncio.create_task(steering.arrival())
    await asyncio.sleep(0)
    assert not arriving.done()
    joined = LiveTurn(make_turn("turn_2", merged_into=TurnId("turn_1")), FakeClock())
    live.steer(joined)
    await arriving
    (steer,) = steering.waiting()
    assert (steer.turn_id, steer.message.text) == ("turn_2", "turn_2")
    live.steer(LiveTurn(make_turn("turn_3"), FakeClock()))
    await steering.arrival()
    joined.turn = msgspec.structs.replace(joined.turn, state=TurnState.RUNNING)
    assert [steer.turn_id for steer in steering.waiting()] == ["turn_3"]


async def test_the_turns_of_a_chat_are_counted_by_what_they_do() -> None:
    clock = FakeClock()
    turns = LiveTurns(clock, Metrics())
    opened: list[LiveTurn] = []
    turns.observe(opened.append)
    assert turns.running_in(CHAT) is None
    first = turns.open(make_turn("turn_1"))
    assert (turns.running_in(CHAT), turns.waiting_in(CHAT)) == (None, 1)
    first.start()
    second = turns.open(make_turn("turn_2"))
    command = turns.open(make_turn("turn_3", command="new"))
    joined = turns.open(make_turn("turn_4", merged_into=TurnId("turn_1")))
    other = turns.open(make_turn("turn_5", chat=ChatKey("agent:main:http:api:two")))
    assert opened == [first, second, command, joined, other] == list(turns)
    assert turns.running_in(CHAT) is first
    assert turns.waiting_in(CHAT) == 2
    assert not turns.has_begun_behind(first)
    second.turn = msgspec.structs.replace(second.turn, state=TurnState.WAITING)
    assert turns.has_begun_behind(first)
    assert not turns.has_begun_behind(other)
    turns.settle(first, make_turn("turn_1", TurnState.DONE, reply="hi"))
    turns.let_go(second)
    turns.let_go(second)
    command.start()
    assert turns.running_in(CHAT) is None, "no model answers a command"
    assert (len(turns), turns.get(TurnId("turn_1")), turns.get(TurnId("turn_3"))) == (3, None, command)
    assert turns.find(command.turn) is command
    assert turns.find(make_turn("turn_1", TurnState.DONE)).is_recorded
    assert b'talaria_turns_total{channel="http",state="done"} 1.0' in turns.metrics.render()


async def test_only_the_time_that_a_turn_runs_counts() -> None:
    clock = FakeClock()
    live = LiveTurn(make_turn(), clock)

    class Began:
        attempts = 1

    live.start()
    clock.advance(5)
    assert live.running_seconds() == 0
    live.run(Began())  # type: ignore[arg-type]
    clock.advance(2)
    assert live.running_seconds() == 2
    live.start()
    clock.advance(7)
    live.run(Began())  # type: ignore[arg-type]
    clock.advance(1)
    assert (live.running_seconds(), live.begins, live.turn.state) == (3, 2, TurnState.RUNNING)
    assert live.stop()
    assert not live.stop()
    clock.advance(9)
    assert live.running_seconds() == 3
    live.lose()
    assert live.losses == 0
