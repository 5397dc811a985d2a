"""The writer thread: it takes all queued orders, runs them in one transaction, and commits once.

Each order of a batch runs in its own savepoint. An order that breaks a rule (a stale fence, an illegal move)
fails alone and leaves no trace. A failing disk fails the whole batch, and nothing of it is written. A batch
with a durable order is synced to the disk before its results are delivered. Once damage was seen, nothing is
written any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from talaria.core.clock import Clock
from talaria.core.errors import StoreDamaged, StoreError, TalariaError
from talaria.core.tasks import Uncancellable
from talaria.store.sql.executor import Cursor, Transaction
from talaria.store.sqlite.driver import driver
from talaria.store.sqlite.faults import storage_failure

MAX_BATCH = 256

T = TypeVar("T")

# A future with its result or its error.
Outcome = tuple["asyncio.Future[Any] | ThreadFuture[Any]", Any, BaseException | None]


def post(loop: asyncio.AbstractEventLoop, outcomes: Sequence[Outcome]) -> None:
    """Deliver outcomes from a thread to the loop, with one wake-up. A closed loop has no caller waiting."""
    try:
        loop.call_soon_threadsafe(_deliver, outcomes)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _deliver(outcomes: Sequence[Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class _Write(NamedTuple):
    order: Callable[[Transaction], Any]
    is_durable: bool
    result: Uncancellable[Any] | ThreadFuture[Any]


class Writer:
    """Runs orders in a thread of its own. Belongs to the event loop that started it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connect: Callable[[], driver.Connection], clock: Clock
    ) -> None:
        self._loop = loop
        self._connect = connect
        self._clock = clock
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._opened: Uncancellable[None] = Uncancellable(loop=loop)
        self._stopped: Uncancellable[None] = Uncancellable(loop=loop)
        self._from_threads: set[ThreadFuture[Any]] = set()
        self._is_last_batch = False
        self._is_full_sync: bool | None = None
        self._trouble: StoreError | None = None
        self._thread = Thread(target=self._run, name="talaria-store-writer", daemon=False)

    @classmethod
    async def start(cls, connect: Callable[[], driver.Connection], clock: Clock) -> Writer:
        """Open the connection in the writer's own thread. Raises what `connect` raises."""
        writer = cls(asyncio.get_running_loop(), connect, clock)
        writer._thread.start()
        try:
            await writer._opened
        except BaseException:
            writer._queue.put(None)
            writer._thread.join()
            raise
        return writer

    @property
    def is_stopped(self) -> bool:
        return self._stopped.done()

    @property
    def trouble(self) -> StoreError | None:
        """Why the last batch failed; None once a batch has succeeded. Damage stays."""
        return self._trouble

    def note_damage(self, failure: StoreError) -> None:
        """Write nothing from now on if `failure` is damage that a reader has seen."""
        if isinstance(failure, StoreDamaged):
            self._trouble = failure

    def submit(self, order: Callable[[Transaction], T], is_durable: bool) -> Uncancellable[T]:
        result: Uncancellable[T] = Uncancellable(loop=self._loop)
        self._queue.put(_Write(order, is_durable, result))
        return result

    def submit_from_thread(self, order: Callable[[Transaction], T], is_durable: bool) -> ThreadFuture[T]:
        """Queue an order for a thread that is not the loop's. Its result does not pass through the loop."""
        result: ThreadFuture[T] = ThreadFuture()
        self._from_threads.add(result)
        self._queue.put(_Write(order, is_durable, result))
        return result

    async def stop(self) -> None:
        """Run what was submitted, empty the WAL, close. Nothing may be submitted afterwards."""
        self._queue.put(None)
        await self._stopped
        self._thread.join()

    # -- in the thread

    def _run(self) -> None:
        try:
            connection = self._connect()
        except Exception as error:  # the thread's boundary: the caller of `start` gets it
            post(self._loop, [(self._opened, None, error)])
            return
        try:
            cursor = connection.cursor()
            transaction = Transaction(cursor.execute)
            post(self._loop, [(self._opened, None, None)])
            while batch := self._next_batch():
                post(self._loop, self._deliver_to_threads(self._run_batch(connection, transaction, batch)))
                # Not kept until the next order comes: orders can be large.
                batch.clear()
            cursor.close()
            if not isinstance(self._trouble, StoreDamaged):
                _truncate_wal(connection)
        finally:
            connection.close()
            post(self._loop, [(self._stopped, None, None)])

    def _deliver_to_threads(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Deliver the outcomes that threads wait for, and return the others."""
        if not self._from_threads:
            return outcomes
        rest = []
        for outcome in outcomes:
            if isinstance(outcome[0], ThreadFuture):
                self._from_threads.discard(outcome[0])
                _deliver([outcome])
            else:
                rest.append(outcome)
        return rest

    def _next_batch(self) -> list[_Write]:
        """Wait for an order and take all that are queued with it. Empty when it is time to stop."""
        if self._is_last_batch:
            return []
        write = self._queue.get()
        batch: list[_Write] = []
        while write is not None:
            batch.append(write)
            if len(batch) == MAX_BATCH or self._queue.empty():
                return batch
            write = self._queue.get()
        self._is_last_batch = True
        return batch

    def _run_batch(
        self, connection: driver.Connection, transaction: Transaction, batch: list[_Write]
    ) -> list[Outcome]:
        execute = transaction.execute
        if isinstance(damage := self._trouble, StoreDamaged):
            return [(write.result, None, StoreDamaged(damage.user_text, damage.hint)) for write in batch]
        try:
            self._synchronize(execute, any(write.is_durable for write in batch))
            execute("BEGIN IMMEDIATE")
            if len(batch) == 1:
                outcome = self._attempt(transaction, batch[0])
                execute("COMMIT" if outcome[2] is None else "ROLLBACK")
                self._note_success(outcome[2] is None)
                return [outcome]
            outcomes = []
            for write in batch:
                execute("SAVEPOINT one_order")
                outcome = self._attempt(transaction, write)
                if outcome[2] is not None:
                    execute("ROLLBACK TO one_order")
                execute("RELEASE one_order")
                outcomes.append(outcome)
            execute("COMMIT")
        except Exception as error:  # the batch's boundary: every caller gets the failure
            _roll_back(connection)
            failure = storage_failure(error)
            if not isinstance(self._trouble, StoreDamaged):
                self._trouble = failure
            return [(write.result, None, storage_failure(error)) for write in batch]
        self._note_success(any(outcome[2] is None for outcome in outcomes))
        return outcomes

    def _note_success(self, was_written: bool) -> None:
        """A batch of refused orders wrote nothing, and so says nothing about the disk."""
        if was_written and not isinstance(self._trouble, StoreDamaged):
            self._trouble = None

    def _attempt(self, transaction: Transaction, write: _Write) -> Outcome:
        """Run one order. Raises only what fails the whole batch."""
        try:
            return write.result, run_order(transaction, self._clock.now(), write.order), None
        except TalariaError as refusal:
            return write.result, None, refusal

    def _synchronize(self, execute: Callable[..., Cursor], is_full: bool) -> None:
        if is_full is not self._is_full_sync:
            execute("PRAGMA synchronous = FULL" if is_full else "PRAGMA synchronous = NORMAL")
            self._is_full_sync = is_full


# Errors of SQLite about an order's own values, as opposed to the state of the disk.
_ORDER_FAULTS = (driver.IntegrityError, driver.DataError, driver.ProgrammingError, driver.InterfaceError)


def run_order(transaction: Transaction, now: float, order: Callable[[Transaction], T]) -> T:
    """Run one order inside a transaction that was begun.

    Raises `TalariaError` for an order that is refused or cannot be stored, `driver.Error` for a failing disk.
    """
    transaction.now = now
    try:
        return order(transaction)
    except TalariaError:
        raise
    except Exception as fault:  # the order's boundary: text that is not Unicode, a number too large, …
        if isinstance(fault, driver.Error) and not isinstance(fault, _ORDER_FAULTS):
            raise
        raise StoreError(f"This cannot be stored: {fault}.") from fault


def _roll_back(connection: driver.Connection) -> None:
    """SQLite has rolled back by itself after some errors, and a broken disk may refuse even that."""
    with suppress(driver.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _truncate_wal(connection: driver.Connection) -> None:
    """A reader in another process may be in the way; the next checkpoint does it then."""
    with suppress(driver.Error):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
