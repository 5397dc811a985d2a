"""The writer thread: takes what is queued, carries it out in one transaction, commits once.

Each order of a batch runs in its own savepoint. An order that breaks a rule (a stale fence, an illegal move)
fails alone and leaves nothing; a failing disk fails the batch, of which then nothing was done. The batch
reaches the platter before it is answered if any of its orders asks for that. Once damage was seen nothing is
written any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from talaria.core.clock import Clock
from talaria.core.errors import StoreDamaged, StoreError, TalariaError
from talaria.store.sqlite.answers import Answer, Taken, post
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.faults import storage_failure

MAX_BATCH = 256

P = TypeVar("P")
T = TypeVar("T")


class Transaction:
    """What an order has in hand: statements inside the transaction, and the time by the store's clock."""

    __slots__ = ("execute", "now")

    def __init__(self, execute: Callable[..., driver.Cursor]) -> None:
        self.execute = execute
        self.now = 0.0


class _Job(NamedTuple):
    carry_out: Callable[[Transaction, Any], Any]
    order: Any
    is_durable: bool
    answer: Taken[Any]


class Writer:
    """Orders go in by `submit`, from the loop that started it; `stop` finishes them all first."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connect: Callable[[], driver.Connection], clock: Clock
    ) -> None:
        self._loop = loop
        self._connect = connect
        self._clock = clock
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._opened: Taken[None] = Taken(loop=loop)
        self._stopped: Taken[None] = Taken(loop=loop)
        self._is_last_batch = False
        self._is_full_sync: bool | None = None
        self._trouble: StoreError | None = None
        self._thread = Thread(target=self._run, name="talaria-store-writer", daemon=False)

    @classmethod
    async def start(cls, connect: Callable[[], driver.Connection], clock: Clock) -> Writer:
        """Opens the connection in the writer's own thread; what `connect` raises comes out here."""
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
        """Why the last batch failed; None once one has succeeded. Damage stays."""
        return self._trouble

    def note_damage(self, failure: StoreError) -> None:
        """Damage that was seen elsewhere: nothing is written from now on. Other failures are not for here."""
        if isinstance(failure, StoreDamaged):
            self._trouble = failure

    def submit(self, carry_out: Callable[[Transaction, P], T], order: P, is_durable: bool) -> Taken[T]:
        answer: Taken[T] = Taken(loop=self._loop)
        self._queue.put(_Job(carry_out, order, is_durable, answer))
        return answer

    async def stop(self) -> None:
        """Carry out what was submitted, shrink the WAL, close. Nothing may be submitted after it."""
        self._queue.put(None)
        await self._stopped
        self._thread.join()

    # -- in the thread

    def _run(self) -> None:
        try:
            connection = self._connect()
        except Exception as error:  # the thread's boundary: it goes to whoever opens the store
            post(self._loop, [(self._opened, None, error)])
            return
        try:
            cursor = connection.cursor()
            transaction = Transaction(cursor.execute)
            post(self._loop, [(self._opened, None, None)])
            while batch := self._next_batch():
                post(self._loop, self._carry_out(connection, transaction, batch))
                # Not kept until the next order comes: orders can be large.
                batch.clear()
            cursor.close()
            if not isinstance(self._trouble, StoreDamaged):
                _truncate_wal(connection)
        finally:
            connection.close()
            post(self._loop, [(self._stopped, None, None)])

    def _next_batch(self) -> list[_Job]:
        """Waits for one order and takes those that came with it; empty when it is time to stop."""
        if self._is_last_batch:
            return []
        job = self._queue.get()
        batch: list[_Job] = []
        while job is not None:
            batch.append(job)
            if len(batch) == MAX_BATCH or self._queue.empty():
                return batch
            job = self._queue.get()
        self._is_last_batch = True
        return batch

    def _carry_out(
        self, connection: driver.Connection, transaction: Transaction, batch: list[_Job]
    ) -> list[Answer]:
        execute = transaction.execute
        if isinstance(damage := self._trouble, StoreDamaged):
            return [(job.answer, None, StoreDamaged(damage.user_text, damage.hint)) for job in batch]
        try:
            self._synchronize(execute, any(job.is_durable for job in batch))
            execute("BEGIN IMMEDIATE")
            if len(batch) == 1:
                answer = self._attempt(transaction, batch[0])
                execute("COMMIT" if answer[2] is None else "ROLLBACK")
                self._note_success(answer[2] is None)
                return [answer]
            answers = []
            for job in batch:
                execute("SAVEPOINT one_order")
                answer = self._attempt(transaction, job)
                if answer[2] is not None:
                    execute("ROLLBACK TO one_order")
                execute("RELEASE one_order")
                answers.append(answer)
            execute("COMMIT")
        except Exception as error:  # the batch's boundary: whatever fails it, every caller hears of it
            _roll_back(connection)
            failure = storage_failure(error)
            if not isinstance(self._trouble, StoreDamaged):
                self._trouble = failure
            return [(job.answer, None, storage_failure(error)) for job in batch]
        self._note_success(any(answer[2] is None for answer in answers))
        return answers

    def _note_success(self, was_written: bool) -> None:
        """A batch of refusals only wrote nothing, and so says nothing about the disk."""
        if was_written and not isinstance(self._trouble, StoreDamaged):
            self._trouble = None

    def _attempt(self, transaction: Transaction, job: _Job) -> Answer:
        """One order's outcome. Raises only what fails the whole batch."""
        try:
            return job.answer, attempt(transaction, self._clock.now(), job.carry_out, job.order), None
        except TalariaError as refusal:
            return job.answer, None, refusal

    def _synchronize(self, execute: Callable[..., driver.Cursor], is_full: bool) -> None:
        if is_full is not self._is_full_sync:
            execute("PRAGMA synchronous = FULL" if is_full else "PRAGMA synchronous = NORMAL")
            self._is_full_sync = is_full


# What SQLite says about an order's own values, as opposed to the state of the disk.
_ORDER_FAULTS = (driver.IntegrityError, driver.DataError, driver.ProgrammingError, driver.InterfaceError)


def attempt(transaction: Transaction, now: float, carry_out: Callable[[Transaction, P], T], order: P) -> T:
    """Carry out one order inside a transaction that was begun.

    Raises `TalariaError` for an order that is refused or cannot be stored, `driver.Error` for a failing disk.
    """
    transaction.now = now
    try:
        return carry_out(transaction, order)
    except TalariaError:
        raise
    except Exception as fault:  # the order's boundary: text that is not Unicode, a number too large, …
        if isinstance(fault, driver.Error) and not isinstance(fault, _ORDER_FAULTS):
            raise
        raise StoreError(f"This cannot be stored: {fault}.") from fault


def _roll_back(connection: driver.Connection) -> None:
    """SQLite rolls back by itself after some errors, and a broken disk may refuse even that."""
    with suppress(driver.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _truncate_wal(connection: driver.Connection) -> None:
    """A reader in another process may be in the way; the next checkpoint does it then."""
    with suppress(driver.Error):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
