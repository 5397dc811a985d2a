"""What every store promises about messages that are sent outside of turns."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    accepting,
    answered,
    begun,
    bodies,
    ending,
    parked,
    record_of,
    said,
    session_of,
)
from talaria.core.delivery import OutboxState
from talaria.core.entries import Announcement, EntryBody
from talaria.core.errors import IdempotencyConflict, StaleFence
from talaria.core.files import SentFile
from talaria.core.ids import ChatKey, SessionId, TurnId
from talaria.core.ledger import SENT_TURN, Begin, Commit, Fresh, Page, SendMessage, TurnEnd
from talaria.core.messages import AssistantMessage, ToolResult, ToolResults
from talaria.core.turns import ReplyPlace, RunOrder, Sender, Turn, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

ROOM = ChatKey("agent:main:fake:group:room")
PICTURE = SentFile("file_" + "0" * 26 + "_00000000", "a.png", "image/png", 9)
_numbers = count(1)


def sending(text: str = "news", chat: ChatKey = ROOM, **changes: object) -> SendMessage:
    n = next(_numbers)
    order = {"address": "room", **changes}
    return SendMessage(
        TurnId(f"turn_s{n:05}"),
        chat,
        Sender("u1", "Ada"),
        Announcement(text),
        Fresh(SessionId(f"ses_s{n:05}"), None),
        **order,  # type: ignore[arg-type]
    )


class StoreSendingSuite:
    async def test_sent_message_is_a_turn_that_is_done_and_owes_its_text(
        self, store: Store, clock: FakeClock
    ) -> None:
        sent = await store.send(sending(files=(PICTURE,)))
        record = await record_of(store, sent.turn.id)
        assert record.turn == sent.turn
        assert (sent.turn.state, sent.turn.command, sent.turn.reply) == (TurnState.DONE, SENT_TURN, "news")
        text, file = record.replies
        assert (text.body, text.address, text.state) == ("news", "room", OutboxState.PENDING)
        assert (file.body, file.file) == ("", PICTURE.copy_path)
        assert tuple(await store.outbox.due("fake", 9)) == (text,)

    async def test_chat_without_an_address_finds_the_message_in_its_log(self, store: Store) -> None:
        sent = await store.send(sending(chat=CHAT, address=None))
        assert (await record_of(store, sent.turn.id)).replies == ()
        assert sent.is_logged
        assert await bodies(store, sent.turn.session_id) == [Announcement("news")]

    async def test_message_goes_to_the_current_session_and_does_not_count_as_its_use(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn = await answered(store)
        before = await session_of(store, turn.turn.session_id)
        clock.advance(60)
        sent = await store.send(sending(chat=CHAT))
        after = await session_of(store, turn.turn.session_id)
        assert sent.turn.session_id == before.id
        assert (after.revision.seq, after.revision.epoch) == (before.revision.seq + 1, before.revision.epoch)
        assert after.updated_at == before.updated_at

    async def test_key_makes_a_repeat_the_same_message(self, store: Store, clock: FakeClock) -> None:
        order = sending(key="slot-1", scope="jobs", digest="d")
        first = await store.send(order)
        clock.advance(86_400 * 20)
        again = await store.send(sending(key="slot-1", scope="jobs", digest="d"))
        assert (again.turn, again.is_duplicate) == (first.turn, True)
        assert len(await bodies(store, first.turn.session_id)) == 1
        assert (await store.stats()).outbox == 1

    async def test_key_of_another_message_is_refused_and_writes_nothing(self, store: Store) -> None:
        first = await store.send(sending(key="k", scope="s", digest="one"))
        with pytest.raises(IdempotencyConflict):
            await store.send(sending("other", key="k", scope="s", digest="two"))
        assert await bodies(store, first.turn.session_id) == [Announcement("news")]
        assert (await store.stats()).outbox == 1

    async def test_log_of_a_running_turn_gets_the_message_after_the_turn(self, store: Store) -> None:
        turn, lease = await begun(store)
        session_id = turn.turn.session_id
        sent = await store.send(sending(chat=CHAT))
        other = await store.send(sending("more", chat=CHAT))
        assert not sent.is_logged
        assert not await store.announce(session_id)
        assert tuple(await store.unannounced()) == (session_id,)
        assert len(await store.outbox.due("http", 9)) == 1, "it is sent at once all the same"
        await store.commit(ending(turn, lease, AssistantMessage("hi")))
        assert await store.announce(session_id)
        assert await store.announce(session_id)
        news = [Announcement("news"), Announcement("more")]
        assert await bodies(store, session_id) == [said("hello"), AssistantMessage("hi"), *news]
        entries = await store.log(session_id, 2)
        assert [entry.turn_id for entry in entries] == [sent.turn.id, other.turn.id]
        assert not await store.unannounced()

    async def test_message_never_comes_between_a_call_and_its_result(self, store: Store) -> None:
        turn, _, _ = await parked(store)
        sent = await store.send(sending(chat=CHAT))
        assert not sent.is_logged
        assert not await store.announce(turn.turn.session_id)

    async def test_message_that_waits_is_logged_with_the_next_one(self, store: Store) -> None:
        turn, lease = await begun(store)
        await store.send(sending("one", chat=CHAT))
        await store.commit(ending(turn, lease, AssistantMessage("hi")))
        await store.send(sending("two", chat=CHAT))
        logged = await bodies(store, turn.turn.session_id)
        assert logged[2:] == [Announcement("one"), Announcement("two")]

    async def test_holder_of_an_expired_lease_cannot_write_after_the_message(
        self, store: Store, clock: FakeClock
    ) -> None:
        turn, lease = await begun(store)
        clock.advance(LEASE + 1)
        sent = await store.send(sending(chat=CHAT))
        assert sent.is_logged
        with pytest.raises(StaleFence, match="lease"):
            await store.commit(ending(turn, lease, AssistantMessage("hi")))
        lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
        await store.commit(
            Commit(turn.turn.session_id, lease.fence, turn.turn.id, end=TurnEnd(TurnState.DONE))
        )

    # -- replies of runs

    async def test_reply_of_a_run_goes_to_the_chat_that_its_order_names(self, store: Store) -> None:
        asked = await answered(store)
        turn = await _ran(store, RunOrder(reply_to=ReplyPlace(CHAT, "at home")))
        (row,) = (await record_of(store, turn.id)).replies
        assert (row.body, row.channel, row.address) == ("hi", "http", "at home")
        assert (await bodies(store, asked.turn.session_id))[-1] == Announcement("hi")
        assert Announcement("hi") not in await bodies(store, turn.session_id)

    async def test_reply_of_a_run_to_a_chat_that_fetches_is_in_its_log_alone(self, store: Store) -> None:
        asked = await answered(store)
        turn = await _ran(store, RunOrder(reply_to=ReplyPlace(CHAT)))
        assert (await record_of(store, turn.id)).replies == ()
        assert (await bodies(store, asked.turn.session_id))[-1] == Announcement("hi")

    @pytest.mark.parametrize("address", [None, "at home"])
    @pytest.mark.parametrize("has_ended", [False, True])
    async def test_reply_of_a_run_to_a_chat_without_a_session_creates_it(
        self, store: Store, address: str | None, has_ended: bool
    ) -> None:
        ended = (await answered(store)).turn.session_id if has_ended else None
        if ended is not None:
            await store.end_session(ended, await store.hold(ended, ME, 1.0))
        await _ran(store, RunOrder(reply_to=ReplyPlace(CHAT, address)))
        session = await store.current_session(CHAT)
        assert session is not None
        assert (session.id != ended, session.ended_at) == (True, None)
        assert await bodies(store, session.id) == [Announcement("hi")]
        assert session.id in {listed.id for listed in (await store.sessions(Page())).items}
        await answered(store)
        assert await store.current_session(CHAT) is not None
        assert len(await bodies(store, session.id)) > 1, "the next message goes on there"

    @pytest.mark.parametrize(
        "end",
        [TurnEnd(TurnState.DONE, " NO_REPLY\n"), TurnEnd(TurnState.CANCELLED, "half")],
        ids=["nothing to say", "stopped"],
    )
    async def test_run_without_a_result_says_nothing(self, store: Store, end: TurnEnd) -> None:
        asked = await answered(store)
        turn = await _ran(store, RunOrder(reply_to=ReplyPlace(CHAT, "at home")), end)
        assert (await record_of(store, turn.id)).replies == ()
        assert (await bodies(store, asked.turn.session_id))[-1] == AssistantMessage("hi")

    async def test_run_that_read_content_from_outside_taints_the_chat_it_replies_to(
        self, store: Store
    ) -> None:
        asked = await answered(store)
        results = ToolResults((ToolResult("c1", "web_fetch", "page", untrusted=True),))
        await _ran(store, RunOrder(reply_to=ReplyPlace(CHAT)), entries=(results,))
        assert (await bodies(store, asked.turn.session_id))[-1] == Announcement("hi", untrusted=True)

    async def test_message_from_outside_taints_the_chat_that_hears_of_it(self, store: Store) -> None:
        asked = await answered(store)
        await _ran(store, RunOrder(reply_to=ReplyPlace(CHAT), untrusted=True))
        assert (await bodies(store, asked.turn.session_id))[-1] == Announcement("hi", untrusted=True)


async def _ran(
    store: Store,
    run: RunOrder,
    end: TurnEnd | None = None,
    entries: tuple[EntryBody, ...] = (),
) -> Turn:
    """A run in a chat of its own, up to its end."""
    order = accepting(chat=ROOM)
    order = msgspec.structs.replace(order, inbound=msgspec.structs.replace(order.inbound, run=run))
    turn, lease = await begun(store, order)
    end = end or TurnEnd(TurnState.DONE, "hi")
    await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, entries, end=end))
    return turn.turn
