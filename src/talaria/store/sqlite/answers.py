"""How the store's threads answer the event loop: one wake-up for many results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Taken(asyncio.Future[T]):
    """The answer to an order that was taken and will be carried out, whatever becomes of its caller.

    It refuses to be cancelled. A task that is cancelled while it waits here gets its cancellation when the
    answer arrives: it ends knowing that the write is behind it, and nothing half-done is left.
    """

    def cancel(self, msg: object = None) -> bool:
        return False


# A future with its result or its error.
Answer = tuple["asyncio.Future[Any]", Any, BaseException | None]


def post(loop: asyncio.AbstractEventLoop, answers: Sequence[Answer]) -> None:
    """From a thread: hand the answers to the loop. A loop that is closed has nobody waiting."""
    try:
        loop.call_soon_threadsafe(_deliver, answers)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _deliver(answers: Sequence[Answer]) -> None:
    for future, result, error in answers:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
