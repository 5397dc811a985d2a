"""The line of a terminal that moves while somebody waits."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable
from typing import Self, TextIO, TypeVar

from talaria.channels.console.clean import clean_line

T = TypeVar("T")
_STEP_SECONDS = 0.5


class MovingLine:
    """From `async with` to its end: what is waited for, and for how long by now. Its place is free again
    afterwards, and after `hide`. Where `out` is no terminal nothing is shown."""

    def __init__(self, out: TextIO, text: str, limit: float = 0.0) -> None:
        self._out = out
        self._text = text
        self._limit = f" of {limit:.0f}" if limit else ""
        self._is_shown = out.isatty()
        self._began = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._began = asyncio.get_running_loop().time()
        if self._is_shown:
            self._task = asyncio.create_task(self._move(), name="moving line")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
        self.hide()

    def say(self, text: str) -> None:
        """This is waited for now."""
        self._text = text
        self._draw()

    def hide(self) -> None:
        """Until there is something to say again."""
        if self._is_shown and self._text:
            self._out.write("\r\033[K")
            self._out.flush()
        self._text = ""

    async def _move(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(_STEP_SECONDS)

    def _draw(self) -> None:
        if not (self._is_shown and self._text):
            return
        seconds = int(asyncio.get_running_loop().time() - self._began)
        passed = f" … {seconds} s{self._limit}"
        # A line that is broken into two cannot be taken back.
        room = max(shutil.get_terminal_size().columns - len(passed) - 1, 10)
        self._out.write(f"\r\033[K{clean_line(self._text, room)}{passed}")
        self._out.flush()


async def within(seconds: float, text: str, work: Awaitable[T], out: TextIO) -> T:
    """What `work` comes to, with a line that moves meanwhile; one that stays where `out` is no terminal.
    Raises `TimeoutError`."""
    if not out.isatty():
        out.write(f"{text} …\n")
        out.flush()
    async with asyncio.timeout(seconds), MovingLine(out, text, seconds):
        return await work
