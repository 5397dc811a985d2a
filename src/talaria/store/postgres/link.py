"""A connection with all that may happen to it: orders are run again, and cut connections made again.

An order that was in another's way (a deadlock, a key that another order wrote first) is rolled back and run
again, some times (`MOST_RUNS`). So is one whose connection was cut before it was to be committed. If the
connection is cut in the middle of a commit, the order's number is read back from `order_marks`: each order
writes its number there, in its own transaction, over the number of the order before it. Reading back waits
for an old session that still works on the commit, and writes a new number if the order's is not there, so
that the old session cannot carry the order out later. Nothing is assumed; while the database cannot be
reached, the caller waits.

If the number of the order before is not there although it was confirmed, the database has lost commits, as in
a fail-over to a standby that did not have them. The connection then begins to count under a new name.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar
from uuid import uuid4

import psycopg

from talaria.core.clock import Clock
from talaria.core.errors import StoreError, TalariaError
from talaria.store.postgres.connections import Connect
from talaria.store.postgres.faults import OrderFault, ends_session, failed, in_doubt, kind_of
from talaria.store.postgres.pipeline import ANSWER_SECONDS, ConnectionCut, Pipe
from talaria.store.sql.executor import Connection, Cursor, Transaction

MOST_RUNS = {OrderFault.CUT: 8, OrderFault.FORGOTTEN: 2, OrderFault.AGAIN: 20, OrderFault.TAKEN: 3}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.5
_LEAVE_SECONDS = 2.0
_LEAST_SECONDS = 0.05
_LONGEST_RETRY = 0.5  # between attempts to reach a database that is gone

# Fails, and the whole order with it, unless the number is the one of the order before.
MARK = """
INSERT INTO order_marks (connection, n, at) VALUES (?, ?, ?)
ON CONFLICT (connection) DO UPDATE
SET n = excluded.n / (CASE WHEN order_marks.n = ? THEN 1 ELSE 0 END), at = excluded.at
"""
READ_MARK = """
INSERT INTO order_marks (connection, n, at) VALUES (?, ?, ?)
ON CONFLICT (connection) DO UPDATE
SET n = CASE WHEN order_marks.n = ? THEN order_marks.n ELSE excluded.n END
RETURNING n
"""
DROP_MARK = "DELETE FROM order_marks WHERE connection = ?"

T = TypeVar("T")
_log = logging.getLogger("talaria.store")


class LockingTransaction(Transaction):
    """The transaction of an order beside others. Its time is that of its first look at the clock, which is
    after it has waited for its locks."""

    __slots__ = ("_clock", "_now")

    def __init__(self, execute: Callable[..., Cursor], clock: Clock) -> None:
        self.execute = execute
        self._clock = clock
        self._now: float | None = None

    @property
    def now(self) -> float:  # type: ignore[override]  # orders only read it
        if self._now is None:
            self._now = self._clock.now()
        return self._now

    def lock(self, sql: str, parameters: Sequence[Any] = ()) -> bool:
        self.execute(sql, parameters)
        return True


class PostgresLink:
    """Runs orders and queries, in one thread at a time. Connects when it is first used.

    `is_closing` ends the wait for a database that does not come back.
    """

    def __init__(
        self,
        connect: Connect,
        clock: Clock,
        *,
        is_closing: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._is_closing = is_closing
        self._pipe: Pipe | None = None
        self.reruns = 0
        self._begin_to_count()

    def _begin_to_count(self) -> None:
        self._name = uuid4().hex
        self._number = 0  # of the last order
        self._committed = 0  # the number in `order_marks`

    @property
    def pipe(self) -> Pipe:
        """The connection, made if there is none. Raises `StoreError` and `ConnectionCut`."""
        if self._pipe is None:
            self._pipe = self._connect()
        return self._pipe

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def write(self, order: Callable[[Transaction], T], until: float = math.inf) -> T:
        """Run an order and commit it. Raises `TalariaError`; nothing was written then, but for an order that
        is in doubt `until` this time of `monotonic`, or when the store closes."""
        for run in count(1):
            try:
                return self._write_once(order, until)
            except TalariaError:
                raise
            except Exception as error:
                kind = kind_of(error)
                if kind is OrderFault.CUT:
                    self.close()
                if run >= MOST_RUNS.get(kind, 0) or time.monotonic() >= until:
                    raise failed(error) from error
                if kind is OrderFault.FORGOTTEN:
                    _log.error("the database has lost an order of this gateway that it had confirmed")
                    self._begin_to_count()
            self.reruns += 1
            time.sleep(random.uniform(0, min(_FIRST_PAUSE * 2**run, _LONGEST_PAUSE)))  # noqa: S311
        raise AssertionError("it goes on until it returns or raises")

    def read(self, query: Callable[[Connection], T], seconds: float = ANSWER_SECONDS) -> T:
        """Run a query. A cut connection is made again once."""
        for is_last in (False, True):
            try:
                return self._read_once(query, seconds)
            except TalariaError:
                raise
            except Exception as error:
                kind = kind_of(error)
                if kind is OrderFault.CUT:
                    self.close()
                if is_last or kind not in (OrderFault.CUT, OrderFault.AGAIN):
                    raise failed(error) from error
        raise AssertionError("the last run returns or raises")

    def _read_once(self, query: Callable[[Connection], T], seconds: float) -> T:
        pipe = self.pipe
        pipe.begin_reading(seconds)
        try:
            result = query(pipe)
        except ConnectionCut:
            raise
        except BaseException:
            self._clear(pipe)
            raise
        pipe.end_reading()
        return result

    def _write_once(self, order: Callable[[Transaction], T], until: float) -> T:
        pipe = self.pipe
        seconds = min(ANSWER_SECONDS, max(_LEAST_SECONDS, until - time.monotonic()))
        transaction = LockingTransaction(pipe.execute, self._clock)
        self._number += 1
        try:
            pipe.begin(seconds)
            result = order(transaction)
            pipe.execute(MARK, (self._name, self._number, transaction.now, self._committed))
        except ConnectionCut:
            raise
        except BaseException:
            self._clear(pipe)
            raise
        try:
            pipe.commit()
        except (ConnectionCut, psycopg.Error) as error:
            if not ends_session(error):
                self._clear(pipe)
                raise
            self.close()
            if not self._was_committed(until):
                raise error from None
        else:
            self._committed = self._number
        return result

    def _clear(self, pipe: Pipe) -> None:
        """Roll back. A connection that cannot even do that is given up."""
        try:
            pipe.roll_back()
        except (ConnectionCut, psycopg.Error):
            self.close()

    def _was_committed(self, until: float) -> bool:
        """Read back whether the last order was carried out, as soon as the database can be reached."""
        order, pause = self._number, _FIRST_PAUSE
        self._number += 1
        while not self._is_closing() and time.monotonic() < until:
            try:
                self._committed = self._read_mark(order)
            except (StoreError, ConnectionCut, psycopg.Error):
                self.close()
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_RETRY)
            else:
                return self._committed == order
        self._begin_to_count()
        raise in_doubt()

    def _read_mark(self, order: int) -> int:
        pipe = self.pipe
        pipe.begin()
        values = (self._name, self._number, self._clock.now(), order)
        (number,) = pipe.execute(READ_MARK, values).fetchone()
        pipe.commit()
        return int(number)

    def leave(self) -> None:
        """Delete the number and close."""
        if self._committed and self._pipe is not None:
            with suppress(TalariaError, ConnectionCut, psycopg.Error):
                self._pipe.begin(_LEAVE_SECONDS)
                self._pipe.execute(DROP_MARK, (self._name,))
                self._pipe.commit()
        self.close()
