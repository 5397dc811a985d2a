"""A turn that waits for a person holds its lane and nothing else, and goes on from its journal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.faulty_store import FaultyStore
from support.rig import Rig, start
from support.waiting import until
from talaria.access.settings import BudgetSettings
from talaria.agent.loop import NOT_DECIDED, REFUSED
from talaria.core.clock import SystemClock
from talaria.core.errors import IllegalMove, LeaseHeld, NotFound
from talaria.core.events import (
    Cancelled,
    Delta,
    Done,
    Event,
    QuestionAsked,
    QuestionDecided,
    Queued,
    Reset,
    ToolFinished,
    ToolStarted,
    UsageReported,
)
from talaria.core.ids import OwnerId, QuestionId, SessionId, TurnId
from talaria.core.ledger import Commit
from talaria.core.messages import ToolOutcome, ToolResults, UserMessage
from talaria.core.questions import APPROVE, DENY, Decision, QuestionDraft, QuestionKind
from talaria.core.spending import SpendingQuery
from talaria.core.tools import Risk, ToolSpec
from talaria.core.turns import StepState, TurnState
from talaria.models.known import PriceSettings
from talaria.store.in_memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import ToolSet
from talaria.turns.live import LiveTurn
from talaria.turns.settings import Busy
from talaria.turns.states import LiveState
from turns.test_stopping import Gate, assert_well_formed, messages

SECONDS = 600.0
AFTERWARDS = [ToolFinished, Delta, UsageReported, Done]
MAY_ACT = QuestionDraft(QuestionKind.APPROVAL, "May act run?", SECONDS, ("yes", "no"))
CALL = "[[call act {}]][[reply done]]"
TWO_CALLS = "[[call act {}]]+[[call look {}]]+[[call act {}]][[reply done]]"


class Act(Tool):
    """A tool that counts its runs and says what was decided about each. It asks `draft`, if there is one."""

    def __init__(self, name: str, draft: QuestionDraft | None = None) -> None:
        schema = '{"type":"object","properties":{}}'
        self.spec = ToolSpec(name, "Acts.", schema, asks=draft is not None)
        self.draft = draft
        self.decisions: list[Decision | None] = []

    def question(self, arguments: dict[str, Any]) -> QuestionDraft | None:
        return self.draft

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.decisions.append(context.decision)
        return f"{self.spec.name} ran"


class ParkingRig:
    """A store over several lives of a gateway, and the tools that all of them have."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.act, self.look = Act("act", MAY_ACT), Act("look")
        self.more: list[Any] = []

    def start(self, **settings: Any) -> Any:
        return start(self.store, self.folder, tools=lambda _: ToolSet(self.tools), **settings)

    @property
    def tools(self) -> list[Any]:
        return [self.act, self.look, *self.more]


@pytest.fixture
def world(store: Store, tmp_path: Path) -> ParkingRig:
    return ParkingRig(store, tmp_path)


async def until_parked(live: LiveTurn) -> None:
    while live.state is not LiveState.PARKED:
        assert not live.settled.done(), live.turn
        await asyncio.sleep(0)


async def park(rig: Rig, text: str = CALL, name: str = "one") -> LiveTurn:
    live = await rig.submit(text, name)
    await until_parked(live)
    return live


async def resumed(rig: Rig, turn_id: TurnId) -> LiveTurn:
    """The turn in another life, parked again."""
    live = await rig.turns.find(turn_id)
    await until_parked(live)
    return live


async def open_questions(store: Store, turn_id: TurnId) -> list[QuestionId]:
    return [question.id for question in await store.questions(turn_id) if question.decision is None]


async def decide(rig: Rig, live: LiveTurn, text: str = APPROVE) -> None:
    """Decide about all that the turn asks."""
    for question_id in await open_questions(rig.store, live.turn.id):
        await rig.turns.decide(question_id, text, "person")


async def events_of(live: LiveTurn) -> list[Event]:
    return [event async for _, event in live.follow()]


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


async def results(store: Store, session_id: SessionId) -> list[tuple[str, ToolOutcome]]:
    said = await messages(store, session_id)
    assert_well_formed(said)
    return [
        (result.text, result.outcome)
        for message in said
        if isinstance(message, ToolResults)
        for result in message.results
    ]


def assert_holds_nothing(rig: Rig) -> None:
    assert len(rig.keeper) == 0, "the store lease is given back"
    assert rig.pool.stats().busy == 0, "the agent is given back"
    assert rig.model.busy == 0, "the permit is given back"


