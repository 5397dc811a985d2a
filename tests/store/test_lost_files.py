"""Database files that are deleted or replaced while the store has them open: nothing that was confirmed is
lost, and nothing is confirmed that would be."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from contracts.store_orders import accepting, answered
from talaria.core.errors import StoreError, StoreGone
from talaria.core.ids import TurnId
from talaria.store.sqlite.rescue import find_rescued, restore_command
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock


async def refused(store: SqliteStore) -> StoreGone:
    """The error of the next message, once the content is saved."""
    with pytest.raises(StoreGone):
        await store.accept(accepting())
    for _ in range(2):  # the second is refused when the first has been taken care of
        with pytest.raises(StoreGone):
            await store.probe()
    with pytest.raises(StoreGone) as caught:
        await store.accept(accepting())
    assert str(store.trouble) == str(caught.value)
    return caught.value


async def known(path: Path, clock: FakeClock, *turns: TurnId) -> list[bool]:
    async with await SqliteStore.open(path, clock) as store:
        return [await store.turn_record(turn) is not None for turn in turns]


async def test_a_deleted_database_confirms_nothing_more_and_its_content_is_saved(
    path: Path, clock: FakeClock
) -> None:
    async with await SqliteStore.open(path, clock) as store:
        settled = await answered(store, accepting())
        last = await store.accept(accepting())
        path.unlink()
        error = await refused(store)
        (rescued,) = find_rescued(path)
        assert "was deleted" in error.user_text and str(rescued) in error.user_text
        assert restore_command(rescued, path) in error.user_text
        assert rescued.stat().st_mode & 0o777 == 0o600
        assert await store.turn_record(last.turn.id) is not None, "reading goes on"
    assert not path.exists()
    assert await known(rescued, clock, settled.turn.id, last.turn.id) == [True, True]


async def test_a_start_without_the_database_points_at_the_saved_content(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as store:
        turn = await answered(store, accepting())
        path.unlink()
        await refused(store)
    with pytest.raises(StoreError, match="vanished under a running gateway") as caught:
        await SqliteStore.open(path, clock)
    (rescued,) = find_rescued(path)
    assert f"`{restore_command(rescued, path)}`" in caught.value.hint
    subprocess.run(["sh", "-c", restore_command(rescued, path)], check=True)
    assert await known(path, clock, turn.turn.id) == [True]
    assert list(find_rescued(path)) == []


async def test_a_replaced_database_is_not_taken_for_the_open_one(path: Path, clock: FakeClock) -> None:
    other = path.with_name("other.db")
    async with await SqliteStore.open(other, clock) as store:
        theirs = await answered(store, accepting())
    async with await SqliteStore.open(path, clock) as store:
        ours = await answered(store, accepting())
        other.replace(path)
        error = await refused(store)
        assert "replaced by another file" in error.user_text
    (rescued,) = find_rescued(path)
    assert await known(rescued, clock, ours.turn.id, theirs.turn.id) == [True, False]
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert await known(path, clock, ours.turn.id, theirs.turn.id) == [False, True]


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_a_deleted_log_is_moved_to_the_database(path: Path, clock: FakeClock, suffix: str) -> None:
    async with await SqliteStore.open(path, clock) as store:
        turn = await answered(store, accepting())
        path.with_name(path.name + suffix).unlink()
        await store.look()
        error = await refused(store)
        assert "Nothing is lost" in error.user_text and "Restart" in error.hint
    assert list(find_rescued(path)) == []
    assert await known(path, clock, turn.turn.id) == [True]


async def test_a_loss_is_found_without_a_message_and_at_the_end(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as store:
        turn = await answered(store, accepting())
        path.unlink()
        await store.look()
        assert isinstance(store.trouble, StoreGone)
    (rescued,) = find_rescued(path)
    assert await known(rescued, clock, turn.turn.id) == [True]


async def test_content_that_cannot_be_saved_yet_is_saved_later(path: Path, clock: FakeClock) -> None:
    home = path.parent
    async with await SqliteStore.open(path, clock) as store:
        turn = await answered(store, accepting())
        aside = home.with_name("aside")
        home.rename(aside)
        home.write_text("a file where the folder was")
        with pytest.raises(StoreGone):
            await store.accept(accepting())
        with pytest.raises(StoreGone):
            await store.probe()
        home.unlink()
        with pytest.raises(StoreGone):
            await store.probe()
        with pytest.raises(StoreGone, match="is saved in"):
            await store.probe()
        for name in os.listdir(aside):
            (aside / name).unlink()
        aside.rmdir()
    (rescued,) = find_rescued(path)
    assert await known(rescued, clock, turn.turn.id) == [True]
