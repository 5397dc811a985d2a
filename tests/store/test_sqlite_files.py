"""Opening: what is refused and in which words, migration, locks, and what outlives a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.store_orders import CHAT, LEASE, ME, RIVAL, accepting, begun, ending, record_of
from talaria.core.errors import LeaseHeld, StoreError, StoreLocked
from talaria.core.ids import TurnId
from talaria.store.home_lock import HomeLock
from talaria.store.sqlite.faults import driver, is_single_process_only
from talaria.store.sqlite.schema import latest_version
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock


async def refusal(path: Path, clock: FakeClock) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await SqliteStore.open(path, clock)
    assert caught.value.hint
    assert str(path) in caught.value.user_text
    return caught.value


def spawn(script: str, *arguments: object) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([tests, *sys.path])},
    )


# -- opening


async def test_reopened_store_has_what_was_written(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as store:
        turn, lease = await begun(store)
        await store.commit(ending(turn, lease, reply="kept"))
        before = await store.summary(turn.turn.session_id)
    async with await SqliteStore.open(path, clock) as store:
        assert await store.summary(turn.turn.session_id) == before
        record = await record_of(store, turn.turn.id)
        assert record.turn.reply == "kept"
        assert await store.hold(turn.turn.session_id, ME, LEASE) > lease.fence


async def test_file_is_its_owners_only(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as store:
        await store.accept(accepting())
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        assert modes == {"talaria.db": 0o600, "talaria.db-wal": 0o600, "talaria.db-shm": 0o600}


async def test_path_with_odd_characters_is_fine(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "a home? 100% #1 ü" / "talaria.db"
    path.parent.mkdir()
    async with await SqliteStore.open(path, clock) as store:
        assert (await store.stats()).size_bytes > 0
    assert path.exists()


async def test_stats_name_the_engine_and_the_sizes(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as store:
        await store.accept(accepting())
        stats = await store.stats()
        assert stats.engine == f"sqlite {driver.sqlite_version}"
        assert stats.schema == latest_version()
        assert stats.wal_bytes > 0


def test_engine_says_when_only_one_process_is_safe() -> None:
    assert is_single_process_only is (driver.sqlite_version_info < (3, 51, 3))


async def test_missing_folder_is_refused(tmp_path: Path, clock: FakeClock) -> None:
    await refusal(tmp_path / "nowhere" / "talaria.db", clock)


@pytest.mark.broken_database
async def test_file_that_is_no_database_is_refused_and_kept(path: Path, clock: FakeClock) -> None:
    path.write_bytes(b"these are notes, not a database\n" * 100)
    error = await refusal(path, clock)
    assert "not a database" in error.user_text
    assert path.read_bytes().startswith(b"these are notes")


@pytest.mark.broken_database
async def test_database_of_another_program_is_refused_and_kept(path: Path, clock: FakeClock) -> None:
    with driver.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    error = await refusal(path, clock)
    assert "another program" in error.user_text
    assert path.read_bytes() == before


@pytest.mark.broken_database
async def test_database_of_a_newer_program_is_refused_and_kept(path: Path, clock: FakeClock) -> None:
    await (await SqliteStore.open(path, clock)).close()
    with driver.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {latest_version() + 1}")
    connection.close()
    before = path.read_bytes()
    error = await refusal(path, clock)
    assert "newer" in error.user_text
    assert "Upgrade" in error.hint
    assert path.read_bytes() == before


async def test_two_stores_on_one_file_are_fenced(path: Path, clock: FakeClock) -> None:
    async with await SqliteStore.open(path, clock) as one, await SqliteStore.open(path, clock) as two:
        turn, lease = await begun(one, owner=ME)
        with pytest.raises(LeaseHeld):
            await two.hold(turn.turn.session_id, RIVAL, LEASE)
        await one.commit(ending(turn, lease))
        assert await two.hold(turn.turn.session_id, RIVAL, LEASE) > lease.fence
        assert await two.current_session(CHAT) == await one.current_session(CHAT)


# -- the home's lock


def test_second_lock_of_a_home_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
    with HomeLock(tmp_path):
        with pytest.raises(StoreLocked) as caught:
            HomeLock(tmp_path).acquire()
        assert f"pid {os.getpid()}" in caught.value.user_text
        assert str(tmp_path) in caught.value.user_text
        assert "TALARIA_HOME" in caught.value.hint
    with HomeLock(tmp_path):
        pass


def test_lock_of_a_missing_home_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        HomeLock(tmp_path / "nowhere").acquire()
    assert "TALARIA_HOME" in caught.value.hint


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    script = """
import signal, sys
from pathlib import Path
from talaria.store.home_lock import HomeLock
lock = HomeLock(Path(sys.argv[1]))
lock.acquire()
print("locked", flush=True)
signal.pause()
"""
    with spawn(script, tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(StoreLocked, match=f"pid {child.pid}"):
            HomeLock(tmp_path).acquire()
        child.kill()
        child.wait()
        with HomeLock(tmp_path):
            pass


# -- crashes


CRASHING = """
import asyncio, sys
from pathlib import Path
from contracts.store_orders import accepting
from talaria.core.clock import SystemClock
from talaria.core.ids import ChatKey
from talaria.store.sqlite.store import SqliteStore

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), SystemClock())
    async def speak(i):
        while True:
            accepted = await store.accept(accepting(chat=ChatKey(f"agent:main:http:api:{i}")))
            print(accepted.turn.id, flush=True)
    await asyncio.gather(*(speak(i) for i in range(8)))

asyncio.run(main())
"""


async def test_acknowledged_turns_outlive_a_kill(path: Path, clock: FakeClock) -> None:
    with spawn(CRASHING, path) as child:
        assert child.stdout is not None
        acknowledged = [child.stdout.readline().strip() for _ in range(200)]
        child.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
        child.wait()
    async with await SqliteStore.open(path, clock) as store:
        for turn_id in acknowledged:
            assert await store.turn_record(TurnId(turn_id)) is not None
        owed = await store.reclaim(ME)
        assert {turn.id for turn in owed} >= set(acknowledged)
    connection = driver.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


WATCHED = """
import asyncio, os, sys
from pathlib import Path

path = Path(sys.argv[1])

def watch(event, arguments):
    if event == "open" and str(path) in str(arguments[0]):
        print("opened", arguments, flush=True)
        os._exit(1)

sys.addaudithook(watch)

from contracts.store_orders import begun, ending, new_clock
from talaria.store.sqlite.store import SqliteStore

async def main():
    async with await SqliteStore.open(path, new_clock()) as store:
        turn, lease = await begun(store)
        await store.commit(ending(turn, lease))
        await store.stats()

asyncio.run(main())
print("done")
"""


def test_only_sqlite_opens_the_live_file(path: Path) -> None:
    """Opening and closing it by other means would drop all its locks."""
    with spawn(WATCHED, path) as child:
        output, _ = child.communicate()
    assert output == "done\n"
