"""How a part of the store reaches its one writer and its readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from talaria.store.sqlite.answers import Taken
from talaria.store.sqlite.engine import driver
from talaria.store.sqlite.writer import Transaction

P = TypeVar("P")
T = TypeVar("T")


class Writes(Protocol):
    def __call__(
        self, carry_out: Callable[[Transaction, P], T], order: P, *, is_durable: bool = False
    ) -> Taken[T]: ...


class Reads(Protocol):
    def __call__(self, query: Callable[[driver.Connection, P], T], question: P) -> asyncio.Future[T]: ...
