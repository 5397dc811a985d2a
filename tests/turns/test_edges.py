"""What happens at the edges of a turn: a sick store, a lost lease, a stop at a bad moment, close arrivals."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest

from support.faulty_store import FaultyStore, Order
from support.rig import Rig, chat, start
from support.waiting import until
from talaria.core.errors import StoreError
from talaria.core.events import Done, Failed, Reset
from talaria.core.ids import OwnerId, SessionId
from talaria.core.ledger import Accept, Begin, Commit, TurnEnd
from talaria.core.messages import AssistantMessage, Message, ToolResults, UserMessage
from talaria.core.tools import ToolSpec
from talaria.core.turns import StepState, Turn, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.tools.tool import Tool, ToolContext
from talaria.turns.live import LiveTurn
from talaria.turns.states import LiveState

ANOTHER = OwnerId("own_another")


async def until_asked(rig: Rig, calls: int = 1) -> None:
    await until(lambda: len(rig.model.bodies) >= calls, pause=0)


async def soon(rig: Rig, receipt: LiveTurn) -> Turn:
    """The turn when it is settled; it needs nothing but the loop's own rounds for that."""
    for _ in range(500):
        if receipt.settled.done():
            break
        await asyncio.sleep(0)
    return receipt.turn


async def messages(store: Store, session_id: SessionId) -> list[Message]:
    return [entry.message for entry in await store.log(session_id, 0) if entry.message is not None]


def assert_well_formed(said: list[Message]) -> None:
    for position, message in enumerate(said):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            results = said[position + 1]
            assert isinstance(results, ToolResults)
            assert [r.call_id for r in results.results] == [call.id for call in message.tool_calls]


class Switch(Tool):
    """A tool that does what the test says when it runs."""

    def __init__(self, action: Any, *, read_only: bool = False) -> None:
        schema = '{"type":"object","properties":{}}'
        self.spec = ToolSpec("switch", "Does something.", schema, read_only=read_only)
        self._action = action
        self.runs = 0

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.runs += 1
        self._action()
        return "switched"


# -- stops ---------------------------------------------------------------------------------------------


async def test_a_stop_while_a_failure_is_written_leaves_the_lane_alive(tmp_path: Path) -> None:
    store = FaultyStore()
    store.holds = lambda order: isinstance(order, Commit) and order.end is not None
    async with start(store, tmp_path) as rig:
        failing = await rig.submit("[[status 503]]")
        await until(lambda: store.held, pause=0)
        behind = await rig.submit("still there?")
        stopping = asyncio.create_task(rig.turns.cancel(failing))
        await asyncio.sleep(0)
        store.let_go()
        assert (await stopping).state is TurnState.FAILED, "its failure was on its way to the disk"
        assert (await soon(rig, behind)).reply == "You said: still there?"


async def test_a_turn_that_waits_for_the_store_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, tries = FaultyStore(), list[Order]()

    def is_early(order: Order) -> bool:
        if isinstance(order, Commit):
            tries.append(order)
        return isinstance(order, Commit) and len(tries) < 5

    store.fails = is_early
    with caplog.at_level(logging.DEBUG, "talaria"):
        async with start(store, tmp_path) as rig:
            assert (await rig.say("hello")).state is TurnState.DONE
    waits = [each for each in caplog.records if "waits for the store" in each.getMessage()]
    assert [each.levelname for each in waits if each.levelno > logging.DEBUG] == ["ERROR"]
    assert len(waits) > 1


async def test_a_turn_that_waits_behind_another_is_cancelled_at_once(rig: Rig) -> None:
    await rig.submit("[[hang]]")
    await until_asked(rig)
    second, third = await rig.submit("never mind"), await rig.submit("/title never mind")
    for receipt in (second, third):
        cancelling = asyncio.create_task(rig.turns.cancel(receipt))
        while not cancelling.done():
            assert len(rig.live) > 0
            await asyncio.sleep(0)
        assert cancelling.result().state is TurnState.CANCELLED
        record = await rig.store.turn_record(receipt.turn.id)
        assert record is not None and record.turn.state is TurnState.CANCELLED
    assert len(rig.live) == 1, "the first still runs"
    await rig.say("/stop")
    assert (await rig.say("[[history]]")).reply == "3", "system, the stopped one and this"


