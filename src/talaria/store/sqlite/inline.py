"""Orders and questions carried out at once, by whoever has them: a database without threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

from talaria.core.clock import Clock
from talaria.core.errors import TalariaError
from talaria.store import rules
from talaria.store.sqlite.connection import open_memory
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.faults import storage_failure
from talaria.store.sqlite.writer import Transaction, attempt

P = TypeVar("P")
T = TypeVar("T")


class Inline:
    """A `Reach` to a database in memory that is its own. Nothing here waits, so the event loop runs nobody
    else between an order and its answer, and a seeded loop brings the same run back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connection = open_memory()
        self._transaction = Transaction(self._connection.cursor().execute)
        self._is_closed = False
        # Those who need no disk need not say when they are done.
        weakref.finalize(self, self._connection.close)

    async def write(
        self, carry_out: Callable[[Transaction, P], T], order: P, *, is_durable: bool = False
    ) -> T:
        self._check_open()
        execute = self._transaction.execute
        try:
            execute("BEGIN")
            answer = attempt(self._transaction, self._clock.now(), carry_out, order)
            execute("COMMIT")
        except driver.Error as error:
            raise storage_failure(error) from error
        finally:
            if self._connection.in_transaction:
                execute("ROLLBACK")
        return answer

    async def read(self, query: Callable[[driver.Connection, P], T], question: P) -> T:
        self._check_open()
        try:
            return query(self._connection, question)
        except TalariaError:
            raise
        except Exception as error:
            raise storage_failure(error) from error

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise rules.closed()
