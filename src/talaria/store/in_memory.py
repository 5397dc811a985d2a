"""`MemoryStore`: the store on a database in memory, for tests and simulations."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from talaria.core.clock import Clock
from talaria.core.errors import TalariaError
from talaria.store.sql.executor import Connection, Executor, Transaction
from talaria.store.sqlite.database import open_memory
from talaria.store.sqlite.faults import driver, engine, storage_failure
from talaria.store.sqlite.schema import latest_version
from talaria.store.sqlite.writer import run_order
from talaria.store.store import Store

T = TypeVar("T")


class InlineExecutor(Executor):
    """Runs orders and queries at once, in the caller's own step, on a database in memory.

    Nothing here waits, so the event loop runs no other task between a call and its result, and a seeded loop
    repeats a run exactly.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(engine, latest_version(), clock)
        self._connection = open_memory()
        self._transaction = Transaction(self._connection.cursor().execute)
        self._lock = Lock()  # for `write_from_thread`
        # A caller that needs no disk need not close the store.
        weakref.finalize(self, self._connection.close)

    async def write(self, order: Callable[[Transaction], T], *, is_durable: bool = False) -> T:
        return self._write(order)

    def write_from_thread(
        self, order: Callable[[Transaction], T], timeout: float, *, is_durable: bool = False
    ) -> T:
        return self._write(order)

    def _write(self, order: Callable[[Transaction], T]) -> T:
        self.check_open()
        execute = self._transaction.execute
        with self._lock:
            try:
                execute("BEGIN")
                result = run_order(self._transaction, self.clock.now(), order)
                execute("COMMIT")
            except driver.Error as error:
                raise storage_failure(error) from error
            finally:
                if self._connection.in_transaction:
                    execute("ROLLBACK")
            return result

    async def read(self, query: Callable[[Connection], T]) -> T:
        self.check_open()
        try:
            with self._lock:
                return query(self._connection)
        except TalariaError:
            raise
        except Exception as error:
            raise storage_failure(error) from error

    async def close(self) -> None:
        self.is_closing = True
        self._connection.close()


class MemoryStore(Store):
    """The store's own orders and queries on a database that is gone when it is closed.

    It needs no event loop to be made, and no method lets another task run.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(InlineExecutor(clock))
