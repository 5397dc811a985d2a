"""Turns of a cluster: two gateways over one store, with a clock that the tests advance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.rig import Rig, inbound
from talaria.core.cluster import Waiting
from talaria.core.events import Done, Queued
from talaria.core.ids import OwnerId, TurnId
from talaria.core.messages import Text, UserMessage
from talaria.core.questions import APPROVE, QuestionDraft, QuestionKind
from talaria.core.turns import Sender, TurnState
from talaria.store.in_memory import MemoryStore
from talaria.store.store import ClusterStore
from talaria.testing.clock import FakeClock
from talaria.turns.intake import StatelessCall
from talaria.turns.retries import ClientRequest
from talaria.turns.states import LiveState
from turns.test_parking import CALL, ParkingRig, open_questions, park, until_parked
from turns.test_stopping import Gate

GATED = "[[call gate {}]][[reply done]]"
LEASE = 30.0


class Cluster:
    """Two members, `here` and `there`. Nothing looks or renews by itself."""

    def __init__(self, world: ParkingRig, clock: FakeClock, here: Rig, there: Rig, gate: Gate) -> None:
        self.world = world
        self.store = world.store
        self.clock = clock
        self.here = here
        self.there = there
        self.gate = gate

    async def row(self, turn_id: TurnId) -> TurnState:
        record = await self.store.turn_record(turn_id)
        assert record is not None
        return record.turn.state

    async def until_over(self, *turn_ids: TurnId) -> list[TurnState]:
        for _ in range(2000):
            states = [await self.row(turn_id) for turn_id in turn_ids]
            if all(state.is_final for state in states):
                return states
            await asyncio.sleep(0)
        raise AssertionError(f"still {states}")

    async def told(self, session_id: str) -> Sequence[TurnId | None]:
        """Return the turns in the order of their first entries."""
        log = await self.store.log(session_id, 0)  # type: ignore[arg-type]
        return list(dict.fromkeys(entry.turn_id for entry in log if entry.turn_id is not None))

    async def kill_here(self) -> None:
        """Let the time of the member `here` run out, and that of `there` go on."""
        self.clock.advance(LEASE / 2)
        await self.there.keeper._renew_all()
        self.clock.advance(LEASE / 2 + 1)
        await self.there.keeper._renew_all()


async def look(rig: Rig, *, adopts: bool = False) -> int:
    assert rig.turns.here is not None and rig.cluster is not None
    if adopts:
        await rig.cluster.store.adopt(rig.cluster.here)
    return await rig.turns.here.look()


async def settle_down() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    clock = FakeClock()
    world, gate = ParkingRig(MemoryStore(clock), tmp_path), Gate("gate", idempotent=True)
    world.more = [gate]
    async with (
        world.start(clock=clock, place="here") as here,
        world.start(clock=clock, place="there") as there,
    ):
        yield Cluster(world, clock, here, there, gate)


async def test_a_message_that_was_accepted_elsewhere_goes_before_later_ones(cluster: Cluster) -> None:
    first = await cluster.here.say("first")
    second = await cluster.there.submit("second")
    assert cluster.there.live.get(second.turn.id) is None
    third = await cluster.here.submit("third")
    turn_ids = [first.id, second.turn.id, third.turn.id]
    assert await cluster.until_over(*turn_ids) == [TurnState.DONE] * 3
    assert await cluster.told(first.session_id) == turn_ids


async def test_the_order_of_acceptance_is_kept_behind_a_turn_that_runs(cluster: Cluster) -> None:
    first = await cluster.here.submit(GATED)
    await cluster.gate.entered.wait()
    later = [
        await (cluster.there if number % 2 else cluster.here).submit(f"message {number}")
        for number in range(1, 6)
    ]
    cluster.gate.opened.set()
    turn_ids = [first.turn.id, *(each.turn.id for each in later)]
    assert await cluster.until_over(*turn_ids) == [TurnState.DONE] * 6
    assert await cluster.told(first.turn.session_id) == turn_ids


async def test_a_member_that_is_out_begins_nothing_until_it_is_in_again(cluster: Cluster) -> None:
    cluster.clock.advance(LEASE * 2 / 3)
    live = await cluster.here.submit("hello")
    await settle_down()
    assert await cluster.row(live.turn.id) is TurnState.ACCEPTED
    await cluster.here.keeper._renew_all()
    await cluster.here.keeper._look()
    assert await cluster.until_over(live.turn.id) == [TurnState.DONE]


async def test_a_dead_member_loses_its_turns_to_another_in_their_order(cluster: Cluster) -> None:
    running = await cluster.here.submit(GATED)
    await cluster.gate.entered.wait()
    queued = await cluster.here.submit("queued")
    passed_on = await cluster.there.submit("passed on")
    await look(cluster.there, adopts=True)
    assert cluster.there.live.get(running.turn.id) is None, "its member is alive"
    await cluster.kill_here()
    await look(cluster.there, adopts=True)
    cluster.gate.opened.set()
    turn_ids = [running.turn.id, queued.turn.id, passed_on.turn.id]
    assert await cluster.until_over(*turn_ids) == [TurnState.DONE] * 3
    assert await cluster.told(running.turn.session_id) == turn_ids
    await _come_back(cluster.here)
    assert [each.state for each in (running, queued)] == [LiveState.LET_GO] * 2
    for live in (running, queued):
        while not live.settled.done():
            cluster.clock.advance(1)  # until the next look at its row
            await settle_down()
        events = [event async for _, event in live.follow()]
        assert isinstance(events[-1], Done), "a client that waited here gets the answer"
        assert live.turn.state is TurnState.DONE


async def _come_back(rig: Rig) -> None:
    """Renew, as a process does that was stopped past its time, join again and look."""
    assert rig.cluster is not None
    await rig.keeper._renew_all()
    await rig.keeper._look()
    await rig.cluster.wait_until_in()
    await look(rig)
    await settle_down()


async def test_a_member_that_comes_back_lets_go_of_what_waits_elsewhere_now(cluster: Cluster) -> None:
    parked = await park(cluster.here)
    behind = await cluster.here.submit("behind")
    await cluster.kill_here()
    assert await look(cluster.there, adopts=True) == 2
    await _come_back(cluster.here)
    assert [each.state for each in (parked, behind)] == [LiveState.LET_GO] * 2
    [question] = await open_questions(cluster.store, parked.turn.id)
    await cluster.there.turns.decide(question, APPROVE, "person")
    assert await cluster.until_over(parked.turn.id, behind.turn.id) == [TurnState.DONE] * 2
    assert len(cluster.world.act.decisions) == 1


async def test_a_decision_that_another_member_recorded_resumes_the_turn(cluster: Cluster) -> None:
    parked = await park(cluster.here)
    [question] = await open_questions(cluster.store, parked.turn.id)
    await cluster.there.turns.decide(question, APPROVE, "person")
    await settle_down()
    assert parked.state is LiveState.PARKED
    await look(cluster.here)
    assert await cluster.until_over(parked.turn.id) == [TurnState.DONE]


async def test_a_turn_that_is_asked_to_stop_is_stopped_where_it_runs(cluster: Cluster) -> None:
    running = await cluster.here.submit(GATED)
    await cluster.gate.entered.wait()
    queued = await cluster.here.submit("queued")
    assert cluster.there.cluster is not None
    for live in (queued, running):
        await cluster.there.cluster.store.ask_stop(live.turn.id, "person")
    await look(cluster.here)
    stopped = await cluster.until_over(running.turn.id, queued.turn.id)
    assert stopped == [TurnState.CANCELLED] * 2
    assert (await cluster.here.say("next")).state is TurnState.DONE


async def test_a_stop_that_is_adopted_with_its_turn_stops_it(cluster: Cluster) -> None:
    running = await cluster.here.submit(GATED)
    await cluster.gate.entered.wait()
    stop = await cluster.there.submit("/stop")
    await cluster.kill_here()
    assert await look(cluster.there, adopts=True) == 2
    states = await cluster.until_over(running.turn.id, stop.turn.id)
    assert states == [TurnState.CANCELLED, TurnState.DONE]


async def test_a_stateless_call_of_a_dead_member_is_cancelled(cluster: Cluster) -> None:
    call = await cluster.here.turns.call(StatelessCall(Sender("api"), (UserMessage((Text("[[hang]]"),)),)))
    await settle_down()
    assert await cluster.row(call.turn.id) is TurnState.RUNNING
    await cluster.kill_here()
    await look(cluster.there, adopts=True)
    assert await cluster.row(call.turn.id) is TurnState.CANCELLED


async def test_a_draining_member_gives_up_what_it_has_not_begun(cluster: Cluster) -> None:
    parked = await park(cluster.here)
    behind = await cluster.here.submit("behind")
    await cluster.here.turns.drain(0)
    assert await look(cluster.there, adopts=True) == 2
    [question] = await open_questions(cluster.store, parked.turn.id)
    await cluster.there.turns.decide(question, APPROVE, "person")
    assert await cluster.until_over(parked.turn.id, behind.turn.id) == [TurnState.DONE] * 2


class SlowLook(ClusterStore):
    """A store whose look at waiting turns begins and ends when the test wants it."""

    def __init__(self, store: ClusterStore) -> None:
        super().__init__(store._executor, store._wakes)
        self.begin, self.seen, self.end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def waiting_here(self, owner: OwnerId) -> Sequence[Waiting]:
        await self.begin.wait()
        rows = await super().waiting_here(owner)
        self.seen.set()
        await self.end.wait()
        return rows


async def test_a_sender_is_told_that_the_files_of_the_chat_are_away(cluster: Cluster) -> None:
    first = await cluster.here.say("first")
    assert cluster.here.cluster is not None
    here = cluster.here.cluster.here
    assert await cluster.here.cluster.store.place_chat(first.chat_key, here.place) == here.place
    await cluster.kill_here()
    live = await cluster.there.submit("second")
    async with aclosing(live.follow()) as events:
        async for _, event in events:
            assert isinstance(event, Queued)
            assert "if that gateway is not back in 10 min, another one answers" in str(event.waits_for)
            break
    cluster.clock.advance(here.takeover_seconds)
    await cluster.there.keeper._renew_all()
    await _come_back(cluster.there)
    await look(cluster.there, adopts=True)
    assert await cluster.until_over(live.turn.id) == [TurnState.DONE]


async def test_a_turn_that_ends_during_a_look_is_not_taken_up_again(cluster: Cluster) -> None:
    rig = cluster.here
    assert rig.cluster is not None
    slow = SlowLook(rig.cluster.store)
    rig.cluster.store = slow
    looking = asyncio.create_task(look(rig))
    await settle_down()
    live = await rig.submit(GATED)
    await cluster.gate.entered.wait()
    slow.begin.set()
    await slow.seen.wait()
    cluster.gate.opened.set()
    assert (await rig.turns.wait(live)).state is TurnState.DONE
    slow.end.set()
    assert await looking == 0


async def _drain_while_it_runs(cluster: Cluster, meanwhile: str) -> tuple[Any, Any]:
    """Drain `here` in the middle of a turn, which does not end in time. `meanwhile` is said to `there`."""
    running = await cluster.here.submit(GATED)
    await cluster.gate.entered.wait()
    assert cluster.here.cluster is not None
    await cluster.here.cluster.drain()
    said = await cluster.there.submit(meanwhile)
    await settle_down()
    await cluster.here.turns.drain(0)
    cluster.gate.opened.set()
    return running, said


async def test_what_a_drain_cut_off_goes_on_before_a_message_that_came_meanwhile(cluster: Cluster) -> None:
    running, later = await _drain_while_it_runs(cluster, "later")
    for _ in range(20):
        cluster.clock.advance(1)
        await settle_down()
        await look(cluster.there, adopts=True)
    turn_ids = [running.turn.id, later.turn.id]
    assert await cluster.until_over(*turn_ids) == [TurnState.DONE] * 2
    log = await cluster.store.log(running.turn.session_id, 0)
    order = [entry.turn_id for entry in log if entry.turn_id is not None]
    assert order == sorted(order, key=turn_ids.index), "one turn after the other"


async def test_a_message_is_not_begun_before_what_a_drain_cut_off(cluster: Cluster) -> None:
    running, status = await _drain_while_it_runs(cluster, "/status")
    assert await cluster.until_over(status.turn.id) == [TurnState.DONE]
    later = await cluster.there.submit("later")
    await settle_down()
    assert await cluster.row(later.turn.id) is TurnState.ACCEPTED
    for _ in range(20):
        await look(cluster.there, adopts=True)
        cluster.clock.advance(1)
        await settle_down()
    assert await cluster.until_over(running.turn.id, later.turn.id) == [TurnState.DONE] * 2
    log = await cluster.store.log(running.turn.session_id, 0)
    order = [entry.turn_id for entry in log if entry.turn_id is not None]
    assert order == sorted(order, key=[running.turn.id, later.turn.id].index)


@pytest.mark.parametrize("is_dead", [False, True])
async def test_an_answer_that_came_while_its_member_was_dead_is_passed_on(
    cluster: Cluster, is_dead: bool
) -> None:
    draft = QuestionDraft(QuestionKind.ANSWER, "Which one?", 600.0, ("red", "blue"))
    cluster.world.act.draft = draft
    parked = await park(cluster.here)
    early = await cluster.here.submit("an answer for certain")
    cluster.world.act.draft = None
    assert await cluster.until_over(parked.turn.id, early.turn.id) == [TurnState.DONE] * 2
    gated = await cluster.here.submit(f"[[call gate {{}}]]{CALL}")
    await cluster.gate.entered.wait()
    before = await cluster.here.submit("said before the question")
    cluster.world.act.draft = draft
    cluster.clock.advance(1)
    cluster.gate.opened.set()
    await until_parked(gated)
    if is_dead:
        await cluster.kill_here()
    answer = await cluster.there.submit("blue")
    next_one = await cluster.there.submit("and the next one")
    if not is_dead:
        await cluster.kill_here()
        await look(cluster.there, adopts=True)
    turn_ids = [each.turn.id for each in (gated, answer, before, next_one)]
    assert await cluster.until_over(*turn_ids) == [TurnState.DONE] * 4
    decisions = [each.text for each in cluster.world.act.decisions if each is not None]
    assert decisions == ["an answer for certain", "blue"]
    assert await cluster.told(gated.turn.session_id) == [
        parked.turn.id, gated.turn.id, before.turn.id, next_one.turn.id
    ]  # fmt: skip


async def test_a_retry_at_another_member_joins_the_turn_of_the_first_request(cluster: Cluster) -> None:
    def asking(*, is_retry: bool) -> ClientRequest:
        return ClientRequest("one request", lambda: True, is_retry=is_retry)

    said = inbound(GATED, "one")
    first = await cluster.here.turns.submit(said, asking(is_retry=False))
    await cluster.gate.entered.wait()
    again = await cluster.there.turns.submit(said, asking(is_retry=True))
    assert again.turn.id == first.turn.id
    await cluster.kill_here()
    assert await look(cluster.there, adopts=True) == 1
    last = await cluster.there.turns.submit(said, asking(is_retry=True))
    assert last.turn.id == first.turn.id
    cluster.gate.opened.set()
    assert await cluster.until_over(first.turn.id) == [TurnState.DONE]
    other = await cluster.there.turns.submit(said, ClientRequest("another", lambda: True, is_retry=True))
    assert other.turn.id != first.turn.id


async def test_a_request_that_is_sent_again_after_its_member_died_joins_the_adopted_turn(
    cluster: Cluster,
) -> None:
    said, there = inbound(GATED, "one"), cluster.there.turns
    asking = partial(ClientRequest, "one request", lambda: True, is_retry=False)
    first = await cluster.here.turns.submit(said, asking())
    await cluster.gate.entered.wait()
    await cluster.kill_here()
    assert there.here is not None
    await there.here._adopt()
    again = await there.submit(said, asking())
    assert again.turn.id == first.turn.id
    await look(cluster.there)
    cluster.gate.opened.set()
    assert await cluster.until_over(first.turn.id) == [TurnState.DONE]
