"""What is owed is sent: once where that can be known, with a mark where it cannot, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from support.fake_outlet import CURSOR, REPEATED, FakeOutlet, OutletFault
from support.rig import Rig, inbound, start
from support.scripted_model import ScriptedModel
from support.waiting import until
from talaria.core.delivery import OutboxRow, OutboxState, OutgoingFile, OutgoingMessage
from talaria.core.ids import ChatKey, OwnerId, TurnId
from talaria.core.limits import LimitSettings
from talaria.core.turns import Turn
from talaria.store.in_memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import Store
from talaria.testing.clock import FakeClock
from talaria.turns.delivery import ShownTurn, pause_after
from talaria.turns.feed import RecordChange


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Store]:
    opened: Store = (
        MemoryStore(clock)
        if request.param == "memory"
        else await SqliteStore.open(tmp_path / "talaria.db", clock)
    )
    yield opened
    await opened.close()


@asynccontextmanager
async def sending(
    store: Store, folder: Path, clock: FakeClock, outlet: FakeOutlet | None
) -> AsyncIterator[Rig]:
    async with start(store, folder, clock=clock, model=ScriptedModel(clock=clock)) as rig:
        if outlet is not None:
            rig.delivery.attach("test", outlet)
        task = asyncio.create_task(rig.delivery.run())
        try:
            yield rig
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def no_file(key: ChatKey, path: str) -> bytes | None:
    return None


async def say(rig: Rig, text: str, address: str = "room") -> Turn:
    """To the end of the turn, from somebody who waits for the answer elsewhere."""
    message = msgspec.structs.replace(inbound(text, address), address=address)
    return await rig.turns.wait(await rig.turns.submit(message))


async def reply(store: Store, turn_id: TurnId) -> OutboxRow:
    record = await store.turn_record(turn_id)
    assert record is not None
    return record.replies[0]


async def settled(
    store: Store, turn: Turn, state: OutboxState = OutboxState.SENT, *, clock: FakeClock | None = None
) -> OutboxRow:
    """Until the reply is in that state; with a clock, time passes meanwhile."""
    while await reply_or_none(store, turn.id) is not state:
        if clock is not None:
            clock.advance(1)
        await asyncio.sleep(0)
    return await reply(store, turn.id)


async def attempted(store: Store, turn: Turn, attempts: int) -> OutboxRow:
    """Until that many attempts are over."""
    while True:
        row = await reply(store, turn.id)
        if row.attempts == attempts and row.error:
            return row
        await asyncio.sleep(0)


async def test_reply_is_sent_to_its_address(store: Store, tmp_path: Path, clock: FakeClock) -> None:
    outlet = FakeOutlet()
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        row = await settled(store, turn)
        assert outlet.texts("room") == ["You said: hello"]
        assert (row.platform_id, row.attempts) == ("m1", 1)


async def test_how_each_attempt_ended_is_told_to_those_who_listen(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    """An inbox would else list a reply as unsent long after it was sent."""
    outlet = FakeOutlet()
    outlet.faults.extend([OutletFault.REFUSE, OutletFault.DELAY])
    async with sending(store, tmp_path, clock, outlet) as rig:
        with rig.live.feed.listen(lambda chat: True, wants_records=True) as listener:
            told: dict[str | None, list[str]] = {}
            refused = await say(rig, "first")
            await settled(store, refused, OutboxState.FAILED)
            late = await say(rig, "second")
            while "reply.sent" not in told.get(late.id, []):
                clock.advance(301)  # longer than any pause
                for change in await listener.take():
                    if isinstance(change, RecordChange):
                        told.setdefault(change.turn_id, []).append(change.what)
        assert told[refused.id] == ["reply.failed"]
        assert told[late.id] == ["reply.delayed", "reply.sent"]


async def test_answer_of_a_command_is_sent_too(store: Store, tmp_path: Path, clock: FakeClock) -> None:
    outlet = FakeOutlet()
    async with sending(store, tmp_path, clock, outlet) as rig:
        await settled(store, await say(rig, "/whoami"))
        assert outlet.texts("room")[0].startswith("You are tester")


async def test_long_reply_goes_out_in_pieces_and_in_order(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet(limit=4)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "[[reply abcdefghij]]")
        await until(lambda: len(outlet.texts("room")) >= 3, pause=0)
        assert outlet.texts("room") == ["abcd", "efgh", "ij"]
        record = await store.turn_record(turn.id)
        assert record is not None
        assert len(record.replies) == 3


async def test_reply_of_too_many_messages_ends_with_a_file_that_holds_all_of_it(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet, most = FakeOutlet(limit=4), LimitSettings().reply_messages
    text = "abcd" * most + "the end"
    async with sending(store, tmp_path, clock, outlet) as rig:
        await say(rig, f"[[reply {text}]]")
        await until(lambda: len(outlet.taken) >= most + 1, pause=0)
        *messages, last = outlet.taken
        assert [(post.body, post.file) for post in messages] == [("abcd", None)] * most
        assert last.file == OutgoingFile("answer.md", text.encode())
        assert "limits.reply_messages" in last.body
        await say(rig, "and then")
        await until(lambda: len(outlet.taken) >= most + 2, pause=0)


async def test_reply_of_just_so_many_messages_has_no_file(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet, most = FakeOutlet(limit=4), LimitSettings().reply_messages
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, f"[[reply {'abcd' * most}]]")
        await until(lambda: len(outlet.taken) >= most, pause=0)
        record = await store.turn_record(turn.id)
        assert record is not None
        assert [row.file for row in record.replies] == [None] * most


async def test_delayed_reply_is_sent_when_the_platform_says(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet()
    outlet.faults.append(OutletFault.DELAY)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        row = await attempted(store, turn, 1)
        assert row.state is OutboxState.PENDING
        assert row.due_at >= clock.now() + 7
        await settled(store, turn, clock=clock)
        assert outlet.texts("room") == ["You said: hello"]


@pytest.mark.parametrize("fault", [OutletFault.LOSE, OutletFault.SWALLOW_ANSWER, OutletFault.CRASH])
async def test_resend_of_unknown_outcome_is_marked(
    store: Store, tmp_path: Path, clock: FakeClock, fault: OutletFault
) -> None:
    outlet = FakeOutlet()
    outlet.faults.append(fault)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        assert (await attempted(store, turn, 1)).state is OutboxState.SENDING
        await settled(store, turn, clock=clock)
        first = [] if fault is OutletFault.LOSE else ["You said: hello"]
        assert outlet.texts("room") == [*first, REPEATED + "You said: hello"]


async def test_mark_stays_when_a_later_attempt_was_delayed(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet()
    outlet.faults.extend((OutletFault.SWALLOW_ANSWER, OutletFault.DELAY))
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        await attempted(store, turn, 1)
        await settled(store, turn, clock=clock)
        assert outlet.texts("room") == ["You said: hello", REPEATED + "You said: hello"]


async def test_nonce_makes_a_resend_harmless(store: Store, tmp_path: Path, clock: FakeClock) -> None:
    outlet = FakeOutlet(takes_nonce=True)
    outlet.faults.append(OutletFault.SWALLOW_ANSWER)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        await attempted(store, turn, 1)
        await settled(store, turn, clock=clock)
        assert outlet.texts("room") == ["You said: hello"]


async def test_refused_reply_is_not_tried_again_and_holds_up_nobody(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet()
    outlet.faults.append(OutletFault.REFUSE)
    async with sending(store, tmp_path, clock, outlet) as rig:
        row = await settled(store, await say(rig, "one"), OutboxState.FAILED)
        assert row.error == "The bot was blocked."
        await settled(store, await say(rig, "two"))
        assert outlet.texts("room") == ["You said: two"]
        assert len(outlet.posts) == 2


async def test_one_address_that_is_stuck_does_not_hold_up_another(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet()
    outlet.faults.append(OutletFault.DELAY)
    async with sending(store, tmp_path, clock, outlet) as rig:
        stuck = await say(rig, "one", "room")
        await attempted(store, stuck, 1)
        behind = await say(rig, "two", "room")
        await settled(store, await say(rig, "three", "hall"))
        assert (outlet.texts("room"), outlet.texts("hall")) == ([], ["You said: three"])
        await settled(store, behind, clock=clock)
        assert outlet.texts("room") == ["You said: one", "You said: two"]


async def test_reply_is_an_edit_of_what_showed_the_turn(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet(shows=True)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await shown(rig, store, clock, outlet, "[[chunks 4]][[chunk-delay 5]]hello there")
        row = await settled(store, turn, clock=clock)
        assert outlet.texts("room") == ["You said: hello there"]
        assert row.edits == "m1"
        assert outlet.messages["m1"].edits >= 1


async def test_crash_while_a_turn_was_shown_leaves_one_message(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet(shows=True)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await shown(rig, store, clock, outlet, "[[chunks 3]][[chunk-delay 5]]a b c")
        await store.reclaim(OwnerId("own_next"))
    async with sending(store, tmp_path, clock, outlet) as rig:
        await settled(store, turn, clock=clock)
        assert outlet.texts("room") == ["You said: a b c"]


async def shown(rig: Rig, store: Store, clock: FakeClock, outlet: FakeOutlet, text: str) -> Turn:
    """Send text, and return its turn while it runs, once the ledger knows the message that shows it."""
    turn = (await rig.turns.submit(msgspec.structs.replace(inbound(text), address="room"))).turn
    while not outlet.texts("room"):
        await pass_time(clock, outlet)
    assert outlet.texts("room")[0].endswith(CURSOR)
    await until(lambda: is_shown(store, turn.id), pause=0)
    return turn


async def pass_time(clock: FakeClock, outlet: FakeOutlet) -> None:
    """Let five seconds pass, unless the outlet waits for the store.

    The store takes real time, in which the turn would come to its end.
    """
    if not outlet.is_asking:
        clock.advance(5)
    await asyncio.sleep(0)


async def is_shown(store: Store, turn_id: TurnId) -> bool:
    record = await store.turn_record(turn_id)
    return record is not None and record.turn.shown_id is not None


async def reply_or_none(store: Store, turn_id: TurnId) -> OutboxState | None:
    record = await store.turn_record(turn_id)
    return record.replies[0].state if record is not None and record.replies else None


async def test_reply_waits_for_a_channel_that_comes_later(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    async with sending(store, tmp_path, clock, None) as rig:
        turn = await say(rig, "hello")
        assert (await reply(store, turn.id)).state is OutboxState.PENDING
    outlet = FakeOutlet()
    async with sending(store, tmp_path, clock, outlet):
        await settled(store, turn)
        assert outlet.texts("room") == ["You said: hello"]


async def test_another_gateway_sends_on_the_channel_that_it_has_open(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    """It is told, and finds the row by itself if that was lost. The database's time counts for both."""
    outlet, told = FakeOutlet(), list[str]()
    ahead = FakeClock(clock.now() + 86_400.0)
    async with (
        sending(store, tmp_path / "one", clock, None) as one,
        sending(store, tmp_path / "two", ahead, outlet) as two,
    ):
        one.delivery.share(lambda: told.append("one"), clock.now, lambda channel: True, no_file)
        two.delivery.share(lambda: told.append("two"), clock.now, lambda channel: True, no_file)
        turn = await say(one, "hello")
        assert told == ["one"]
        assert (await reply(store, turn.id)).state is OutboxState.PENDING, "nobody has told the other yet"
        two.delivery.wake()
        await settled(store, turn)
        turn = await say(one, "again")
        ahead.advance(1.0)
        await settled(store, turn)
        await settled(store, await say(two, "here"))
        assert told == ["one", "one"], "a channel that is open here needs no word to others"
        await two.delivery.detach("test")  # or it may claim the next reply first
        turn = await say(one, "claimed")
        assert await store.outbox.claim(await reply(store, turn.id), clock.now() + 60) is not None
        two.delivery.attach("test", outlet)
        ahead.advance(1.0)
        await ahead.settle(200)
        assert outlet.texts("room") == ["You said: hello", "You said: again", "You said: here"]


