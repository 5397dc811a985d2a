"""Group commit: what a batch shares and what it does not, cancellation, and closing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from contracts.store_orders import (
    CHAT,
    LEASE,
    ME,
    OTHER_CHAT,
    accepting,
    approved,
    asking,
    begun,
    ending,
    said,
    session_of,
    step,
)
from talaria.core.delivery import DeliveryResult, OutboxState
from talaria.core.entries import TitleSet
from talaria.core.errors import NotFound, StaleFence, StoreError
from talaria.core.ids import Fence
from talaria.core.ledger import Accepted, Begin, Commit, TurnEnd
from talaria.core.turns import StepState, TurnState
from talaria.store.in_memory import InlineExecutor
from talaria.store.sql.executor import Transaction
from talaria.store.sqlite.database import open_reader, open_writer
from talaria.store.sqlite.faults import driver
from talaria.store.sqlite.store import Readers, SqliteStore
from talaria.store.sqlite.writer import MAX_BATCH, Writer
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

T = TypeVar("T")


class Gate:
    """Keeps the writer busy with an order of its own, so that what is submitted meanwhile is one batch."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._open = threading.Event()

    async def __aenter__(self) -> None:
        entered = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(tx: Transaction) -> None:
            loop.call_soon_threadsafe(entered.set)
            assert self._open.wait(30)

        self._busy = self._writer.submit(wait, False)
        await entered.wait()

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        await self._busy


async def turns_of_the_loop() -> None:
    """Let every task that is ready run up to where it waits."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture
async def writer(path: Path, clock: FakeClock) -> AsyncIterator[Writer]:
    writer = await Writer.start(partial(open_writer, path), clock)
    yield writer
    if not writer.is_stopped:
        await writer.stop()


@pytest.fixture
async def store(path: Path, clock: FakeClock, writer: Writer) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock, writer, Readers(partial(open_reader, path)))
    yield store
    await store.close()


async def together(writer: Writer, *orders: Callable[[], Awaitable[object]]) -> list[object]:
    """Carry the orders out in one batch; their results or errors."""
    async with Gate(writer):
        tasks = [asyncio.ensure_future(order()) for order in orders]
        await turns_of_the_loop()
    return await asyncio.gather(*tasks, return_exceptions=True)


def synchronous(tx: Transaction) -> int:
    (level,) = tx.execute("PRAGMA synchronous").fetchone()
    return int(level)


async def test_refused_order_fails_alone_in_its_batch(store: SqliteStore, writer: Writer) -> None:
    turn, lease = await begun(store)
    session_id = turn.turn.session_id
    _, stale, missing, _ = await together(
        writer,
        lambda: store.commit(Commit(session_id, lease.fence, turn.turn.id, (TitleSet("before"),))),
        lambda: store.commit(Commit(session_id, Fence(lease.fence + 1), turn.turn.id, (TitleSet("x"),))),
        lambda: store.settle(accepting().turn_id, TurnEnd(TurnState.CANCELLED)),
        lambda: store.commit(Commit(session_id, lease.fence, turn.turn.id, (TitleSet("after"),))),
    )
    assert isinstance(stale, StaleFence)
    assert isinstance(missing, NotFound)
    log = await store.log(session_id, 0)
    assert [entry.body for entry in log] == [said("hello"), TitleSet("before"), TitleSet("after")]
    assert [entry.seq for entry in log] == [1, 2, 3]


async def test_order_that_fails_halfway_leaves_nothing_in_its_batch(writer: Writer) -> None:
    def make(name: str, tx: Transaction) -> None:
        tx.execute(f"CREATE TABLE {name} (x)")

    def make_and_fail(name: str, tx: Transaction) -> None:
        make(name, tx)
        raise StaleFence("halfway")

    def tables(tx: Transaction) -> list[str]:
        rows = tx.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'made_%' ORDER BY name")
        return [name for (name,) in rows.fetchall()]

    results = await together(
        writer,
        lambda: writer.submit(partial(make, "made_a"), False),
        lambda: writer.submit(partial(make_and_fail, "made_b"), False),
        lambda: writer.submit(partial(make, "made_c"), False),
    )
    assert isinstance(results[1], StaleFence)
    with pytest.raises(StaleFence):
        await writer.submit(partial(make_and_fail, "made_alone"), False)
    assert await writer.submit(tables, False) == ["made_a", "made_c"]


async def test_same_key_twice_in_one_batch_is_one_turn(store: SqliteStore, writer: Writer) -> None:
    first, second = accepting(key="k"), accepting(key="k")
    made, known = await together(writer, lambda: store.accept(first), lambda: store.accept(second))
    assert isinstance(made, Accepted) and isinstance(known, Accepted)
    assert known.is_duplicate
    assert known.turn == made.turn
    assert await store.turn_record(first.turn_id) is not None
    assert await store.turn_record(second.turn_id) is None
    assert (await store.stats()).owed == 1


async def test_values_that_cannot_be_stored_fail_alone(store: SqliteStore, writer: Writer) -> None:
    good, bad = accepting("fine"), accepting("half a pair: \ud800")
    alone = await asyncio.gather(store.accept(accepting("\ud800")), return_exceptions=True)
    assert isinstance(alone[0], StoreError)
    results = await together(writer, lambda: store.accept(bad), lambda: store.accept(good))
    assert isinstance(results[0], StoreError)
    assert await store.turn_record(good.turn_id) is not None


async def test_batch_is_durable_if_any_order_asks(writer: Writer) -> None:
    normal, full = 1, 2
    assert await writer.submit(synchronous, False) == normal
    assert await writer.submit(synchronous, True) == full
    levels = await together(
        writer,
        lambda: writer.submit(synchronous, False),
        lambda: writer.submit(synchronous, True),
        lambda: writer.submit(synchronous, False),
    )
    assert levels == [full, full, full]
    assert await writer.submit(synchronous, False) == normal


class Noted(InlineExecutor):
    """Notes of each order whether it must reach the platter before it is answered."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.durable: list[bool] = []

    async def write(self, order: Callable[[Transaction], T], *, is_durable: bool = False) -> T:
        self.durable.append(is_durable)
        return await super().write(order, is_durable=is_durable)


