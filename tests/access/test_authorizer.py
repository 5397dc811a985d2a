"""What strangers are told, and how little of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from access.actors import UNENTITLED, in_group, private
from contracts.store_orders import new_clock
from talaria.access.authorizer import (
    Authorized,
    Authorizer,
    ChatKind,
    Ingress,
    KnownBy,
    PairingAdmin,
    Stranger,
)
from talaria.core.access import PairingOrigin, RequestOutcome, RequestPairing
from talaria.core.errors import BadRequest, NotFound, StoreError, TooManyTries
from talaria.store.in_memory import InlineExecutor
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import Pairings
from talaria.testing.clock import FakeClock

ANN, BOB = private("2001", "Ann"), private("2002", "Bob")
MINUTE, HOUR = 60.0, 3600.0


class CountedPairings(Pairings):
    """With the asking counted."""

    asked = 0

    async def ask(self, order: RequestPairing) -> RequestOutcome:
        self.asked += 1
        return await super().ask(order)


@pytest.fixture
def clock() -> FakeClock:
    return new_clock()


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    async with await SqliteStore.open(tmp_path / "talaria.db", clock) as store:
        yield store


@pytest.fixture
def authorizer(store: SqliteStore, clock: FakeClock) -> Authorizer:
    return Authorizer(store.pairings, {"telegram": [1001]}, clock)


@pytest.fixture
def admin(store: SqliteStore) -> PairingAdmin:
    return PairingAdmin(store.pairings, ["telegram"])


@pytest.fixture
def counted(clock: FakeClock) -> CountedPairings:
    return CountedPairings(InlineExecutor(clock))


@pytest.fixture
def counted_authorizer(counted: CountedPairings, clock: FakeClock) -> Authorizer:
    return Authorizer(counted, {}, clock)


def code_in(text: str | None) -> str:
    assert text is not None
    found = re.search(r"talaria pair approve (\S+)", text)
    assert found is not None, text
    return found[1]


async def test_a_stranger_is_shown_a_code_and_let_in_when_it_is_approved(
    authorizer: Authorizer, admin: PairingAdmin
) -> None:
    assert await authorizer.check(ANN, Ingress.MESSAGE) == Stranger()
    code = code_in(await authorizer.greet(ANN, "hello"))
    assert (await admin.approve(code)).person == ANN.person
    verdict = await authorizer.check(ANN, Ingress.MESSAGE)
    assert isinstance(verdict, Authorized)
    assert verdict.membership is KnownBy.PAIRED
    # Also in a group, where each speaks for themselves.
    assert isinstance(await authorizer.check(in_group(ANN.user_id), Ingress.BUTTON), Authorized)
    assert not isinstance(await authorizer.check(in_group(BOB.user_id), Ingress.BUTTON), Authorized)


async def test_whoever_is_revoked_is_a_stranger_at_once(authorizer: Authorizer, admin: PairingAdmin) -> None:
    await admin.approve(code_in(await authorizer.greet(ANN)))
    assert isinstance(await authorizer.check(ANN, Ingress.EDIT), Authorized)
    await admin.revoke("telegram", ANN.user_id)
    assert not isinstance(await authorizer.check(ANN, Ingress.EDIT), Authorized)


async def test_the_code_is_not_in_the_database(
    authorizer: Authorizer, store: SqliteStore, tmp_path: Path
) -> None:
    code = code_in(await authorizer.greet(ANN))
    await store.close()
    content = (tmp_path / "talaria.db").read_bytes()
    assert b"2001" in content
    assert code.encode() not in content
    assert code.replace("-", "").encode() not in content


async def test_writing_again_gives_a_few_reminders_without_a_code_and_then_silence(
    authorizer: Authorizer, clock: FakeClock
) -> None:
    code_in(await authorizer.greet(ANN))
    heard = []
    for _ in range(59):
        clock.advance(MINUTE)
        heard.append(await authorizer.greet(ANN))
    said = [text for text in heard if text is not None]
    assert len(said) == 3
    assert all("waits" in text and "approve " not in text for text in said)
    clock.advance(MINUTE)
    code_in(await authorizer.greet(ANN))


async def test_a_stranger_who_floods_causes_hardly_a_write(
    counted_authorizer: Authorizer, clock: FakeClock, counted: CountedPairings
) -> None:
    for _ in range(10_000):
        await counted_authorizer.greet(ANN)
        clock.advance(0.1)
    assert counted.asked <= 5


async def test_a_flood_of_strangers_causes_few_answers_and_few_writes(
    counted_authorizer: Authorizer, clock: FakeClock, counted: CountedPairings
) -> None:
    answers = 0
    for number in range(10_000):
        answers += await counted_authorizer.greet(private(str(9000 + number))) is not None
        clock.advance(0.1)
    assert answers <= 60
    assert counted.asked <= 62
    assert len((await counted.listing()).requests) <= 60


async def test_after_a_flood_strangers_are_heard_again(authorizer: Authorizer, clock: FakeClock) -> None:
    for number in range(100):
        await authorizer.greet(private(str(9000 + number)))
    assert await authorizer.greet(ANN) is None
    clock.advance(HOUR)
    code_in(await authorizer.greet(ANN))


@pytest.mark.parametrize("who", [who for who, a in UNENTITLED.items() if a.chat_kind is not ChatKind.PRIVATE])
async def test_outside_a_private_chat_not_a_word_is_said(
    counted_authorizer: Authorizer, who: str, counted: CountedPairings
) -> None:
    assert await counted_authorizer.greet(UNENTITLED[who], "/start K7QD-93MX-4TZA") is None
    assert counted.asked == 0


async def test_bots_are_not_greeted(counted_authorizer: Authorizer, counted: CountedPairings) -> None:
    assert await counted_authorizer.greet(UNENTITLED["a bot"], "hello") is None
    assert counted.asked == 0


@pytest.mark.parametrize(
    ("name", "stored"),
    [("A" * 100_000, "A" * 64), ("A\ud800n\x00n\x1b[1m\u202e\n", "Ann[1m"), ("Änne 🦉", "Änne 🦉")],
)
async def test_any_name_is_stored_short_and_plain(
    authorizer: Authorizer, store: SqliteStore, name: str, stored: str
) -> None:
    assert await authorizer.greet(private("2001", name)) is not None
    (request,) = (await store.pairings.listing()).requests
    assert request.person.name == stored


# -- invitations


async def test_who_starts_with_an_invitation_is_in_without_a_second_step(
    authorizer: Authorizer, admin: PairingAdmin, store: SqliteStore
) -> None:
    invitation = await admin.invite("telegram")
    text = await authorizer.greet(ANN, f"/start {invitation.code}")
    assert text is not None
    assert "You are in" in text
    assert isinstance(await authorizer.check(ANN, Ingress.MESSAGE), Authorized)
    (paired,) = (await store.pairings.listing()).paired
    assert paired.origin is PairingOrigin.INVITED
    # Once.
    code_in(await authorizer.greet(BOB, f"/start {invitation.code}"))
    assert not isinstance(await authorizer.check(BOB, Ingress.MESSAGE), Authorized)


async def test_an_invitation_also_serves_who_waits_in_silence(
    authorizer: Authorizer, admin: PairingAdmin
) -> None:
    await authorizer.greet(ANN)
    assert await authorizer.greet(ANN) is None
    invitation = await admin.invite("telegram")
    assert await authorizer.greet(ANN, f"/start@talaria_bot {invitation.code.lower()}") is not None
    assert isinstance(await authorizer.check(ANN, Ingress.MESSAGE), Authorized)
    await admin.revoke("telegram", ANN.user_id)
    code_in(await authorizer.greet(ANN))  # the silence is over


async def test_an_invitation_said_in_a_group_lets_nobody_in(
    authorizer: Authorizer, admin: PairingAdmin
) -> None:
    invitation = await admin.invite("telegram")
    assert await authorizer.greet(in_group(ANN.user_id), f"/start {invitation.code}") is None
    assert not isinstance(await authorizer.check(ANN, Ingress.MESSAGE), Authorized)


async def test_a_wrong_invitation_is_answered_like_none(authorizer: Authorizer, admin: PairingAdmin) -> None:
    await admin.invite("telegram")
    code_in(await authorizer.greet(ANN, "/start K7QD-93MX-4TZA"))


async def test_guessing_invitations_leads_nowhere(
    authorizer: Authorizer, admin: PairingAdmin, store: SqliteStore, clock: FakeClock
) -> None:
    """Not even with the right one, for a guesser who is locked out."""
    invitation = await admin.invite("telegram")
    for _ in range(5):
        await authorizer.greet(ANN, "/start K7QD-93MX-4TZA")
    assert await authorizer.greet(ANN, f"/start {invitation.code}") is None
    assert not (await store.pairings.listing()).paired


async def test_a_bare_start_is_greeted_like_any_message(authorizer: Authorizer) -> None:
    code_in(await authorizer.greet(ANN, "/start"))


# -- the operator


async def test_five_wrong_codes_lock_approvals_for_a_while(
    authorizer: Authorizer, admin: PairingAdmin, clock: FakeClock
) -> None:
    code = code_in(await authorizer.greet(ANN))
    for _ in range(5):
        with pytest.raises(NotFound, match="No request has the code"):
            await admin.approve("K7QD-93MX-4TZA")
    with pytest.raises(TooManyTries) as refused:
        await admin.approve(code)
    assert "Try again after" in refused.value.hint
    clock.advance(15 * MINUTE)
    await admin.approve(code)


async def test_what_is_no_code_is_not_counted(authorizer: Authorizer, admin: PairingAdmin) -> None:
    code = code_in(await authorizer.greet(ANN))
    for _ in range(20):
        with pytest.raises(BadRequest):
            await admin.approve("please")
    await admin.approve(code)


async def test_a_code_is_approved_as_people_type_it(authorizer: Authorizer, admin: PairingAdmin) -> None:
    code = code_in(await authorizer.greet(ANN))
    await admin.approve(code.lower().replace("-", " "))


async def test_revoking_whoever_is_not_paired_says_so(admin: PairingAdmin) -> None:
    with pytest.raises(NotFound, match="Nobody is paired as 7 on telegram"):
        await admin.revoke("telegram", "7")


# -- a store that cannot be asked


async def test_when_the_store_cannot_be_asked_nobody_is_let_in(
    authorizer: Authorizer, store: SqliteStore, admin: PairingAdmin
) -> None:
    await admin.approve(code_in(await authorizer.greet(ANN)))
    await store.close()
    with pytest.raises(StoreError):
        await authorizer.check(ANN, Ingress.MESSAGE)
    # A person in `allowed` is known without the store.
    assert isinstance(await authorizer.check(private("1001"), Ingress.MESSAGE), Authorized)