# -- parking and deciding ------------------------------------------------------------------------------


async def test_a_parked_turn_waits_in_the_store_and_holds_only_its_lane(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await park(rig)
        assert_holds_nothing(rig)
        record = await world.store.turn_record(live.turn.id)
        assert record is not None
        assert record.turn.state is live.turn.state is TurnState.WAITING
        assert [step.state for step in record.steps] == [StepState.ENDED, StepState.PENDING]
        with pytest.raises(LeaseHeld):
            await world.store.hold(live.turn.session_id, OwnerId("own_another"), 1)
        assert world.act.decisions == []
        assert (await rig.turns.find(live.turn.id)) is live
        assert (await rig.turns.wait(live, 0.01)).state is TurnState.WAITING


async def test_an_approved_call_runs_and_the_turn_ends(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await park(rig)
        await decide(rig, live)
        turn = await rig.turns.wait(live)
        assert (turn.state, turn.reply, turn.attempts) == (TurnState.DONE, "done", 1)
        [decision] = world.act.decisions
        assert decision is not None and (decision.text, decision.by) == (APPROVE, "person")
        assert await results(world.store, turn.session_id) == [("act ran", ToolOutcome.OK)]
        assert len(rig.model.bodies) == 2, "the question costs no model call"
        assert rig.pool.counters.rebuilds == 0


async def test_a_denied_call_does_not_run_and_the_model_is_told(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await park(rig)
        await decide(rig, live, DENY)
        turn = await rig.turns.wait(live)
        assert (turn.state, turn.reply) == (TurnState.DONE, "done")
        assert world.act.decisions == []
        assert await results(world.store, turn.session_id) == [(REFUSED, ToolOutcome.ERROR)]
        record = await world.store.turn_record(turn.id)
        assert record is not None and record.steps[1].started_at is None, "it never started"


async def test_an_answer_is_given_to_the_tool(world: ParkingRig) -> None:
    world.act.draft = QuestionDraft(QuestionKind.ANSWER, "Which one?", SECONDS, ("red", "blue"))
    async with world.start() as rig:
        live = await park(rig)
        await decide(rig, live, "green, if there is one")
        await rig.turns.wait(live)
        [decision] = world.act.decisions
        assert decision is not None and decision.text == "green, if there is one"


async def test_all_questions_of_a_message_are_put_at_once_and_each_needs_a_decision(
    world: ParkingRig,
) -> None:
    async with world.start() as rig:
        live = await park(rig, TWO_CALLS)
        first, second = await open_questions(world.store, live.turn.id)
        await rig.turns.decide(first, DENY, "person")
        assert live.state is LiveState.PARKED
        assert world.look.decisions == [], "no call of the message runs before all are decided"
        await rig.turns.decide(second, APPROVE, "person")
        turn = await rig.turns.wait(live)
        assert await results(world.store, turn.session_id) == [
            (REFUSED, ToolOutcome.ERROR),
            ("look ran", ToolOutcome.OK),
            ("act ran", ToolOutcome.OK),
        ]
        assert turn.attempts == 1


async def test_a_turn_may_be_parked_again_and_again(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await rig.submit("[[call act {}]]" * 3 + "[[reply done]]")
        for times in range(3):
            await until_parked(live)
            assert len(world.act.decisions) == times
            await decide(rig, live)
            await until(lambda: live.state is not LiveState.PARKED, pause=0)
        turn = await rig.turns.wait(live)
        assert (turn.reply, turn.attempts) == ("done", 1)
        assert len(world.act.decisions) == 3


async def test_a_question_is_decided_once_and_only_while_its_turn_waits(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await park(rig, TWO_CALLS)
        first, second = await open_questions(world.store, live.turn.id)
        await rig.turns.decide(first, APPROVE, "person")
        with pytest.raises(IllegalMove):
            await rig.turns.decide(first, DENY, "another")
        with pytest.raises(NotFound):
            await rig.turns.decide(QuestionId("q_none"), APPROVE, "person")
        await rig.turns.cancel(live)
        with pytest.raises(IllegalMove):
            await rig.turns.decide(second, APPROVE, "person")
        assert world.act.decisions == []


# -- followers -----------------------------------------------------------------------------------------


async def test_a_follower_sees_the_question_and_what_follows_the_decision(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await rig.submit(CALL)
        following = asyncio.create_task(events_of(live))
        await until_parked(live)
        await decide(rig, live)
        events = await following
        assert kinds(events) == [
            UsageReported,
            QuestionAsked,
            QuestionDecided,
            ToolStarted,
            ToolFinished,
            Delta,
            UsageReported,
            Done,
        ], "and nothing of it is void"
        [question] = await world.store.questions(live.turn.id)
        assert events[1] == QuestionAsked(
            question.id,
            QuestionKind.APPROVAL,
            question.text,
            ("yes", "no"),
            question.call_id,
            "act",
        )


async def test_a_follower_after_a_restart_sees_the_open_question_again(world: ParkingRig) -> None:
    async with world.start() as rig:
        turn_id = (await park(rig)).turn.id
    async with world.start() as rig:
        live = await resumed(rig, turn_id)
        await decide(rig, live)
        events = await events_of(live)
        assert kinds(events) == [Reset, QuestionAsked, QuestionDecided, ToolStarted, *AFTERWARDS]


# -- the lane ------------------------------------------------------------------------------------------


async def test_later_messages_of_the_chat_wait_and_control_commands_pass(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await park(rig)
        later = await rig.submit("later")
        assert (await rig.say("elsewhere", "two")).state is TurnState.DONE
        told = str((await rig.say("/status")).reply)
        assert f"Turns: 2 before this one, waiting for your decision in {live.turn.id}, 1 waiting." in told
        assert later.state is LiveState.QUEUED
        await decide(rig, live)
        assert (await rig.turns.wait(later)).reply == "You said: later"
        queued = (await events_of(later))[0]
        assert isinstance(queued, Queued) and queued.ahead == 1
        assert "waits for a decision: May act run?" in str(queued.waits_for)


@pytest.mark.parametrize("by_command", [True, False], ids=["/stop", "cancel"])
async def test_stopping_a_parked_turn_cancels_it_and_the_next_one_runs(
    world: ParkingRig, by_command: bool
) -> None:
    async with world.start() as rig:
        live = await park(rig)
        later = await rig.submit("later")
        if by_command:
            assert "Stopped." in str((await rig.say("/stop")).reply)
        else:
            await rig.turns.cancel(live)
        turn = await rig.turns.wait(live)
        assert (turn.state, turn.attempts) == (TurnState.CANCELLED, 1)
        assert world.act.decisions == []
        [(_, outcome)] = await results(world.store, turn.session_id)
        assert outcome is ToolOutcome.CANCELLED
        assert (await rig.turns.wait(later)).reply == "You said: later"
        assert kinds(await events_of(live))[-2:] == [QuestionAsked, Cancelled]


async def test_a_message_does_not_join_a_parked_turn(world: ParkingRig) -> None:
    async with world.start(busy=Busy.STEER) as rig:
        live = await park(rig)
        steer = await rig.submit("later")
        assert steer.turn.merged_into is None
        await decide(rig, live)
        assert (await rig.turns.wait(steer)).reply == "You said: later"


async def test_a_message_that_joined_before_the_question_is_read_after_the_decision(
    world: ParkingRig,
) -> None:
    gate = Gate("gate")
    world.more = [gate]
    async with world.start(busy=Busy.STEER) as rig:
        live = await rig.submit("[[call gate {}]][[call act {}]][[reply done]]")
        await gate.entered.wait()
        steer = await rig.submit("[[call act {}]][[reply joined]]")
        assert steer.turn.merged_into == live.turn.id
        gate.opened.set()
        await until_parked(live)
        await decide(rig, live)
        await until(lambda: live.state is not LiveState.PARKED, pause=0)
        while not live.settled.done():
            if live.state is LiveState.PARKED:
                await decide(rig, live)
            await asyncio.sleep(0)
        assert (await rig.turns.wait(steer)).reply == live.turn.reply == "joined"


async def test_an_interrupting_message_stops_a_parked_turn(world: ParkingRig) -> None:
    async with world.start(busy=Busy.INTERRUPT) as rig:
        live = await park(rig)
        assert (await rig.say("never mind")).reply == "You said: never mind"
        assert live.turn.state is TurnState.CANCELLED


async def test_a_session_with_a_parked_turn_does_not_end(world: ParkingRig) -> None:
    async with world.start(cutoff=lambda now: now + 1) as rig:
        live = await park(rig)
        with pytest.raises(LeaseHeld):
            await rig.turns.end(live.turn.session_id)
        assert await rig.sessions.sweep() == 0
        assert (await rig.submit("later")).turn.session_id == live.turn.session_id
        await rig.turns.cancel(live)


# -- time and attempts ---------------------------------------------------------------------------------


async def test_an_expired_question_counts_as_denied(tmp_path: Path) -> None:
    clock = FakeClock()
    world = ParkingRig(MemoryStore(clock), tmp_path)
    async with world.start(clock=clock) as rig:
        watch = asyncio.create_task(rig.turns.watch())
        live = await park(rig)
        [question_id] = await open_questions(world.store, live.turn.id)
        await clock.play(SECONDS - 10)
        assert live.state is LiveState.PARKED
        clock.advance(10)
        with pytest.raises(IllegalMove):
            await rig.turns.decide(question_id, APPROVE, "too late")
        await clock.play(10)
        turn = await rig.turns.wait(live)
        assert (turn.state, turn.reply) == (TurnState.DONE, "done")
        assert await results(world.store, turn.session_id) == [(NOT_DECIDED, ToolOutcome.ERROR)]
        assert world.act.decisions == []
        watch.cancel()


async def test_a_decision_that_comes_too_late_is_refused_and_does_not_count(tmp_path: Path) -> None:
    clock = FakeClock()
    world = ParkingRig(MemoryStore(clock), tmp_path)
    async with world.start(clock=clock) as rig:
        live = await park(rig)
        [question_id] = await open_questions(world.store, live.turn.id)
    clock.advance(SECONDS + 1)
    with pytest.raises(IllegalMove, match="expired"):
        await world.store.decide(question_id, Decision(APPROVE, "person", clock.now()))
    async with world.start(clock=clock) as rig:
        turn = await rig.turns.wait(await rig.turns.find(live.turn.id))
        assert await results(world.store, turn.session_id) == [(NOT_DECIDED, ToolOutcome.ERROR)]


async def test_waiting_does_not_count_towards_the_time_limit(tmp_path: Path) -> None:
    clock = FakeClock()
    world = ParkingRig(MemoryStore(clock), tmp_path)
    gate = Gate("gate")
    world.more = [gate]
    async with world.start(clock=clock, turn_seconds=60) as rig:
        watch = asyncio.create_task(rig.turns.watch())
        live = await rig.submit("[[call gate {}]][[call act {}]][[call gate {}]]")
        await gate.entered.wait()
        clock.advance(40)
        gate.opened.set()
        await until_parked(live)
        gate.opened.clear()
        gate.entered.clear()
        await clock.play(SECONDS - 100)
        assert not live.settled.done()
        await decide(rig, live)
        await gate.entered.wait()
        await clock.play(15)
        assert not live.settled.done()
        await clock.play(25)
        turn = await rig.turns.wait(live)
        assert turn.error is not None and turn.error.type == "limit"
        watch.cancel()


async def test_neither_waiting_nor_restarts_meanwhile_are_attempts(world: ParkingRig) -> None:
    async with world.start() as rig:
        turn_id = (await park(rig)).turn.id
    for _ in range(4):
        async with world.start() as rig:
            await resumed(rig, turn_id)
            await world.store.reclaim(OwnerId("own_next"))  # as if the process had been killed
    async with world.start() as rig:
        live = await resumed(rig, turn_id)
        await decide(rig, live)
        turn = await rig.turns.wait(live)
        assert (turn.state, turn.attempts, turn.forgiven) == (TurnState.DONE, 1, 0)
        assert len(world.act.decisions) == 1


async def test_money_is_not_reserved_for_a_parked_turn(world: ParkingRig) -> None:
    prices = {"scripted/*": PriceSettings(input=1, output=10)}
    async with world.start(budgets=BudgetSettings(per_day_usd=1000), prices=prices) as rig:
        live = await park(rig)
        spending = await world.store.spending(SpendingQuery(live.turn.session_id, "", 0.0))
        assert spending.reserved == 0
        await decide(rig, live)
        assert (await rig.turns.wait(live)).state is TurnState.DONE


# -- shutdown, restart, crash --------------------------------------------------------------------------


async def test_a_drain_lets_a_parked_turn_go_at_once(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await park(rig)
        later = await rig.submit("later")
        async with asyncio.timeout(5):
            assert await rig.turns.drain(3600) == 0
        assert live.state is later.state is LiveState.LET_GO
        record = await world.store.turn_record(live.turn.id)
        assert record is not None and record.turn.state is TurnState.WAITING
        assert await world.store.reclaim(OwnerId("own_next"))


async def test_a_turn_that_parks_during_a_drain_is_let_go(world: ParkingRig) -> None:
    gate = Gate("gate")
    world.more = [gate]
    async with world.start() as rig:
        live = await rig.submit("[[call gate {}]][[call act {}]]")
        await gate.entered.wait()
        draining = asyncio.create_task(rig.turns.drain(3600))
        await asyncio.sleep(0)
        gate.opened.set()
        async with asyncio.timeout(5):
            assert await draining == 0
        record = await world.store.turn_record(live.turn.id)
        assert record is not None and record.turn.state is TurnState.WAITING


async def test_a_restart_finds_a_turn_waiting_and_keeps_its_lane(world: ParkingRig) -> None:
    async with world.start() as rig:
        first = await park(rig)
        await rig.submit("second")
    async with world.start() as rig:
        live = await resumed(rig, first.turn.id)
        assert_holds_nothing(rig)
        third = await rig.submit("third")
        await decide(rig, live)
        assert (await rig.turns.wait(third)).reply == "You said: third"
        assert world.act.decisions != []
        said = await messages(world.store, first.turn.session_id)
        told = [message.text for message in said if isinstance(message, UserMessage)]
        assert told == [CALL, "second", "third"]


async def test_a_decision_recorded_before_a_crash_resumes_at_start(world: ParkingRig) -> None:
    async with world.start() as rig:
        live = await park(rig)
    [question_id] = await open_questions(world.store, live.turn.id)
    await world.store.decide(question_id, Decision(APPROVE, "person", SystemClock().now()))
    async with world.start() as rig:
        turn = await rig.turns.wait(await rig.turns.find(live.turn.id))
        assert (turn.state, turn.reply, turn.attempts) == (TurnState.DONE, "done", 1)
        assert len(world.act.decisions) == 1


async def test_a_parked_turn_can_be_stopped_after_a_restart(world: ParkingRig) -> None:
    async with world.start() as rig:
        turn_id = (await park(rig)).turn.id
    async with world.start() as rig:
        live = await resumed(rig, turn_id)
        assert (await rig.turns.cancel(live)).state is TurnState.CANCELLED
        await results(world.store, live.turn.session_id)
        assert (await rig.say("next")).state is TurnState.DONE


async def test_a_turn_that_is_left_alone_is_taken_up_by_its_decision(world: ParkingRig) -> None:
    async with world.start() as rig:
        turn_id = (await park(rig)).turn.id
    async with world.start(takes_up=lambda turn: False) as rig:
        assert len(rig.live) == 0
        [question_id] = await open_questions(world.store, turn_id)
        assert (await rig.turns.decide(question_id, APPROVE, "person")).id == turn_id
        assert (await rig.turns.wait(await rig.turns.find(turn_id))).state is TurnState.DONE


async def test_a_crash_after_an_approved_call_started_does_not_run_it_again(world: ParkingRig) -> None:
    gate = Gate("act")
    gate.spec = replace(gate.spec, risk=Risk.HIGH)
    world.act = gate  # type: ignore[assignment]
    async with world.start() as rig:
        live = await park(rig)
        await decide(rig, live)
        await gate.entered.wait()
        await world.store.reclaim(OwnerId("own_next"))
    gate.opened.set()
    async with world.start() as rig:
        turn = await rig.turns.wait(await rig.turns.find(live.turn.id))
        assert turn.attempts == 2
        [(_, outcome)] = await results(world.store, turn.session_id)
        assert (gate.runs, outcome) == (1, ToolOutcome.UNKNOWN)


# -- what comes in the same moment ---------------------------------------------------------------------


def _asks(order: object) -> bool:
    return isinstance(order, Commit) and bool(order.ask)


async def test_a_stop_while_the_questions_are_written_cancels_the_turn(tmp_path: Path) -> None:
    store = FaultyStore()
    store.holds = _asks
    async with ParkingRig(store, tmp_path).start() as rig:
        live = await rig.submit(CALL)
        await until(lambda: store.held, pause=0)
        stopping = asyncio.create_task(rig.turns.cancel(live))
        await asyncio.sleep(0)
        store.let_go()
        assert (await stopping).state is TurnState.CANCELLED
        await results(store, live.turn.session_id)
        assert (await rig.say("next")).state is TurnState.DONE


async def test_a_shutdown_while_the_questions_are_written_leaves_the_turn_waiting(tmp_path: Path) -> None:
    store = FaultyStore()
    store.holds = _asks
    world = ParkingRig(store, tmp_path)
    async with world.start() as rig:
        live = await rig.submit(CALL)
        await until(lambda: store.held, pause=0)
        draining = asyncio.create_task(rig.turns.drain(0))
        await asyncio.sleep(0.01)
        store.let_go()
        await draining
        assert live.state is LiveState.LET_GO
    async with world.start() as rig:
        again = await resumed(rig, live.turn.id)
        await decide(rig, again)
        assert (await rig.turns.wait(again)).state is TurnState.DONE


async def test_a_disk_that_fails_while_a_turn_parks_fails_the_turn(tmp_path: Path) -> None:
    store = FaultyStore()
    store.fails = _asks
    async with ParkingRig(store, tmp_path).start() as rig:
        turn = await rig.say(CALL)
        assert turn.error is not None and turn.error.type == "store"
        await results(store, turn.session_id)
        assert (await rig.say("next")).state is TurnState.DONE


# -- other processes -----------------------------------------------------------------------------------


async def test_a_parked_turn_is_adopted_only_when_its_decision_was_left_behind(tmp_path: Path) -> None:
    clock = FakeClock()
    world = ParkingRig(MemoryStore(clock), tmp_path)
    async with world.start(clock=clock) as alive:
        async with world.start(clock=clock) as other:
            live = await park(other)
            clock.advance(300)
            assert await alive.turns.here.look() == 0, "the other process has it"
            [question_id] = await open_questions(world.store, live.turn.id)
        await world.store.decide(question_id, Decision(APPROVE, "person", clock.now()))
        assert await alive.turns.here.look() == 0, "not at once: its process may be about to"
        clock.advance(61)
        assert await alive.turns.here.look() == 1
        turn = await alive.turns.wait(await alive.turns.find(live.turn.id))
        assert (turn.state, turn.attempts) == (TurnState.DONE, 1)


async def test_a_parked_suspect_neither_blocks_the_quarantine_nor_is_cleared_by_waiting(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    world = ParkingRig(store, tmp_path)
    gate = Gate("gate", idempotent=True)
    world.more = [gate]

    async def crash_in_gate() -> None:
        await gate.entered.wait()
        await store.reclaim(OwnerId("own_next"))
        gate.entered.clear()

    async with world.start(clock=clock) as rig:
        live = await rig.submit("[[call gate {}]][[call act {}]][[reply done]]")
        await crash_in_gate()
    async with world.start(clock=clock):
        await crash_in_gate()
    gate.opened.set()
    async with world.start(clock=clock) as rig:
        suspect = await resumed(rig, live.turn.id)
        await clock.play(10)
        record = await store.turn_record(live.turn.id)
        assert record is not None
        assert (record.turn.attempts, record.turn.forgiven) == (3, 0), "waiting has cleared nothing"
    async with world.start(clock=clock) as rig:
        suspect = await resumed(rig, live.turn.id)
        assert clock.sleepers == 0, "it is not watched while it waits"
        await decide(rig, suspect)
        turn = await rig.turns.wait(suspect)
        assert (turn.state, turn.attempts) == (TurnState.DONE, 3)


# -- a process that is killed --------------------------------------------------------------------------

_LIFE = """
import asyncio, sys
from pathlib import Path
from talaria.core.clock import SystemClock
from talaria.core.failpoints import arm
from talaria.store.sqlite.store import SqliteStore
from turns.test_parking import CALL, ParkingRig

async def main():
    async with await SqliteStore.open(Path(sys.argv[1]) / "talaria.db", SystemClock()) as store:
        async with ParkingRig(store, Path(sys.argv[1])).start() as rig:
            arm("turn.parked")
            await rig.say(CALL)

asyncio.run(main())
"""


async def test_a_process_killed_as_it_parks_leaves_a_turn_that_waits(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _LIFE, str(tmp_path), env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert await process.wait() == -signal.SIGKILL
    async with await SqliteStore.open(tmp_path / "talaria.db", SystemClock()) as store:
        world = ParkingRig(store, tmp_path)
        async with world.start() as rig:
            [live] = rig.live
            await until_parked(live)
            await decide(rig, live)
            turn = await rig.turns.wait(live)
            assert (turn.state, turn.reply, turn.attempts) == (TurnState.DONE, "done", 1)
            assert len(world.act.decisions) == 1