async def test_a_turn_cancelled_before_its_lane_began_never_begins(rig: Rig) -> None:
    receipt = await rig.submit("/title Taxes")
    assert (await rig.turns.cancel(receipt)).state is TurnState.CANCELLED
    assert (await rig.say("next")).state is TurnState.DONE


# -- a sick store --------------------------------------------------------------------------------------


async def test_an_unreadable_store_fails_the_turn_and_says_so(tmp_path: Path) -> None:
    store = FaultyStore()
    async with start(store, tmp_path) as rig:
        await rig.say("hello")
        await rig.pool.drain()
        store.is_unreadable = True
        receipt = await rig.submit("and now?")
        turn = await soon(rig, receipt)
        assert turn.error is not None and turn.error.type == "store"
        assert "disk I/O error" in str(turn.reply)
        store.is_unreadable = False
        assert (await rig.say("better?")).state is TurnState.DONE


async def test_an_unreadable_store_fails_a_command_and_says_so(tmp_path: Path) -> None:
    store = FaultyStore()
    async with start(store, tmp_path) as rig:
        await rig.say("hello")
        store.is_unreadable = True
        turn = await soon(rig, await rig.submit("/status"))
        assert turn.error is not None and turn.error.type == "store"


@pytest.mark.parametrize("read_only", [False, True], ids=["one by one", "side by side"])
async def test_a_step_that_cannot_be_written_fails_the_turn_and_leaves_a_whole_log(
    tmp_path: Path, read_only: bool
) -> None:
    store = FaultyStore()
    store.fails = lambda order: (
        isinstance(order, Commit) and order.end is None and any(step.result for step in order.steps)
    )
    tool = Switch(lambda: None, read_only=read_only)
    async with start(store, tmp_path, tools=lambda tools: tools.with_tools([tool])) as rig:
        receipt = await rig.submit("[[call switch {}]]+[[call switch {}]]")
        turn = await soon(rig, receipt)
        store.fails = lambda order: False
        assert turn.state is TurnState.FAILED
        assert turn.error is not None and "disk I/O error" in turn.error.message
        assert_well_formed(await messages(store, turn.session_id))
        record = await store.turn_record(turn.id)
        assert record is not None and all(step.state is StepState.ENDED for step in record.steps)
        assert (await rig.say("go on")).state is TurnState.DONE


async def test_a_turn_waits_for_a_disk_that_fails_and_is_answered_when_it_works(tmp_path: Path) -> None:
    clock, store = FakeClock(), FaultyStore()

    def break_disk() -> None:
        store.fails = lambda order: True

    tool = Switch(break_disk)
    tools = lambda tools: tools.with_tools([tool])  # noqa: E731
    async with start(store, tmp_path, clock=clock, tools=tools) as rig:
        receipt = await rig.submit("[[call switch {}]][[reply done]]")
        await clock.until_sleepers(1)
        with pytest.raises(StoreError):
            await rig.submit("refused, and told so")
        await clock.play(60)
        assert not receipt.settled.done()
        store.fails = lambda order: False
        behind = await rig.submit("and me?")
        await clock.play(60)
        assert (await soon(rig, receipt)).reply == "done"
        assert (await soon(rig, behind)).reply == "You said: and me?"
        assert tool.runs == 1, "what was started is not run again"
        said = await messages(store, receipt.turn.session_id)
        assert_well_formed(said)
        assert isinstance(said[-2], UserMessage) and said[-2].text == "and me?"
        events = [event async for _, event in receipt.follow()]
        assert Reset() in events and events[-1] == Done("done")


async def test_a_command_waits_for_a_disk_that_fails(tmp_path: Path) -> None:
    clock, store = FakeClock(), FaultyStore()
    store.fails = lambda order: not isinstance(order, Accept)
    async with start(store, tmp_path, clock=clock) as rig:
        receipts = [await rig.submit("/title Taxes"), await rig.submit("/status")]
        await clock.until_sleepers(2)
        store.fails = lambda order: False
        await clock.play(60)
        assert [(await soon(rig, receipt)).state for receipt in receipts] == [TurnState.DONE] * 2
        session = await store.session(receipts[0].turn.session_id)
        assert session is not None and session.title == "Taxes"


