"""What every store promises about replies, steering, orderly restarts and what channels note."""

from __future__ import annotations

import pytest

from contracts.store_orders import (
    LEASE,
    ME,
    OTHER_CHAT,
    RIVAL,
    accepting,
    begun,
    ending,
    record_of,
    said,
)
from talaria.core.delivery import Button, DeliveryResult, OutboxRow, OutboxState
from talaria.core.errors import IllegalMove, NotFound, SteerWaiting
from talaria.core.files import SentFile, sent_file_id
from talaria.core.ids import ChatKey, TurnId
from talaria.core.ledger import Accept, Begin, Commit, TurnEnd
from talaria.core.messages import AssistantMessage
from talaria.core.turns import Turn, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

ROOM = ChatKey("agent:main:fake:group:room")


def posted(
    text: str = "hello", address: str = "room", *, chat: ChatKey = ROOM, steers: TurnId | None = None
) -> Accept:
    return accepting(text, chat=chat, address=address, steers=steers)


async def owed(store: Store, reply: str = "hi", order: Accept | None = None) -> OutboxRow:
    """A reply that waits to be sent, of a turn just ended."""
    turn, lease = await begun(store, order or posted())
    await store.commit(ending(turn, lease, AssistantMessage(reply), reply=reply))
    record = await record_of(store, turn.turn.id)
    return record.replies[0]


async def turn_of(store: Store, turn_id: TurnId) -> Turn:
    record = await record_of(store, turn_id)
    return record.turn


PICTURE = SentFile(sent_file_id(TurnId("turn_" + "0" * 26), "c1"), "a.png", "image/png", 9)


