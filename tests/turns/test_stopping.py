"""A stop leaves a well-formed log and nothing behind; a crash is taken up where it happened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.rig import Rig, start
from support.scripted_model import ScriptedModel
from support.waiting import until
from talaria.agent.loop import UNKNOWN_OUTCOME
from talaria.core.events import Cancelled, Delta, Reset
from talaria.core.ids import OwnerId, SessionId
from talaria.core.messages import AssistantMessage, Message, ToolOutcome, ToolResults, UserMessage
from talaria.core.tools import ToolSpec
from talaria.core.turns import StepState, TurnState
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import ToolSet
from talaria.turns.runner import CANCELLED_BY_USER


class Gate(Tool):
    """A tool that counts its runs and waits until the test opens it."""

    def __init__(self, name: str, *, idempotent: bool = False, read_only: bool = False) -> None:
        schema = '{"type":"object","properties":{}}'
        self.spec = ToolSpec(name, "Waits.", schema, idempotent=idempotent, read_only=read_only)
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.runs = 0
        self.together = 0
        self.most_together = 0

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.runs += 1
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        self.entered.set()
        try:
            await self.opened.wait()
        finally:
            self.together -= 1
        return f"{self.spec.name} ran"


async def messages(store: Store, session_id: SessionId) -> list[Message]:
    return [entry.message for entry in await store.log(session_id, 0) if entry.message is not None]


def assert_well_formed(said: list[Message]) -> None:
    """Every call has its result in the entry right behind it, in order."""
    for position, message in enumerate(said):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            results = said[position + 1]
            assert isinstance(results, ToolResults)
            assert [r.call_id for r in results.results] == [call.id for call in message.tool_calls]


async def test_stopping_a_streaming_answer_keeps_what_was_said(rig: Rig) -> None:
    receipt = await rig.submit("[[chunks 3]][[chunk-delay 0.02]][[cut 2]][[words 3]]")
    async for _, event in receipt.follow():
        if isinstance(event, Delta):
            break
    turn = await rig.turns.cancel(receipt)
    assert turn.state is TurnState.CANCELLED
    said = await messages(rig.store, turn.session_id)
    assert isinstance(said[-1], AssistantMessage)
    assert said[-1].interrupted
    assert said[-1].text == turn.reply != ""
    assert (await rig.say("go on")).state is TurnState.DONE
    assert rig.pool.counters.rebuilds == 0


async def test_stopping_a_tool_gives_its_call_a_result(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
        receipt = await rig.submit("[[call list_files {}]]+[[call gate {}]]+[[call gate {}]]")
        await gate.entered.wait()
        turn = await rig.turns.cancel(receipt)
        said = await messages(store, turn.session_id)
        assert_well_formed(said)
        assert isinstance(said[-1], ToolResults)
        assert [result.outcome for result in said[-1].results] == [
            ToolOutcome.OK,
            ToolOutcome.CANCELLED,
            ToolOutcome.CANCELLED,
        ]
        assert said[-1].results[1].text == CANCELLED_BY_USER
        record = await store.turn_record(turn.id)
        assert record is not None and all(step.state is StepState.ENDED for step in record.steps)
        assert gate.runs == 1
        assert (await rig.say("go on")).state is TurnState.DONE


async def test_a_turn_stopped_in_the_queue_never_begins(rig: Rig) -> None:
    first = await rig.submit("[[hang]]")
    second = await rig.submit("never mind")
    stopping = asyncio.create_task(rig.turns.cancel(second))
    await asyncio.sleep(0)
    await rig.turns.cancel(first)
    assert (await stopping).state is TurnState.CANCELLED
    assert [event async for _, event in second.follow()][-1] == Cancelled("")
    said = await messages(rig.store, first.turn.session_id)
    assert [message.text for message in said if isinstance(message, UserMessage)] == ["[[hang]]"]


async def test_stopping_at_every_moment_leaves_a_well_formed_log(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    gate.opened.set()
    text = "[[call gate {}]]+[[call list_files {}]][[call todo {}]][[chunks 3]][[words 3]]"
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
        ended: list[TurnState] = []
        for moment in range(60):
            receipt = await rig.submit(text, f"chat {moment}")
            for _ in range(moment):
                await asyncio.sleep(0)
            turn = await rig.turns.cancel(receipt)
            ended.append(turn.state)
            said = await messages(store, turn.session_id)
            assert_well_formed(said)
            record = await store.turn_record(turn.id)
            assert record is not None and record.turn.state is turn.state
            assert all(step.state is StepState.ENDED for step in record.steps)
            assert (await rig.say("go on", f"chat {moment}")).state is TurnState.DONE
        assert TurnState.CANCELLED in ended


async def test_read_only_neighbours_run_side_by_side_and_others_do_not(store: Store, tmp_path: Path) -> None:
    reader, writer = Gate("reader", read_only=True), Gate("writer")
    tools = lambda tools: tools.with_tools([reader, writer])  # noqa: E731
    async with start(store, tmp_path, tools=tools) as rig:
        receipt = await rig.submit(
            "[[call reader {}]]+[[call reader {}]]+[[call writer {}]]+[[call writer {}]]"
        )
        await until(lambda: reader.together >= 2, pause=0)
        assert writer.runs == 0
        reader.opened.set()
        writer.opened.set()
        turn = await rig.turns.wait(receipt)
        assert turn.state is TurnState.DONE
        assert (reader.most_together, writer.most_together) == (2, 1)


# -- restarts ------------------------------------------------------------------------------------------


async def crash_during(
    store: Store, folder: Path, text: str, gate: Gate, *, model: ScriptedModel | None = None
) -> SessionId:
    """Run until the gate is entered, then die: tasks gone, rows as they are."""
    async with start(store, folder, model=model, tools=lambda tools: tools.with_tools([gate])) as rig:
        receipt = await rig.submit(text)
        await gate.entered.wait()
        await store.reclaim(OwnerId("own_next"))
        return receipt.turn.session_id


async def resumed(rig: Rig, session_id: SessionId) -> list[Message]:
    for live in rig.live:
        await rig.turns.wait(await rig.turns.find(live.turn.id))
    return await messages(rig.store, session_id)


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_tool_that_was_started_runs_again_only_if_it_is_idempotent(
    store: Store, tmp_path: Path, idempotent: bool
) -> None:
    gate = Gate("gate", idempotent=idempotent)
    session_id = await crash_during(store, tmp_path, "[[call gate {}]]+[[call todo {}]]", gate)
    gate.opened.set()
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
        said = await resumed(rig, session_id)
        assert_well_formed(said)
        results = next(message for message in said if isinstance(message, ToolResults))
        if idempotent:
            assert gate.runs == 2
            assert results.results[0].text == "gate ran"
        else:
            assert gate.runs == 1
            assert results.results[0].text == UNKNOWN_OUTCOME
            assert results.results[0].outcome is ToolOutcome.UNKNOWN
        assert results.results[1].outcome is ToolOutcome.OK, "it was pending, so it runs"
        assert sum(isinstance(message, UserMessage) for message in said) == 1


async def test_a_step_that_ended_keeps_its_result_over_a_restart(store: Store, tmp_path: Path) -> None:
    counter, gate = Gate("counter"), Gate("gate")
    counter.opened.set()
    tools = lambda tools: tools.with_tools([counter, gate])  # noqa: E731
    async with start(store, tmp_path, tools=tools) as rig:
        receipt = await rig.submit("[[call counter {}]]+[[call gate {}]]")
        await gate.entered.wait()
        calls = len(rig.model.bodies)
    gate.opened.set()
    async with start(store, tmp_path, tools=tools) as rig:
        said = await resumed(rig, receipt.turn.session_id)
        assert counter.runs == 1
        assert_well_formed(said)
        assert len(rig.model.bodies) == 1, "only the request that follows the results"
    assert calls == 1


async def test_a_resumed_turn_tells_its_followers_to_start_again(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        receipt = await rig.submit("[[first 1 hang]] hello")
        await until(lambda: rig.model.bodies, pause=0)
    async with start(store, tmp_path, model=ScriptedModel()) as rig:
        again = await rig.turns.find(receipt.turn.id)
        assert again.turn.attempts  # one, or two if it runs again already
        await rig.turns.cancel(again)
        events = [event async for _, event in again.follow()]
        assert isinstance(events[0], Reset)
        assert isinstance(events[-1], Cancelled)


async def test_queued_turns_keep_their_order_over_a_restart(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        await rig.submit("[[first 1 hang]] zero")
        await until(lambda: rig.model.bodies, pause=0)
        receipts = [await rig.submit(f"number {n}") for n in range(3)]
        model = rig.model
    async with start(store, tmp_path, model=model) as rig:
        said = await resumed(rig, receipts[0].turn.session_id)
        users = [message.text for message in said if isinstance(message, UserMessage)]
        assert users == ["[[first 1 hang]] zero", "number 0", "number 1", "number 2"]
        assert (await rig.turns.find(receipts[2].turn.id)).turn.reply == "You said: number 2"


async def test_what_is_not_for_this_process_waits_until_its_chat_is_spoken_to(
    store: Store, tmp_path: Path
) -> None:
    async with start(store, tmp_path) as rig:
        begun, queued = await rig.submit("[[first 1 hang]] zero"), await rig.submit("number 1")
        elsewhere, model = await rig.submit("[[first 1 hang]] elsewhere", "two"), rig.model
        third = await rig.submit("[[hang]]", "four")
        await until(lambda: len(model.bodies) >= 3, pause=0)
    async with start(store, tmp_path, model=model, takes_up=lambda turn: False) as rig:
        assert (await rig.say("hello", "three")).state is TurnState.DONE
        assert await rig.turns.here.look() == 0
        assert len(rig.live) == 0
        assert (await rig.say("number 2")).reply == "You said: number 2"
        users = [m.text for m in await messages(store, queued.turn.session_id) if isinstance(m, UserMessage)]
        assert users == ["[[first 1 hang]] zero", "number 1", "number 2"]
        assert (await rig.turns.find(begun.turn.id)).turn.state is TurnState.DONE
        left = (await rig.turns.find(elsewhere.turn.id)).turn
        assert not left.state.is_final
        attempts = left.attempts
        assert (await rig.turns.cancel(await rig.turns.find(third.turn.id))).state is TurnState.CANCELLED
    async with start(store, tmp_path, model=model) as rig:
        done = await rig.turns.wait(await rig.turns.find(elsewhere.turn.id))
        assert done.state is TurnState.DONE
        assert done.attempts == attempts + 1


async def test_a_turn_that_took_the_process_down_three_times_is_failed_and_told(
    store: Store, tmp_path: Path
) -> None:
    gate = Gate("gate", idempotent=True)
    session_id = await crash_during(store, tmp_path, "[[call gate {}]]", gate)
    for _ in range(2):
        gate.entered.clear()
        async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])):
            await gate.entered.wait()
            await store.reclaim(OwnerId("own_next"))
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
        (live,) = rig.live
        turn = await rig.turns.wait(await rig.turns.find(live.turn.id))
        assert turn.error is not None and turn.error.type == "poisoned"
        assert gate.runs == 3
        said = await messages(store, session_id)
        assert_well_formed(said)
        assert (await rig.say("go on")).state is TurnState.DONE


async def test_what_a_lost_process_had_is_taken_up_by_one_that_lives(tmp_path: Path) -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    gate = Gate("gate", idempotent=True)

    def tools(known: ToolSet) -> ToolSet:
        return known.with_tools([gate])

    async with start(store, tmp_path, clock=clock) as alive:
        async with start(store, tmp_path, clock=clock, tools=tools) as lost:
            running = await lost.submit("[[call gate {}]][[reply done]]")
            await gate.entered.wait()
            queued = await lost.submit("behind")
            assert await alive.turns.here.look() == 0
            await store.reclaim(OwnerId("own_nobody"))  # so that the lost one cannot give anything back
        assert await alive.turns.here.look() == 1
        clock.advance(61)
        await alive.turns.here.look()
        for receipt in (running, queued):
            ended = await alive.turns.wait(await alive.turns.find(receipt.turn.id))
            assert ended.state is TurnState.DONE


async def test_restarts_in_good_order_do_not_count_against_a_turn(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate", idempotent=True)
    for life in range(6):
        gate.entered.clear()
        async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
            if not life:
                await rig.submit("[[call gate {}]]")
            await gate.entered.wait()
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
        (live,) = rig.live
        receipt = await rig.turns.find(live.turn.id)
        gate.opened.set()
        turn = await rig.turns.wait(receipt)
        assert (turn.state, turn.attempts) == (TurnState.DONE, 7)


async def test_a_stateless_call_is_cancelled_by_a_restart(store: Store, tmp_path: Path) -> None:
    from talaria.core.messages import Text
    from talaria.core.turns import Sender
    from talaria.turns.intake import StatelessCall

    async with start(store, tmp_path) as rig:
        call = StatelessCall(Sender("api"), (UserMessage((Text("[[hang]]"),)),))
        receipt = await rig.turns.call(call)
        await until(lambda: rig.model.bodies, pause=0)
    async with start(store, tmp_path) as rig:
        assert (await rig.turns.find(receipt.turn.id)).turn.state is TurnState.CANCELLED


async def test_a_turn_that_lost_its_lease_stops_without_a_word(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path) as rig:
        receipt = await rig.submit("[[hang]]")
        await until(lambda: rig.model.bodies, pause=0)
        await store.reclaim(OwnerId("own_another"))
        await store.hold(receipt.turn.session_id, OwnerId("own_another"), 30)
        await rig.keeper.renew()
        events = [event async for _, event in receipt.follow()]
        assert events == []
        record = await store.turn_record(receipt.turn.id)
        assert record is not None and record.turn.state is TurnState.RUNNING


async def test_a_stale_fence_ends_the_turn_without_a_commit(store: Store, tmp_path: Path) -> None:
    gate = Gate("gate")
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
        receipt = await rig.submit("[[call gate {}]]")
        await gate.entered.wait()
        await store.reclaim(OwnerId("own_another"))
        await store.hold(receipt.turn.session_id, OwnerId("own_another"), 30)
        before = len(await store.log(receipt.turn.session_id, 0))
        gate.opened.set()
        await rig.turns.wait(receipt)
        assert len(await store.log(receipt.turn.session_id, 0)) == before


async def test_what_a_stop_writes_reaches_the_agent_with_its_next_lease(store: Store, tmp_path: Path) -> None:
    """The agent is back in the pool by then, and may be another turn's."""
    gate = Gate("gate")
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([gate])) as rig:
        receipt = await rig.submit("[[call gate {}]]")
        await gate.entered.wait()
        await rig.turns.cancel(receipt)
        before = rig.pool.stats()
        assert (await rig.say("go on")).state is TurnState.DONE
        after = rig.pool.stats()
        assert (after.counters.catchups, after.counters.builds) == (before.counters.catchups + 1, 1)