async def test_orders_that_promise_durability_ask_for_it(clock: FakeClock) -> None:
    noted = Noted(clock)
    store = Store(noted)
    turn = await store.accept(accepting(address="room"))
    lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
    await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id))
    await store.commit(ending(turn, lease))
    assert noted.durable == [True, False, False, True]
    (row,) = await store.outbox.due("http", 1)
    noted.durable.clear()
    await store.outbox.claim(row, clock.now())
    await store.outbox.mark(DeliveryResult(row.id, 1, OutboxState.SENT))
    await store.settle((await store.accept(accepting())).turn.id, TurnEnd(TurnState.CANCELLED))
    await store.yield_turns(ME)
    await store.set_cursor("telegram", "7")
    await store.move_chat(CHAT, OTHER_CHAT)
    assert all(noted.durable) and len(noted.durable) == 7
    noted.durable.clear()
    turn = await store.accept(accepting())
    lease = await store.begin(Begin(turn.turn.id, ME, LEASE))
    pending, question = (step(1, StepState.PENDING),), asking(turn)
    await store.commit(Commit(lease.session.id, lease.fence, turn.turn.id, steps=pending, ask=(question,)))
    await store.decide(question.id, approved())
    assert noted.durable == [True, False, True, True]


async def test_more_orders_than_a_batch_holds_are_all_carried_out(writer: Writer) -> None:
    seen: list[int] = []

    def note(n: int, tx: Transaction) -> int:
        seen.append(n)
        return n

    numbers = list(range(MAX_BATCH * 2 + 3))
    orders = [partial(writer.submit, partial(note, n), False) for n in numbers]
    assert await together(writer, *orders) == numbers
    assert seen == numbers


async def test_a_thread_and_the_loop_in_one_batch_each_get_their_own_result(writer: Writer) -> None:
    def refuse(tx: Transaction) -> None:
        raise StaleFence("refused")

    async with Gate(writer):
        of_the_loop = writer.submit(lambda tx: "loop", False)
        of_a_thread = await asyncio.to_thread(writer.submit_from_thread, lambda tx: "thread", False)
        refused = writer.submit(refuse, False)
    assert await of_the_loop == "loop"
    assert await asyncio.to_thread(of_a_thread.result, 30) == "thread"
    with pytest.raises(StaleFence):
        await refused


