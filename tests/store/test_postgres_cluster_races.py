"""Members of a cluster that work on the same chats at the same moment, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from msgspec.structs import replace

from contracts.cluster_orders import HERE, THERE, THIRD, at, both_join, member
from contracts.store_orders import LEASE, ME, RIVAL, ending, said
from store.test_postgres_races import at_once, kinds
from support.waiting import until
from talaria.core.cluster import Adopted
from talaria.core.ids import ChatKey, OwnerId, TurnId
from talaria.core.ledger import Accepted, Begin, Binding, TurnEnd
from talaria.core.turns import TurnState
from talaria.store.postgres.store import PostgresStore
from talaria.testing.clock import FakeClock

Stores = tuple[PostgresStore, PostgresStore]
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'talaria' AND wait_event_type = 'Lock'
"""
CHATS = [ChatKey(f"agent:main:http:api:{n}") for n in range(8)]


@pytest.fixture
async def stores(postgres_url: str, clock: FakeClock) -> AsyncIterator[Stores]:
    """Two gateways of a cluster."""
    async with (
        await PostgresStore.open(postgres_url, clock, connections=6) as one,
        await PostgresStore.open(postgres_url, clock, connections=6) as two,
    ):
        await both_join(one)
        yield one, two


async def turns_of(store: PostgresStore, *owners: OwnerId) -> dict[TurnId, OwnerId]:
    """Return the member of each unsettled turn. The turns of a chat are for one member, which has the
    chat."""
    found, chats = dict[TurnId, OwnerId](), dict[ChatKey, set[OwnerId]]()
    for owner in owners:
        for waiting in await store.cluster.waiting_here(owner):
            assert waiting.turn.id not in found
            found[waiting.turn.id] = owner
            chats.setdefault(waiting.turn.chat_key, set()).add(owner)
    for chat_key, theirs in chats.items():
        home = await store.cluster.member_of(chat_key)
        assert home is not None and theirs == {home.owner}, chat_key
    return found


def running(found: list[Accepted]) -> dict[ChatKey, int]:
    counts = dict.fromkeys((accepted.turn.chat_key for accepted in found), 0)
    for accepted in found:
        counts[accepted.turn.chat_key] += accepted.began is not None
    return counts


@pytest.mark.parametrize("binding", [Binding.CURRENT, Binding.NEW])
async def test_first_messages_at_two_members_give_a_chat_one_of_them(
    stores: Stores, binding: Binding
) -> None:
    orders = [
        store.accept(at(here, chat=chat, binding=binding))
        for chat in CHATS
        for store, here in zip(stores, (HERE, THERE), strict=True)
    ]
    found = await asyncio.gather(*orders)
    assert set(running(found).values()) == {1}
    assert len(await turns_of(stores[0], ME, RIVAL)) == 2 * len(CHATS)


async def test_an_idle_chat_goes_to_one_of_two_members(stores: Stores, clock: FakeClock) -> None:
    third = replace(THIRD, warm_seconds=1.0)
    await stores[0].cluster.join(member(third.owner, third.place), 10 * LEASE)
    for chat in CHATS:
        turn = await stores[0].accept(at(third, chat=chat))
        assert turn.began is not None
        await stores[0].commit(ending(turn, turn.began))
    clock.advance(5)
    hasty = (replace(HERE, warm_seconds=1.0), replace(THERE, warm_seconds=1.0))
    orders = [
        store.accept(at(here, chat=chat)) for chat in CHATS for store, here in zip(stores, hasty, strict=True)
    ]
    assert set(running(await asyncio.gather(*orders)).values()) == {1}
    assert len(await turns_of(stores[0], ME, RIVAL)) == 2 * len(CHATS)


async def orphan(stores: Stores, clock: FakeClock) -> list[TurnId]:
    """Let a member die that has two turns of each chat, which are not of its current session."""
    await stores[0].cluster.join(member(THIRD.owner, THIRD.place), LEASE / 2)
    accepted = [await stores[0].accept(at(THIRD, chat=chat)) for chat in CHATS for _ in range(2)]
    for chat in CHATS:
        last = await stores[0].accept(at(THIRD, chat=chat, binding=Binding.NEW, begins=None))
        await stores[0].settle(last.turn.id, TurnEnd(TurnState.CANCELLED))
    clock.advance(LEASE)
    await both_join(stores[0])
    return [turn.turn.id for turn in accepted]


