"""The file itself: what an unclean end leads to, damage, and disks that take nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from contracts.store_orders import HandClock, accepting, answered
from talaria.core.errors import NotFound, StoreDamaged, StoreError
from talaria.core.ledger import Integrity, TurnEnd
from talaria.core.turns import TurnState
from talaria.store.engines import inspect_database
from talaria.store.home_lock import LOCK_NAME, HomeLock
from talaria.store.sql.executor import Transaction
from talaria.store.sqlite.database import open_reader, open_writer
from talaria.store.sqlite.driver import driver
from talaria.store.sqlite.faults import damaged
from talaria.store.sqlite.store import SqliteStore
from talaria.store.sqlite.threads import Readers
from talaria.store.sqlite.writer import SLOW_SECONDS, Writer
from talaria.store.watch import StoreWatch
from talaria.testing.clock import FakeClock

PAGE = 4096


def can_write(store: SqliteStore) -> bool:
    return store.trouble is None


def known(store: SqliteStore) -> str:
    return store.integrity.value


async def filled(path: Path, clock: HandClock) -> SqliteStore:
    """A closed database of a few hundred pages."""
    async with await SqliteStore.open(path, clock) as store:
        for _ in range(40):
            await answered(store, accepting("x" * 10_000))
    return store


def damage(path: Path) -> None:
    """Overwrites the heads of the later pages: what a broken disk does."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for offset in range(size // 2 // PAGE * PAGE, size, PAGE):
            file.seek(offset)
            file.write(b"\xa5" * 64)


# -- after an unclean end