class StoreDeliverySuite:
    # -- writing replies

    async def test_end_of_a_turn_with_an_address_writes_its_reply(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn, lease = await begun(store, posted())
        end = TurnEnd(TurnState.DONE, "hi", buttons=(Button("Yes", "/yes"),), files=(PICTURE,))
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=end))
        record = await record_of(store, turn.turn.id)
        text, file = record.replies
        assert (text.body, text.buttons, text.file, text.edits) == ("hi", end.buttons, None, None)
        assert (file.body, file.buttons, file.file) == ("", (), PICTURE.copy_path)
        assert record.turn.files == (PICTURE,)
        assert {row.channel for row in record.replies} == {"fake"}
        assert {row.chat_key for row in record.replies} == {ROOM}
        assert (text.state, text.written_at, text.attempts) == (OutboxState.PENDING, clock.now(), 0)
        assert tuple(await store.outbox.due("fake", 9)) == (text,)
        assert (await store.stats()).outbox == 2

    async def test_who_fetches_the_reply_is_sent_none(self, store: Store) -> None:
        turn, lease = await begun(store)
        await store.commit(ending(turn, lease))
        record = await record_of(store, turn.turn.id)
        assert record.replies == ()

    async def test_command_that_is_settled_owes_its_reply(self, store: Store) -> None:
        accepted = await store.accept(posted("/help"))
        await store.settle(accepted.turn.id, TurnEnd(TurnState.DONE, "help yourself"))
        (row,) = await store.outbox.due("fake", 9)
        assert row.body == "help yourself"

    async def test_stopped_turn_says_so_only_where_it_was_shown(self, store: Store) -> None:
        for shown, expected in ((None, []), ("m1", ["half an\n\n[Stopped.]"])):
            turn, lease = await begun(store, posted())
            if shown:
                await store.show(turn.turn.id, shown)
            end = TurnEnd(TurnState.CANCELLED, "half an")
            await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=end))
            record = await record_of(store, turn.turn.id)
            assert [row.body for row in record.replies] == expected

    async def test_reply_takes_the_place_of_what_showed_the_turn(self, store: Store) -> None:
        turn, lease = await begun(store, posted())
        await store.show(turn.turn.id, "m1")
        assert (await turn_of(store, turn.turn.id)).shown_id == "m1"
        await store.commit(ending(turn, lease))
        (row,) = await store.outbox.due("fake", 9)
        assert row.edits == "m1"

    async def test_message_that_is_shown_too_late_is_still_replaced(self, store: Store) -> None:
        turn, lease = await begun(store, posted())
        await store.commit(ending(turn, lease))
        await store.show(turn.turn.id, "m1")
        (row,) = await store.outbox.due("fake", 9)
        assert row.edits == "m1"

    async def test_message_shown_after_its_turn_was_stopped_is_told(self, store: Store) -> None:
        turn, lease = await begun(store, posted())
        end = TurnEnd(TurnState.CANCELLED)
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=end))
        await store.show(turn.turn.id, "m1")
        (row,) = await store.outbox.due("fake", 9)
        assert (row.body, row.edits) == ("[Stopped.]", "m1")

    async def test_show_of_an_unknown_turn_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.show(TurnId("turn_x"), "m1")

    # -- sending

    async def test_rows_of_one_address_are_due_one_at_a_time_in_order(self, store: Store) -> None:
        first = await owed(store, "one")
        await owed(store, "two")
        elsewhere = await owed(store, "three", posted(address="hall"))
        assert tuple(await store.outbox.due("fake", 9)) == (first, elsewhere)
        assert tuple(await store.outbox.due("fake", 1)) == (first,)
        assert tuple(await store.outbox.due("other", 9)) == ()

    async def test_reply_is_owed_to_its_address_until_it_is_sent_or_refused(
        self, store: Store, clock: FakeClock
    ) -> None:
        assert not await store.outbox.is_owed("fake", "room")
        for last in (OutboxState.SENT, OutboxState.FAILED):
            row = await owed(store)
            assert await store.outbox.is_owed("fake", "room"), "it was not tried"
            assert not await store.outbox.is_owed("fake", "hall")
            assert not await store.outbox.is_owed("other", "room")
            await store.outbox.claim(row, clock.now() + 30)
            assert await store.outbox.is_owed("fake", "room"), "it is being sent"
            await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.PENDING, clock.now() + 60))
            assert await store.outbox.is_owed("fake", "room"), "it is put off"
            (row,) = await store.outbox.due("fake", 9, clock.now() + 60)
            await store.outbox.claim(row, clock.now() + 90)
            await store.outbox.mark(DeliveryResult(row.id, 2, last, platform_id="m1"))
            assert not await store.outbox.is_owed("fake", "room")

    async def test_claimed_row_is_due_again_only_after_the_deadline(
        self, store: Store, clock: FakeClock
    ) -> None:
        row = await owed(store)
        claimed = await store.outbox.claim(row, clock.now() + 30)
        assert claimed is not None
        assert (claimed.state, claimed.attempts) == (OutboxState.SENDING, 1)
        assert tuple(await store.outbox.due("fake", 9)) == ()
        clock.advance(30)
        assert tuple(await store.outbox.due("fake", 9)) == (claimed,)

    async def test_row_is_claimed_once(self, store: Store, clock: FakeClock) -> None:
        row = await owed(store)
        assert await store.outbox.claim(row, clock.now() + 30) is not None
        assert await store.outbox.claim(row, clock.now() + 30) is None

    async def test_sent_row_is_never_due_again(self, store: Store, clock: FakeClock) -> None:
        row = await owed(store)
        later = await owed(store, "two")
        assert await store.outbox.claim(row, clock.now() + 30) is not None
        assert await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.SENT, platform_id="m7"))
        clock.advance(100)
        assert tuple(await store.outbox.due("fake", 9)) == (later,)
        record = await record_of(store, row.turn_id)
        sent = record.replies[0]
        assert (sent.platform_id, sent.sent_at) == ("m7", clock.now() - 100)
        with pytest.raises(IllegalMove):
            await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.PENDING))

    async def test_delayed_row_waits_until_its_time(self, store: Store, clock: FakeClock) -> None:
        row = await owed(store)
        await store.outbox.claim(row, clock.now() + 30)
        mark = DeliveryResult(row.id, 1, OutboxState.PENDING, clock.now() + 60, error="slow down")
        assert await store.outbox.mark(mark)
        clock.advance(59)
        assert tuple(await store.outbox.due("fake", 9)) == ()
        clock.advance(1)
        (again,) = await store.outbox.due("fake", 9)
        assert (again.state, again.attempts, again.error) == (OutboxState.PENDING, 1, "slow down")

    async def test_row_is_due_when_the_clock_was_set_back_since_its_time_was_written(
        self, store: Store, clock: FakeClock
    ) -> None:
        row = await owed(store)
        await store.outbox.claim(row, clock.now() + 30)
        await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.PENDING, clock.now() + 3600))
        clock.advance(-60)
        assert tuple(await store.outbox.due("fake", 9)) == (), "clocks of two processes may differ so much"
        clock.advance(-1)
        assert [due.id for due in await store.outbox.due("fake", 9)] == [row.id]

    async def test_mark_of_an_earlier_attempt_does_nothing(self, store: Store, clock: FakeClock) -> None:
        row = await owed(store)
        first = await store.outbox.claim(row, clock.now())
        assert first is not None
        assert await store.outbox.claim(first, clock.now() + 30) is not None
        assert not await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.FAILED))
        assert await store.outbox.mark(DeliveryResult(row.id, 2, OutboxState.SENT))

    async def test_unclaimed_row_cannot_be_sent(self, store: Store) -> None:
        row = await owed(store)
        with pytest.raises(IllegalMove):
            await store.outbox.mark(DeliveryResult(row.id, 0, OutboxState.SENT))
        with pytest.raises(NotFound):
            await store.outbox.mark(DeliveryResult(99, 0, OutboxState.SENT))

    async def test_long_reply_is_split_and_stays_in_front_of_the_next(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn, lease = await begun(store, posted())
        await store.show(turn.turn.id, "m1")
        end = TurnEnd(TurnState.DONE, "onetwo", buttons=(Button("Go", "/go"),))
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=end))
        await owed(store, "next")
        (row,) = await store.outbox.due("fake", 9)
        await store.outbox.split(row.id, ("one", "two"))
        sent = []
        while due := await store.outbox.due("fake", 9):
            claimed = await store.outbox.claim(due[0], clock.now() + 30)
            assert claimed is not None
            sent.append((claimed.body, claimed.edits, len(claimed.buttons), claimed.nonce))
            await store.outbox.mark(DeliveryResult(claimed.id, 1, OutboxState.SENT))
        assert [part[:3] for part in sent] == [("one", "m1", 0), ("two", None, 1), ("next", None, 0)]
        assert len({part[3] for part in sent}) == 3

    async def test_row_that_was_tried_is_not_split(self, store: Store, clock: FakeClock) -> None:
        row = await owed(store)
        await store.outbox.claim(row, clock.now())
        with pytest.raises(IllegalMove):
            await store.outbox.split(row.id, ("a", "b"))

    async def test_only_a_claim_begins_an_attempt(self, store: Store, clock: FakeClock) -> None:
        row = await owed(store)
        with pytest.raises(IllegalMove):
            await store.outbox.mark(DeliveryResult(row.id, 0, OutboxState.SENDING, clock.now() + 30))
        assert tuple(await store.outbox.due("fake", 9)) == (row,)

    async def test_old_mail_is_given_up(self, store: Store, clock: FakeClock) -> None:
        old = await owed(store)
        clock.advance(100)
        young = await owed(store, "two")
        assert await store.outbox.expire(clock.now() - 50, "too old") == 1
        assert tuple(await store.outbox.due("fake", 9)) == (young,)
        record = await record_of(store, old.turn_id)
        assert (record.replies[0].state, record.replies[0].error) == (OutboxState.FAILED, "too old")

    async def test_send_that_a_crash_interrupted_is_due_at_the_next_start(
        self, store: Store, clock: FakeClock
    ) -> None:
        row = await owed(store)
        await store.outbox.claim(row, clock.now() + 30)
        await store.reclaim(RIVAL)
        (found,) = await store.outbox.due("fake", 9)
        assert found.state is OutboxState.SENDING

    # -- steering

    async def test_steer_joins_the_running_turn_and_ends_with_it(self, store: Store) -> None:
        host, lease = await begun(store, posted())
        steer = await store.accept(posted("no, the other", steers=host.turn.id))
        assert (steer.turn.merged_into, steer.turn.state) == (host.turn.id, TurnState.ACCEPTED)
        session_id = host.turn.session_id
        with pytest.raises(SteerWaiting):
            await store.commit(ending(host, lease))
        await store.commit(
            Commit(session_id, lease.fence, host.turn.id, (said("no"),), steers=(steer.turn.id,))
        )
        assert (await turn_of(store, steer.turn.id)).state is TurnState.RUNNING
        await store.commit(ending(host, lease, reply="the other"))
        ended = await turn_of(store, steer.turn.id)
        assert (ended.state, ended.reply) == (TurnState.DONE, "the other")
        assert len(await store.outbox.due("fake", 9)) == 1

    async def test_steer_of_a_turn_that_fails_is_a_turn_of_its_own(self, store: Store) -> None:
        host, lease = await begun(store, posted())
        steer = await store.accept(posted("wait", steers=host.turn.id))
        await store.commit(
            Commit(
                host.turn.session_id, lease.fence, host.turn.id, end=TurnEnd(TurnState.FAILED, "out of luck")
            )
        )
        free = await turn_of(store, steer.turn.id)
        assert (free.state, free.merged_into) == (TurnState.ACCEPTED, None)
        await store.begin(Begin(steer.turn.id, ME, LEASE, said("wait")))

    async def test_steer_of_a_turn_that_is_over_is_a_turn_of_its_own(self, store: Store) -> None:
        row = await owed(store)
        steer = await store.accept(posted("late", steers=row.turn_id))
        assert steer.turn.merged_into is None

    async def test_steer_is_taken_in_once(self, store: Store) -> None:
        host, lease = await begun(store, posted())
        steer = await store.accept(posted("no", steers=host.turn.id))
        order = Commit(host.turn.session_id, lease.fence, host.turn.id, steers=(steer.turn.id,))
        await store.commit(order)
        with pytest.raises(NotFound):
            await store.commit(order)

    # -- restarts in good order

    async def test_yielded_turn_is_free_at_once_and_not_counted_as_a_crash(self, store: Store) -> None:
        turn, _ = await begun(store, posted())
        other, _ = await begun(store, posted("b", chat=OTHER_CHAT), RIVAL)
        await store.yield_turns(ME)
        again = await store.begin(Begin(turn.turn.id, RIVAL, LEASE))
        assert (again.attempts, again.crashes) == (2, 0)
        crashed = await store.begin(Begin(other.turn.id, RIVAL, LEASE))
        assert (crashed.attempts, crashed.crashes) == (2, 1)

    async def test_forgiven_attempt_is_not_a_crash(self, store: Store) -> None:
        turn, _ = await begun(store, posted())
        assert (await store.begin(Begin(turn.turn.id, ME, LEASE, is_forgiven=True))).crashes == 0
        assert (await store.begin(Begin(turn.turn.id, ME, LEASE))).crashes == 1

    async def test_cleared_turn_begins_its_count_anew(self, store: Store) -> None:
        turn, _ = await begun(store, posted())
        assert (await store.begin(Begin(turn.turn.id, ME, LEASE))).crashes == 1
        await store.forgive(turn.turn.id)
        assert (await store.begin(Begin(turn.turn.id, ME, LEASE))).crashes == 0
        assert (await store.begin(Begin(turn.turn.id, ME, LEASE))).crashes == 1
        with pytest.raises(NotFound):
            await store.forgive(TurnId("turn_x"))

    # -- what nobody has any more

    async def test_turns_of_a_lost_owner_are_orphans_when_its_lease_is_over(
        self, store: Store, clock: FakeClock
    ) -> None:
        lost, _ = await begun(store, posted(), RIVAL)
        mine, _ = await begun(store, posted("b", chat=OTHER_CHAT), ME)
        queued = await store.accept(posted("behind"))
        assert list(await store.orphans(ME, clock.now() + 1)) == []
        clock.advance(LEASE)
        found = await store.orphans(ME, clock.now() - 2 * LEASE)
        assert [turn.id for turn in found] == [lost.turn.id]
        found = await store.orphans(ME, clock.now())
        assert [turn.id for turn in found] == [lost.turn.id, queued.turn.id]
        assert mine.turn.id not in {turn.id for turn in found}

    async def test_yielded_turns_are_orphans_at_once(self, store: Store, clock: FakeClock) -> None:
        turn, _ = await begun(store, posted(), RIVAL)
        await store.yield_turns(RIVAL)
        assert [found.id for found in await store.orphans(ME, 0.0)] == [turn.turn.id]
        assert list(await store.orphans(RIVAL, 0.0)) == []

    # -- what channels note

    async def test_cursor_is_kept(self, store: Store) -> None:
        assert await store.cursor("telegram") is None
        await store.set_cursor("telegram", "41")
        await store.set_cursor("telegram", "42")
        assert await store.cursor("telegram") == "42"

    async def test_moved_chat_goes_on_under_its_new_key(self, store: Store) -> None:
        new = ChatKey("agent:main:fake:group:super")
        row = await owed(store)
        assert await store.move_chat(ROOM, new)
        session = await store.current_session(new)
        assert session is not None
        assert session.chat_key == new
        assert await store.current_session(ROOM) is None
        assert (await turn_of(store, row.turn_id)).chat_key == new
        assert (await store.outbox.due("fake", 9))[0].chat_key == new

    async def test_chat_is_not_moved_onto_another(self, store: Store) -> None:
        new = ChatKey("agent:main:fake:group:super")
        await owed(store)
        await store.accept(accepting(chat=new))
        assert not await store.move_chat(ROOM, new)
        assert not await store.move_chat(ChatKey("agent:main:fake:group:none"), new)
