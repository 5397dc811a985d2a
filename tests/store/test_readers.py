"""The threads that read: what a caller gets, and what the store hears of a file that fails."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from talaria.core.errors import NotFound, StoreError
from talaria.store.sqlite.database import open_reader, open_writer
from talaria.store.sqlite.faults import driver
from talaria.store.sqlite.store import Readers


async def test_queries_are_answered_and_refusals_are_no_failures_of_the_file(tmp_path: Path) -> None:
    path, failures = tmp_path / "talaria.db", list[StoreError]()
    open_writer(path).close()
    readers = Readers(partial(open_reader, path), 1, failures.append)

    def refuse(db: driver.Connection) -> None:
        raise NotFound("There is none.")

    def break_(db: driver.Connection) -> None:
        db.execute("SELECT * FROM nothing")

    assert await readers.submit(lambda db: db.execute("SELECT 5").fetchone()[0]) == 5
    with pytest.raises(NotFound):
        await readers.submit(refuse)
    assert failures == []
    with pytest.raises(StoreError) as error:
        await readers.submit(break_)
    assert failures == [error.value]
    assert await readers.submit(lambda db: db.in_transaction) is True, "each query is one transaction"
    await readers.stop()


async def test_a_file_that_cannot_be_opened_is_tried_again_with_the_next_query(tmp_path: Path) -> None:
    path, failures = tmp_path / "talaria.db", list[StoreError]()
    readers = Readers(partial(open_reader, path), 1, failures.append)
    with pytest.raises(StoreError):
        await readers.submit(lambda db: 1)
    assert len(failures) == 1
    open_writer(path).close()
    assert await readers.submit(lambda db: 1) == 1
    await readers.stop()


async def test_a_query_whose_caller_has_left_is_skipped(tmp_path: Path) -> None:
    path, ran = tmp_path / "talaria.db", list[str]()
    open_writer(path).close()
    readers = Readers(partial(open_reader, path), 1)
    entered, goes_on = threading.Event(), threading.Event()

    def hold(db: driver.Connection) -> None:
        entered.set()
        goes_on.wait(30)

    first = readers.submit(hold)
    await asyncio.to_thread(entered.wait, 30)
    left = readers.submit(lambda db: ran.append("left"))
    last = readers.submit(lambda db: ran.append("last"))
    left.cancel()
    goes_on.set()
    await asyncio.gather(first, last)
    assert ran == ["last"]
    await readers.stop()
