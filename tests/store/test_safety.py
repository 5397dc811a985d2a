"""The file itself: what an unclean end leads to, damage, and disks that take nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections import Counter
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from contracts.store_orders import ME, OTHER_CHAT, accepting, answered, begun, record_of
from talaria.core.errors import NotFound, StoreDamaged, StoreError
from talaria.core.ids import TurnId
from talaria.core.ledger import BLAMED, Integrity, TurnEnd, blamed_turns
from talaria.core.turns import TurnState
from talaria.store.home_lock import LOCK_NAME, HomeLock, StoreWatch
from talaria.store.in_memory import InlineExecutor, MemoryStore
from talaria.store.part import DatabaseStatus, inspect_database
from talaria.store.sql.executor import Transaction
from talaria.store.sqlite.database import open_reader, open_writer
from talaria.store.sqlite.faults import DiskFault, cannot_open, damaged, driver, find_fault, storage_failure
from talaria.store.sqlite.store import Readers, SqliteStore
from talaria.store.sqlite.writer import Writer
from talaria.testing.clock import FakeClock

APPLICATION_ID = 0x54414C41
SLOW_SECONDS = 1.0

PAGE = 4096


def can_write(store: SqliteStore) -> bool:
    return store.trouble is None


def known(store: SqliteStore) -> str:
    return store.integrity.value


async def filled(path: Path, clock: FakeClock) -> SqliteStore:
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


async def test_a_whole_suspect_opens(path: Path, clock: FakeClock) -> None:
    await filled(path, clock)
    async with await SqliteStore.open(path, clock, is_suspect=True) as store:
        assert known(store) == Integrity.WHOLE
        await store.accept(accepting())
    async with await SqliteStore.open(path, clock) as store:
        assert known(store) == Integrity.CLEAN_END


@pytest.mark.broken_database
async def test_a_damaged_suspect_is_refused_and_left_as_it_is(path: Path, clock: FakeClock) -> None:
    await filled(path, clock)
    damage(path)
    before = path.read_bytes()
    with pytest.raises(StoreDamaged) as caught:
        async with await SqliteStore.open(path, clock, is_suspect=True):
            pass
    assert str(path) in caught.value.user_text
    assert "talaria restore" in caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.broken_database
async def test_a_damaged_database_is_found_before_its_rows_are_counted(path: Path, clock: FakeClock) -> None:
    await filled(path, clock)
    assert inspect_database(path).unsettled == 0
    damage(path)
    with pytest.raises(StoreDamaged, match=r"talaria\.db is damaged"):
        inspect_database(path)


async def test_a_large_suspect_opens_at_once_and_is_looked_at_beside_the_work(
    tmp_path: Path, path: Path, clock: FakeClock
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


@pytest.mark.broken_database
async def test_damage_found_beside_the_work_stops_writing_but_not_reading(
    tmp_path: Path, path: Path, clock: FakeClock
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


@pytest.mark.broken_database
async def test_damage_that_a_reader_meets_stops_writing(path: Path, clock: FakeClock) -> None:
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


async def test_once_damage_is_known_no_order_reaches_the_file(path: Path, clock: FakeClock) -> None:
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

    def __init__(self, path: Path, clock: FakeClock) -> None:
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


async def test_a_full_disk_is_named_and_over_when_there_is_room(path: Path, clock: FakeClock) -> None:
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
    path: Path, clock: FakeClock
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
    tmp_path: Path, path: Path, clock: FakeClock
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


async def test_a_batch_of_refusals_does_not_end_the_trouble(path: Path, clock: FakeClock) -> None:
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
    tmp_path: Path, path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
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
        clock.advance(SLOW_SECONDS + 0.5)
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


async def test_counts_from_a_disk_that_hangs_are_the_last_ones_and_are_not_waited_for(
    path: Path, clock: FakeClock
) -> None:
    async with await SqliteStore.open(path, clock) as store:
        await store.accept(accepting())
        assert (await store.stats()).owed == 1
        await store.accept(accepting())
        thawed = threading.Event()
        writing = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hang(tx: Transaction) -> None:
            loop.call_soon_threadsafe(writing.set)
            assert thawed.wait(30)

        reads = [store._threads.read(lambda db: thawed.wait(30)) for _ in range(8)]
        write = store._threads.write(hang, is_durable=True)
        await writing.wait()
        clock.advance(SLOW_SECONDS + 0.5)
        try:
            stats = await store.stats()
            await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task.get_name() == "store-stats"]
        finally:
            thawed.set()
            await asyncio.gather(write, *reads)
        assert (stats.owed, left) == (1, [])
        assert "does not answer" in stats.trouble
        assert (await store.stats()).owed == 2


# -- the words of a failure


@pytest.mark.parametrize(
    ("statement", "says", "hint"),
    [
        ("PRAGMA query_only = 1", "can only be read", "Make its disk and folder writable"),
        ("PRAGMA max_page_count = 1", "is full", "Make room on the disk"),
    ],
)
def test_what_cannot_be_opened_says_what_to_do(tmp_path: Path, statement: str, says: str, hint: str) -> None:
    connection = driver.connect(tmp_path / "some.db")
    connection.execute("CREATE TABLE first (x)")
    connection.execute(statement)
    with pytest.raises(driver.Error) as caught:
        connection.execute("CREATE TABLE second (x)")
    connection.close()
    assert hint in cannot_open(tmp_path / "some.db", caught.value).hint
    failure = storage_failure(caught.value)
    assert says in failure.user_text
    assert hint in failure.hint
    assert failure.__cause__ is caught.value


def test_a_failure_without_a_name_is_looked_into_and_leaves_no_file(tmp_path: Path) -> None:
    unnamed = driver.OperationalError("disk I/O error")
    assert find_fault(tmp_path) is DiskFault.OTHER
    assert "The database failed" in storage_failure(unnamed, tmp_path).user_text
    assert list(tmp_path.iterdir()) == []
    assert find_fault(tmp_path / "nowhere") is DiskFault.OTHER


async def test_a_closed_store_refuses_in_words(path: Path, clock: FakeClock) -> None:
    for store in (MemoryStore(clock), await SqliteStore.open(path, clock)):
        await store.close()
        for use in (lambda: store.accept(accepting()), store.stats):  # noqa: B023 - used at once
            with pytest.raises(StoreError, match="closed"):
                await use()


async def test_a_store_in_memory_tells_failures_like_one_on_disk(clock: FakeClock) -> None:
    inline = InlineExecutor(clock)
    with pytest.raises(StoreError, match="The database failed"):
        await inline.write(lambda tx: tx.execute("SELECT FROM"))
    with pytest.raises(StoreError, match="The database failed"):
        await inline.read(lambda db: db.execute("SELECT FROM"))

    def missing(db: object) -> None:
        raise NotFound("nothing")

    with pytest.raises(NotFound):
        await inline.read(missing)
    await inline.close()


async def test_a_thread_is_told_when_the_database_does_not_answer(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as store:
        busy, go_on = threading.Event(), threading.Event()

        def hang(tx: Transaction) -> None:
            busy.set()
            assert go_on.wait(30)

        hanging = asyncio.ensure_future(store._threads.write(hang))
        await asyncio.to_thread(busy.wait, 30)
        with pytest.raises(StoreError, match=r"did not answer within 0\.01 s"):
            await asyncio.to_thread(store.from_thread.renew, ME, [], 30.0, 0.01)
        go_on.set()
        await hanging


def test_an_owner_that_has_the_lock_may_ask_again_and_a_useless_folder_is_named(tmp_path: Path) -> None:
    with HomeLock(tmp_path) as lock:
        lock.acquire()
        assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
    assert (tmp_path / LOCK_NAME).read_text() == ""
    with pytest.raises(StoreError, match="cannot be used"):
        HomeLock(tmp_path / "nowhere").acquire()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path

from talaria.core.errors import StoreError
from talaria.store.home_lock import LOCK_NAME, HomeLock

home = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
owner = HomeLock(home)
owner.acquire()
assert owner.follows_crash
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
owner.release()
assert (home / LOCK_NAME).read_text()
try:
    HomeLock(home).acquire()
except StoreError as error:
    assert "cannot be used" in error.user_text
assert (home / LOCK_NAME).read_text()
"""


def test_a_lock_that_cannot_be_written_still_remembers_a_killed_owner(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("4711\n")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.broken_database
async def test_an_old_schema_is_told_without_counts(path: Path) -> None:
    connection = driver.connect(path)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    assert inspect_database(path) == DatabaseStatus(1)


async def test_the_blamed_turns_are_remembered_and_the_others_are_forgiven(
    path: Path, clock: FakeClock
) -> None:
    async with await SqliteStore.open(path, clock) as store:
        blamed, _ = await begun(store)
        other, _ = await begun(store, accepting(chat=OTHER_CHAT))
        await asyncio.to_thread(store.from_thread.blame, ME, blamed.turn.id, 30.0)
        assert list(blamed_turns(await store.cursor(BLAMED))) == [blamed.turn.id]
        forgiven = [(await record_of(store, one.turn.id)).turn.forgiven for one in (blamed, other)]
        assert forgiven == [0, 1]
        later = [TurnId(f"turn_{n}") for n in range(20)]
        for turn_id in later:
            await asyncio.to_thread(store.from_thread.blame, ME, turn_id, 30.0)
        assert list(blamed_turns(await store.cursor(BLAMED))) == later
