"""Wait in a test until something is true. Only the time limit of pytest ends the wait."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def until(condition: Callable[[], Awaitable[T]], *, pause: float = ...) -> T: ...
@overload
async def until(condition: Callable[[], T], *, pause: float = ...) -> T: ...
async def until(condition: Callable[[], Any], *, pause: float = 0.005) -> Any:
    """Return the first true result of the condition, which is checked every `pause` seconds.

    With `pause=0` it is checked in every round of the event loop, so that it also sees a state that lasts for
    one round only.
    """
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(pause)


def wait_until(condition: Callable[[], T]) -> T:
    """Block until the condition is true, and return its result."""
    while not (found := condition()):
        time.sleep(0.02)
    return found
