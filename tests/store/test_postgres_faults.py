"""A database that is cut off, gone, or full: nothing is lost, nothing done twice, and every wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from contracts.store_orders import ME
from store.cutting_proxy import Cut, CuttingProxy, cutting_proxy
from support.postgres_server import PostgresServer
from support.waiting import until
from talaria.core.clock import SystemClock
from talaria.core.errors import StoreError
from talaria.store.postgres.connections import open_pipe
from talaria.store.postgres.pipeline import ConnectionCut
from talaria.store.postgres.store import PostgresStore, ServerClock
from talaria.store.sql.executor import Connection, Transaction
from talaria.testing.clock import FakeClock

ADD_ONE = """
INSERT INTO cursors (name, value) VALUES ('n', '1')
ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(cursors.value AS BIGINT) + 1 AS TEXT)
"""


def add_one(tx: Transaction) -> None:
    """An order that shows how often it was carried out."""
    tx.execute(ADD_ONE)


def read_count(db: Connection) -> int:
    row = db.execute("SELECT value FROM cursors WHERE name = 'n'").fetchone()
    return 0 if row is None else int(row[0])


@pytest.fixture
async def proxied(postgres_url: str, clock: FakeClock) -> AsyncIterator[tuple[CuttingProxy, PostgresStore]]:
    with cutting_proxy(postgres_url) as (proxy, url):
        async with await PostgresStore.open(url, clock, connections=2) as store:
            await store.probe()
            yield proxy, store


@pytest.mark.parametrize("cut", Cut)
async def test_a_commit_that_is_cut_off_is_carried_out_once(
    proxied: tuple[CuttingProxy, PostgresStore], cut: Cut
) -> None:
    proxy, store = proxied

    def order(tx: Transaction) -> str:
        add_one(tx)
        if runs == [0]:
            proxy.cut = cut
        runs[0] += 1
        return "done"

    for n in range(1, 4):
        runs = [0]
        assert await store.threads.write(order) == "done"
        assert runs == [1 if cut in (Cut.AFTER, Cut.POOLER) else 2]
        proxy.release()
        assert await store.threads.read(read_count) == n
        await store.threads.write(lambda tx: None)  # the connection works on
    assert store.trouble is None


async def test_an_order_is_run_again_if_it_was_cut_off_before_its_commit(
    proxied: tuple[CuttingProxy, PostgresStore],
) -> None:
    proxy, store = proxied
    runs: list[int] = []

    def order(tx: Transaction) -> int:
        add_one(tx)
        if not runs:
            proxy.cut = Cut.BEFORE
        runs.append(1)
        (value,) = tx.execute("SELECT value FROM cursors WHERE name = 'n'").fetchone()
        return int(value)

    assert await store.threads.write(order) == 1
    assert len(runs) == 2


async def test_sessions_that_the_server_ends_lose_nothing_and_double_nothing(
    postgres_url: str, clock: FakeClock
) -> None:
    async with await PostgresStore.open(postgres_url, clock, connections=4) as store:
        with psycopg.connect(postgres_url, autocommit=True) as admin:

            def end_sessions() -> None:
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'talaria' AND datname = current_database()"
                )

            writes = []
            for n in range(120):
                writes.append(store.threads.write(add_one))
                if n % 12 == 0:
                    await asyncio.to_thread(end_sessions)
            await asyncio.gather(*writes)
        assert await store.threads.read(read_count) == len(writes)
        assert sum(link.reruns for link in store.threads.links) > 0, "no session was ended in time"


async def test_a_database_that_is_gone_is_told_of_and_comes_back(
    proxied: tuple[CuttingProxy, PostgresStore],
) -> None:
    proxy, store = proxied
    await store.look()
    assert not (await store.stats()).trouble
    proxy.lose()
    await store.look()
    assert "cannot be reached" in (await store.stats()).trouble, "no write was needed to see it"
    for _ in range(3):
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.threads.write(add_one)
        with pytest.raises(StoreError):
            await store.threads.read(read_count)
    with pytest.raises(StoreError):
        await store.probe()
    assert "cannot be reached" in (await store.stats()).trouble
    with pytest.raises(StoreError):
        await asyncio.to_thread(store.from_thread.renew, ME, [], 30.0, 1.0)
    proxy.is_gone = False
    await store.probe()
    assert store.trouble is None
    assert await store.threads.read(read_count) == 0


async def test_the_outcome_of_a_commit_is_waited_for_while_the_database_is_gone(
    postgres_url: str, clock: FakeClock
) -> None:
    with cutting_proxy(postgres_url) as (proxy, url):
        async with await PostgresStore.open(url, clock, connections=1) as store:

            def order(tx: Transaction) -> None:
                add_one(tx)
                proxy.cut, proxy.is_gone = Cut.AFTER, True

            writing = asyncio.ensure_future(store.threads.write(order))
            await until(lambda: proxy.refused >= 5)
            store.threads.writers.queue_seconds = 0.0
            waiting = [store.threads.write(add_one) for _ in range(3)]
            await store.look()
            for each in waiting:
                with pytest.raises(StoreError, match="too slow"):
                    await each
            assert not writing.done()
            proxy.is_gone = False
            await writing
            assert await store.threads.read(read_count) == 1


@pytest.mark.parametrize("is_abandoned", [False, True])
async def test_a_store_that_closes_does_not_wait_for_a_database_that_is_gone(
    proxied: tuple[CuttingProxy, PostgresStore], is_abandoned: bool
) -> None:
    """Nor does a gateway that has waited for long enough, before it closes the store."""
    proxy, store = proxied

    def order(tx: Transaction) -> None:
        add_one(tx)
        proxy.cut, proxy.is_gone = Cut.AFTER, True

    writing = asyncio.ensure_future(store.threads.write(order))
    await until(lambda: proxy.refused >= 1, pause=0)
    if is_abandoned:
        store.abandon()
    else:
        await store.close()
    with pytest.raises(StoreError, match="not known"):
        await writing


async def test_an_order_that_waits_too_long_for_a_connection_is_refused(
    postgres_url: str, clock: FakeClock
) -> None:
    async with await PostgresStore.open(postgres_url, clock, connections=1) as store:
        store.threads.writers.queue_seconds = 0.05
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_advisory_xact_lock(7)")
            first = store.threads.write(lambda tx: tx.execute("SELECT pg_advisory_xact_lock(7)").fetchone())
            second = store.threads.write(add_one)
            await asyncio.to_thread(other.execute, "SELECT pg_sleep(0.2)")
        await first
        with pytest.raises(StoreError, match="too slow: all 1 connections"):
            await second
        assert "all 1 connections were in use" in (await store.stats()).trouble
        await store.probe()
        assert store.trouble is None
        assert await store.threads.read(read_count) == 0


async def test_leases_are_renewed_beside_a_full_pool(postgres_url: str, clock: FakeClock) -> None:
    async with await PostgresStore.open(postgres_url, clock, connections=1) as store:
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_advisory_xact_lock(7)")
            first = store.threads.write(lambda tx: tx.execute("SELECT pg_advisory_xact_lock(7)").fetchone())
            assert await asyncio.to_thread(store.from_thread.renew, ME, [], 30.0, 5.0) == frozenset()
            assert not first.done()
        await first


async def test_times_are_the_databases_whatever_the_machines_clock_says(postgres_url: str) -> None:
    class Ahead(SystemClock):
        """A machine whose wall clock is a day ahead."""

        def now(self) -> float:
            return super().now() + 86_400

    async with await PostgresStore.open(postgres_url, Ahead()) as store:
        told = await store.threads.write(lambda tx: tx.now)
        await store.look()
        again = await store.threads.write(lambda tx: tx.now)
        (real,) = await store.threads.read(
            lambda db: db.execute("SELECT CAST(extract(epoch FROM now()) AS DOUBLE PRECISION)").fetchone()
        )
    assert abs(told - real) < 60 and abs(again - real) < 60


def test_a_slow_answer_does_not_move_the_clock() -> None:
    class Hand(SystemClock):
        at = 100.0

        def elapsed(self) -> float:
            return self.at

    hand = Hand()
    clock = ServerClock(hand)
    clock.note(100.0, 5000.0)
    assert clock.now() == 5000.0
    hand.at = 110.0
    clock.note(105.0, 9000.0)
    assert clock.now() == 5010.0, "it took five seconds to answer"
    clock.note(109.9, 9000.0)
    assert abs(clock.now() - 9000.05) < 1e-6


async def test_a_zero_character_does_not_keep_a_reply_from_being_stored(
    postgres_url: str, clock: FakeClock
) -> None:
    async with await PostgresStore.open(postgres_url, clock) as store:
        await store.set_cursor("name", "a\0b")
        assert await store.cursor("name") == "a\ufffdb"


async def test_a_gateway_that_is_stopped_in_an_order_keeps_no_locks(
    postgres_url: str, clock: FakeClock
) -> None:
    """The server ends its session; what it had not committed is done again when it goes on."""
    async with await PostgresStore.open(postgres_url, clock, connections=1) as store:
        runs: list[int] = []

        def order(tx: Transaction) -> None:
            add_one(tx)
            runs.append(1)
            if len(runs) == 1:
                tx.execute("SET LOCAL idle_in_transaction_session_timeout = '20ms'").fetchall()
                with psycopg.connect(postgres_url) as other:  # gets the row as soon as the session is over
                    other.execute("SET lock_timeout = '5s'")
                    other.execute(ADD_ONE)

        await store.threads.write(order)
        assert await store.threads.read(read_count) == 2
        assert len(runs) == 2


async def test_a_fail_over_that_loses_commits_stops_no_connection(
    postgres_url: str, clock: FakeClock
) -> None:
    async with await PostgresStore.open(postgres_url, clock, connections=1) as store:
        for _ in range(2):
            await store.threads.write(add_one)
        with psycopg.connect(postgres_url, autocommit=True) as other:  # the standby lacks the last order
            other.execute("UPDATE order_marks SET n = n - 1")
            other.execute("UPDATE cursors SET value = '1'")
        for n in (2, 3):
            await store.threads.write(add_one)
            assert await store.threads.read(read_count) == n


async def test_a_server_that_only_reads_by_now_is_left_for_the_one_that_writes(
    postgres_url: str, clock: FakeClock
) -> None:
    async with await PostgresStore.open(postgres_url, clock, connections=1) as store:
        servers: list[int] = []

        def order(tx: Transaction) -> None:
            servers.append(tx.execute("SELECT pg_backend_pid()").fetchone()[0])
            if len(servers) == 1:
                tx.execute("SET TRANSACTION READ ONLY")
            add_one(tx)

        await store.threads.write(order)
        assert len(set(servers)) == 2
        assert await store.threads.read(read_count) == 1


async def test_a_server_without_free_connections_delays_orders_and_refuses_none(
    postgres: PostgresServer, postgres_database: str, clock: FakeClock
) -> None:
    postgres.execute("CREATE ROLE guest LOGIN CONNECTION LIMIT 3")
    with psycopg.connect(postgres_database, autocommit=True) as owner:
        owner.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO guest")
    url = postgres_database.replace("talaria@", "guest@")
    async with await PostgresStore.open(url, clock, connections=8) as store:
        await store.look()
        await asyncio.gather(*(store.threads.write(add_one) for _ in range(50)))
        assert await store.threads.read(read_count) == 50
        assert store.trouble is None
        await asyncio.to_thread(store.from_thread.renew, ME, [], 30.0, 5.0)
        store.threads.writers.queue_seconds = 0.0
        with pytest.raises(StoreError, match="too slow"):
            await asyncio.gather(*(store.threads.write(add_one) for _ in range(50)))


async def test_a_lease_that_cannot_be_renewed_in_time_is_told_of_in_time(
    proxied: tuple[CuttingProxy, PostgresStore],
) -> None:
    """Also if the commit was cut off, and the database does not come back."""
    proxy, store = proxied
    await asyncio.to_thread(store.from_thread.renew, ME, [], 30.0, 5.0)

    def order(tx: Transaction) -> None:
        add_one(tx)
        proxy.cut, proxy.is_gone = Cut.AFTER, True

    with pytest.raises(StoreError, match="not known"):
        await asyncio.to_thread(store.threads.write_from_thread, order, 0.2)
    proxy.is_gone = False
    await asyncio.to_thread(store.from_thread.renew, ME, [], 30.0, 5.0)
    assert await store.threads.read(read_count) == 1


async def test_the_status_is_told_while_queries_hang(postgres_url: str, clock: FakeClock) -> None:
    async with await PostgresStore.open(postgres_url, clock, connections=1) as store:
        await store.stats()
        store.stats_seconds = 0.01
        with psycopg.connect(postgres_url) as other:
            other.execute("LOCK TABLE counts")
            assert "a query has been waiting" in (await store.stats()).trouble


async def test_an_orders_time_is_the_one_at_which_it_got_its_locks(
    postgres_url: str, clock: FakeClock
) -> None:
    """Otherwise a lease would be shorter, and a change older, than all that was committed meanwhile."""
    async with await PostgresStore.open(postgres_url, clock, connections=1) as store:
        with psycopg.connect(postgres_url) as other:
            other.execute("SELECT pg_advisory_xact_lock(7)")

            def order(tx: Transaction) -> float:
                tx.lock("SELECT pg_advisory_xact_lock(7)")
                tx.execute("SELECT 1").fetchone()
                return tx.now

            writing = asyncio.ensure_future(store.threads.write(order))
            waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while await store.threads.read(lambda db: db.execute(waits).fetchone()) is None:
                await asyncio.sleep(0)
            clock.advance(9.0)
        assert await writing == clock.now()


def test_a_prepared_statement_has_the_same_name_on_all_connections(postgres_url: str) -> None:
    """A pooler that mixes sessions up must not run one statement for another."""
    texts, known = ("SELECT 1", "SELECT 2"), "SELECT statement, name FROM pg_prepared_statements"
    names = []
    for order in (texts, texts[::-1]):
        pipe = open_pipe(postgres_url)
        pipe.begin_reading()
        for text in order:
            pipe.execute(text)
        names.append({text: name for text, name in pipe.execute(known).fetchall() if text in texts})
        pipe.close()
    assert names[0] == names[1] and len(names[0]) == 2


def test_a_connection_to_a_server_that_does_not_answer_is_given_up(postgres_url: str) -> None:
    with cutting_proxy(postgres_url) as (proxy, url):
        proxy.is_frozen = True
        for is_reader in (False, True):
            with pytest.raises(ConnectionCut, match="in time"):
                open_pipe(url, is_reader=is_reader, seconds=0.05)
        proxy.is_frozen = False
        open_pipe(url).close()
