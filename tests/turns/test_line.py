"""One message travels the whole line: accepted, run, answered, stopped, repeated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.faulty_store import FaultyStore
from support.rig import Rig, chat, inbound, start
from support.waiting import until
from talaria.core.entries import SpecSet
from talaria.core.errors import IdempotencyConflict, NotFound
from talaria.core.events import Delta, Done, Event, Queued, ToolFinished, ToolStarted, UsageReported
from talaria.core.ids import SessionId
from talaria.core.ledger import Accept
from talaria.core.messages import AssistantMessage, Message, ToolOutcome, ToolResults, UserMessage
from talaria.core.turns import Sender, StepKind, StepState, TurnState
from talaria.models.settings import ModelSettings
from talaria.store.store import Store
from talaria.turns.intake import Draining, StatelessCall
from talaria.turns.live import LiveTurn


async def follow(rig: Rig, receipt: LiveTurn, after: int = 0) -> list[Event]:
    return [event async for _, event in receipt.follow(after)]


async def messages(store: Store, session_id: SessionId) -> list[Message]:
    return [entry.message for entry in await store.log(session_id, 0) if entry.message is not None]


async def until_asked(rig: Rig, calls: int = 1) -> None:
    """Until the model has been called this often."""
    await until(lambda: len(rig.model.bodies) >= calls, pause=0)


async def test_a_message_is_answered_and_logged(rig: Rig) -> None:
    turn = await rig.say("hello")
    assert (turn.state, turn.reply) == (TurnState.DONE, "You said: hello")
    assert turn.usage is not None and turn.usage.output > 0
    said = await messages(rig.store, turn.session_id)
    assert [type(message) for message in said] == [UserMessage, AssistantMessage]
    record = await rig.store.turn_record(turn.id)
    assert record is not None
    assert record.turn.state is TurnState.DONE
    assert record.turn.reply == turn.reply
    assert [(step.kind, step.state) for step in record.steps] == [(StepKind.MODEL, StepState.ENDED)]


async def test_tools_run_and_all_their_results_stand_in_one_entry(rig: Rig, tmp_path: Path) -> None:
    text = (
        '[[call write_file {"path":"a.txt","content":"alpha"}]]'
        '[[call read_file {"path":"a.txt"}]]+[[call list_files {}]]+[[call read_file {"path":"none"}]]'
        "[[reply done]]"
    )
    turn = await rig.say(text)
    assert turn.reply == "done"
    assert (tmp_path / "files" / "a.txt").read_text() == "alpha"
    results = [m for m in await messages(rig.store, turn.session_id) if isinstance(m, ToolResults)]
    assert [[result.name for result in entry.results] for entry in results] == [
        ["write_file"],
        ["read_file", "list_files", "read_file"],
    ]
    assert [result.outcome for result in results[1].results] == [
        ToolOutcome.OK,
        ToolOutcome.OK,
        ToolOutcome.ERROR,
    ]
    record = await rig.store.turn_record(turn.id)
    assert record is not None
    assert [step.n for step in record.steps] == list(range(1, 8))
    assert all(step.state is StepState.ENDED for step in record.steps)


async def test_events_tell_the_turn_from_its_beginning_to_its_end(rig: Rig) -> None:
    receipt = await rig.submit("[[call list_files {}]][[reply all good]]")
    events = await follow(rig, receipt)
    kinds = [type(event) for event in events]
    assert kinds == [UsageReported, ToolStarted, ToolFinished, Delta, UsageReported, Done]
    assert events[-1] == Done("all good")


async def test_who_follows_late_or_again_misses_nothing(rig: Rig) -> None:
    receipt = await rig.submit("[[chunks 4]] one two three four")
    first = await follow(rig, receipt)
    assert await follow(rig, receipt) == first
    assert await follow(rig, receipt, after=len(first) - 1) == first[-1:]
    settled = await rig.turns.find(receipt.turn.id)
    assert settled.is_recorded
    assert await follow(rig, settled) == first[-1:]


async def test_turns_of_a_chat_run_in_order_and_chats_beside_each_other(rig: Rig) -> None:
    hanging = await rig.submit("[[hang]]", "slow")
    await until_asked(rig)
    queued = [await rig.submit(f"message {number}", "slow") for number in range(3)]
    assert (await rig.say("quick", "other")).state is TurnState.DONE
    assert all(not receipt.settled.done() for receipt in queued)
    await rig.turns.cancel(hanging)
    turns = [await rig.turns.wait(receipt) for receipt in queued]
    assert [turn.reply for turn in turns] == [f"You said: message {number}" for number in range(3)]
    assert (await follow(rig, queued[2]))[0] == Queued(3)
    record = [message.text for message in await messages(rig.store, turns[0].session_id)
             if isinstance(message, UserMessage)]  # fmt: skip
    assert record == ["[[hang]]", "message 0", "message 1", "message 2"]


async def test_a_failed_turn_tells_why_and_costs_one_call_and_no_rebuild(rig: Rig) -> None:
    await rig.say("hello")
    for status, kind in ((401, "model_refused"), (503, "model_unavailable")):
        before = len(rig.model.bodies)
        turn = await rig.say(f"[[status {status}]]")
        assert turn.state is TurnState.FAILED
        assert turn.error is not None and turn.error.type == kind
        assert turn.reply is not None and turn.error.hint in turn.reply
        assert len(rig.model.bodies) == before + 1
    assert (await rig.say("and now?")).state is TurnState.DONE
    assert rig.pool.counters.builds == 1
    assert rig.pool.counters.rebuilds == 0


async def test_an_empty_answer_is_a_failure_that_is_told(rig: Rig) -> None:
    turn = await rig.say("[[empty]]")
    assert turn.error is not None and "empty answer" in turn.error.message


async def test_a_turn_stops_after_its_last_allowed_step(store: Store, tmp_path: Path) -> None:
    calls = "[[call list_files {}]]" * 5
    async with start(store, tmp_path / "files", max_steps=3) as rig:
        turn = await rig.say(calls)
        assert turn.error is not None and turn.error.type == "limit"
        assert len(rig.model.bodies) == 3
        assert (await rig.say("go on")).state is TurnState.DONE


async def test_a_command_is_answered_while_a_turn_runs(rig: Rig) -> None:
    hanging = await rig.submit("[[hang]]")
    await until_asked(rig)
    assert f"running {hanging.turn.id}" in str((await rig.say("/status")).reply)
    assert (await rig.say("/stop")).reply == "Stopped."
    assert (await rig.turns.wait(hanging)).state is TurnState.CANCELLED


async def test_new_binds_later_messages_and_resume_returns(rig: Rig) -> None:
    first = await rig.say("in the first")
    await rig.say("/title First")
    new = await rig.say("/new")
    second = await rig.say("in the second")
    assert new.session_id == second.session_id != first.session_id
    back = await rig.say("/resume 1")
    assert back.session_id == first.session_id
    assert "Back in First" in str(back.reply)
    again = await rig.say("[[history]]")
    assert again.session_id == first.session_id
    assert again.reply == "4", "system, two of the first turn, and this one"


async def test_both_sessions_of_a_chat_stay_warm(rig: Rig) -> None:
    await rig.say("a")
    await rig.say("/branch")
    await rig.say("b")
    await rig.say("/resume 1")
    await rig.say("c")
    await rig.say("/resume 1")
    await rig.say("d")
    assert rig.pool.counters.builds == 2
    assert rig.pool.counters.hits == 2


async def test_the_same_key_is_the_same_turn_and_another_body_is_refused(rig: Rig) -> None:
    first = await rig.say("once", key="k1")
    again = await rig.submit("once", key="k1")
    assert again.repeats == 1
    assert (await rig.turns.wait(again)).id == first.id
    assert len(rig.model.bodies) == 1
    with pytest.raises(IdempotencyConflict):
        await rig.submit("something else", key="k1")
    assert (await rig.say("once", "another chat", key="k1")).id != first.id


async def test_without_a_model_the_reply_says_what_to_do_and_a_later_one_is_used(
    store: Store, tmp_path: Path
) -> None:
    async with start(store, tmp_path, settings=ModelSettings()) as rig:
        turn = await rig.say("hello?")
        assert turn.error is not None and turn.error.type == "no_model"
        assert "TALARIA_MODEL__PROVIDER=scripted" in str(turn.reply)
        assert "no model" in str((await rig.say("/status")).reply)
    async with start(store, tmp_path) as rig:
        assert (await rig.say("and now?")).reply == "You said: and now?"


async def test_a_wished_model_writes_a_new_spec_once(rig: Rig) -> None:
    first = await rig.say("hello")
    await rig.say("faster", model="fast")
    await rig.say("same", model="fast")
    await rig.say("whatever it is now")
    log = await rig.store.log(first.session_id, 0)
    assert sum(isinstance(entry.body, SpecSet) for entry in log) == 2
    assert b'"model":"fast"' in rig.model.bodies[-1]
    assert rig.pool.counters.rebuilds == 1
    with pytest.raises(NotFound):
        await rig.submit("x", model="no-such-thing")


async def test_a_stateless_call_brings_its_context_and_leaves_no_agent(rig: Rig) -> None:
    context = (UserMessage(parts=inbound("what is up?").parts),)
    receipt = await rig.turns.call(StatelessCall(Sender("api"), context))
    turn = await rig.turns.wait(receipt)
    assert turn.reply == "You said: what is up?"
    assert rig.pool.stats().size == 0
    session = await rig.store.session(turn.session_id)
    assert session is not None and session.ephemeral
    assert b"system" not in rig.model.bodies[-1]


async def test_client_tools_come_back_as_calls(rig: Rig) -> None:
    tools = b'[{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}]'
    context = (UserMessage(parts=inbound('[[call weather {"city":"Bern"}]]').parts),)
    receipt = await rig.turns.call(StatelessCall(Sender("api"), context, tools=tools))
    turn = await rig.turns.wait(receipt)
    assert turn.state is TurnState.DONE
    assert receipt.completion is not None
    (call,) = receipt.completion.message.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"city":"Bern"}')
    assert tools in rig.model.bodies[-1]


async def test_message_is_answered_if_its_sender_leaves_while_it_is_accepted(tmp_path: Path) -> None:
    store = FaultyStore()
    store.holds = lambda order: isinstance(order, Accept)
    async with start(store, tmp_path) as rig:
        sender = asyncio.create_task(rig.submit("still here?"))
        await until(lambda: store.held, pause=0)
        sender.cancel()
        store.let_go()
        with pytest.raises(asyncio.CancelledError):
            await sender
        await rig.turns.drain(60)
        session = await store.current_session(chat())
        assert session is not None
        said, answer = await messages(store, session.id)
        assert isinstance(said, UserMessage) and isinstance(answer, AssistantMessage)
        assert (said.text, answer.text) == ("still here?", "You said: still here?")


async def test_a_draining_gateway_refuses_what_is_new(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.turns.drain(1)
        with pytest.raises(Draining):
            await rig.submit("too late")
        with pytest.raises(Draining):
            await rig.turns.receive(inbound("too late, from a program"))


async def test_renewing_leases_never_takes_a_turn_that_ends_for_a_lost_one(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async def renew() -> None:
        while True:
            await rig.keeper.renew()
            await asyncio.sleep(0)

    renewing = asyncio.create_task(renew())
    turns = await asyncio.gather(*(rig.say("hello", f"chat {n % 8}") for n in range(80)))
    renewing.cancel()
    await asyncio.gather(renewing, return_exceptions=True)
    assert [turn.state for turn in turns] == [TurnState.DONE] * 80
    assert [record.message for record in caplog.records if "lost" in record.message] == []
