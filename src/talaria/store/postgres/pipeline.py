"""A connection to PostgreSQL in pipeline mode.

A statement is sent at once and waits for its answer only when its rows or its count are looked at. So the
statements of an order that read nothing cost no round trip of their own. The SQL goes to libpq directly:
psycopg's cursors would take several times as long.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

ANSWER_SECONDS = 25.0  # longer than the limits that the server has for a statement and for a lock

_BEGIN = "BEGIN"
_COMMIT = "COMMIT"
_ROLLBACK = "ROLLBACK"
_OKAY = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.PIPELINE_SYNC)


class ConnectionCut(Exception):
    """The connection is gone, or the server did not answer in time. It cannot be used any more."""


class PipeCursor:
    """The result of a statement, which is waited for when it is looked at."""

    __slots__ = ("_pipe", "_result", "_rows")

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._result: PGresult | None = None
        self._rows: Iterator[Any] | None = None

    @property
    def is_done(self) -> bool:
        return self._result is not None

    @property
    def rowcount(self) -> int:
        return self._arrived().command_tuples or 0

    def fetchone(self) -> Any:
        return next(self._load(), None)

    def fetchall(self) -> list[Any]:
        return list(self._load())

    def __iter__(self) -> Iterator[Any]:
        return self._load()

    def command(self) -> bytes:
        """The command tag that the server answered with."""
        return self._arrived().command_status or b""

    def take(self, result: PGresult) -> None:
        self._result = result

    def _arrived(self) -> PGresult:
        if self._result is None:
            self._pipe.wait_for(self)
        result = self._result
        assert result is not None
        if result.status not in _OKAY:
            raise self._pipe.failure() or error_from_result(result)
        return result

    def _load(self) -> Iterator[Any]:
        if self._rows is None:
            self._rows = iter(self._pipe.load(self._arrived()))
        return self._rows


class _Preparation(PipeCursor):
    """The answer to the preparation of a statement. A statement that was not prepared is prepared again."""

    __slots__ = ("_sql",)

    def __init__(self, pipe: Pipe, sql: str) -> None:
        super().__init__(pipe)
        self._sql = sql

    def take(self, result: PGresult) -> None:
        super().take(result)
        if result.status not in _OKAY:
            self._pipe.forget(self._sql)


class Pipe:
    """A connection that one thread uses at a time. `statements` and `round_trips` count since it was opened.

    Errors of statements are psycopg's. After one, `roll_back` makes the connection usable again.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._pg: PGconn = connection.pgconn
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._socket = self._pg.socket
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._loader = Transformer(connection)
        self._names: dict[str, bytes] = {}
        self._pending: deque[PipeCursor] = deque()
        self._arriving: PGresult | None = None
        self._failed: PGresult | None = None
        self._deadline = 0.0
        self._is_order = False
        self.statements = 0
        self.round_trips = 0

    @property
    def backend(self) -> int:
        """The id of the server's process for this connection."""
        return self._pg.backend_pid

    def close(self) -> None:
        self._connection.close()

    # -- transactions

    def begin(self, seconds: float = ANSWER_SECONDS) -> None:
        """Begin a transaction. The server must have answered all of it within so many seconds."""
        self._start(seconds)
        self._is_order = True
        self.execute(_BEGIN)

    def extend(self, seconds: float = ANSWER_SECONDS) -> None:
        """Continue a transaction that takes long. The server must answer within this time from now."""
        self._deadline = time.monotonic() + seconds

    def commit(self) -> None:
        """Commit. Raises the error of the first statement that failed; then nothing was committed."""
        cursor = self.execute(_COMMIT)
        self._synchronize()
        if cursor.command() != b"COMMIT":
            raise self.failure() or psycopg.OperationalError("the server rolled the transaction back")

    def roll_back(self) -> None:
        """End the transaction and forget its errors."""
        self._deadline = time.monotonic() + ANSWER_SECONDS
        self.execute(_ROLLBACK)
        self._synchronize()
        if self._pg.transaction_status != TransactionStatus.IDLE:  # a statement before had failed
            self.execute(_ROLLBACK)
            self._synchronize()

    def begin_reading(self, seconds: float = ANSWER_SECONDS) -> None:
        """Begin a query. On a connection of readers all statements up to `end_reading` see one moment."""
        self._start(seconds)
        self._is_order = False

    def end_reading(self) -> None:
        """End a query. Nothing waits for the answer, which is read with the next one."""
        self._sync()
        self._flush()

    def _start(self, seconds: float) -> None:
        """Find out whether the server has ended the session meanwhile: then nothing of the order was sent."""
        self._deadline = time.monotonic() + seconds
        self._failed = None
        if self._poll.poll(0):
            try:
                self._pg.consume_input()
                self._take_results()
            except psycopg.OperationalError as error:
                raise ConnectionCut(str(error)) from error
            self._failed = None

    # -- statements

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> PipeCursor:
        """Send a statement, with question marks as placeholders."""
        pg = self._pg
        try:
            name = self._names.get(sql) or self._prepare(sql)
            if parameters:
                values = [_dump(value) for value in parameters]
                pg.send_query_prepared(name, values, _formats(parameters))
            else:
                pg.send_query_prepared(name, None)
        except psycopg.OperationalError as error:
            raise ConnectionCut(str(error)) from error
        self.statements += 1
        cursor = PipeCursor(self)
        self._pending.append(cursor)
        return cursor

    def wait_for(self, cursor: PipeCursor) -> None:
        """Wait until the cursor has its result. Neither an order nor a query is ended by this.

        In an order the server is told that no more is coming for now: without that, it would not count the
        session as idle, and keep the locks of a gateway that is stopped here. A query would be ended by it.
        """
        if self._is_order:
            self._sync()
        else:
            try:
                self._pg.send_flush_request()
            except psycopg.OperationalError as error:
                raise ConnectionCut(str(error)) from error
        self._receive(cursor)

    def failure(self) -> psycopg.Error | None:
        """Return the error of the first statement that failed in this transaction; those behind it were
        skipped."""
        return None if self._failed is None else error_from_result(self._failed)

    def forget(self, sql: str) -> None:
        self._names.pop(sql, None)

    def load(self, result: PGresult) -> list[Any]:
        if not result.ntuples:
            return []
        self._loader.set_pgresult(result)
        return self._loader.load_rows(0, result.ntuples, tuple)

    def _prepare(self, sql: str) -> bytes:
        """A name stands for the same text on all connections: behind a pooler that mixes them up, a statement
        may be unknown, but it is never another one."""
        name = b"t" + blake2b(sql.encode(), digest_size=15).hexdigest().encode()
        self._pg.send_prepare(name, numbered(sql).encode())
        self._pending.append(_Preparation(self, sql))
        self._names[sql] = name
        return name

    # -- the wire

    def _synchronize(self) -> None:
        self._receive(self._sync())

    def _sync(self) -> PipeCursor:
        try:
            self._pg.pipeline_sync()
        except psycopg.OperationalError as error:
            raise ConnectionCut(str(error)) from error
        mark = PipeCursor(self)
        self._pending.append(mark)
        return mark

    def _flush(self) -> bool:
        """Send what libpq has buffered. Return whether something is left, because the server reads slowly."""
        try:
            return bool(self._pg.flush())
        except psycopg.OperationalError as error:
            raise ConnectionCut(str(error)) from error

    def _receive(self, cursor: PipeCursor) -> None:
        self.round_trips += 1
        while not cursor.is_done:
            is_blocked = self._flush()
            self._await(is_blocked)
            try:
                self._pg.consume_input()
                self._take_results()
            except psycopg.OperationalError as error:
                raise ConnectionCut(str(error)) from error

    def _await(self, is_blocked: bool) -> None:
        left = self._deadline - time.monotonic()
        if is_blocked:
            self._poll.modify(self._socket, select.POLLIN | select.POLLOUT)
        try:
            if left <= 0 or not self._poll.poll(left * 1000):
                raise ConnectionCut("the server did not answer in time")
        finally:
            if is_blocked:
                self._poll.modify(self._socket, select.POLLIN)

    def _take_results(self) -> None:
        """Give the results that have arrived to their cursors. Behind each result of a statement libpq puts
        an empty one, behind the end of a transaction it does not."""
        pg, pending = self._pg, self._pending
        while pending and not pg.is_busy():
            result = pg.get_result()
            if result is None:
                if self._arriving is None:
                    return
                pending.popleft().take(self._arriving)
                self._arriving = None
                continue
            status = result.status
            if status == ExecStatus.PIPELINE_SYNC:
                pending.popleft().take(result)
                continue
            if status == ExecStatus.FATAL_ERROR and self._failed is None:
                self._failed = result
            self._arriving = result


def numbered(sql: str) -> str:
    """Return the statement with PostgreSQL's placeholders. A question mark in a text would count as one, and
    `test_shared_sql` says that there is none."""
    pieces = sql.split("?")
    return pieces[0] + "".join(f"${i}{piece}" for i, piece in enumerate(pieces[1:], 1))


def _formats(values: Sequence[Any]) -> list[int] | None:
    """Return 1 for bytes and 0 for what goes as text; None if all go as text."""
    formats = [value.__class__ is bytes for value in values]
    return [int(is_binary) for is_binary in formats] if True in formats else None


def _dump(value: Any) -> bytes | None:
    """Return a parameter as libpq takes it. PostgreSQL's text has no zero character; it gets the mark of an
    unreadable one. (Bodies are JSON, which escapes it.)"""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode() if "\0" in value else value.encode()
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, int):
        return b"%d" % value
    return repr(float(value)).encode()
