"""The part of the store's contract that recall reads: logs, branches, and what stays of deleted parents."""

from __future__ import annotations

import msgspec

from contracts.store_orders import ME, OTHER_CHAT, START, accepting, answered, begun, ending
from talaria.core.entries import Entry
from talaria.core.ids import SessionId
from talaria.core.ledger import Accept, Binding, BranchPoint
from talaria.core.messages import AssistantMessage
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

SINCE = START - 86_400.0


def branching(parent: SessionId, seq: int) -> Accept:
    order = accepting(binding=Binding.NEW)
    assert order.fresh is not None
    fresh = msgspec.structs.replace(order.fresh, parent=BranchPoint(parent, seq))
    return msgspec.structs.replace(order, fresh=fresh)


async def branch(store: Store, parent: SessionId, seq: int) -> SessionId:
    return (await answered(store, branching(parent, seq))).turn.session_id


async def talk(store: Store, *answers: str) -> SessionId:
    accepted, lease = await begun(store, accepting(binding=Binding.NEW))
    await store.commit(ending(accepted, lease, *map(AssistantMessage, answers)))
    return accepted.turn.session_id


async def delete(store: Store, session_id: SessionId) -> None:
    await store.delete_session(session_id, SINCE)
    while await store.retention.purge_deleted():
        pass


async def log(store: Store, session_id: SessionId) -> list[int]:
    return [entry.seq for entry in await store.recall.slice(session_id, 0, 1 << 20)]


class StoreRecallSuite:
    async def test_a_slice_goes_on_where_the_last_one_ended(self, store: Store) -> None:
        session_id = await talk(store, *(str(n) * 1000 for n in range(9)))
        found: list[Entry] = []
        while piece := await store.recall.slice(session_id, found[-1].seq if found else 0, 2500):
            assert len(piece) <= 4
            found += piece
        assert found == list(await store.log(session_id, 0))
        assert await store.recall.entry(session_id, 3) == found[2]
        assert await store.recall.entry(session_id, 99) is None

    async def test_changed_sessions_come_in_the_order_of_their_use(
        self, store: Store, clock: FakeClock
    ) -> None:
        ids = []
        for _ in range(5):
            clock.advance(1)
            ids.append(await talk(store, "hi"))
        await answered(store, accepting(chat=OTHER_CHAT, ephemeral=True))
        first = await store.recall.changed(START + 2, None, 2)
        rest = await store.recall.changed(first[-1].updated_at, first[-1].id, 9)
        assert [session.id for session in (*first, *rest)] == ids[1:]

    async def test_a_branch_knows_its_ancestors(self, store: Store) -> None:
        root = await talk(store, "hi")
        child = await branch(store, root, 2)
        grandchild = await branch(store, child, 1)
        assert await store.recall.lineage(grandchild) == [BranchPoint(child, 1), BranchPoint(root, 2)]
        assert await store.recall.lineage(root) == []
        assert await store.recall.kept_parents([root, child, grandchild]) == {root: 2, child: 1}

    async def test_a_deleted_session_has_no_log_but_what_its_branches_know(self, store: Store) -> None:
        root, alone = await talk(store, "a", "b", "c"), await talk(store, "hi")
        child = await branch(store, root, 2)
        assert len(await log(store, root)) == 4
        await store.delete_session(root, SINCE)
        await store.delete_session(alone, SINCE)
        assert (await log(store, root), await log(store, alone)) == ([1, 2], [])
        assert await store.recall.entry(root, 3) is None
        while await store.retention.purge_deleted():
            pass
        assert (await log(store, root), await store.log(root, 0)) == ([1, 2], ())
        assert set(await store.recall.known_sessions([root, alone, child])) == {child}

    async def test_the_last_branch_takes_what_was_kept_along(self, store: Store) -> None:
        root = await talk(store, "a", "b", "c")
        child = await branch(store, root, 3)
        grandchild = await branch(store, child, 2)
        await delete(store, root)
        await delete(store, child)
        assert (await log(store, root), await log(store, child)) == ([1, 2, 3], [1, 2])
        await delete(store, grandchild)
        assert (await log(store, root), await log(store, child)) == ([], [])
        assert await store.recall.kept_parents([root, child]) == {}

    async def test_a_pruned_session_keeps_what_its_branches_know(
        self, store: Store, clock: FakeClock
    ) -> None:
        root = await talk(store, "a", "b", "c")
        child = await branch(store, root, 2)
        for session_id in (root, child):
            await store.end_session(session_id, await store.hold(session_id, ME, 1.0))
            clock.advance(10)
            assert await store.retention.prune_ended(clock.now()) == 1
            if session_id == root:
                assert await log(store, root) == [1, 2]
        while await store.retention.purge_deleted():
            pass
        assert await log(store, root) == []