async def test_what_cannot_be_stored_fails_its_turn_once(tmp_path: Path) -> None:
    store = FaultyStore()
    store.fails = lambda order: (
        isinstance(order, Commit) and any(isinstance(body, AssistantMessage) for body in order.entries)
    )
    async with start(store, tmp_path) as rig:
        receipt = await rig.submit("hello")
        turn = await soon(rig, receipt)
        assert turn.state is TurnState.FAILED
        assert len(rig.model.bodies) == 1
        assert turn.error is not None
        assert [event async for _, event in receipt.follow()][-1] == Failed(turn.error)


async def test_a_turn_that_is_over_elsewhere_is_let_go(tmp_path: Path) -> None:
    clock, store = FakeClock(), FaultyStore()
    async with start(store, tmp_path, clock=clock) as rig:
        await rig.submit("[[hang]]")
        await until_asked(rig)
        store.fails = lambda order: isinstance(order, Begin)
        queued = await rig.submit("over before it begins")
        await rig.say("/stop")
        await clock.until_sleepers(1)
        await store.settle(queued.turn.id, TurnEnd(TurnState.CANCELLED))
        store.fails = lambda order: False
        await clock.play(60)
        assert queued.state is LiveState.LET_GO
        assert (await rig.say("next")).state is TurnState.DONE


# -- leases --------------------------------------------------------------------------------------------


async def test_a_lease_that_ran_out_while_the_machine_slept_is_taken_again(tmp_path: Path) -> None:
    clock, store = FakeClock(), FaultyStore()
    async with start(store, tmp_path, clock=clock) as rig:
        receipt = await rig.submit("[[first 1 hang]] hello")
        await until_asked(rig)
        behind = await rig.submit("me too")
        clock.advance(21)
        await rig.keeper.expire()
        await clock.play(1)
        assert (await soon(rig, receipt)).reply == "You said: hello"
        assert (await soon(rig, behind)).reply == "You said: me too"
        events = [event async for _, event in receipt.follow()]
        assert events[0] == Reset() and isinstance(events[-1], Done)
        assert len(rig.model.bodies) == 3


async def test_a_lease_lost_in_the_moment_of_a_shutdown_does_not_bring_the_turn_back(rig: Rig) -> None:
    live = await rig.submit("[[hang]]")
    await until_asked(rig)
    live.lose()
    [lane] = [task for task in asyncio.all_tasks() if task.get_name().startswith("turn ")]
    lane.cancel()
    await asyncio.wait([lane], timeout=5)
    assert lane.cancelled()
    assert live.state is LiveState.LET_GO
    assert len(rig.model.bodies) == 1
    await rig.store.reclaim(ANOTHER)  # as the gateway does that took the lease


async def test_who_waits_for_a_lease_has_it_soon_after_it_is_free(tmp_path: Path) -> None:
    clock = FakeClock()
    store = FaultyStore(clock)
    async with start(store, tmp_path, clock=clock) as rig:
        session_id = (await rig.say("hello")).session_id
        fence = await store.hold(session_id, ANOTHER, 30)
        receipts = [await rig.submit("a message"), await rig.submit("/title Taxes")]
        await clock.until_sleepers(1)
        await store.commit(Commit(session_id, fence, None, release=True))
        await clock.play(1)
        assert [(await soon(rig, receipt)).state for receipt in receipts] == [TurnState.DONE] * 2


# -- arrivals ------------------------------------------------------------------------------------------


async def test_messages_that_arrive_as_a_lane_ends_keep_their_order(tmp_path: Path) -> None:
    store = FaultyStore()
    async with start(store, tmp_path) as rig:
        first = await rig.submit("[[hang]]")
        await until_asked(rig)
        store.holds = lambda order: isinstance(order, Accept)
        early = asyncio.create_task(rig.submit("early"))
        await asyncio.sleep(0)
        await rig.turns.cancel(first)
        await asyncio.sleep(0)
        late = asyncio.create_task(rig.submit("late"))
        await asyncio.sleep(0)
        store.let_go()
        for receipt in (await early, await late):
            assert (await soon(rig, receipt)).state is TurnState.DONE
        said = await messages(store, first.turn.session_id)
        users = [message.text for message in said if isinstance(message, UserMessage)]
        assert users == ["[[hang]]", "early", "late"]
        assert (await rig.say("[[history]]")).state is TurnState.DONE


