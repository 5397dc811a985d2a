"""What only a file can show of pairing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contracts.pairing_suite import ANN, CODE, LIMITS, code, guess, stranger
from talaria.core.access import (
    ApprovePairing,
    CodesLocked,
    CreateInvitation,
    Paired,
    RedeemInvitation,
    RequestOpened,
    RequestPairing,
    RequestPending,
    RequestsFull,
    WrongCode,
)
from talaria.core.errors import StoreError
from talaria.store.sqlite.faults import driver
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock


async def test_limits_and_codes_hold_over_a_restart(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as store:
        for number in range(LIMITS.per_channel):
            await store.pairings.ask(RequestPairing(stranger(number), code(number)))
        for number in range(5):
            await store.pairings.approve(ApprovePairing(guess(number)))
        await store.pairings.invite(CreateInvitation("telegram", CODE))
        for number in range(5):
            await store.pairings.redeem(RedeemInvitation(ANN, guess(number)))
    async with await SqliteStore.open(path, clock) as store:
        assert isinstance(await store.pairings.ask(RequestPairing(ANN, CODE)), RequestsFull)
        assert isinstance(await store.pairings.ask(RequestPairing(stranger(0), CODE)), RequestPending)
        assert isinstance(await store.pairings.approve(ApprovePairing(code(0))), CodesLocked)
        assert isinstance(await store.pairings.redeem(RedeemInvitation(ANN, CODE)), CodesLocked)
        assert isinstance(await store.pairings.redeem(RedeemInvitation(stranger(0), CODE)), Paired)
        clock.advance(LIMITS.pause_seconds)
        assert isinstance(await store.pairings.approve(ApprovePairing(code(1))), Paired)
    async with await SqliteStore.open(path, clock) as store:
        assert await store.pairings.is_paired("telegram", stranger(0).user_id)
        assert await store.pairings.is_paired("telegram", stranger(1).user_id)


async def test_two_stores_on_one_file_pair_one_and_see_each_other(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as here, await SqliteStore.open(path, clock) as there:
        await here.pairings.ask(RequestPairing(ANN, CODE))
        answers = await asyncio.gather(
            *(store.pairings.approve(ApprovePairing(CODE)) for store in (here, there, here, there))
        )
        assert sum(isinstance(answer, Paired) for answer in answers) == 1
        assert await here.pairings.is_paired("telegram", ANN.user_id)
        assert await there.pairings.is_paired("telegram", ANN.user_id)
        await there.pairings.revoke("telegram", ANN.user_id)
        assert not await here.pairings.is_paired("telegram", ANN.user_id)


async def test_guessers_leave_few_rows(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as store:
        for round_number in range(3):
            for number in range(300):
                await store.pairings.redeem(
                    RedeemInvitation(stranger(1000 * round_number + number), guess(number))
                )
            clock.advance(LIMITS.pause_seconds)
    connection = driver.connect(str(path))
    try:
        (rows,) = connection.execute("SELECT count(*) FROM wrong_codes").fetchone()
    finally:
        connection.close()
    assert rows <= LIMITS.per_channel + 1


async def test_an_order_that_fails_counts_nothing(path: Path, clock: FakeClock) -> None:
    """One code for two people cannot be: the second request is refused whole."""
    async with await SqliteStore.open(path, clock) as store:
        assert isinstance(await store.pairings.ask(RequestPairing(ANN, CODE)), RequestOpened)
        with pytest.raises(StoreError, match="cannot be stored"):
            await store.pairings.ask(RequestPairing(stranger(1), CODE))
        assert isinstance(await store.pairings.approve(ApprovePairing(CODE)), Paired)
        assert isinstance(await store.pairings.approve(ApprovePairing(CODE)), WrongCode)