async def test_send_that_a_crash_interrupted_is_repeated_with_a_mark(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet()
    async with sending(store, tmp_path, clock, None) as rig:
        turn = await say(rig, "hello")
        assert await store.outbox.claim(await reply(store, turn.id), clock.now() + 60) is not None
    async with sending(store, tmp_path, clock, outlet):
        await settled(store, turn)
        assert outlet.texts("room") == [REPEATED + "You said: hello"]


async def test_old_mail_is_never_sent(store: Store, tmp_path: Path, clock: FakeClock) -> None:
    async with sending(store, tmp_path, clock, None) as rig:
        turn = await say(rig, "hello")
    clock.advance(86_400 + 61)
    outlet = FakeOutlet()
    async with sending(store, tmp_path, clock, outlet):
        await settled(store, turn, OutboxState.FAILED)
        assert outlet.posts == []


async def test_drain_sends_what_is_due(store: Store, tmp_path: Path, clock: FakeClock) -> None:
    outlet = FakeOutlet()
    async with start(store, tmp_path, clock=clock) as rig:
        rig.delivery.attach("test", outlet)
        for text in ("one", "two"):
            await say(rig, text)
        await rig.delivery.drain(5)
        assert outlet.texts("room") == ["You said: one", "You said: two"]


async def test_file_that_the_model_sends_goes_out_behind_the_reply(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet()
    (tmp_path / "plan.txt").write_text("the plan")
    async with sending(store, tmp_path, clock, outlet) as rig:
        send = '[[call send_file {"path": "plan.txt"}]]'
        turn = await say(rig, f"{send}{send}[[reply here it is]]")
        await until(lambda: len(outlet.taken) >= 2, pause=0)
        text, file = outlet.taken
        assert (text.body, text.file) == ("here it is", None)
        assert file.file == OutgoingFile("plan.txt", b"the plan")
        record = await store.turn_record(turn.id)
        assert record is not None
        (sent,) = record.turn.files
        assert (sent.name, sent.type, sent.size) == ("plan.txt", "text/plain", 8)
        assert [row.file for row in record.replies] == [None, sent.copy_path]


async def test_file_that_became_a_link_is_not_sent(store: Store, tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "secret").write_text("not for the chat")
    files = tmp_path / "files"
    files.mkdir()
    (files / "plan.txt").write_text("the plan")
    async with sending(store, files, clock, None) as rig:
        turn = await say(rig, '[[call send_file {"path": "plan.txt"}]][[reply here it is]]')
    copy = files / turn.files[0].copy_path
    copy.unlink()
    copy.symlink_to(tmp_path / "secret")
    outlet = FakeOutlet()
    async with sending(store, files, clock, outlet):
        while True:
            record = await store.turn_record(turn.id)
            assert record is not None
            if record.replies[-1].state is OutboxState.FAILED:
                break
            await asyncio.sleep(0)
    assert [post.body for post in outlet.posts] == ["here it is"]


class Straggler(FakeOutlet):
    """Its last edit of a turn comes when the turn is over already."""

    def __init__(self) -> None:
        super().__init__(shows=True)
        self.may_end = asyncio.Event()

    async def show(self, view: ShownTurn) -> None:
        await super().show(view)
        await self.may_end.wait()
        for message in self.messages.values():
            message.text = f"unfinished{CURSOR}"


async def test_reply_is_the_last_word_over_a_show_that_straggles(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = Straggler()
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "[[chunks 4]]hello there")
        await clock.settle(50)
        assert outlet.posts == [], "the reply waits for the show"
        outlet.may_end.set()
        await settled(store, turn)
        assert outlet.texts("room") == ["You said: hello there"]


class Slow(FakeOutlet):
    """Takes its time over each reply."""

    def __init__(self) -> None:
        super().__init__(shows=True)
        self.asked = asyncio.Event()
        self.may_take = asyncio.Event()

    async def deliver(self, post: OutgoingMessage) -> str:
        self.asked.set()
        await self.may_take.wait()
        return await super().deliver(post)


async def test_a_turn_is_shown_below_the_reply_before_it(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = Slow()
    async with start(store, tmp_path, clock=clock) as rig:
        await say(rig, "one")  # its reply waits for the channel
    async with sending(store, tmp_path, clock, outlet) as rig:
        message = msgspec.structs.replace(inbound("[[chunks 3]][[chunk-delay 5]]a b c"), address="room")
        receipt = await rig.turns.submit(message)
        for _ in range(2):
            clock.advance(5)
            await clock.settle(50)
        assert outlet.texts("room") == []
        outlet.may_take.set()
        while not receipt.settled.done():
            clock.advance(5)
            await asyncio.sleep(0)
        await settled(store, receipt.turn, clock=clock)
        assert outlet.texts("room") == ["You said: one", "You said: a b c"]


async def test_a_turn_is_shown_below_a_reply_that_is_tried_again_later(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet(shows=True)
    outlet.faults.append(OutletFault.DELAY)  # for 7 seconds
    async with sending(store, tmp_path, clock, outlet) as rig:
        await attempted(store, await say(rig, "/title one"), 1)
        message = msgspec.structs.replace(
            inbound("[[chunks 3]][[chunk-delay 2]]a b c", "room"), address="room"
        )
        receipt = await rig.turns.submit(message)
        for _ in range(3):
            clock.advance(2)
            await clock.settle(50)
        assert outlet.texts("room") == []
        while not receipt.settled.done():
            clock.advance(2)
            await clock.settle(50)
        await settled(store, receipt.turn, clock=clock)
        assert outlet.texts("room") == ["Title set: one", "You said: a b c"]


async def test_channel_that_closes_shows_nothing_more_while_a_reply_is_being_sent(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = Slow()
    async with sending(store, tmp_path, clock, outlet) as rig:
        message = msgspec.structs.replace(
            inbound("[[chunks 9]][[chunk-delay 5]]a b c d e", "hall"), address="hall"
        )
        receipt = await rig.turns.submit(message)
        while not outlet.texts("hall"):
            await pass_time(clock, outlet)
        await say(rig, "one")
        await outlet.asked.wait()
        closing = asyncio.create_task(rig.delivery.detach("test"))
        await clock.settle(50)
        drawn = outlet.messages["m1"].edits
        while not receipt.settled.done():
            clock.advance(5)
            await clock.settle(50)
        assert not closing.done() and outlet.messages["m1"].edits == drawn
        outlet.may_take.set()
        await closing


async def test_channel_that_closes_leaves_the_shows_of_others_alone(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet(shows=True)
    async with sending(store, tmp_path, clock, outlet) as rig:
        rig.delivery.attach("other", FakeOutlet())
        await settled(store, await say(rig, "first"), clock=clock)  # what was owed on a new channel is known
        message = msgspec.structs.replace(inbound("[[chunks 3]][[chunk-delay 5]]a b c"), address="room")
        receipt = await rig.turns.submit(message)
        while len(outlet.texts("room")) < 2:
            await pass_time(clock, outlet)
        await rig.delivery.detach("other")
        while not receipt.settled.done():
            await pass_time(clock, outlet)
        await settled(store, receipt.turn, clock=clock)
        assert outlet.messages["m2"].edits > 1, "it was shown to its end"


async def test_platform_that_says_when_is_asked_again_then(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    """Neither sooner nor after the growing pause, however often it delays."""
    outlet = FakeOutlet()
    outlet.faults.extend([OutletFault.DELAY] * 6)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        for attempt in range(1, 7):
            await until(lambda: len(outlet.posts) >= attempt, pause=0)  # noqa: B023 - not called later
            await settled(store, turn, OutboxState.PENDING)
            await until_waiting(rig, clock)
            clock.advance(6.9)
            await clock.settle()
            assert len(outlet.posts) == attempt, "the platform asked for 7 seconds"
            clock.advance(0.5)
        await settled(store, turn)
    assert outlet.texts("room") == ["You said: hello"]


async def until_waiting(rig: Rig, clock: FakeClock) -> None:
    """Until the delivery has nothing to do but to sleep."""
    await clock.settle(100)
    await until(lambda: not rig.delivery.is_busy, pause=0)
    await clock.settle(100)


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0 / 2])
async def test_wall_clock_that_is_set_holds_up_no_reply(
    store: Store, tmp_path: Path, clock: FakeClock, jump: float
) -> None:
    outlet = FakeOutlet()
    outlet.faults.append(OutletFault.DELAY)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        await attempted(store, turn, 1)
        clock.set_wall(jump)
        behind = await say(rig, "again", "hall")
        await settled(store, behind)
        await until_waiting(rig, clock)
        clock.advance(7.5)
        await settled(store, turn)
    assert (outlet.texts("room"), outlet.texts("hall")) == (["You said: hello"], ["You said: again"])


@pytest.mark.parametrize("jump", [-30 * 86_400.0, 30 * 86_400.0])
async def test_reply_is_not_too_old_because_the_wall_clock_was_set(
    store: Store, tmp_path: Path, clock: FakeClock, jump: float
) -> None:
    """As of a machine that starts with a wrong clock and hears the right time later."""
    outlet = FakeOutlet()
    async with sending(store, tmp_path, clock, outlet) as rig:
        await until_waiting(rig, clock)
        clock.set_wall(jump)
        outlet.faults.append(OutletFault.DELAY)
        turn = await say(rig, "hello")
        await attempted(store, turn, 1)
        await until_waiting(rig, clock)
        clock.advance(61)
        await settled(store, turn)
    assert outlet.texts("room") == ["You said: hello"]


async def test_delayed_reply_of_an_earlier_process_is_sent_although_the_clock_was_set_back(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet()
    outlet.faults.append(OutletFault.DELAY)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        await attempted(store, turn, 1)
    clock.set_wall(-86_400.0)
    async with sending(store, tmp_path, clock, outlet):
        await settled(store, turn)
    assert outlet.texts("room") == ["You said: hello"]


async def test_delayed_reply_of_an_earlier_process_keeps_its_time(
    store: Store, tmp_path: Path, clock: FakeClock
) -> None:
    outlet = FakeOutlet()
    outlet.faults.append(OutletFault.DELAY)
    async with sending(store, tmp_path, clock, outlet) as rig:
        turn = await say(rig, "hello")
        await attempted(store, turn, 1)
    async with sending(store, tmp_path, clock, outlet) as rig:
        await until_waiting(rig, clock)
        assert len(outlet.posts) == 1
        clock.advance(7.5)
        await settled(store, turn)


def test_pauses_grow_with_jitter_up_to_a_limit() -> None:
    pauses = [pause_after(attempts, Random(1)) for attempts in range(1, 20)]
    assert all(0.5 <= pause <= 300 for pause in pauses)
    assert pauses[12] > pauses[5] > pauses[1]


class CountingClock(FakeClock):
    sleeps = 0

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        self.sleeps += 1
        return super().sleep(seconds)


async def test_an_empty_outbox_is_looked_at_once_a_minute(tmp_path: Path) -> None:
    clock = CountingClock()
    store = MemoryStore(clock)
    async with sending(store, tmp_path, clock, FakeOutlet()):
        for minute in range(3):
            for _ in range(50):
                await asyncio.sleep(0)
            before = clock.sleeps
            for _ in range(200):
                await asyncio.sleep(0)
            assert clock.sleeps == before, f"in minute {minute}"
            clock.advance(60)
        for _ in range(50):
            await asyncio.sleep(0)
        assert clock.sleeps > before
    await store.close()
