"""The part of the store's contract that deletes sessions."""

from __future__ import annotations

import pytest

from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    OTHER_CHAT,
    START,
    accepting,
    answered,
    begun,
    ending,
    parked,
    pinned,
    said,
)
from contracts.store_retention_suite import forget
from talaria.core.delivery import DeliveryResult, OutboxState
from talaria.core.errors import LeaseHeld, NotFound, SessionOwes
from talaria.core.files import RESULTS, SentFile, result_name, sent_file_id
from talaria.core.ids import SessionId
from talaria.core.ledger import Begin, Binding, Commit, Page, StepWrite, TurnEnd, UsageWrite
from talaria.core.messages import AssistantMessage, TokenUsage, ToolResult, ToolResults
from talaria.core.spending import SpendingQuery
from talaria.core.turns import StepKind, StepState, TurnState
from talaria.store.sql.retention import SLICE_BYTES, SLICE_ENTRIES, SLICE_TURNS
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

SINCE = START - 86_400.0


async def purge(store: Store) -> int:
    """Purge all, and return how many orders that took."""
    count = 0
    while await store.retention.purge_deleted():
        count += 1
    return count


async def is_gone(store: Store, session_id: SessionId) -> bool:
    page = await store.sessions(Page(500))
    return (
        await store.session(session_id) is None
        and session_id not in {session.id for session in page.items}
        and await store.summary(session_id) is None
    )


