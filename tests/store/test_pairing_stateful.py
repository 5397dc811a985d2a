"""Whatever is ordered of pairing: only the right code lets in, and guesses and requests stay bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.pairing_suite import CODE, code, guess
from contracts.store_orders import new_clock
from talaria.core.access import (
    ApprovePairing,
    CodeHash,
    CodesLocked,
    CreateInvitation,
    Paired,
    PairingLimits,
    PairingOrigin,
    Person,
    RedeemInvitation,
    RequestOpened,
    RequestPairing,
    WrongCode,
)
from talaria.store.in_memory import MemoryStore
from talaria.store.store import Pairings
from talaria.testing.clock import FakeClock

TIGHT = PairingLimits(
    code_seconds=50,
    pause_seconds=15,
    per_channel=3,
    tries=2,
)
CHANNELS = ("telegram", "discord")
channels = st.sampled_from(CHANNELS)
people = st.builds(Person, channels, st.sampled_from("123456"))
asks = st.builds(RequestPairing, people, st.just(CODE), st.just(TIGHT))
guesses = st.integers(0, 3).map(guess)
Deed = RequestPairing | ApprovePairing | CreateInvitation | RedeemInvitation | Person | float
deeds = st.one_of(
    asks,
    asks,
    st.builds(ApprovePairing, st.sampled_from([guess(0), CODE, CODE]), st.just(TIGHT)),
    st.builds(CreateInvitation, channels, guesses, st.just(TIGHT)),
    st.builds(RedeemInvitation, people, guesses, st.just(TIGHT)),
    people,
    st.sampled_from([1.0, 2.0, 10.0, 20.0]),
)


def spelled_out(deed: Deed, number: int, given_out: Sequence[CodeHash]) -> Deed:
    """`CODE` stands for a code of its own in a request, and for the last one given out in an approval."""
    match deed:
        case RequestPairing(person=person):
            return RequestPairing(person, code(number), TIGHT)
        case ApprovePairing(code=wanted) if wanted == CODE and given_out:
            return ApprovePairing(given_out[-1], TIGHT)
        case _:
            return deed


async def carry_out(pairings: Pairings, deed: Deed) -> object:
    match deed:
        case RequestPairing():
            return await pairings.ask(deed)
        case ApprovePairing():
            return await pairings.approve(deed)
        case CreateInvitation():
            return await pairings.invite(deed)
        case RedeemInvitation():
            return await pairings.redeem(deed)
        case Person(channel=channel, user_id=user_id):
            return await pairings.revoke(channel, user_id)
        case float():
            return None


class Book:
    """What the answers so far let one know: who may be paired by which code, and who is."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.paired: dict[tuple[str, str], Paired] = {}
        self.invitations: dict[str, tuple[CodeHash, float]] = {}
        self.guesses: list[float] = []

    def check(self, deed: Deed, answer: object, codes: dict[CodeHash, Person]) -> None:
        """`codes` are those of the requests that were open before the deed."""
        match deed, answer:
            case ApprovePairing(), CodesLocked(until=until):
                assert until == self.guesses[-1] + TIGHT.pause_seconds > self.clock.now()
            case ApprovePairing(code=code), Paired(person=person, origin=origin):
                assert (codes[code], origin) == (person, PairingOrigin.APPROVED)
            case ApprovePairing(code=code), _:
                assert code not in codes
                self.guesses.append(self.clock.now())
                recent = [at for at in self.guesses if at > self.clock.now() - TIGHT.pause_seconds]
                assert len(recent) <= TIGHT.tries
            case CreateInvitation(channel=channel, code=code), float(until):
                self.invitations[channel] = (code, until)
            case RedeemInvitation(person=person, code=code), Paired(origin=origin):
                assert (self.opens(person.channel, code), origin) == (True, PairingOrigin.INVITED)
                del self.invitations[person.channel]
            case RedeemInvitation(person=person, code=code), WrongCode():
                assert not self.opens(person.channel, code)
            case Person(channel=channel, user_id=user_id), _:
                assert answer == self.paired.pop((channel, user_id), None)
        if isinstance(answer, Paired) and not isinstance(deed, Person):
            self.paired[answer.person.channel, answer.person.user_id] = answer

    def opens(self, channel: str, code: CodeHash) -> bool:
        known, until = self.invitations.get(channel, (None, 0.0))
        return known == code and until > self.clock.now()


async def live(orders: Sequence[Deed]) -> None:
    clock = new_clock()
    pairings, book = MemoryStore(clock).pairings, Book(clock)
    given_out: dict[CodeHash, Person] = {}
    for number, order in enumerate(orders):
        deed = spelled_out(order, number, tuple(given_out))
        clock.advance(deed if isinstance(deed, float) else 0.0)
        open_now = {each.person for each in (await pairings.listing()).requests}
        codes = {code: person for code, person in given_out.items() if person in open_now}
        answer = await carry_out(pairings, deed)
        book.check(deed, answer, codes)
        if isinstance(deed, RequestPairing) and isinstance(answer, RequestOpened):
            given_out = {code: person for code, person in given_out.items() if person != deed.person}
            given_out[deed.code] = deed.person
        listing = await pairings.listing()
        assert {(each.person.channel, each.person.user_id): each for each in listing.paired} == book.paired
        for channel in CHANNELS:
            waiting = [each for each in listing.requests if each.person.channel == channel]
            assert len(waiting) <= TIGHT.per_channel


@settings(max_examples=60, deadline=None)
@given(st.lists(deeds, min_size=30, max_size=60))
def test_only_the_right_code_lets_in_and_guesses_are_few(orders: list[Deed]) -> None:
    asyncio.run(live(orders))