async def test_a_repeated_key_while_the_first_runs_is_the_same_live_turn(rig: Rig) -> None:
    first = await rig.submit("[[hang]]", key="k")
    await until_asked(rig)
    again = await rig.submit("[[hang]]", key="k")
    assert again is first and again.repeats == 1
    assert (await rig.turns.cancel(again)).id == first.turn.id
    assert len(rig.model.bodies) == 1
    after = await rig.submit("[[hang]]", key="k")
    assert after.is_recorded and after.turn.state is TurnState.CANCELLED
    assert (await rig.say("the lane is free")).state is TurnState.DONE


async def test_a_refused_accept_gives_its_lane_back(tmp_path: Path) -> None:
    store = FaultyStore()
    async with start(store, tmp_path) as rig:
        store.fails = lambda order: True
        with pytest.raises(StoreError):
            await rig.submit("refused")
        store.fails = lambda order: False
        receipt = await rig.submit("taken")
        assert (await soon(rig, receipt)).state is TurnState.DONE


# -- following -----------------------------------------------------------------------------------------


async def test_followers_that_leave_a_silent_turn_leave_nothing_behind(rig: Rig) -> None:
    receipt = await rig.submit("[[hang]]")
    await until_asked(rig)

    def futures() -> int:
        gc.collect()
        return sum(issubclass(type(thing), asyncio.Future) for thing in gc.get_objects())

    async def look() -> None:
        async for _ in receipt.follow():
            pass

    before = futures()
    for _ in range(50):
        follower = asyncio.create_task(look())
        await asyncio.sleep(0)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
    del follower
    assert futures() <= before + 5


async def test_following_an_unsettled_turn_that_another_owner_has_tells_nothing(rig: Rig) -> None:
    receipt = await rig.submit("[[hang]]")
    await until_asked(rig)
    await rig.store.reclaim(ANOTHER)
    await rig.store.hold(receipt.turn.session_id, ANOTHER, 30)
    await rig.keeper.renew()
    await rig.turns.wait(receipt)
    found = await rig.turns.find(receipt.turn.id)
    assert found.state is LiveState.LET_GO and not found.turn.state.is_final
    assert [event async for _, event in found.follow()] == []
    assert (await rig.turns.cancel(found)).state is TurnState.RUNNING


# -- what a turn cost ----------------------------------------------------------------------------------


async def test_a_failed_turn_tells_what_it_used(rig: Rig) -> None:
    turn = await rig.say("[[call list_files {}]][[status 503]]")
    assert turn.state is TurnState.FAILED
    record = await rig.store.turn_record(turn.id)
    assert record is not None and record.spent.tokens.output > 0
    assert turn.usage == record.spent.tokens


async def test_an_empty_answer_is_paid_for_and_so_it_is_counted(rig: Rig) -> None:
    turn = await rig.say("[[empty]]")
    record = await rig.store.turn_record(turn.id)
    assert record is not None and record.spent.calls == 1
    assert turn.usage == record.spent.tokens
    assert (await rig.say("hello?")).state is TurnState.DONE


# -- commands ------------------------------------------------------------------------------------------


async def test_a_number_too_long_to_read_is_no_session(rig: Rig) -> None:
    await rig.say("hello")
    turn = await rig.say("/resume " + "9" * 5000)
    assert turn.state is TurnState.DONE
    assert "No session of this chat matches" in str(turn.reply)


async def test_commands_are_taken_up_after_a_crash_at_each_of_their_commits(tmp_path: Path) -> None:
    for crash_at in (Begin, Commit, TurnEnd):
        store = FaultyStore()
        async with start(store, tmp_path) as rig:
            first = await rig.say("hello")
            store.fails = lambda order, kind=crash_at: isinstance(order, kind)  # type: ignore[misc]
            title = await rig.submit("/title Taxes")
            new = await rig.submit("/new Trip")
            status = await rig.submit("/status")
            for _ in range(20):
                await asyncio.sleep(0)
        store.fails = lambda order: False
        async with start(store, tmp_path) as rig:
            for live in rig.live:
                await rig.turns.wait(await rig.turns.find(live.turn.id))
            for receipt in (title, new, status):
                assert (await rig.turns.find(receipt.turn.id)).turn.state is TurnState.DONE
            current = await store.current_session(chat())
            summary = await store.summary(new.turn.session_id)
            assert summary is not None and summary.current == current
            titles = {session.id: session.title for session in summary.sessions}
            assert titles == {first.session_id: "Taxes", new.turn.session_id: "Trip"}
            log = await store.log(first.session_id, 0)
            assert sum(type(entry.body).__name__ == "TitleSet" for entry in log) == 1
