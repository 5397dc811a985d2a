"""Copies from one engine to the other and back: each row arrives as it was, also after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.store_orders import (
    ME,
    OTHER_CHAT,
    HandClock,
    accepting,
    answered,
    begun,
    ending,
    parked,
    pinned,
    said,
)
from talaria.core.errors import StoreError
from talaria.core.ledger import Begin
from talaria.core.messages import AssistantMessage
from talaria.store.copying import MARK, StoreCopy, copied_tables, copy_store
from talaria.store.postgres.store import PostgresStore
from talaria.store.sqlite.store import SqliteStore

LATER = 5_000_000.0  # all leases have run out


async def _fill(store: SqliteStore) -> None:
    for n in range(250):
        await store.set_cursor(f"cursor {n}", "a\U0001f600b")
    await answered(store, accepting(spec=pinned(), address="a", key="k"))
    await parked(store, accepting(chat=OTHER_CHAT))
    turn, lease = await begun(store, accepting(address="b"))
    await store.commit(ending(turn, lease, AssistantMessage("x" * 10_000), reply="é"))


async def test_a_store_is_copied_to_postgresql_and_back(
    path: Path, clock: HandClock, postgres_url: str, tmp_path: Path
) -> None:
    back_path = tmp_path / "back.db"
    async with await SqliteStore.open(path, clock) as file:
        await _fill(file)
        async with (
            await PostgresStore.open(postgres_url, clock) as server,
            await SqliteStore.open(back_path, clock) as back,
        ):
            rows = await StoreCopy(file.threads, server.threads).run(LATER)
            assert rows > 250
            assert await StoreCopy(server.threads, back.threads).run(LATER) == rows
            assert (await server.stats()).turns == (await file.stats()).turns == (await back.stats()).turns
            for table in copied_tables():
                assert await _rows(back, table) == await _rows(file, table)
            # The copy is a store that goes on: numbers are not given twice.
            clock.forward(LATER)
            accepted = await server.accept(accepting())
            await server.begin(Begin(accepted.turn.id, ME, 30.0, said("on")))


async def _rows(store: SqliteStore, table: Any) -> list[Any]:
    return sorted(
        await store.threads.read(lambda db: db.execute(f"SELECT * FROM {table.name}").fetchall()), key=repr
    )


async def test_an_interrupted_copy_is_begun_again_and_follows_its_source(
    path: Path, clock: HandClock, postgres_url: str
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
        assert await server.cursor(MARK) is not None
        await file.set_cursor("cursor 7", "changed since")
        drop = "DELETE FROM cursors WHERE name = 'cursor 9'"
        await file.threads.write(lambda tx: tx.execute(drop).rowcount)
        await StoreCopy(file.threads, server.threads).run(LATER)
        assert (await server.cursor("cursor 7"), await server.cursor("cursor 9")) == ("changed since", None)
        assert await server.cursor(MARK) is None
        with pytest.raises(StoreError, match="already"):
            await StoreCopy(file.threads, server.threads).run(LATER)


async def test_a_copy_is_refused_while_a_gateway_works(
    path: Path, clock: HandClock, postgres_url: str
) -> None:
    async with await SqliteStore.open(path, clock) as file:
        await begun(file)
        async with await PostgresStore.open(postgres_url, clock) as server:
            with pytest.raises(StoreError, match="works on the database"):
                await StoreCopy(file.threads, server.threads).run(clock.now())


async def test_a_row_that_differs_is_found(path: Path, clock: HandClock, postgres_url: str) -> None:
    async with (
        await SqliteStore.open(path, clock) as file,
        await PostgresStore.open(postgres_url, clock) as server,
    ):
        await file.set_cursor("zero", "a\0b")  # PostgreSQL has no such text
        with pytest.raises(StoreError, match="table cursors differs"):
            await StoreCopy(file.threads, server.threads).run(LATER)


async def test_databases_are_named_by_their_urls(tmp_path: Path, postgres_url: str) -> None:
    assert await copy_store("", postgres_url, tmp_path / "talaria.db", lambda table, rows: None) == 0