async def test_each_turn_of_a_dead_member_is_adopted_once(stores: Stores, clock: FakeClock) -> None:
    orphans = await orphan(stores, clock)
    calls = [stores[n % 2].cluster.adopt((HERE, THERE)[n % 2]) for n in range(6)]
    found: list[Adopted] = list(await asyncio.gather(*calls))
    assert sorted(turn.id for adopted in found for turn in adopted.turns) == sorted(orphans)
    assert set(await turns_of(stores[1], ME, RIVAL)) == set(orphans)


async def test_a_message_and_an_adoption_at_once_leave_a_chat_with_one_member(
    stores: Stores, clock: FakeClock
) -> None:
    orphans = await orphan(stores, clock)
    messages = [stores[1].accept(at(THERE, chat=chat)) for chat in CHATS]
    accepted, _ = await asyncio.gather(asyncio.gather(*messages), stores[0].cluster.adopt(HERE))
    assert set(running(accepted).values()) == {0}, "older turns come first"
    news = {each.turn.id for each in accepted}
    assert set(await turns_of(stores[0], ME, RIVAL)) == set(orphans) | news


async def test_a_chat_that_two_orders_are_about_to_move_is_moved_by_the_first(
    stores: Stores, clock: FakeClock, postgres_url: str
) -> None:
    """Both have read the chat's row, and wait to change it."""
    await orphan(stores, clock)
    with psycopg.connect(postgres_url) as holder, psycopg.connect(postgres_url, autocommit=True) as watch:
        holder.execute("SELECT 1 FROM chats WHERE chat_key = %s FOR UPDATE", (CHATS[0],))
        adopting = asyncio.create_task(stores[0].cluster.adopt(HERE))
        accepting = asyncio.create_task(stores[1].accept(at(THERE, chat=CHATS[0])))
        await until(lambda: watch.execute(WAITING).fetchone() == (2,), pause=0)
        holder.rollback()
        await asyncio.gather(adopting, accepting)
    await turns_of(stores[0], ME, RIVAL)


async def test_a_turn_is_begun_or_adopted_by_another(stores: Stores, clock: FakeClock) -> None:
    orphans = await orphan(stores, clock)
    begins = [stores[0].begin(Begin(turn, THIRD.owner, LEASE, said("x"))) for turn in orphans[::2]]
    found, adopted = await asyncio.gather(at_once(*begins), stores[1].cluster.adopt(THERE))
    assert set(kinds(found)) <= {"Began", "TurnElsewhere"}
    taken = {turn.id for turn in adopted.turns}
    for turn, result in zip(orphans[::2], found, strict=True):
        assert (type(result).__name__ == "TurnElsewhere") == (turn in taken)


async def test_a_role_goes_to_one_member(stores: Stores) -> None:
    for n in range(8):
        names = [(stores[i % 2], (ME, RIVAL)[i % 2]) for i in range(6)]
        found = await asyncio.gather(
            *(store.cluster.take_role(f"role {n}", owner, LEASE) for store, owner in names)
        )
        assert len({role.owner for role in found}) == 1
        assert {role.fence for role in found} == {1}


async def test_messages_for_a_place_whose_next_process_joins_are_found_by_it(
    stores: Stores, clock: FakeClock
) -> None:
    """A turn for the process before would be adopted by anybody, late."""
    one, two = stores
    before = OwnerId("own_there_0")
    for n in range(1, 6):
        await one.cluster.join(member(before, THERE.place), LEASE)
        for chat in CHATS:
            first = await two.accept(at(replace(THERE, owner=before), chat=chat))
            await one.cluster.place_chat(chat, THERE.place)
            assert first.began is not None
            await two.commit(ending(first, first.began))
        clock.advance(LEASE)
        await one.cluster.join(member(ME, HERE.place), LEASE)
        after = OwnerId(f"own_there_{n}")
        accepts = asyncio.gather(*(one.accept(at(HERE, chat=chat)) for chat in CHATS))
        found, _ = await asyncio.gather(accepts, two.cluster.join(member(after, THERE.place), LEASE))
        assert set(await turns_of(one, ME, RIVAL, before, after)) == {each.turn.id for each in found}
        assert {waiting.turn.chat_key for waiting in await one.cluster.waiting_here(after)} == set(CHATS)
        for waiting in await one.cluster.waiting_here(after):
            await one.settle(waiting.turn.id, TurnEnd(TurnState.CANCELLED))
        before = after
