"""Common parts of the fake servers: waiting for changes, and running until a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable


class ChangeNotifier:
    """An object whose changes others wait for."""

    def __init__(self) -> None:
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def until(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a change makes the condition true. Returns False if `timeout` seconds pass first."""
        if condition():
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((condition, waiter))
        done, _ = await asyncio.wait((waiter,), timeout=timeout)
        waiter.cancel()
        return bool(done)

    def notify(self) -> None:
        """Check the condition of every waiter."""
        for condition, waiter in self._waiters:
            if not waiter.done() and condition():
                waiter.set_result(None)
        self._waiters = [pair for pair in self._waiters if not pair[1].done()]


async def print_and_wait(greeting: str) -> None:
    """Print the greeting and wait for SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    sys.stdout.write(f"{greeting}\n")
    sys.stdout.flush()
    await stop.wait()
