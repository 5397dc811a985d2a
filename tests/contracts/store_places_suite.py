"""The store's contract for the places of chats' files and processes."""

from __future__ import annotations

from msgspec.structs import replace

from contracts.cluster_orders import AWAY, HERE, HOME, THERE, at, both_join, member
from contracts.store_orders import CHAT, LEASE, ME, RIVAL, ending
from talaria.core.cluster import ChatPlace
from talaria.core.files import MESSAGES
from talaria.core.ids import ChatKey, JobId, job_chat
from talaria.core.messages import File, UserMessage
from talaria.store.store import Store
from talaria.testing.clock import FakeClock


class StorePlacesSuite:
    async def test_a_message_with_a_file_ties_its_chat_to_the_place_and_with_shared_files_it_does_not(
        self, store: Store
    ) -> None:
        await both_join(store)
        shared = replace(HERE, has_shared_files=True)
        for here, place in ((shared, ""), (HERE, HOME)):
            order = at(here)
            parts = (*order.inbound.parts, File("a.txt", "a.txt", "text/plain", 1))
            inbound = replace(order.inbound, parts=parts)
            await store.accept(replace(order, inbound=inbound))
            assert (await store.cluster.chat_place(CHAT)).place == place
        new = replace(inbound, chat_key=ChatKey("agent:main:http:api:other"))
        await store.accept(replace(at(HERE), inbound=new))
        assert (await store.cluster.chat_place(new.chat_key)).place == HOME

    async def test_the_loss_of_a_place_is_kept_until_it_is_told(self, store: Store, clock: FakeClock) -> None:
        assert await store.cluster.place_chat(CHAT, HOME) == "", "a chat that is not known"
        await both_join(store)
        first = await store.accept(at(HERE))
        assert await store.cluster.place_chat(CHAT, HOME) == HOME
        assert await store.cluster.place_chat(CHAT, AWAY) == HOME
        await store.cluster.note_processes(CHAT, AWAY, ["p1 (no)"])
        await store.cluster.note_processes(CHAT, HOME, ["p2 (serve)", "p3 (watch)"])
        assert await store.cluster.chat_place(CHAT) == ChatPlace(HOME, "", ("p2 (serve)", "p3 (watch)"))
        clock.advance(LEASE + THERE.takeover_seconds)
        await store.cluster.join(member(RIVAL, AWAY), LEASE)
        adopted = await store.cluster.adopt(THERE)
        assert [turn.id for turn in adopted.turns] == [first.turn.id]
        found = await store.cluster.chat_place(CHAT)
        assert (found.place, found.lost.split()[0]) == ("", HOME)
        assert found.processes == ("p2 (serve)", "p3 (watch)")
        await store.cluster.forget_loss(CHAT, "another")
        assert await store.cluster.chat_place(CHAT) == found
        await store.cluster.forget_loss(CHAT, found.lost)
        assert await store.cluster.chat_place(CHAT) == ChatPlace()

    async def test_a_message_to_a_chat_of_a_lost_place_says_so_in_the_chats_row(
        self, store: Store, clock: FakeClock
    ) -> None:
        await both_join(store)
        began = await store.accept(at(HERE))
        assert began.began is not None
        await store.commit(ending(began, began.began))
        await store.cluster.place_chat(CHAT, HOME)
        clock.advance(LEASE + THERE.takeover_seconds)
        await store.cluster.join(member(RIVAL, AWAY), LEASE)
        assert (await store.accept(at(THERE, "again"))).began is not None
        assert (await store.cluster.chat_place(CHAT)).lost.split()[0] == HOME

    async def test_a_run_of_a_job_is_for_the_place_of_the_chat_that_asked(self, store: Store) -> None:
        await both_join(store)
        await store.accept(at(HERE))
        await store.cluster.place_chat(CHAT, HOME)
        run = replace(at(THERE).inbound, chat_key=job_chat("main", JobId("job_1"), CHAT))
        accepted = await store.accept(replace(at(THERE), inbound=run))
        assert accepted.elsewhere == ME
        assert (await store.cluster.chat_place(run.chat_key)).place == HOME

    async def test_files_of_deleted_sessions_are_removed_where_they_are(self, store: Store) -> None:
        await both_join(store)
        turn = await store.accept(at(HERE))
        assert turn.began is not None
        path = f"{MESSAGES}/{'a' * 24}.txt"
        long = UserMessage((File("message.txt", path, "text/plain", 9),))
        await store.commit(ending(turn, turn.began, long))
        await store.cluster.place_chat(CHAT, HOME)
        await store.delete_session(turn.turn.session_id, 0.0)
        while await store.retention.purge_deleted():
            pass
        assert path in [each.path for each in await store.retention.removals(HOME)]
        assert not await store.retention.removals(AWAY)
        assert (await store.cluster.chat_place(CHAT)).place == HOME, "other files of the chat are there"