def test_a_killed_owner_is_remembered_until_someone_looked(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("4711\n")  # what a kill leaves
    with HomeLock(tmp_path) as lock:
        assert lock.follows_crash
    with HomeLock(tmp_path) as lock:
        assert lock.follows_crash, "the owner before did not look"
        lock.mark_checked()
    with HomeLock(tmp_path) as lock:
        assert not lock.follows_crash
    with HomeLock(tmp_path) as lock:
        assert not lock.follows_crash


async def test_a_whole_suspect_opens(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    async with await SqliteStore.open(path, clock, is_suspect=True) as store:
        assert known(store) == Integrity.WHOLE
        await store.accept(accepting())
    async with await SqliteStore.open(path, clock) as store:
        assert known(store) == Integrity.CLEAN_END


async def test_a_damaged_suspect_is_refused_and_left_as_it_is(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    damage(path)
    before = path.read_bytes()
    with pytest.raises(StoreDamaged) as caught:
        async with await SqliteStore.open(path, clock, is_suspect=True):
            pass
    assert str(path) in caught.value.user_text
    assert "talaria restore" in caught.value.hint
    assert path.read_bytes() == before


async def test_a_damaged_database_is_found_before_its_rows_are_counted(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    assert inspect_database(path).unsettled == 0
    damage(path)
    with pytest.raises(StoreDamaged, match=r"talaria\.db is damaged"):
        inspect_database(path)


async def test_a_large_suspect_opens_at_once_and_is_looked_at_beside_the_work(
    tmp_path: Path, path: Path, clock: HandClock
) -> None:
    await filled(path, clock)
    (tmp_path / LOCK_NAME).write_text("4711\n")
    with HomeLock(tmp_path) as lock:
        async with await SqliteStore.open(path, clock, is_suspect=True, look_first_bytes=1) as store:
            assert known(store) == Integrity.CHECKING
            await store.accept(accepting())
            await StoreWatch(store, lock, clock)._verify()
            assert known(store) == Integrity.WHOLE
        assert not lock.follows_crash


async def test_damage_found_beside_the_work_stops_writing_but_not_reading(
    tmp_path: Path, path: Path, clock: HandClock
) -> None:
    async with await SqliteStore.open(path, clock) as store:
        first = await answered(store, accepting())
    await filled(path, clock)
    damage(path)
    (tmp_path / LOCK_NAME).write_text("4711\n")
    with HomeLock(tmp_path) as lock:
        async with await SqliteStore.open(path, clock, is_suspect=True, look_first_bytes=1) as store:
            watch = StoreWatch(store, lock, clock)
            assert watch.trouble() is None
            await watch._verify()
            assert known(store) == Integrity.DAMAGED
            assert "damaged" in (watch.trouble() or "")
            with pytest.raises(StoreDamaged) as caught:
                await store.accept(accepting())
            assert "talaria restore" in caught.value.hint
            assert await store.session(first.turn.session_id) is not None
            await watch._probe()
            assert isinstance(store.trouble, StoreDamaged), "damage does not pass"
        assert lock.follows_crash, "the next start looks again"


async def test_damage_that_a_reader_meets_stops_writing(path: Path, clock: HandClock) -> None:
    await filled(path, clock)
    async with await SqliteStore.open(path, clock) as store:
        turn = await store.accept(accepting())
    damage(path)
    async with await SqliteStore.open(path, clock) as store:
        with pytest.raises(StoreDamaged):
            for number in range(1, 60):
                await store.log(turn.turn.session_id, number)
                await store.turn_record(turn.turn.id)
        with pytest.raises(StoreDamaged):
            await store.accept(accepting())


async def test_once_damage_is_known_no_order_reaches_the_file(path: Path, clock: HandClock) -> None:
    reached: list[str] = []

    def note(order: str, tx: Transaction) -> None:
        reached.append(order)

    writer = await Writer.start(partial(open_writer, path), clock)
    await writer.submit(partial(note, "before"), is_durable=False)
    writer.note_damage(StoreError("The disk is full."))
    await writer.submit(partial(note, "still"), is_durable=False)
    writer.note_damage(damaged("page 7"))
    with pytest.raises(StoreDamaged, match="page 7"):
        await writer.submit(partial(note, "after"), is_durable=False)
    await writer.stop()
    assert reached == ["before", "still"]


# -- disks that take nothing


class Limited(AbstractAsyncContextManager[SqliteStore]):
    """A store whose disk the test fills, makes read-only and mends, by SQLite's own limits."""

    def __init__(self, path: Path, clock: HandClock) -> None:
        self._path = path
        self._clock = clock
        self._limits: list[str] = []

    def limit(self, pragma: str) -> None:
        """Set in the writer's thread, before its next statement."""
        self._limits.append(pragma)

    async def __aenter__(self) -> SqliteStore:
        writer = await Writer.start(self._connect, self._clock)
        self._store = SqliteStore(self._path, self._clock, writer, Readers(partial(open_reader, self._path)))
        return self._store

    async def __aexit__(self, *exception: object) -> None:
        await self._store.close()

    def _connect(self) -> driver.Connection:
        return cast(driver.Connection, _Limited(open_writer(self._path), self._limits))


class _Limited:
    def __init__(self, connection: driver.Connection, limits: list[str]) -> None:
        self._connection = connection
        self._limits = limits
        self._cursor = connection.cursor()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self) -> _Limited:
        return self

    def execute(self, *statement: Any) -> Any:
        while self._limits and not self._connection.in_transaction:
            self._connection.execute(f"PRAGMA {self._limits.pop(0)}")
        return self._cursor.execute(*statement)


async def test_a_full_disk_is_named_and_over_when_there_is_room(path: Path, clock: HandClock) -> None:
    limited = Limited(path, clock)
    async with limited as store:
        limited.limit("max_page_count = 60")
        large = accepting("x" * 1_000_000)
        with pytest.raises(StoreError, match="disk of the database is full") as caught:
            await store.accept(large)
        assert "Make room" in caught.value.hint
        assert not can_write(store)
        assert await store.turn_record(large.turn_id) is None
        limited.limit("max_page_count = 100000")
        await store.probe()
        assert can_write(store)
        assert (await store.accept(large)).turn.id == large.turn_id


async def test_a_read_only_disk_is_named_and_over_when_it_can_be_written(
    path: Path, clock: HandClock
) -> None:
    limited = Limited(path, clock)
    async with limited as store:
        limited.limit("query_only = 1")
        order = accepting()
        with pytest.raises(StoreError, match="can only be read") as caught:
            await store.accept(order)
        assert "writable" in caught.value.hint
        with pytest.raises(StoreError):
            await store.probe()
        assert not can_write(store)
        assert await store.turn_record(order.turn_id) is None
        limited.limit("query_only = 0")
        await store.probe()
        assert can_write(store)
        assert not (await store.accept(order)).is_duplicate


async def test_the_watch_finds_out_by_itself_that_the_disk_is_well_again(
    tmp_path: Path, path: Path, clock: HandClock
) -> None:
    limited = Limited(path, clock)
    async with limited as store:
        watch = StoreWatch(store, HomeLock(tmp_path), clock)
        limited.limit("query_only = 1")
        with pytest.raises(StoreError):
            await store.accept(accepting())
        await watch._probe()
        assert "can only be read" in (watch.trouble() or "")
        limited.limit("query_only = 0")
        await watch._probe()
        assert watch.trouble() is None


async def test_the_watch_tells_looks_and_probes_at_its_own_pace(tmp_path: Path, path: Path) -> None:
    """Four sleeps in a second, one, and one in two: a look without pauses would keep the disk busy."""

    class NotedSleeps(FakeClock):
        def __init__(self) -> None:
            super().__init__()
            self.slept: Counter[float] = Counter()

        async def sleep(self, seconds: float) -> None:
            self.slept[seconds] += 1
            await super().sleep(seconds)

    clock = NotedSleeps()
    async with await SqliteStore.open(path, clock) as store:
        watching = asyncio.create_task(StoreWatch(store, HomeLock(tmp_path), clock).run())
        await clock.until_sleepers(3)
        assert set(clock.slept) == {0.25, 1.0, 2.0}
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_batch_of_refusals_does_not_end_the_trouble(path: Path, clock: HandClock) -> None:
    limited = Limited(path, clock)
    async with limited as store:
        limited.limit("max_page_count = 60")
        with pytest.raises(StoreError):
            await store.accept(accepting("x" * 1_000_000))
        with pytest.raises(NotFound):
            await store.settle(accepting().turn_id, TurnEnd(TurnState.CANCELLED))
        assert not can_write(store)


# -- disks that hang


async def test_a_disk_that_hangs_is_named_while_it_hangs_and_slow_until_a_write_is_quick(
    tmp_path: Path, path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "talaria.store")
    async with await SqliteStore.open(path, clock) as store:
        watch = StoreWatch(store, HomeLock(tmp_path), clock)
        entered, thawed = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def hang(tx: Transaction) -> None:
            loop.call_soon_threadsafe(entered.set)
            assert thawed.wait(30)

        write = store._threads.write(hang, is_durable=True)
        await entered.wait()
        assert can_write(store), "a write may take a moment"
        clock.forward(SLOW_SECONDS + 0.5)
        assert "does not answer" in (watch.trouble() or "")
        assert "does not answer" in (await store.stats()).trouble
        await watch._tell()
        thawed.set()
        await write
        assert "is slow" in (watch.trouble() or "")
        await watch._probe()
        assert watch.trouble() is None
        await watch._tell()
    told = [record.getMessage() for record in caplog.records if record.name == "talaria.store"]
    assert "does not answer" in told[0] and told[-1].endswith("can be written again")
