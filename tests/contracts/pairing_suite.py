"""The contract of `store.store.Pairings`. A test class gives `pairings` and `clock`."""

from __future__ import annotations

import asyncio

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
    RequestPending,
    RequestsFull,
    WrongCode,
)
from talaria.store.store import Pairings
from talaria.testing.clock import FakeClock

HOUR = 3600.0
LIMITS = PairingLimits()
ANN = Person("telegram", "1001", "Ann")
BOB = Person("telegram", "1002", "Bob")
CODE = CodeHash("hash of a code")
OTHER = CodeHash("hash of another")


def stranger(number: int, channel: str = "telegram") -> Person:
    return Person(channel, str(5000 + number))


def code(number: int) -> CodeHash:
    return CodeHash(f"hash {number}")


def guess(number: int) -> CodeHash:
    return CodeHash(f"guess {number}")


class PairingSuite:
    # -- asking and approving

    async def test_an_approved_code_pairs_whoever_it_was_given_to(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        assert await pairings.ask(RequestPairing(ANN, CODE)) == RequestOpened(clock.now() + HOUR)
        assert await pairings.ask(RequestPairing(BOB, OTHER)) == RequestOpened(clock.now() + HOUR)
        clock.advance(10)
        paired = Paired(ANN, clock.now(), PairingOrigin.APPROVED)
        assert await pairings.approve(ApprovePairing(CODE)) == paired
        assert await pairings.is_paired("telegram", "1001")
        assert not await pairings.is_paired("telegram", "1002")
        listing = await pairings.listing()
        assert listing.paired == (paired,)
        assert [request.person for request in listing.requests] == [BOB]

    async def test_an_id_is_paired_on_its_channel_only(self, pairings: Pairings) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        await pairings.approve(ApprovePairing(CODE))
        assert not await pairings.is_paired("discord", ANN.user_id)

    async def test_a_code_is_good_for_an_hour(self, pairings: Pairings, clock: FakeClock) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        clock.advance(HOUR - 1)
        assert len((await pairings.listing()).requests) == 1
        clock.advance(1)
        assert not (await pairings.listing()).requests
        assert isinstance(await pairings.approve(ApprovePairing(CODE)), WrongCode)
        assert not await pairings.is_paired("telegram", "1001")

    async def test_a_code_is_good_once(self, pairings: Pairings) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        await pairings.approve(ApprovePairing(CODE))
        await pairings.revoke("telegram", "1001")
        assert isinstance(await pairings.approve(ApprovePairing(CODE)), WrongCode)
        assert not await pairings.is_paired("telegram", "1001")

    async def test_of_many_approvals_of_one_code_one_pairs(self, pairings: Pairings) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        answers = await asyncio.gather(*(pairings.approve(ApprovePairing(CODE)) for _ in range(4)))
        assert sum(isinstance(answer, Paired) for answer in answers) == 1
        assert len((await pairings.listing()).paired) == 1

    async def test_after_an_hour_one_may_ask_again(self, pairings: Pairings, clock: FakeClock) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        clock.advance(HOUR)
        assert isinstance(await pairings.ask(RequestPairing(ANN, OTHER)), RequestOpened)
        assert isinstance(await pairings.approve(ApprovePairing(CODE)), WrongCode)
        assert isinstance(await pairings.approve(ApprovePairing(OTHER)), Paired)

    # -- revoking

    async def test_a_revocation_counts_at_once(self, pairings: Pairings, clock: FakeClock) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        await pairings.approve(ApprovePairing(CODE))
        assert await pairings.revoke("telegram", "1001") == Paired(ANN, clock.now(), PairingOrigin.APPROVED)
        assert not await pairings.is_paired("telegram", "1001")
        assert await pairings.revoke("telegram", "1001") is None

    async def test_a_revocation_is_for_one_channel(self, pairings: Pairings) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        await pairings.approve(ApprovePairing(CODE))
        assert await pairings.revoke("discord", "1001") is None
        assert await pairings.is_paired("telegram", "1001")

    # -- what a stranger can cause

    async def test_writing_again_opens_nothing_and_keeps_the_first_code(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        opened = await pairings.ask(RequestPairing(ANN, CODE))
        assert isinstance(opened, RequestOpened)
        clock.advance(LIMITS.pause_seconds)
        again = await pairings.ask(RequestPairing(ANN, OTHER))
        assert again == RequestPending(may_tell=True, quiet_until=clock.now() + LIMITS.pause_seconds)
        assert len((await pairings.listing()).requests) == 1
        assert isinstance(await pairings.approve(ApprovePairing(OTHER)), WrongCode)
        assert isinstance(await pairings.approve(ApprovePairing(CODE)), Paired)

    async def test_reminders_are_few_and_apart(self, pairings: Pairings, clock: FakeClock) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        told = []
        for seconds in range(10, 3600, 10):
            clock.advance(10)
            answer = await pairings.ask(RequestPairing(ANN, code(seconds)))
            assert isinstance(answer, RequestPending)
            if answer.may_tell:
                told.append(seconds)
        assert told == [900, 1800, 2700]

    async def test_nothing_changes_before_the_time_that_the_answer_names(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        early = await pairings.ask(RequestPairing(ANN, OTHER))
        assert isinstance(early, RequestPending)
        assert not early.may_tell
        clock.advance(early.quiet_until - clock.now() - 1)
        still = await pairings.ask(RequestPairing(ANN, OTHER))
        assert isinstance(still, RequestPending)
        assert not still.may_tell
        clock.advance(1)
        now = await pairings.ask(RequestPairing(ANN, OTHER))
        assert isinstance(now, RequestPending)
        assert now.may_tell

    async def test_a_crowd_is_given_no_more_codes_for_a_while(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        started = clock.now()
        for number in range(LIMITS.per_channel):
            assert isinstance(
                await pairings.ask(RequestPairing(stranger(number), code(number))), RequestOpened
            )
            clock.advance(1)
        assert await pairings.ask(RequestPairing(ANN, CODE)) == RequestsFull(
            clock.now() + LIMITS.pause_seconds
        )
        clock.advance(LIMITS.code_seconds - LIMITS.per_channel - 1)
        assert await pairings.ask(RequestPairing(ANN, CODE)) == RequestsFull(started + LIMITS.code_seconds)
        assert len((await pairings.listing()).requests) == LIMITS.per_channel
        clock.advance(1)
        assert isinstance(await pairings.ask(RequestPairing(ANN, CODE)), RequestOpened)

    async def test_an_approval_makes_room_in_a_crowd_and_nobody_else_is_pushed_out(
        self, pairings: Pairings
    ) -> None:
        limits = PairingLimits(per_channel=3)
        for number in range(3):
            assert isinstance(
                await pairings.ask(RequestPairing(stranger(number), code(number), limits)), RequestOpened
            )
        assert isinstance(await pairings.ask(RequestPairing(ANN, CODE, limits)), RequestsFull)
        assert isinstance(await pairings.approve(ApprovePairing(code(1))), Paired)
        assert isinstance(await pairings.ask(RequestPairing(ANN, CODE, limits)), RequestOpened)
        waiting = [request.person for request in (await pairings.listing()).requests]
        assert sorted(waiting, key=lambda person: person.user_id) == [ANN, stranger(0), stranger(2)]

    async def test_a_crowd_on_one_channel_leaves_the_others_alone(self, pairings: Pairings) -> None:
        for number in range(LIMITS.per_channel):
            await pairings.ask(RequestPairing(stranger(number), code(number)))
        assert isinstance(await pairings.ask(RequestPairing(stranger(1, "discord"), CODE)), RequestOpened)

    async def test_thousands_of_strangers_leave_few_rows(self, pairings: Pairings, clock: FakeClock) -> None:
        limits = PairingLimits(code_seconds=1e9)
        opened = 0
        for number in range(2000):
            opened += isinstance(
                await pairings.ask(RequestPairing(stranger(number), code(number), limits)), RequestOpened
            )
            clock.advance(6)
        assert opened == len((await pairings.listing()).requests) == limits.per_channel

    # -- wrong codes

    async def test_five_wrong_codes_lock_approval_even_for_the_right_one(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        left = []
        for number in range(5):
            answer = await pairings.approve(ApprovePairing(guess(number)))
            assert isinstance(answer, WrongCode)
            left.append(answer.tries_left)
            clock.advance(1)
        assert left == [4, 3, 2, 1, 0]
        locked = CodesLocked(clock.now() - 1 + LIMITS.pause_seconds)
        assert await pairings.approve(ApprovePairing(CODE)) == locked
        assert not await pairings.is_paired("telegram", "1001")
        clock.advance(locked.until - clock.now() - 1)
        assert await pairings.approve(ApprovePairing(CODE)) == locked
        clock.advance(1)
        assert isinstance(await pairings.approve(ApprovePairing(CODE)), Paired)

    async def test_guessing_gets_five_looks_in_a_quarter_of_an_hour(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        await pairings.ask(RequestPairing(ANN, CODE, PairingLimits(code_seconds=1e9)))
        looks = 0
        for number in range(10_000):
            looks += isinstance(await pairings.approve(ApprovePairing(guess(number))), WrongCode)
            clock.advance(0.9)
        # 9,000 seconds are ten locks.
        assert looks <= 5 * 10 + 5
        assert not (await pairings.listing()).paired

    async def test_wrong_codes_are_forgotten_after_a_quiet_while(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        for number in range(4):
            await pairings.approve(ApprovePairing(guess(number)))
        clock.advance(LIMITS.pause_seconds)
        assert await pairings.approve(ApprovePairing(guess(9))) == WrongCode(4)

    # -- invitations

    async def test_the_first_to_present_an_invitation_is_paired_and_nobody_after(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        assert await pairings.invite(CreateInvitation("telegram", CODE)) == clock.now() + HOUR
        await pairings.ask(RequestPairing(ANN, OTHER))
        assert await pairings.redeem(RedeemInvitation(ANN, CODE)) == Paired(
            ANN, clock.now(), PairingOrigin.INVITED
        )
        assert isinstance(await pairings.redeem(RedeemInvitation(BOB, CODE)), WrongCode)
        assert await pairings.is_paired("telegram", "1001")
        assert not await pairings.is_paired("telegram", "1002")
        assert not (await pairings.listing()).requests

    async def test_of_many_who_present_one_invitation_one_is_paired(self, pairings: Pairings) -> None:
        await pairings.invite(CreateInvitation("telegram", CODE))
        answers = await asyncio.gather(
            *(pairings.redeem(RedeemInvitation(stranger(n), CODE)) for n in range(20))
        )
        assert sum(isinstance(answer, Paired) for answer in answers) == 1
        assert len((await pairings.listing()).paired) == 1

    async def test_an_invitation_is_for_its_channel_and_for_an_hour(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        await pairings.invite(CreateInvitation("telegram", CODE))
        assert isinstance(await pairings.redeem(RedeemInvitation(stranger(1, "discord"), CODE)), WrongCode)
        clock.advance(HOUR)
        assert isinstance(await pairings.redeem(RedeemInvitation(ANN, CODE)), WrongCode)

    async def test_a_new_invitation_ends_the_one_before(self, pairings: Pairings) -> None:
        await pairings.invite(CreateInvitation("telegram", CODE))
        await pairings.invite(CreateInvitation("telegram", OTHER))
        assert isinstance(await pairings.redeem(RedeemInvitation(ANN, CODE)), WrongCode)
        assert isinstance(await pairings.redeem(RedeemInvitation(ANN, OTHER)), Paired)

    async def test_an_invitation_is_no_pairing_code_nor_the_other_way_round(self, pairings: Pairings) -> None:
        await pairings.invite(CreateInvitation("telegram", CODE))
        await pairings.ask(RequestPairing(ANN, OTHER))
        assert isinstance(await pairings.approve(ApprovePairing(CODE)), WrongCode)
        assert isinstance(await pairings.redeem(RedeemInvitation(BOB, OTHER)), WrongCode)

    async def test_a_guesser_of_invitations_is_locked_out_alone(
        self, pairings: Pairings, clock: FakeClock
    ) -> None:
        await pairings.invite(CreateInvitation("telegram", CODE))
        for number in range(5):
            assert isinstance(await pairings.redeem(RedeemInvitation(BOB, guess(number))), WrongCode)
        assert await pairings.redeem(RedeemInvitation(BOB, CODE)) == CodesLocked(
            clock.now() + LIMITS.pause_seconds
        )
        assert isinstance(await pairings.redeem(RedeemInvitation(ANN, CODE)), Paired)

    async def test_many_guessers_lock_a_channels_invitation_until_a_new_one_is_made(
        self, pairings: Pairings
    ) -> None:
        await pairings.invite(CreateInvitation("telegram", CODE))
        looks = 0
        for number in range(10_000):
            answer = await pairings.redeem(RedeemInvitation(stranger(number), guess(number)))
            looks += isinstance(answer, WrongCode)
        assert looks == LIMITS.per_channel
        assert isinstance(await pairings.redeem(RedeemInvitation(ANN, CODE)), CodesLocked)
        await pairings.invite(CreateInvitation("telegram", OTHER))
        assert isinstance(await pairings.redeem(RedeemInvitation(ANN, OTHER)), Paired)

    async def test_wrong_invitations_do_not_lock_the_operators_approval(self, pairings: Pairings) -> None:
        await pairings.ask(RequestPairing(ANN, CODE))
        for number in range(200):
            await pairings.redeem(RedeemInvitation(stranger(number), guess(number)))
        assert isinstance(await pairings.approve(ApprovePairing(CODE)), Paired)
