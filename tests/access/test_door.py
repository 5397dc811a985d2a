"""What strangers hear at the door, and how little of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from access.actors import UNENTITLED, in_group, private
from contracts.store_orders import HandClock
from talaria.access.actors import ChatKind, Entitled, Standing, Stranger, Way
from talaria.access.desk import PairingDesk
from talaria.access.door import Door
from talaria.core.access import Ask, Asked, Origin
from talaria.core.errors import BadRequest, NotFound, StoreError, TooManyTries
from talaria.store.sqlite.inline import Inline
from talaria.store.sqlite.pairing import SqlitePairings
from talaria.store.sqlite.store import SqliteStore

ANN, BOB = private("2001", "Ann"), private("2002", "Bob")
MINUTE, HOUR = 60.0, 3600.0


class CountedPairings(SqlitePairings):
    """With the asking counted."""

    asked = 0

    async def ask(self, order: Ask) -> Asked:
        self.asked += 1
        return await super().ask(order)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def store(tmp_path: Path, clock: HandClock) -> AsyncIterator[SqliteStore]:
    async with await SqliteStore.open(tmp_path / "talaria.db", clock) as store:
        yield store


@pytest.fixture
def door(store: SqliteStore, clock: HandClock) -> Door:
    return Door(store.pairings, {"telegram": [1001]}, clock)


@pytest.fixture
def desk(store: SqliteStore) -> PairingDesk:
    return PairingDesk(store.pairings)


@pytest.fixture
def counted(clock: HandClock) -> CountedPairings:
    return CountedPairings(Inline(clock))


@pytest.fixture
def counted_door(counted: CountedPairings, clock: HandClock) -> Door:
    return Door(counted, {}, clock)


def code_in(text: str | None) -> str:
    assert text is not None
    found = re.search(r"talaria pair approve (\S+)", text)
    assert found is not None, text
    return found[1]


async def test_a_stranger_is_shown_a_code_and_let_in_when_it_is_approved(
    door: Door, desk: PairingDesk
) -> None:
    assert await door.check(ANN, Way.MESSAGE) == Stranger()
    code = code_in(await door.greet(ANN, "hello"))
    assert (await desk.approve(code)).person == ANN.person
    verdict = await door.check(ANN, Way.MESSAGE)
    assert isinstance(verdict, Entitled)
    assert verdict.standing is Standing.PAIRED
    # Also in a group, where each speaks for themselves.
    assert isinstance(await door.check(in_group(ANN.user_id), Way.BUTTON), Entitled)
    assert not isinstance(await door.check(in_group(BOB.user_id), Way.BUTTON), Entitled)


async def test_whoever_is_revoked_is_a_stranger_at_once(door: Door, desk: PairingDesk) -> None:
    await desk.approve(code_in(await door.greet(ANN)))
    assert isinstance(await door.check(ANN, Way.EDIT), Entitled)
    await desk.revoke("telegram", ANN.user_id)
    assert not isinstance(await door.check(ANN, Way.EDIT), Entitled)


async def test_the_code_is_not_in_the_database(door: Door, store: SqliteStore, tmp_path: Path) -> None:
    code = code_in(await door.greet(ANN))
    await store.close()
    content = (tmp_path / "talaria.db").read_bytes()
    assert b"2001" in content
    assert code.encode() not in content
    assert code.replace("-", "").encode() not in content


async def test_writing_again_gives_a_few_reminders_without_a_code_and_then_silence(
    door: Door, clock: HandClock
) -> None:
    code_in(await door.greet(ANN))
    heard = []
    for _ in range(59):
        clock.forward(MINUTE)
        heard.append(await door.greet(ANN))
    said = [text for text in heard if text is not None]
    assert len(said) == 3
    assert all("waits" in text and "approve " not in text for text in said)
    clock.forward(MINUTE)
    code_in(await door.greet(ANN))


async def test_a_stranger_who_floods_causes_hardly_a_write(
    counted_door: Door, clock: HandClock, counted: CountedPairings
) -> None:
    for _ in range(10_000):
        await counted_door.greet(ANN)
        clock.forward(0.1)
    assert counted.asked <= 5


async def test_a_flood_of_strangers_causes_few_answers_and_few_writes(
    counted_door: Door, clock: HandClock, counted: CountedPairings
) -> None:
    answers = 0
    for number in range(10_000):
        answers += await counted_door.greet(private(str(9000 + number))) is not None
        clock.forward(0.1)
    # 1,000 seconds are less than two times the ten minutes of thirty codes.
    assert answers <= 60
    assert counted.asked <= 62
    assert len((await counted.listing()).requests) <= 60


async def test_after_a_flood_strangers_are_heard_again(door: Door, clock: HandClock) -> None:
    for number in range(100):
        await door.greet(private(str(9000 + number)))
    assert await door.greet(ANN) is None
    clock.forward(10 * MINUTE)
    code_in(await door.greet(ANN))


@pytest.mark.parametrize("who", [who for who, a in UNENTITLED.items() if a.chat_kind is not ChatKind.PRIVATE])
async def test_outside_a_private_chat_not_a_word_is_said(
    counted_door: Door, who: str, counted: CountedPairings
) -> None:
    assert await counted_door.greet(UNENTITLED[who], "/start K7QD-93MX-4TZA") is None
    assert counted.asked == 0


async def test_bots_are_not_greeted(counted_door: Door, counted: CountedPairings) -> None:
    assert await counted_door.greet(UNENTITLED["a bot"], "hello") is None
    assert counted.asked == 0


@pytest.mark.parametrize(
    ("name", "stored"),
    [("A" * 100_000, "A" * 64), ("A\ud800n\x00n\x1b[1m\u202e\n", "Ann[1m"), ("Änne 🦉", "Änne 🦉")],
)
async def test_any_name_is_stored_short_and_plain(
    door: Door, store: SqliteStore, name: str, stored: str
) -> None:
    assert await door.greet(private("2001", name)) is not None
    (request,) = (await store.pairings.listing()).requests
    assert request.person.name == stored


# -- invitations


async def test_who_starts_with_an_invitation_is_in_without_a_second_step(
    door: Door, desk: PairingDesk, store: SqliteStore
) -> None:
    invitation = await desk.invite("telegram")
    text = await door.greet(ANN, f"/start {invitation.code}")
    assert text is not None
    assert "You are in" in text
    assert isinstance(await door.check(ANN, Way.MESSAGE), Entitled)
    (paired,) = (await store.pairings.listing()).paired
    assert paired.origin is Origin.INVITED
    # Once.
    code_in(await door.greet(BOB, f"/start {invitation.code}"))
    assert not isinstance(await door.check(BOB, Way.MESSAGE), Entitled)


async def test_an_invitation_also_serves_who_waits_in_silence(door: Door, desk: PairingDesk) -> None:
    await door.greet(ANN)
    assert await door.greet(ANN) is None
    invitation = await desk.invite("telegram")
    assert await door.greet(ANN, f"/start@talaria_bot {invitation.code.lower()}") is not None
    assert isinstance(await door.check(ANN, Way.MESSAGE), Entitled)


async def test_an_invitation_said_in_a_group_lets_nobody_in(door: Door, desk: PairingDesk) -> None:
    invitation = await desk.invite("telegram")
    assert await door.greet(in_group(ANN.user_id), f"/start {invitation.code}") is None
    assert not isinstance(await door.check(ANN, Way.MESSAGE), Entitled)


async def test_a_wrong_invitation_is_answered_like_none(door: Door, desk: PairingDesk) -> None:
    await desk.invite("telegram")
    code_in(await door.greet(ANN, "/start K7QD-93MX-4TZA"))


async def test_guessing_invitations_leads_nowhere(
    door: Door, desk: PairingDesk, store: SqliteStore, clock: HandClock
) -> None:
    """Not even with the right one, for a guesser who is locked out."""
    invitation = await desk.invite("telegram")
    for _ in range(5):
        await door.greet(ANN, "/start K7QD-93MX-4TZA")
    assert await door.greet(ANN, f"/start {invitation.code}") is None
    assert not (await store.pairings.listing()).paired


async def test_a_bare_start_is_greeted_like_any_message(door: Door) -> None:
    code_in(await door.greet(ANN, "/start"))


# -- the desk


async def test_five_wrong_codes_lock_the_desk_and_time_opens_it(
    door: Door, desk: PairingDesk, clock: HandClock
) -> None:
    code = code_in(await door.greet(ANN))
    for _ in range(5):
        with pytest.raises(NotFound, match="Nobody waits with the code"):
            await desk.approve("K7QD-93MX-4TZA")
    with pytest.raises(TooManyTries) as refused:
        await desk.approve(code)
    assert "Try again after" in refused.value.hint
    clock.forward(15 * MINUTE)
    await desk.approve(code)


async def test_what_is_no_code_is_not_counted(door: Door, desk: PairingDesk) -> None:
    code = code_in(await door.greet(ANN))
    for _ in range(20):
        with pytest.raises(BadRequest):
            await desk.approve("please")
    await desk.approve(code)


async def test_a_code_is_approved_as_people_type_it(door: Door, desk: PairingDesk) -> None:
    code = code_in(await door.greet(ANN))
    await desk.approve(code.lower().replace("-", " "))


async def test_revoking_whoever_is_not_paired_says_so(desk: PairingDesk) -> None:
    with pytest.raises(NotFound, match="Nobody is paired as 7 on telegram"):
        await desk.revoke("telegram", "7")


# -- a store that cannot be asked


async def test_when_the_store_cannot_be_asked_nobody_is_let_in(
    door: Door, store: SqliteStore, desk: PairingDesk
) -> None:
    await desk.approve(code_in(await door.greet(ANN)))
    await store.close()
    with pytest.raises(StoreError):
        await door.check(ANN, Way.MESSAGE)
    # Who is configured needs no store.
    assert isinstance(await door.check(private("1001"), Way.MESSAGE), Entitled)
