"""The store's contract for sessions that come from another program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contracts.cluster_orders import HERE, at, both_join
from contracts.store_orders import CHAT, ME, begun, ending, said
from talaria.core.entries import EntryBody, Revision, Summary
from talaria.core.errors import StoreError
from talaria.core.ids import SessionId
from talaria.core.ledger import Begin, ImportSession, Page
from talaria.core.messages import AssistantMessage
from talaria.core.shown import ShownLog
from talaria.store.store import Store

OLD = SessionId("ses_imported")
LOG: tuple[EntryBody, ...] = (said("one"), AssistantMessage("1"), Summary(1, 2, "before"), said("two"))


def importing(key: str = OLD, *, is_current: bool = True, breaks: bool = False) -> ImportSession:
    def read() -> Iterator[tuple[float, EntryBody]]:
        for body in LOG:
            yield 5.0, body
        if breaks:
            raise ValueError("a damaged row")

    return ImportSession(SessionId(key), CHAT, 1.0, 9.0, "Tea", is_current, read)


class StoreImportSuite:
    async def test_a_log_is_imported_whole_and_the_next_message_continues_it(self, store: Store) -> None:
        session = await store.import_session(importing())
        assert session is not None and session.revision == Revision(1, 5)
        entries = (await store.entries(OLD, Page(10))).entries
        assert [(each.seq, each.epoch) for each in entries] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
        assert all(each.at == 5.0 for each in entries[:4])
        assert [seen.seq for seen in ShownLog(await store.shown_log(OLD)).messages()] == [3, 4]
        assert await store.import_session(importing()) is None
        turn, lease = await begun(store)
        assert turn.turn.session_id == OLD
        await store.commit(ending(turn, lease, AssistantMessage("2")))
        found = await store.session(OLD)
        assert found is not None and found.revision == Revision(1, 7) and found.ended_at is None

    async def test_an_import_that_breaks_leaves_nothing_and_can_be_repeated(self, store: Store) -> None:
        with pytest.raises(StoreError, match="a damaged row"):
            await store.import_session(importing(breaks=True))
        assert await store.session(OLD) is None and await store.current_session(CHAT) is None
        assert await store.import_session(importing()) is not None

    async def test_a_chat_keeps_its_session_unless_that_was_deleted(self, store: Store) -> None:
        """Of a chat whose files are in a place of the cluster the row stays."""
        await both_join(store)
        first = await store.accept(at(HERE))
        began = await store.begin(Begin(first.turn.id, ME, 30.0, said("hello")))
        await store.commit(ending(first, began, AssistantMessage("hi")))
        await store.cluster.place_chat(CHAT, HERE.place)
        assert (found := await store.import_session(importing("ses_second"))) and found.ended_at is not None
        current = await store.current_session(CHAT)
        assert current is not None and current.id == first.turn.session_id
        await store.delete_session(current.id, 0.0)
        await store.import_session(importing())
        current = await store.current_session(CHAT)
        assert current is not None and current.id == OLD

    async def test_another_session_of_the_chat_is_ended_and_can_be_resumed(self, store: Store) -> None:
        session = await store.import_session(importing(is_current=False))
        assert session is not None and session.ended_at is not None
        assert await store.current_session(CHAT) is None
