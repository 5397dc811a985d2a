"""A message that comes while a turn runs waits, joins or interrupts; a turn that is late is stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.rig import Rig, chat, inbound, start
from support.scripted_model import ScriptedModel
from support.waiting import until
from talaria.commands.command import parse_command
from talaria.core.ids import OwnerId, QuestionId, SessionId, TurnId
from talaria.core.messages import AssistantMessage, UserMessage
from talaria.core.questions import Decision, Question, QuestionKind
from talaria.core.turns import RunOrder, Turn, TurnState
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.turns.intake import choose_busy
from talaria.turns.settings import Busy
from talaria.turns.turns_here import ran_before
from turns.test_stopping import Gate, assert_well_formed, messages


@pytest.mark.parametrize(
    ("text", "usual", "chosen", "is_explicit"),
    [
        ("hello", Busy.QUEUE, Busy.QUEUE, False),
        ("hello", Busy.STEER, Busy.STEER, False),
        ("hello", Busy.INTERRUPT, Busy.INTERRUPT, False),
        ("/queue hello", Busy.STEER, Busy.QUEUE, True),
        ("/steer hello", Busy.QUEUE, Busy.STEER, True),
        ("/steer", Busy.QUEUE, Busy.QUEUE, False),
        ("/status", Busy.INTERRUPT, Busy.QUEUE, False),
    ],
)
def test_the_rule(text: str, usual: Busy, chosen: Busy, is_explicit: bool) -> None:
    assert choose_busy(parse_command(text), usual) == (chosen, is_explicit)


def _told(said: list[object]) -> list[str]:
    return [message.text for message in said if isinstance(message, UserMessage)]


async def test_steered_message_is_read_before_the_next_model_call(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate]), busy=Busy.STEER) as rig:
        host = await rig.submit("[[call gate {}]][[reply first]]")
        await gate.entered.wait()
        steer = await rig.submit("[[reply second]]")
        assert steer.turn.merged_into == host.turn.id
        gate.opened.set()
        ended, joined = await rig.turns.wait(host), await rig.turns.wait(steer)
        assert (ended.state, ended.reply) == (TurnState.DONE, "second")
        assert (joined.state, joined.reply) == (TurnState.DONE, "second")
        said = await messages(store, host.turn.session_id)
        assert_well_formed(said)
        assert [type(message).__name__ for message in said] == [
            "UserMessage",
            "AssistantMessage",
            "ToolResults",
            "UserMessage",
            "AssistantMessage",
        ]
        assert len(rig.model.bodies) == 2


async def test_steer_command_joins_where_queueing_is_the_rule(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
        host = await rig.submit("[[call gate {}]][[reply first]]")
        await gate.entered.wait()
        queued = await rig.submit("later")
        steer = await rig.submit("/steer [[reply second]]")
        gate.opened.set()
        assert (await rig.turns.wait(host)).reply == "second"
        assert (await rig.turns.wait(steer)).reply == "second"
        assert (await rig.turns.wait(queued)).reply == "You said: later"


async def test_steer_that_comes_with_the_last_answer_becomes_another_step(
    store: Store, tmp_path: Path
) -> None:
    clock = FakeClock()
    model = ScriptedModel(clock=clock)
    async with start(store, tmp_path, busy=Busy.STEER, model=model) as rig:
        host = await rig.submit("[[delay 5]]one")
        await until(lambda: rig.model.bodies, pause=0)
        steer = await rig.submit("two")
        clock.advance(5)
        assert (await rig.turns.wait(host)).reply == "You said: two"
        assert (await rig.turns.wait(steer)).reply == "You said: two"
        said = await messages(store, host.turn.session_id)
        assert [message.text for message in said if isinstance(message, AssistantMessage)] == [
            "You said: one",
            "You said: two",
        ]


async def test_steer_of_nothing_is_a_message(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, busy=Busy.STEER) as rig:
        assert (await rig.say("hello")).reply == "You said: hello"
        assert (await rig.say("/steer hello")).reply == "You said: hello"
        assert "Say what" in ((await rig.say("/steer")).reply or "")


async def test_steer_of_a_turn_that_is_stopped_runs_by_itself(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate]), busy=Busy.STEER) as rig:
        host = await rig.submit("[[call gate {}]]")
        await gate.entered.wait()
        steer = await rig.submit("hello")
        assert (await rig.say("/stop")).reply == "Stopped."
        assert (await rig.turns.wait(host)).state is TurnState.CANCELLED
        assert (await rig.turns.wait(steer)).reply == "You said: hello"
        record = await store.turn_record(steer.turn.id)
        assert record is not None
        assert record.turn.merged_into is None


async def test_steer_that_was_freed_keeps_its_place_before_what_came_later(
    store: Store, tmp_path: Path
) -> None:
    gate = Gate("gate")
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate]), busy=Busy.STEER) as rig:
        host = await rig.submit("[[call gate {}]]")
        await gate.entered.wait()
        receipts = [await rig.submit(text) for text in ("steer", "/queue later")]
        await rig.say("/stop")
        for receipt in receipts:
            await rig.turns.wait(receipt)
        said = await messages(store, host.turn.session_id)
        told = [message.text for message in said if isinstance(message, UserMessage)]
        assert told[1:] == ["steer", "later"]


@pytest.mark.parametrize("is_taken", [False, True])
async def test_crash_loses_neither_the_turn_nor_what_steers_it(
    store: Store, tmp_path: Path, is_taken: bool
) -> None:
    gates = [Gate("gate", idempotent=True), Gate("second", idempotent=True)]

    def tools(known):  # type: ignore[no-untyped-def]
        return known.with_tools(gates)

    async with start(store, tmp_path, tools=tools, busy=Busy.STEER) as rig:
        host = await rig.submit("[[call gate {}]][[reply first]]")
        await gates[0].entered.wait()
        steer = await rig.submit("[[call second {}]][[reply second]]")
        if is_taken:
            gates[0].opened.set()
            await gates[1].entered.wait()
        await store.reclaim(OwnerId("own_next"))
    for gate in gates:
        gate.opened.set()
    async with start(store, tmp_path, tools=tools, busy=Busy.STEER) as rig:
        for receipt in (host, steer):
            ended = await rig.turns.wait(await rig.turns.find(receipt.turn.id))
            assert (ended.state, ended.reply) == (TurnState.DONE, "second")
        said = await messages(store, host.turn.session_id)
        assert_well_formed(said)
        assert sum(isinstance(message, UserMessage) for message in said) == 2


async def test_interrupting_message_stops_the_turn_and_is_next(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, busy=Busy.INTERRUPT) as rig:
        first = await rig.submit("[[hang]]")
        await until(lambda: rig.model.bodies, pause=0)
        second = await rig.submit("hello")
        assert (await rig.turns.wait(first)).state is TurnState.CANCELLED
        assert (await rig.turns.wait(second)).reply == "You said: hello"


async def _late(rig: Rig, clock: FakeClock, text: str) -> None:
    watch = asyncio.create_task(rig.turns.watch())
    try:
        receipt = await rig.submit(text)
        await until(lambda: rig.model.bodies, pause=0)
        for _ in range(3):
            await clock.settle(50)
            clock.advance(30)
        turn = await rig.turns.wait(receipt)
        assert turn.state is TurnState.FAILED
        assert turn.error is not None
        assert turn.error.type == "limit"
        assert "longer than 60 seconds" in turn.error.message
        assert "agent.turn_timeout" in turn.error.hint
        assert (await rig.say("hello")).reply == "You said: hello"
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_turn_that_takes_too_long_is_stopped_and_told(store: Store, tmp_path: Path) -> None:
    clock = FakeClock()
    async with start(store, tmp_path, clock=clock, turn_seconds=60) as rig:
        await _late(rig, clock, "[[hang]]")


async def test_a_run_has_its_own_time_limit(store: Store, tmp_path: Path) -> None:
    clock = FakeClock()
    async with start(store, tmp_path, clock=clock, turn_seconds=3600) as rig:
        watch = asyncio.create_task(rig.turns.watch())
        order = replace(inbound("[[hang]]"), run=RunOrder(deadline=60.0))
        run, usual = await rig.turns.submit(order), await rig.submit("[[hang]]", "two")
        await until(lambda: len(rig.model.bodies) >= 2, pause=0)
        for _ in range(40):
            await clock.settle(20)
            clock.advance(5)
        turn = await rig.turns.wait(run)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        assert turn.error is not None
        assert "longer than 60 seconds" in turn.error.message
        assert turn.error.hint == "Give the job a later deadline, or less to do."
        assert usual.turn.state is TurnState.RUNNING
        await rig.turns.cancel(usual)


async def test_the_time_limit_of_a_run_counts_over_restarts(tmp_path: Path) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    async with start(store, tmp_path, clock=clock) as rig:
        order = replace(inbound("[[hang]]"), run=RunOrder(deadline=60.0))
        run, usual = await rig.turns.submit(order), await rig.submit("[[hang]]", "two")
        await until(lambda: len(rig.model.bodies) >= 2, pause=0)
        clock.advance(50)
    async with start(store, tmp_path, clock=clock, turn_seconds=60) as rig:
        watch = asyncio.create_task(rig.turns.watch())
        await until(lambda: len(rig.model.bodies) >= 2, pause=0)
        for _ in range(4):
            await clock.settle(20)
            clock.advance(5)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await clock.settle(50)
        ended = (await rig.turns.find(run.turn.id)).turn
        assert ended.error is not None and "longer than 60 seconds" in ended.error.message
        again = await rig.turns.find(usual.turn.id)
        assert again.turn.state is TurnState.RUNNING, "the limit of a message is for one process"
        await rig.turns.cancel(again)


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        ([], 100.0),
        ([(10.0, 40.0)], 70.0),
        ([(10.0, 40.0), (10.0, 60.0), (80.0, 90.0)], 40.0),
        ([(30.0, None)], 30.0),
        ([(30.0, None), (30.0, 50.0)], 30.0),
    ],
)
def test_waiting_for_a_person_is_no_running(waits: list[tuple[float, float | None]], seconds: float) -> None:
    turn = Turn(TurnId("t"), chat(), SessionId("s"), TurnState.WAITING, inbound("x"), 0.0, started_at=1000.0)
    questions = [
        Question(
            QuestionId(str(n)),
            turn.id,
            n,
            "call",
            QuestionKind.APPROVAL,
            "May it?",
            1000.0 + asked,
            9000.0,
            decision=None if decided is None else Decision("approve", "me", 1000.0 + decided),
        )
        for n, (asked, decided) in enumerate(waits)
    ]
    assert ran_before(turn, questions, 1100.0) == seconds


async def test_what_a_late_turn_had_said_is_kept(store: Store, tmp_path: Path) -> None:
    clock = FakeClock()
    model = ScriptedModel(clock=clock)
    async with start(store, tmp_path, clock=clock, turn_seconds=60, model=model) as rig:
        await _late(rig, clock, "[[chunks 4]][[chunk-delay 25]]one two")
        session = rig.pool.stats().agents[0].session_id
        kept = [
            message.text
            for message in await messages(store, session)
            if isinstance(message, AssistantMessage) and message.interrupted
        ]
        assert kept == ["You s"]
