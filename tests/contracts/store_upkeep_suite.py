"""The part of the store's contract beside a turn's life: leases, recovery, delivery, reading, pruning."""

from __future__ import annotations

import asyncio

import pytest

from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    OTHER_CHAT,
    RIVAL,
    START,
    accepting,
    answered,
    begun,
    ending,
    pinned,
    said,
    session_of,
    step,
)
from talaria.core.errors import (
    BadRequest,
    LeaseHeld,
    NotFound,
    StaleFence,
    StoreError,
)
from talaria.core.ids import ChatKey, Fence, SessionId, SpecId, TurnId
from talaria.core.ledger import (
    Accept,
    Begin,
    Binding,
    Commit,
    Page,
    Renewal,
    TurnEnd,
    UsageWrite,
)
from talaria.core.messages import (
    TokenUsage,
)
from talaria.core.spending import SpendingQuery
from talaria.core.turns import StepState, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock


class StoreUpkeepSuite:
    # -- leases and ends

    async def test_hold_is_refused_while_anyone_holds_the_lease(self, store: Store) -> None:
        turn, _ = await begun(store)
        for owner in (ME, RIVAL):
            with pytest.raises(LeaseHeld):
                await store.hold(turn.turn.session_id, owner, LEASE)

    async def test_hold_of_an_unknown_session_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound):
            await store.hold(SessionId("ses_nowhere"), ME, LEASE)

    async def test_renewed_lease_lasts_longer(self, store: Store, clock: FakeClock) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        clock.advance(LEASE - 1)
        assert await store.renew(ME, [Renewal(session_id, lease.fence)], LEASE) == frozenset()
        clock.advance(LEASE - 1)
        with pytest.raises(LeaseHeld):
            await store.hold(session_id, RIVAL, LEASE)
        clock.advance(1)
        assert await store.hold(session_id, RIVAL, LEASE)

    async def test_unused_sessions_are_ended_once(self, store: Store, clock: FakeClock) -> None:
        old = await answered(store, accepting(chat=CHAT))
        clock.advance(100)
        young = await answered(store, accepting(chat=OTHER_CHAT))
        assert list(await store.end_unused(clock.now() - 50)) == [old.turn.session_id]
        assert list(await store.end_unused(clock.now() - 50)) == []
        ended, kept = [await store.session(each.turn.session_id) for each in (old, young)]
        assert ended is not None and ended.ended_at == clock.now()
        assert kept is not None and kept.ended_at is None
        assert (await store.accept(accepting(chat=CHAT))).is_new_session

    async def test_a_session_is_not_ended_while_a_turn_of_it_runs_or_waits(
        self, store: Store, clock: FakeClock
    ) -> None:
        waits = await store.accept(accepting(chat=CHAT))
        runs, lease = await begun(store, accepting(chat=OTHER_CHAT))
        clock.advance(LEASE * 10)
        assert list(await store.end_unused(clock.now())) == []
        await store.commit(ending(runs, lease))
        assert list(await store.end_unused(clock.now())) == [runs.turn.session_id]
        assert waits.turn.session_id != runs.turn.session_id

    async def test_a_message_to_an_expired_session_makes_a_fresh_one(
        self, store: Store, clock: FakeClock
    ) -> None:
        old = await answered(store)
        clock.advance(100)
        young = await store.accept(accepting(expire_before=clock.now() - 200))
        assert young.ended is None and young.turn.session_id == old.turn.session_id
        waits = await store.accept(accepting(expire_before=clock.now() + 1))
        assert waits.ended is None, "the turn before it has not settled"
        await store.settle(young.turn.id, TurnEnd(TurnState.CANCELLED))
        await store.settle(waits.turn.id, TurnEnd(TurnState.CANCELLED))
        fresh = await store.accept(accepting(expire_before=clock.now() + 1))
        assert fresh.ended == old.turn.session_id and fresh.is_new_session
        session = await session_of(store, old.turn.session_id)
        assert session.ended_at == clock.now()

    async def test_a_thread_renews_leases_without_the_loop(self, store: Store, clock: FakeClock) -> None:
        accepted, lease = await begun(store)
        session_id = accepted.turn.session_id
        clock.advance(LEASE - 1)
        renewals = [Renewal(session_id, lease.fence), Renewal(SessionId("ses_gone"), Fence(1))]
        lost = await asyncio.to_thread(store.from_thread.renew, ME, renewals, LEASE, 5.0)
        assert lost == {"ses_gone"}
        clock.advance(LEASE - 1)
        with pytest.raises(LeaseHeld):
            await store.hold(session_id, RIVAL, LEASE)

    async def test_renewal_answers_with_what_was_lost(self, store: Store, clock: FakeClock) -> None:
        kept, kept_lease = await begun(store)
        lost, lost_lease = await begun(store, accepting(chat=OTHER_CHAT))
        back, back_lease = await begun(store, accepting(chat=ChatKey("agent:main:http:api:third")))
        clock.advance(LEASE)
        await store.hold(lost.turn.session_id, RIVAL, LEASE)
        await store.commit(ending(back, back_lease))
        renewals = [
            Renewal(kept.turn.session_id, kept_lease.fence),
            Renewal(lost.turn.session_id, lost_lease.fence),
            Renewal(back.turn.session_id, back_lease.fence),
            Renewal(SessionId("ses_nowhere"), Fence(1)),
        ]
        assert await store.renew(ME, renewals, LEASE) == {
            lost.turn.session_id,
            back.turn.session_id,
            "ses_nowhere",
        }

    async def test_end_of_a_session_gives_its_lease_back(self, store: Store, clock: FakeClock) -> None:
        session_id = (await answered(store)).turn.session_id
        fence = await store.hold(session_id, ME, LEASE)
        clock.advance(7)
        ended = await store.end_session(session_id, fence)
        assert ended.is_news
        assert (ended.session.ended_at, ended.session.updated_at) == (START + 7, START)
        assert await store.session(session_id) == ended.session
        clock.advance(1)
        again = await store.end_session(session_id, await store.hold(session_id, RIVAL, LEASE))
        assert (again.session, again.is_news) == (ended.session, False)
        assert await store.hold(session_id, ME, LEASE)

    async def test_a_session_with_a_turn_that_waits_is_not_ended_and_its_lease_is_free(
        self, store: Store
    ) -> None:
        waits = await store.accept(accepting())
        session_id = waits.turn.session_id
        refused = await store.end_session(session_id, await store.hold(session_id, ME, LEASE))
        assert (refused.session.ended_at, refused.is_news) == (None, False)
        assert await store.session(session_id) == refused.session
        await store.settle(waits.turn.id, TurnEnd(TurnState.CANCELLED))
        assert (await store.end_session(session_id, await store.hold(session_id, RIVAL, LEASE))).is_news

    async def test_end_of_a_session_needs_its_fence(self, store: Store) -> None:
        session_id = (await answered(store)).turn.session_id
        fence = await store.hold(session_id, ME, LEASE)
        with pytest.raises(StaleFence):
            await store.end_session(session_id, Fence(fence - 1))
        with pytest.raises(NotFound):
            await store.end_session(SessionId("ses_nowhere"), fence)
        session = await session_of(store, session_id)
        assert session.ended_at is None

    # -- recovery

    async def test_reclaim_expires_the_leases_of_others_and_lists_what_is_owed(self, store: Store) -> None:
        dead, dead_lease = await begun(store, owner=RIVAL)
        waiting = await store.accept(accepting())
        await answered(store, accepting(chat=OTHER_CHAT))
        mine, my_lease = await begun(store, accepting(chat=ChatKey("agent:main:http:api:third")))
        owed = await store.reclaim(ME)
        assert [turn.id for turn in owed] == [dead.turn.id, waiting.turn.id, mine.turn.id]
        assert [turn.state for turn in owed] == [TurnState.RUNNING, TurnState.ACCEPTED, TurnState.RUNNING]
        with pytest.raises(StaleFence):
            await store.commit(ending(dead, dead_lease))
        again = await store.begin(Begin(dead.turn.id, ME, LEASE, said("hello")))
        assert (again.attempts, again.entry) == (2, None)
        assert again.fence > dead_lease.fence
        await store.commit(ending(mine, my_lease))

    # -- reading

    async def test_what_does_not_exist_reads_as_nothing(self, store: Store) -> None:
        nowhere = SessionId("ses_nowhere")
        assert await store.session(nowhere) is None
        assert await store.current_session(CHAT) is None
        assert await store.summary(nowhere) is None
        assert await store.turn_record(TurnId("turn_nowhere")) is None
        assert await store.spec(SpecId("spec_nowhere")) is None
        assert tuple(await store.log(nowhere, 0)) == ()
        assert (await store.entries(nowhere, Page())).entries == ()
        assert (await store.sessions(Page())).items == ()

    async def test_ended_session_stays_readable_as_its_chats(self, store: Store) -> None:
        session_id = (await answered(store)).turn.session_id
        ended = await store.end_session(session_id, await store.hold(session_id, ME, LEASE))
        assert await store.current_session(CHAT) == ended.session

    async def test_sessions_are_paged_newest_activity_first(self, store: Store, clock: FakeClock) -> None:
        ids = []
        for i in range(5):
            chat = ChatKey(f"agent:main:http:api:{i}")
            ids.append((await answered(store, accepting(chat=chat))).turn.session_id)
            clock.advance(1 if i % 2 else 0)
        await store.accept(accepting(ephemeral=True))
        await answered(store, accepting(chat=ChatKey("agent:main:http:api:0")))
        expected = [ids[4], ids[0], ids[3], ids[2], ids[1]]
        seen: list[SessionId] = []
        after = None
        while True:
            page = await store.sessions(Page(limit=2, after=after))
            assert len(page.items) <= 2
            seen += [session.id for session in page.items]
            after = page.next
            if after is None:
                break
        assert seen == expected

    async def test_entries_are_paged_in_order(self, store: Store) -> None:
        context = tuple(said(str(i)) for i in range(5))
        session_id = (await store.accept(accepting(context=context))).turn.session_id
        first = await store.entries(session_id, Page(limit=2))
        second = await store.entries(session_id, Page(limit=3, after=first.next))
        assert [entry.seq for entry in first.entries] == [1, 2]
        assert [entry.seq for entry in second.entries] == [3, 4, 5]
        assert second.next is None

    @pytest.mark.parametrize("page", [Page(after="nonsense"), Page(after="x~y"), Page(limit=0)])
    async def test_page_that_makes_no_sense_is_the_callers_mistake(self, store: Store, page: Page) -> None:
        with pytest.raises(BadRequest):
            await store.sessions(page)
        with pytest.raises(BadRequest):
            await store.entries(SessionId("ses_a"), page)

    async def test_summary_counts_what_the_session_used(self, store: Store, clock: FakeClock) -> None:
        for _ in range(12):
            await store.accept(accepting(binding=Binding.NEW))
            clock.advance(1)
        await store.accept(accepting(ephemeral=True, binding=Binding.NEW))
        turn, lease = await begun(store)
        usage = (
            UsageWrite(1, "p", "m", TokenUsage(10, 5, 3, 1)),
            UsageWrite(2, "p", "m", TokenUsage(20, 10, 4, 2)),
            UsageWrite(2, "p", "m", TokenUsage(1, 1, 1, 1)),
        )
        await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, usage=usage))
        await answered(store, accepting(chat=OTHER_CHAT))
        summary = await store.summary(turn.turn.session_id)
        assert summary is not None
        assert summary.current == await store.session(turn.turn.session_id)
        assert summary.turns == 2
        spending = await store.spending(SpendingQuery(turn.turn.session_id, "", 0.0))
        assert (spending.session.tokens, spending.session.calls) == (TokenUsage(31, 16, 8, 4), 3)
        assert len(summary.sessions) == 10
        assert summary.sessions[0] == summary.current
        stamps = [session.updated_at for session in summary.sessions]
        assert stamps == sorted(stamps, reverse=True)
        assert not any(session.ephemeral for session in summary.sessions)

    async def test_stats_count_what_is_there_and_what_is_owed(self, store: Store) -> None:
        await answered(store)
        await store.accept(accepting())
        await begun(store, accepting(chat=OTHER_CHAT))
        await store.accept(accepting(ephemeral=True, binding=Binding.NEW))
        stats = await store.stats()
        assert stats.sessions == 2
        assert stats.owed == 3
        assert stats.turns == {
            "accepted": 2,
            "running": 1,
            "waiting": 0,
            "done": 1,
            "failed": 0,
            "cancelled": 0,
        }

    # -- pruning and closing

    async def test_prune_deletes_old_ephemeral_sessions_only(self, store: Store, clock: FakeClock) -> None:
        def passing(key: str) -> Accept:
            return accepting(ephemeral=True, binding=Binding.NEW, key=key, spec=pinned())

        turn, lease = await begun(store, passing("old"))
        await store.commit(
            Commit(
                turn.turn.session_id,
                lease.fence,
                turn.turn.id,
                steps=(step(1, StepState.PENDING),),
                usage=(UsageWrite(1, "p", "m", TokenUsage(1)),),
                end=TurnEnd(TurnState.DONE, "hi"),
            )
        )
        owing = await store.accept(passing("owing"))
        lasting = await answered(store)
        clock.advance(100)
        young = await answered(store, passing("young"))
        assert await store.prune_ephemeral(START + 50) == 1
        assert await store.session(turn.turn.session_id) is None
        assert await store.turn_record(turn.turn.id) is None
        assert tuple(await store.log(turn.turn.session_id, 0)) == ()
        assert tuple(await store.outbox.due("fake", 10)) == ()
        for kept in (owing, lasting, young):
            assert await store.session(kept.turn.session_id) is not None
            assert await store.turn_record(kept.turn.id) is not None
        assert await store.spec(pinned().id) is not None
        assert not (await store.accept(passing("old"))).is_duplicate
        assert await store.prune_ephemeral(START + 50) == 0

    async def test_prune_of_many_deletes_them_all(self, store: Store, clock: FakeClock) -> None:
        for _ in range(205):
            order = accepting(ephemeral=True, binding=Binding.NEW)
            await store.accept(order)
            await store.settle(order.turn_id, TurnEnd(TurnState.CANCELLED))
        clock.advance(1)
        assert await store.prune_ephemeral(clock.now()) == 205
        assert (await store.stats()).turns["cancelled"] == 0

    async def test_recent_requests_are_those_with_a_digest_and_no_key(
        self, store: Store, clock: FakeClock
    ) -> None:
        await store.accept(accepting(digest="old"))
        clock.advance(100)
        first, _, _, last = [
            await store.accept(order)
            for order in (
                accepting(digest="a"),
                accepting(),
                accepting(digest="b", scope="s", key="k"),
                accepting(digest="a"),
            )
        ]
        await store.mark_answered([first.turn.id, TurnId("turn_unknown")])
        found = await store.recent_requests(clock.now() - 50, 100)
        assert [(one.turn_id, one.digest, one.is_answered) for one in found] == [
            (last.turn.id, "a", False),
            (first.turn.id, "a", True),
        ]
        assert {one.accepted_at for one in found} == {clock.now()}
        assert [one.turn_id for one in await store.recent_requests(0.0, 2)] == [last.turn.id]

    async def test_closed_store_refuses_everything(self, store: Store) -> None:
        await store.close()
        await store.close()
        with pytest.raises(StoreError):
            await store.accept(accepting())
        with pytest.raises(StoreError):
            await store.stats()
