"""Pairing in memory and in SQLite side by side: whatever is ordered, they answer the same."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.pairing_suite import CODE, code, guess
from contracts.store_orders import HandClock
from talaria.core.access import Approve, Ask, CodeHash, Invite, Opened, PairingLimits, Person, Redeem
from talaria.core.ports import Pairings
from talaria.store.memory_pairing import MemoryPairings
from talaria.store.sqlite.store import SqliteStore

TIGHT = PairingLimits(
    code_seconds=50,
    reminders=2,
    reminder_seconds=5,
    new_requests=2,
    new_seconds=3,
    open_requests=3,
    tries=2,
    channel_tries=4,
    lock_seconds=15,
)
CHANNELS = ("telegram", "discord")
channels = st.sampled_from(CHANNELS)
people = st.builds(Person, channels, st.sampled_from("123456"))
asks = st.builds(Ask, people, st.just(CODE), st.just(TIGHT))
guesses = st.integers(0, 3).map(guess)
Deed = Ask | Approve | Invite | Redeem | Person | float
deeds = st.one_of(
    asks,
    asks,
    st.builds(Approve, st.sampled_from([guess(0), CODE, CODE]), st.just(TIGHT)),
    st.builds(Invite, channels, guesses, st.just(TIGHT)),
    st.builds(Redeem, people, guesses, st.just(TIGHT)),
    people,
    st.sampled_from([1.0, 2.0, 10.0, 20.0]),
)


def spelled_out(deed: Deed, number: int, given_out: Sequence[CodeHash]) -> Deed:
    """`CODE` stands for a code of its own in a request, and for the last one given out in an approval."""
    match deed:
        case Ask(person=person):
            return Ask(person, code(number), TIGHT)
        case Approve(code=wanted) if wanted == CODE and given_out:
            return Approve(given_out[-1], TIGHT)
        case _:
            return deed


async def carry_out(pairings: Pairings, deed: Deed) -> object:
    match deed:
        case Ask():
            return await pairings.ask(deed)
        case Approve():
            return await pairings.approve(deed)
        case Invite():
            return await pairings.invite(deed)
        case Redeem():
            return await pairings.redeem(deed)
        case Person(channel=channel, user_id=user_id):
            return await pairings.revoke(channel, user_id)
        case float():
            return None


async def compare(orders: Sequence[Deed], folder: Path) -> None:
    clock = HandClock()
    memory, given_out = MemoryPairings(clock), list[CodeHash]()
    async with await SqliteStore.open(folder / "talaria.db", clock) as store:
        for number, order in enumerate(orders):
            deed = spelled_out(order, number, given_out)
            clock.forward(deed if isinstance(deed, float) else 0.0)
            answer = await carry_out(memory, deed)
            assert answer == await carry_out(store.pairings, deed)
            if isinstance(deed, Ask) and isinstance(answer, Opened):
                given_out.append(deed.code)
            listing = await memory.listing()
            assert listing == await store.pairings.listing()
            waiting = [each.person.channel for each in listing.requests]
            assert all(waiting.count(channel) <= TIGHT.open_requests for channel in CHANNELS)


@settings(max_examples=25, deadline=None)
@given(st.lists(deeds, min_size=30, max_size=60))
def test_memory_and_sqlite_answer_the_same(orders: list[Deed]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(orders, Path(folder)))