class StoreDeletionSuite:
    async def test_a_deleted_session_is_gone_at_once_and_its_rows_follow(self, store: Store) -> None:
        gone = await answered(store, accepting(address="room"))
        kept = await answered(store, accepting(chat=OTHER_CHAT))
        session_id = gone.turn.session_id
        (row,) = await store.outbox.due("http", 9)
        await store.outbox.claim(row, START + 9)
        await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.SENT, platform_id="m1"))
        before = await store.stats()
        deleted = await store.delete_session(session_id, SINCE)
        assert deleted.id == session_id
        for _ in range(2):
            assert await is_gone(store, session_id)
            assert await store.current_session(CHAT) is None
            assert await store.turn_record(gone.turn.id) is None
            assert [turn.id for turn in await store.histories.recent(9)] == [kept.turn.id]
            assert await store.log(session_id, 0) == ()
            await purge(store)
        assert not await store.retention.purge_deleted()
        after = await store.stats()
        assert (before.sessions - after.sessions, before.turns["done"] - after.turns["done"]) == (1, 1)
        assert await store.turn_record(kept.turn.id) is not None
        with pytest.raises(NotFound):
            await store.delete_session(session_id, SINCE)
        assert (await store.accept(accepting())).is_new_session

    async def test_what_is_owed_forbids_it(self, store: Store) -> None:
        queued = await store.accept(accepting())
        session_id = queued.turn.session_id
        with pytest.raises(SessionOwes):
            await store.delete_session(session_id, SINCE)
        running = await store.begin(Begin(queued.turn.id, ME, LEASE, said("hello")))
        with pytest.raises(SessionOwes):
            await store.delete_session(session_id, SINCE)
        await store.commit(ending(queued, running))
        fence = await store.hold(session_id, ME, LEASE)
        with pytest.raises(LeaseHeld):
            await store.delete_session(session_id, SINCE)
        await store.commit(Commit(session_id, fence, None, release=True))
        waits, _, _ = await parked(store, accepting(chat=OTHER_CHAT))
        with pytest.raises(SessionOwes):
            await store.delete_session(waits.turn.session_id, SINCE)
        assert (await store.delete_session(session_id, SINCE)).id == session_id

    async def test_a_reply_that_is_not_sent_forbids_it(self, store: Store) -> None:
        turn = await answered(store, accepting(address="room"))
        session_id = turn.turn.session_id
        (row,) = await store.outbox.due("http", 9)
        with pytest.raises(SessionOwes):
            await store.delete_session(session_id, SINCE)
        await store.outbox.claim(row, START + 9)
        with pytest.raises(SessionOwes):
            await store.delete_session(session_id, SINCE)
        await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.FAILED, error="blocked"))
        await store.delete_session(session_id, SINCE)

    async def test_a_message_that_comes_again_is_still_known(self, store: Store, clock: FakeClock) -> None:
        old = await answered(store, accepting(key="old", digest="a"))
        clock.advance(100)
        turn = await answered(store, accepting(key="k", digest="a"))
        await store.delete_session(turn.turn.session_id, START + 50)
        for _ in range(2):  # before and after the rows are purged
            again = await store.accept(accepting(key="k", digest="a"))
            assert (again.is_duplicate, again.turn.id, again.turn.state) == (
                True,
                turn.turn.id,
                TurnState.DONE,
            )
            await purge(store)
        assert (again.turn.reply, again.turn.inbound.parts) == (None, ())
        assert await store.turn_record(turn.turn.id) is None
        assert not (await store.accept(accepting(key="old", digest="a"))).is_duplicate
        assert await store.turn_record(old.turn.id) is None
        assert (await store.stats()).turns["done"] == 1
        clock.advance(100_000)
        await forget(store, clock.now())
        assert (await store.stats()).turns["done"] == 0
        assert not (await store.accept(accepting(key="k", digest="b"))).is_duplicate

    async def test_what_was_spent_stays_counted(self, store: Store) -> None:
        turn, lease = await begun(store)
        usage = UsageWrite(1, "p", "m", TokenUsage(10, output=5), cost=7, user="ann")
        step = StepWrite(1, StepKind.MODEL, "m", StepState.ENDED)
        end = TurnEnd(TurnState.DONE, "hi")
        await store.commit(
            Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=(step,), usage=(usage,), end=end)
        )
        whose = SpendingQuery(turn.turn.session_id, "ann", 0.0)
        before = await store.spending(whose)
        assert before.user.cost == 7
        await store.delete_session(turn.turn.session_id, SINCE)
        await purge(store)
        after = await store.spending(whose)
        assert (after.everyone, after.user) == (before.everyone, before.user)

    async def test_a_branch_stays_whole(self, store: Store) -> None:
        first = await answered(store)
        log = await store.log(first.turn.session_id, 0)
        copied = tuple(entry.message for entry in log if entry.message is not None)
        branch = await store.accept(accepting(binding=Binding.NEW, context=copied, spec=pinned()))
        await store.settle(branch.turn.id, TurnEnd(TurnState.DONE, "Branched."))
        before = await store.log(branch.turn.session_id, 0)
        await store.delete_session(first.turn.session_id, SINCE)
        await purge(store)
        await store.retention.prune_specs()
        assert await store.log(branch.turn.session_id, 0) == before
        current = await store.current_session(CHAT)
        assert current is not None and current.id == branch.turn.session_id
        assert current.spec_id is not None and await store.spec(current.spec_id) is not None

    async def test_its_files_are_listed_until_they_are_removed(self, store: Store) -> None:
        turn, lease = await begun(store)
        turn_id, session_id = turn.turn.id, turn.turn.session_id
        saved = f"{RESULTS}/{result_name('read_file', turn_id, 'c1')}"
        result = ToolResult("c1", "read_file", f"[The whole result is in {saved}: …]")
        steps = (StepWrite(1, StepKind.TOOL, "read_file", StepState.PENDING, "c1"),)
        await store.commit(Commit(session_id, lease.fence, turn_id, steps=steps))
        steps = (StepWrite(1, StepKind.TOOL, "read_file", StepState.ENDED, "c1", result),)
        entries = (ToolResults((result,)), AssistantMessage("done"))
        sent = SentFile(sent_file_id(turn_id, "c2"), "a.txt", "text/plain", 1)
        end = TurnEnd(TurnState.DONE, "hi", files=(sent,))
        await store.commit(Commit(session_id, lease.fence, turn_id, entries, steps=steps, end=end))
        page = await store.sent_files(session_id, Page(1))
        assert [(item.id, item.turn_id) for item in page.items] == [(sent.id, turn_id)]
        assert (await store.entries(session_id, Page(500))).files == page.items
        assert await store.retention.mentioned_results(CHAT) == {saved}
        assert not await store.retention.removals()

        await store.delete_session(session_id, SINCE)
        await purge(store)
        removals = await store.retention.removals()
        assert {removal.path for removal in removals} >= {saved, sent.copy_path}
        assert {removal.chat_key for removal in removals} == {CHAT}
        assert await store.retention.mentioned_results(CHAT) == frozenset()
        await store.retention.forget_removals([removal.id for removal in removals])
        assert not await store.retention.removals()

    async def test_a_long_log_goes_in_small_orders(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        large = AssistantMessage("x" * (SLICE_BYTES // 2 + 1))
        small = AssistantMessage("y")
        entries = (*[large] * 8, *[small] * (SLICE_ENTRIES + 1))
        await store.commit(Commit(session_id, lease.fence, turn.turn.id, entries))
        await store.commit(ending(turn, lease))
        for _ in range(SLICE_TURNS):
            accepted = await store.accept(accepting())
            await store.settle(accepted.turn.id, TurnEnd(TurnState.CANCELLED))
        for _ in range(3):
            accepted = await store.accept(accepting("x" * SLICE_BYTES))
            await store.settle(accepted.turn.id, TurnEnd(TurnState.CANCELLED))
        await store.delete_session(session_id, SINCE)
        assert await purge(store) >= 6 + 4 + 1  # of entries, of turns, the last
        assert (await store.stats()).turns["cancelled"] == 0