async def test_full_disk_fails_the_whole_batch_and_only_that(path: Path, clock: FakeClock) -> None:
    def connect() -> driver.Connection:
        connection = open_writer(path)
        connection.execute("PRAGMA max_page_count = 80")
        return connection

    def make_room(tx: Transaction) -> None:
        tx.execute("PRAGMA max_page_count = 100000")

    writer = await Writer.start(connect, clock)
    store = SqliteStore(path, clock, writer, Readers(partial(open_reader, path)))
    small, large, last = accepting("small"), accepting("x" * 1_000_000), accepting("last")
    results = await together(writer, *(partial(store.accept, order) for order in (small, large, last)))
    assert [type(result) for result in results] == [StoreError] * 3
    assert "full" in str(results[0])
    for order in (small, large, last):
        assert await store.turn_record(order.turn_id) is None
    with pytest.raises(StoreError):
        await store.accept(large)
    assert (await store.accept(small)).turn.id == small.turn_id
    await writer.submit(make_room, False)
    assert (await store.accept(large)).turn.id == large.turn_id
    await store.close()


async def test_cancelled_caller_does_not_undo_its_write(store: SqliteStore, writer: Writer) -> None:
    order = accepting()
    task = asyncio.create_task(store.accept(order))
    async with Gate(writer):
        await turns_of_the_loop()
        task.cancel()
        await turns_of_the_loop()
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.turn_record(order.turn_id) is not None


async def test_cancelled_caller_of_a_refused_write_leaves_no_complaint(
    store: SqliteStore, writer: Writer
) -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    task = asyncio.create_task(store.settle(accepting().turn_id, TurnEnd(TurnState.CANCELLED)))
    async with Gate(writer):
        await turns_of_the_loop()
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    assert complaints == []


async def test_timeout_around_a_write_ends_when_the_write_has(store: SqliteStore, writer: Writer) -> None:
    order = accepting()
    finished = asyncio.Event()

    async def impatient() -> None:
        try:
            async with asyncio.timeout(0):
                await store.accept(order)
        except TimeoutError:
            finished.set()

    async with asyncio.TaskGroup() as group:
        async with Gate(writer):
            group.create_task(impatient())
            await turns_of_the_loop()
        await finished.wait()
    assert await store.turn_record(order.turn_id) is not None


async def test_cancelled_reader_goes_at_once(store: SqliteStore) -> None:
    task = asyncio.create_task(store.current_session(CHAT))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.current_session(CHAT) is None


async def test_close_finishes_what_was_taken(
    store: SqliteStore, writer: Writer, path: Path, clock: FakeClock
) -> None:
    orders = [accepting() for _ in range(40)]
    tasks = [asyncio.create_task(store.accept(order)) for order in orders]
    async with Gate(writer):
        await turns_of_the_loop()
        closers = [asyncio.create_task(store.close()) for _ in range(2)]
        await turns_of_the_loop()
        with pytest.raises(StoreError):
            await store.accept(accepting())
        with pytest.raises(StoreError):
            await store.stats()
    await asyncio.gather(*tasks, *closers)
    wal = path.with_name("talaria.db-wal")
    assert not wal.exists() or wal.stat().st_size == 0
    async with await SqliteStore.open(path, clock) as again:
        assert (await again.stats()).owed == len(orders)


async def test_cancelled_close_still_closes(store: SqliteStore, writer: Writer) -> None:
    async with Gate(writer):
        closer = asyncio.create_task(store.close())
        await turns_of_the_loop()
        closer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closer
    await store.close()
    assert writer.is_stopped


async def test_reads_see_every_earlier_commit(store: SqliteStore) -> None:
    async def one(i: int) -> None:
        turn, lease = await begun(store, accepting(chat=type(CHAT)(f"{CHAT}{i}")))
        await store.commit(ending(turn, lease, TitleSet(str(i))))
        session = await session_of(store, turn.turn.session_id)
        assert session.title == str(i)

    await asyncio.gather(*(one(i) for i in range(50)))
