"""The writer thread: it takes all queued orders, runs them in one transaction, and commits once.

Each order of a batch runs in its own savepoint. An order that breaks a rule (a stale fence, an illegal move)
fails alone and leaves no trace. A failing disk fails the whole batch, and nothing of it is written. A batch
with a durable order is synced to the disk before its results are delivered, and refused if the database file
is not at its path any more. Once damage or the loss of the file was seen, nothing is written any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from talaria.core.clock import Clock
from talaria.core.errors import StoreDamaged, StoreError, StoreGone, TalariaError
from talaria.core.tasks import Uncancellable, call_from_thread
from talaria.store.sql.executor import Cursor, Outcome, Transaction, deliver
from talaria.store.sqlite.faults import driver, hanging, slow, storage_failure
from talaria.store.sqlite.rescue import FileIdentity, Loss, gone, save

_log = logging.getLogger("talaria.store")
MAX_BATCH = 256
SLOW_SECONDS = 1.0
"""A batch that takes longer counts as trouble of the disk."""

T = TypeVar("T")


class _Write(NamedTuple):
    order: Callable[[Transaction], Any]
    is_durable: bool
    result: Uncancellable[Any] | ThreadFuture[Any]


class Writer:
    """Runs orders in a thread of its own. Belongs to the event loop that started it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connect: Callable[[], driver.Connection],
        clock: Clock,
        path: Path | None,
    ) -> None:
        self._loop = loop
        self._connect = connect
        self._clock = clock
        self._path = path
        self._files: FileIdentity | None = None
        self._loss: Loss | None = None
        self._saved: Path | None = None
        self._busy_since: float | None = None  # `Clock.elapsed` when the current batch began
        self._last_seconds = 0.0  # that the last batch took
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()
        self._opened: Uncancellable[None] = Uncancellable(loop=loop)
        self._stopped: Uncancellable[None] = Uncancellable(loop=loop)
        self._from_threads: set[ThreadFuture[Any]] = set()
        self._is_last_batch = False
        self._is_full_sync: bool | None = None
        self._trouble: StoreError | None = None
        self._thread = Thread(target=self._run, name="talaria-store-writer", daemon=False)

    @classmethod
    async def start(
        cls, connect: Callable[[], driver.Connection], clock: Clock, path: Path | None = None
    ) -> Writer:
        """Open the connection in the writer's own thread. Raises what `connect` raises.

        With `path`, the writer looks whether the file is still there before it confirms a durable batch.
        """
        writer = cls(asyncio.get_running_loop(), connect, clock, path)
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
        """Why the last batch failed, or that it hangs or was slow; None once a batch has succeeded in good
        time. Damage and the loss of the file stay."""
        if self.is_final:
            return self._trouble
        if (since := self._busy_since) is not None:
            seconds = self._clock.elapsed() - since
            if seconds > SLOW_SECONDS:
                return hanging(seconds)
        if self._trouble is None and self._last_seconds > SLOW_SECONDS:
            return slow(self._last_seconds)
        return self._trouble

    @property
    def is_final(self) -> bool:
        """Whether nothing is written any more, because the file is damaged or lost."""
        return isinstance(self._trouble, _FINAL)

    def look(self) -> None:
        """Write nothing from now on if one of the files is not at its path. Any thread may call this; it can
        wait for the disk. The next order, a refused one too, lets the writer save the content."""
        files = self._files
        if files is not None and (loss := files.find_loss()) is not None and self._loss is None:
            self._loss, self._trouble = loss, gone(loss)

    def find_readable(self, path: Path) -> Path:
        """Return the file for a new reader of the database at `path`: after a loss, the saved content. Raises
        `StoreGone` while that is not saved."""
        is_lost = self._loss is not None or (self._files is not None and not self._files.is_in_place())
        if self._saved is None and is_lost:
            raise gone(self._loss or Loss(path, is_replaced=path.exists()))
        return self._saved or path

    def check_writable(self) -> None:
        """Raise the error of a file that is damaged or lost."""
        if isinstance(trouble := self._trouble, _FINAL):
            raise _again(trouble)

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
            call_from_thread(self._loop, deliver, [(self._opened, None, error)])
            return
        try:
            cursor = connection.cursor()
            transaction = Transaction(cursor.execute)
            if self._path is not None:
                self._files = FileIdentity(self._path)
            call_from_thread(self._loop, deliver, [(self._opened, None, None)])
            while batch := self._next_batch():
                began = self._busy_since = self._clock.elapsed()
                outcomes = self._run_batch(connection, transaction, batch)
                self._last_seconds, self._busy_since = self._clock.elapsed() - began, None
                call_from_thread(
                    self._loop,
                    deliver,
                    self._deliver_to_threads(outcomes) if self._from_threads else outcomes,
                )
                # Not kept until the next order comes: orders can be large.
                batch.clear()
                del outcomes
                if self._loss is not None:
                    self._save(connection, self._loss)
            cursor.close()
            self.look()
            if self._loss is not None:
                self._save(connection, self._loss)
            if not self.is_final:
                _truncate_wal(connection)
        finally:
            connection.close()
            call_from_thread(self._loop, deliver, [(self._stopped, None, None)])

    def _deliver_to_threads(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Deliver the outcomes that threads wait for, and return the others."""
        rest = []
        for outcome in outcomes:
            if isinstance(outcome[0], ThreadFuture):
                self._from_threads.discard(outcome[0])
                deliver([outcome])
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
        if isinstance(trouble := self._trouble, _FINAL):
            return [(write.result, None, _again(trouble)) for write in batch]
        is_durable = any(write.is_durable for write in batch)
        try:
            self._synchronize(execute, is_durable)
            execute("BEGIN IMMEDIATE")
            if len(batch) == 1:
                outcome = self._attempt(transaction, batch[0])
                if is_durable:
                    self._check_files()
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
            if is_durable:
                self._check_files()
            execute("COMMIT")
        except Exception as error:  # the batch's boundary: every caller gets the failure
            _roll_back(connection)
            folder = None if self._path is None else self._path.parent
            failure = error if isinstance(error, StoreGone) else storage_failure(error, folder)
            if not self.is_final:
                self._trouble = failure
            return [(write.result, None, _again(failure)) for write in batch]
        self._note_success(any(outcome[2] is None for outcome in outcomes))
        return outcomes

    def _note_success(self, was_written: bool) -> None:
        """A batch of refused orders wrote nothing, and so says nothing about the disk."""
        if was_written and self._trouble is not None and not self.is_final:
            self._trouble = None

    def _check_files(self) -> None:
        """Raise `StoreGone` if the file is not at its path: what is committed to it would not be found again.
        The commits before are in the file without a name, and `_save` saves them."""
        files = self._files
        if files is not None and not files.is_in_place() and (loss := files.find_loss()):
            self._loss = loss
            raise gone(loss)

    def _save(self, connection: driver.Connection, loss: Loss) -> None:
        """Save the content of the lost file and tell how to restore it. If that fails, the next order tries
        again."""
        assert self._path is not None
        try:
            self._trouble, self._saved = save(connection, self._path, loss)
        except (driver.Error, OSError) as error:
            self._trouble = gone(loss)
            _log.critical("%s Its content cannot be saved yet: %s", self._trouble.user_text, error)
        else:
            self._loss = self._files = None
            _log.critical("%s", self._trouble)

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


_FINAL = (StoreDamaged, StoreGone)


def _again(failure: StoreError) -> StoreError:
    """Return the same error as a new object, with the same cause: each caller raises its own."""
    again = type(failure)(failure.user_text, failure.hint)
    again.__cause__ = failure.__cause__
    return again


def _roll_back(connection: driver.Connection) -> None:
    """SQLite has rolled back by itself after some errors, and a broken disk may refuse even that."""
    with suppress(driver.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _truncate_wal(connection: driver.Connection) -> None:
    """A reader in another process may be in the way; the next checkpoint does it then."""
    with suppress(driver.Error):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
