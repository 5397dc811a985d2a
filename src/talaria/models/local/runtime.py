"""The child process of the built-in model: started on first use, restarted after a pause, left by none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ModelError, ModelRefused, ModelUnavailable
from talaria.models.local.needs import no_gomp

_log = logging.getLogger("talaria.local")
COMMAND = (sys.executable, "-m", "talaria.models.local.child")
LOAD_SECONDS = 120.0
_LONGEST_PAUSE = 30.0
_STEADY_SECONDS = 60.0  # a child that lived so long owes nothing to those that died before it
_STOP_SECONDS = 3.0
_GLANCE_SECONDS = 0.5
_LONGEST_LINE = 300
# What a process needs to run at all. Keys and tokens are not for it.
_KEPT = re.compile(r"(PATH|HOME|LANG|LC_.*|TMPDIR|LD_.*|DYLD_.*|PYTHON.*|OMP_.*|VIRTUAL_ENV)\Z")


class Running(msgspec.Struct, frozen=True):
    """Where the child listens, and the key that it was given."""

    url: str
    key: str


class _Orders(msgspec.Struct, frozen=True):
    weights: str
    name: str
    key: str
    threads: int


class _Word(msgspec.Struct, frozen=True):
    url: str = ""
    error: str = ""


class Runtime:
    """One child at a time. Not for use by two at once: the endpoint's permit sees to that."""

    def __init__(self, clock: Clock, threads: int = 1, command: Sequence[str] = COMMAND) -> None:
        self._clock = clock
        self._threads = threads
        self._command = tuple(command)
        self._child: asyncio.subprocess.Process | None = None
        self._running: Running | None = None
        self._name = ""
        self._listener: asyncio.Task[None] | None = None
        self._last_words: deque[str] = deque(maxlen=20)
        self._started_at = 0.0
        self._failures = 0
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self.is_up else None  # type: ignore[union-attr]

    @property
    def is_up(self) -> bool:
        return self._running is not None and self._child is not None and self._child.returncode is None

    def serves(self, name: str) -> bool:
        return self.is_up and self._name == name

    async def up(self, name: str, weights: Path, loading: Callable[[], None]) -> Running:
        """The running child for these weights, started if need be. Raises `ModelError`."""
        if self.serves(name):
            assert self._running is not None
            return self._running
        await self._bury()
        loading()
        await self._clock.sleep(self._pause())
        self.starts += 1
        self._started_at = self._clock.elapsed()
        try:
            self._running = await self._start(name, weights)
        except BaseException:
            self._failures += 1
            await self.stop()
            raise
        self._name = name
        _log.info("%s runs in process %s", name, self.pid)
        return self._running

    async def death(self) -> str | None:
        """After a call that failed: how the child ended, if it did; the system takes a moment to tell."""
        child = self._child
        if child is None or self._running is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GLANCE_SECONDS):
                await child.wait()
        return None if child.returncode is None else _how(child.returncode)

    async def rest(self) -> None:
        """It is not needed for a while: leave memory."""
        self._failures = 0
        await self.stop()

    async def stop(self) -> None:
        """Its lifeline is cut first; one that holds on is killed."""
        child, self._child, self._running = self._child, None, None
        if child is None:
            return
        if child.stdin is not None:
            child.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
        if self._listener is not None:
            await asyncio.gather(self._listener, return_exceptions=True)

    def _pause(self) -> float:
        return min(_LONGEST_PAUSE, 2.0 ** (self._failures - 1)) if self._failures else 0.0

    async def _bury(self) -> None:
        """Count a child that died by itself, then clear up behind whichever there was."""
        if self._child is not None and self._child.returncode is not None:
            lived = self._clock.elapsed() - self._started_at
            self._failures = 1 if lived > _STEADY_SECONDS else self._failures + 1
            _log.warning("the process of the built-in model ended (%s)", _how(self._child.returncode))
        elif self._child is not None:
            self._failures = 0
        await self.stop()

    async def _start(self, name: str, weights: Path) -> Running:
        self._last_words.clear()
        key = secrets.token_urlsafe(24)
        try:
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command,
                env={name: value for name, value in os.environ.items() if _KEPT.match(name)},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise ModelUnavailable(
                f"The built-in model could not be started: {error.strerror}.", "Try again in a moment."
            ) from error
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._listener = asyncio.create_task(self._listen(child.stderr), name="built-in model's log")
        child.stdin.write(msgspec.json.encode(_Orders(str(weights), name, key, self._threads)) + b"\n")
        word = _Word(error="it did not load in time")
        with contextlib.suppress(TimeoutError, msgspec.DecodeError, ValueError):
            async with asyncio.timeout(LOAD_SECONDS):
                line = await child.stdout.readline()
                word = msgspec.json.decode(line, type=_Word) if line else _Word("", _how(await child.wait()))
        if not word.url:
            raise self._failed(word.error)
        return Running(word.url, key)

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stderr.readline()
            except ValueError:  # longer than the reader's buffer
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()[:_LONGEST_LINE]
            self._last_words.append(text)
            _log.debug("%s", text)

    def _failed(self, reason: str) -> ModelError:
        if "libgomp" in reason:
            return no_gomp()
        if "illegal instruction" in reason:
            return ModelRefused(
                "The built-in model cannot run: this processor lacks an instruction that it needs.",
                "Choose another model with `talaria setup`.",
            )
        for line in self._last_words:
            _log.warning("the built-in model said: %s", line)
        return ModelUnavailable(
            f"The built-in model could not be loaded: {reason.rstrip(chr(46))}.",
            "Try again; if it stays so, see `talaria doctor`, or choose another with `talaria setup`.",
        )


def _how(status: int) -> str:
    """How a process ended, as people say it."""
    if status >= 0:
        return f"it ended with status {status}"
    try:
        name = signal.Signals(-status)
    except ValueError:
        return f"it was ended by signal {-status}"
    return "illegal instruction" if name is signal.SIGILL else f"it was ended by {name.name}"
