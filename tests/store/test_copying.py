"""Copies from one engine to the other and back: each row arrives as it was, also after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from contracts.store_orders import (
    ME,
    OTHER_CHAT,
    accepting,
    answered,
    begun,
    ending,
    parked,
    pinned,
    said,
)
from support.postgres_server import PostgresServer
from talaria.core.clock import SystemClock
from talaria.core.errors import StoreError
from talaria.core.ledger import Begin
from talaria.core.messages import AssistantMessage
from talaria.store.copying import PAGE, CopyResult, StoreCopy, copied_tables, copy_store
from talaria.store.part import POSTGRES, SQLITE, StorePart, StoreScope
from talaria.store.postgres.checks import check_postgres
from talaria.store.postgres.store import PostgresStore
from talaria.store.settings import UNFINISHED_COPY, StoreSettings
from talaria.store.sql.executor import Transaction
from talaria.store.sqlite.store import SqliteStore
from talaria.testing.clock import FakeClock

LATER = 5_000_000.0  # all leases have run out


async def _fill(store: SqliteStore) -> None:
    for n in range(250):
        await store.set_cursor(f"cursor {n}", "a\U0001f600b")
    await answered(store, accepting(spec=pinned(), address="a", key="k"))
    await parked(store, accepting(chat=OTHER_CHAT))
    turn, lease = await begun(store, accepting(address="b"))
    await store.commit(ending(turn, lease, AssistantMessage("x" * 10_000), reply="é"))


async def test_a_store_is_copied_to_postgresql_and_back(
    path: Path, clock: FakeClock, postgres_url: str, tmp_path: Path
) -> None:
    back_path = tmp_path / "back.db"
    async with await SqliteStore.open(path, clock) as file:
        await _fill(file)
        async with (
            await PostgresStore.open(postgres_url, clock) as server,
            await SqliteStore.open(back_path, clock) as back,
        ):
            copied = await StoreCopy(file.threads, server.threads).run(LATER)
            assert copied.rows > 250 and not copied.replaced
            assert await StoreCopy(server.threads, back.threads).run(LATER) == copied
            assert (await server.stats()).turns == (await file.stats()).turns == (await back.stats()).turns
            for table in copied_tables():
                assert await _rows(back, table) == await _rows(file, table)
            # The copy is a store that goes on: numbers are not given twice.
            clock.advance(LATER)
            accepted = await server.accept(accepting())
            await server.begin(Begin(accepted.turn.id, ME, 30.0, said("on")))


async def _rows(store: SqliteStore, table: Any) -> list[Any]:
    return sorted(
        await store.threads.read(lambda db: db.execute(f"SELECT * FROM {table.name}").fetchall()), key=repr
    )


async def test_an_interrupted_copy_is_begun_again_and_follows_its_source(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with (
        await SqliteStore.open(path, clock) as file,
        await PostgresStore.open(postgres_url, clock) as server,
    ):
        await _fill(file)

        def stop(table: str, rows: int) -> None:
            if table == "entries":
                raise KeyError("interrupted")

        with pytest.raises(KeyError):
            await StoreCopy(file.threads, server.threads, stop).run(LATER)
        assert await server.cursor(UNFINISHED_COPY) is not None
        await file.set_cursor("cursor 7", "changed since")
        drop = "DELETE FROM cursors WHERE name = 'cursor 9'"
        await file.threads.write(lambda tx: tx.execute(drop).rowcount)
        await StoreCopy(file.threads, server.threads).run(LATER)
        assert (await server.cursor("cursor 7"), await server.cursor("cursor 9")) == ("changed since", None)
        assert await server.cursor(UNFINISHED_COPY) is None
        with pytest.raises(StoreError, match="already"):
            await StoreCopy(file.threads, server.threads).run(LATER)


async def test_a_copy_whose_files_could_not_be_placed_cannot_be_used(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with (
        await SqliteStore.open(path, clock) as file,
        await PostgresStore.open(postgres_url, clock) as server,
    ):
        await _fill(file)

        def fail() -> None:
            raise KeyError("the disk")

        copy = StoreCopy(file.threads, server.threads)
        with pytest.raises(KeyError):
            await copy.run(LATER, fail)
        assert await server.cursor(UNFINISHED_COPY) is not None
        await copy.run(LATER)
        assert await server.cursor(UNFINISHED_COPY) is None


async def test_a_copy_is_refused_while_a_gateway_works(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with await SqliteStore.open(path, clock) as file:
        await begun(file)
        async with await PostgresStore.open(postgres_url, clock) as server:
            with pytest.raises(StoreError, match="works on the database"):
                await StoreCopy(file.threads, server.threads).run(clock.now())


async def test_a_row_that_differs_is_found(path: Path, clock: FakeClock, postgres_url: str) -> None:
    async with (
        await SqliteStore.open(path, clock) as file,
        await PostgresStore.open(postgres_url, clock) as server,
    ):
        await file.set_cursor("one", "1")

        def change(table: str, rows: int) -> None:
            if table == "usage":
                with psycopg.connect(postgres_url) as other:
                    other.execute("UPDATE cursors SET value = '2' WHERE name = 'one'")

        with pytest.raises(StoreError, match="table cursors differs"):
            await StoreCopy(file.threads, server.threads, change).run(LATER)


async def test_zero_characters_are_replaced_and_told_of(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with (
        await SqliteStore.open(path, clock) as file,
        await PostgresStore.open(postgres_url, clock) as server,
    ):
        await file.set_cursor("zero", "a\0b")
        assert await StoreCopy(file.threads, server.threads).run(LATER) == CopyResult(1, 1)
        assert await server.cursor("zero") == "a\ufffdb"


async def test_a_copy_goes_on_although_unique_values_have_moved(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with (
        await SqliteStore.open(path, clock) as file,
        await PostgresStore.open(postgres_url, clock) as server,
    ):
        token = "INSERT INTO tokens (name, hash, role, created_at) VALUES (?, ?, 'read', 0)"

        def add_tokens(tx: Transaction) -> None:
            for n in range(PAGE + 10):
                tx.execute(token, (f"t{n:04}", f"h{n:04}"))

        await file.threads.write(add_tokens)

        def stop(table: str, rows: int) -> None:
            if table == "turns":
                raise KeyError("interrupted")

        with pytest.raises(KeyError):
            await StoreCopy(file.threads, server.threads, stop).run(LATER)
        drop = "DELETE FROM tokens WHERE name = ?"
        await file.threads.write(lambda tx: tx.execute(drop, (f"t{PAGE + 5:04}",)))
        await file.threads.write(lambda tx: tx.execute(token, ("t", f"h{PAGE + 5:04}")))
        assert (await StoreCopy(file.threads, server.threads).run(LATER)).rows == PAGE + 10


async def test_a_target_with_anything_in_it_is_left_alone(
    path: Path, clock: FakeClock, postgres_url: str
) -> None:
    async with (
        await SqliteStore.open(path, clock) as file,
        await PostgresStore.open(postgres_url, clock) as server,
    ):
        await server.set_cursor("mine", "1")
        with pytest.raises(StoreError, match="has rows in cursors already"):
            await StoreCopy(file.threads, server.threads).run(LATER)
        assert await server.cursor("mine") == "1"


def _tell(table: str, rows: int) -> None:
    pass


async def test_databases_are_named_by_their_urls(tmp_path: Path, postgres_url: str) -> None:
    assert await copy_store("", postgres_url, tmp_path / "talaria.db", _tell) == CopyResult(0, 0)


async def test_a_gateway_without_work_is_seen_at_the_server(tmp_path: Path, postgres_url: str) -> None:
    path = tmp_path / "talaria.db"
    async with await PostgresStore.open(postgres_url, SystemClock()):
        for source, target in (("", postgres_url), (postgres_url, f"sqlite:{tmp_path}/back.db")):
            with pytest.raises(StoreError, match="A gateway works on the database"):
                await copy_store(source, target, path, _tell)


@pytest.mark.parametrize("part", [SQLITE, POSTGRES], ids=lambda part: part.name)
async def test_no_gateway_starts_on_a_target_whose_copy_ended_before_its_first_row(
    part: StorePart[StoreSettings], path: Path, tmp_path: Path, postgres: PostgresServer
) -> None:
    """The copy creates the target's tables, and is refused. Without its rows, all chats would seem lost."""
    url = postgres.new_database("template0") if part is POSTGRES else f"sqlite:{tmp_path}/target.db"
    async with await SqliteStore.open(path, SystemClock()) as file:
        await begun(file)
    with pytest.raises(StoreError, match="it has leases"):
        await copy_store(f"sqlite:{path}", url, path, _tell)
    with pytest.raises(StoreError, match="not finished"):
        async with part.open(StoreScope(tmp_path / "x.db", SystemClock()), StoreSettings(url)):
            pass
    async with await SqliteStore.open(path, SystemClock()) as file:
        await file.threads.write(lambda tx: tx.execute("UPDATE sessions SET lease_expires = 0").rowcount)
    assert (await copy_store(f"sqlite:{path}", url, path, _tell)).rows > 0
    async with part.open(StoreScope(tmp_path / "x.db", SystemClock()), StoreSettings(url)) as store:
        assert (await store.stats()).sessions == 1
    if part is POSTGRES:
        postgres.drop(url)


@pytest.mark.parametrize("part", [SQLITE, POSTGRES], ids=lambda part: part.name)
async def test_no_gateway_starts_on_a_copy_that_is_not_finished(
    part: StorePart[StoreSettings], path: Path, postgres_url: str
) -> None:
    settings = StoreSettings(postgres_url if part is POSTGRES else "")
    scope = StoreScope(path, SystemClock(), is_suspect=False)
    async with part.open(scope, settings) as store:
        await store.set_cursor(UNFINISHED_COPY, "")
    with pytest.raises(StoreError, match="not finished"):
        async with part.open(scope, settings):
            pass
    if part is POSTGRES:
        assert any("not finished" in finding.text for finding in check_postgres(postgres_url, 8))
