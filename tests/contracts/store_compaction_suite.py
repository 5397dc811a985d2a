"""The contract of a session's floor: what a warm agent is built from after compactions and undos."""

from __future__ import annotations

from contracts.store_orders import begun, said
from talaria.core.entries import EntryBody, Hidden, Note, Summary, SummaryDropped
from talaria.core.ids import SessionId, TurnId
from talaria.core.ledger import Commit
from talaria.core.messages import AssistantMessage
from talaria.store.store import Store


class StoreCompactionSuite:
    async def test_a_warm_agent_is_built_from_behind_the_floor(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id

        async def shown(*bodies: EntryBody) -> list[int]:
            await store.commit(Commit(session_id, lease.fence, turn.turn.id, bodies))
            return [entry.seq for entry in await store.shown_log(session_id)]

        assert await shown(*map(AssistantMessage, "bcdef")) == [1, 2, 3, 4, 5, 6]
        assert await shown(Summary(1, 3, "old")) == [4, 5, 6, 7]
        assert await shown(AssistantMessage("g"), Summary(1, 5, "older", (7,))) == [6, 7, 8, 9]
        assert await shown(Hidden(8, 8)) == [6, 7, 8, 9, 10], "an undo in front of the floor leaves it"
        assert await shown(Hidden(5, 8)) == [4, 5, 6, 7, 8, 9, 10, 11], "the first summary counts again"
        assert (await shown(Summary(1, 4, "new"), SummaryDropped(7)))[0] == 1, "nothing is summarised"
        assert (await shown(Summary(1, 9, "of another", of=SessionId("ses_parent"))))[0] == 1
        assert len(await store.log(session_id, 0)) == 14

    async def test_the_entries_of_a_turn_are_found_behind_the_floor(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id, turn_id = turn.turn.session_id, turn.turn.id
        foreign = Commit(session_id, lease.fence, None, (said("imported"),))
        await store.commit(foreign)
        bodies = (AssistantMessage("one"), Note("process:1", "ended"), Summary(1, 3, "old"))
        await store.commit(Commit(session_id, lease.fence, turn_id, bodies))
        assert [entry.seq for entry in await store.turn_log(session_id, turn_id)] == [1, 3, 4, 5]
        assert await store.turn_log(session_id, TurnId("trn_none")) == ()
        assert [note.key for note in await store.notes(session_id)] == ["process:1"]
        assert await store.notes(SessionId("ses_none")) == ()
        assert await store.shown_log(SessionId("ses_none")) == ()
