"""How the parts of the store reach the database, and the threads by which they reach a file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from talaria.store import rules
from talaria.store.sqlite.answers import Taken
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.readers import Readers
from talaria.store.sqlite.writer import Transaction, Writer

A = ParamSpec("A")
P = TypeVar("P")
T = TypeVar("T")


class Reach(Protocol):
    """Raises `StoreError` once it is closed."""

    def write(
        self, carry_out: Callable[[Transaction, P], T], order: P, *, is_durable: bool = False
    ) -> Awaitable[T]: ...

    def read(self, query: Callable[[driver.Connection, P], T], question: P) -> Awaitable[T]: ...


class Part:
    """What has its orders and questions as methods: see `writes` and `reads`."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach


def writes(
    order: Callable[Concatenate[Transaction, A], T], *, is_durable: bool = False
) -> Callable[Concatenate[Part, A], Coroutine[Any, Any, T]]:
    """The method that has this order carried out."""

    def carry_out(tx: Transaction, given: tuple[Any, Any]) -> T:
        return order(tx, *given[0], **given[1])

    @wraps(order)
    async def method(self: Part, /, *given: A.args, **named: A.kwargs) -> T:
        return await self._reach.write(carry_out, (given, named), is_durable=is_durable)

    return method


def reads(
    question: Callable[Concatenate[driver.Connection, A], T],
) -> Callable[Concatenate[Part, A], Coroutine[Any, Any, T]]:
    """The method that has this question answered."""

    def query(db: driver.Connection, given: tuple[Any, Any]) -> T:
        return question(db, *given[0], **given[1])

    @wraps(question)
    async def method(self: Part, /, *given: A.args, **named: A.kwargs) -> T:
        return await self._reach.read(query, (given, named))

    return method


class Threads:
    """One writer, and readers beside it."""

    def __init__(self, writer: Writer, readers: Readers) -> None:
        self.writer = writer
        self._readers = readers
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_closing(self) -> bool:
        return self._closing is not None

    def check_open(self) -> None:
        if self._closing is not None:
            raise rules.closed()

    def write(
        self, carry_out: Callable[[Transaction, P], T], order: P, *, is_durable: bool = False
    ) -> Taken[T]:
        self.check_open()
        return self.writer.submit(carry_out, order, is_durable)

    def read(self, query: Callable[[driver.Connection, P], T], question: P) -> asyncio.Future[T]:
        self.check_open()
        return self._readers.submit(query, question)

    async def close(self) -> None:
        """Finishes what was taken. Goes on when its caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="store-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        # Readers first: an open read would keep the writer's last checkpoint from emptying the WAL.
        await self._readers.stop()
        await self.writer.stop()
