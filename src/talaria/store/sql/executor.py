"""How the shared SQL is run.

An *order* is a plain function `order(tx, …)` that reads and writes inside one transaction. It depends on its
arguments and on what it reads, and on nothing else, so that an engine may roll it back and run it again. A
*query* is a plain function `query(db, …)` that only reads, in one transaction of its own. An engine brings an
`Executor` that runs both without holding up the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future as ThreadFuture
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from talaria.core.clock import Clock
from talaria.store.sql import rules

A = ParamSpec("A")
T = TypeVar("T")


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """The connection that a query reads from. Placeholders are question marks."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...


class Transaction:
    """The transaction of an order. `execute` runs a statement in it; `now` is the store's time.

    Orders of an engine that runs one at a time need no locks; `lock` is for the others.
    """

    __slots__ = ("execute", "now")

    def __init__(self, execute: Callable[..., Cursor]) -> None:
        self.execute = execute
        self.now = 0.0

    def lock(self, sql: str, parameters: Sequence[Any] = ()) -> bool:
        """Run a statement of `locks` and return True; here nothing is locked. What was read before a lock may
        be old by then."""
        return False


class Reader(Protocol):
    """Runs queries."""

    def read(self, query: Callable[[Connection], T]) -> Awaitable[T]: ...


class Executor:
    """The part of an engine that runs orders and queries. Raises `StoreError` once it is closed.

    A write that was submitted is finished even if its caller is cancelled; the cancellation is delivered
    afterwards. A caller that is cancelled while it reads gets the cancellation at once.
    """

    def __init__(self, engine: str, schema: int, clock: Clock) -> None:
        """`engine` is its name and version, `schema` the version of the database's schema. Rows are dated by
        `clock`."""
        self.engine = engine
        self.schema = schema
        self.clock = clock
        self.is_closing = False
        self._closing: asyncio.Task[None] | None = None

    def check_open(self) -> None:
        if self.is_closing:
            raise rules.closed()

    def read(self, query: Callable[[Connection], T]) -> Awaitable[T]:
        raise NotImplementedError

    def write(self, order: Callable[[Transaction], T], *, is_durable: bool = False) -> Awaitable[T]:
        """Run an order and commit it. With `is_durable` the commit survives a power cut."""
        raise NotImplementedError

    def write_from_thread(
        self, order: Callable[[Transaction], T], timeout: float, *, is_durable: bool = False
    ) -> T:
        """Run an order for a thread that is not the event loop's, and wait up to `timeout` seconds."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish what was submitted, then close. Goes on when its caller is cancelled."""
        if self._closing is None:
            self.is_closing = True
            self._closing = asyncio.create_task(self._close(), name="store-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        raise NotImplementedError


# A future with its result or its error.
Outcome = tuple["asyncio.Future[Any] | ThreadFuture[Any]", Any, BaseException | None]


def deliver(outcomes: Sequence[Outcome]) -> None:
    """Settle the futures, on the loop that they belong to."""
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class SqlPort:
    """A part of the store, whose methods run orders and queries; see `writes` and `reads`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor


def writes(
    order: Callable[Concatenate[Transaction, A], T], *, is_durable: bool = False
) -> Callable[Concatenate[SqlPort, A], Coroutine[Any, Any, T]]:
    """Return the method that runs this order."""

    @wraps(order)
    async def method(self: SqlPort, /, *args: A.args, **kwargs: A.kwargs) -> T:
        return await self._executor.write(lambda tx: order(tx, *args, **kwargs), is_durable=is_durable)

    return method


def reads(
    query: Callable[Concatenate[Connection, A], T],
) -> Callable[Concatenate[SqlPort, A], Coroutine[Any, Any, T]]:
    """Return the method that runs this query."""

    @wraps(query)
    async def method(self: SqlPort, /, *args: A.args, **kwargs: A.kwargs) -> T:
        return await self._executor.read(lambda db: query(db, *args, **kwargs))

    return method


def reads_now(
    query: Callable[Concatenate[Connection, float, A], T],
) -> Callable[Concatenate[SqlPort, A], Coroutine[Any, Any, T]]:
    """Return the method that runs this query with the store's time."""

    @wraps(query)
    async def method(self: SqlPort, /, *args: A.args, **kwargs: A.kwargs) -> T:
        now = self._executor.clock.now()
        return await self._executor.read(lambda db: query(db, now, *args, **kwargs))

    return method
