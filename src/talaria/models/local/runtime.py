"""The process that runs the built-in model: what it needs of this machine, and its life.

It is started by the first call, restarted with a backoff when it died, and stopped with the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
import re
import secrets
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from talaria.core.backoff import Backoff
from talaria.core.clock import Clock
from talaria.core.errors import ModelError, ModelRefused, ModelUnavailable
from talaria.core.installation import has_extra, install_extra

_log = logging.getLogger("talaria.local")
COMMAND = (sys.executable, "-P", "-m", "talaria.models.local.child")
LOAD_SECONDS = 120.0
_BACKOFF = Backoff(first=1.0, longest=30.0)
_STEADY_SECONDS = 60.0  # a process that lived so long starts a new series of failures
_STOP_SECONDS = 3.0
_EXIT_SECONDS = 0.5
_LONGEST_LINE = 300
# The variables that a process needs to run at all. Keys and tokens are not passed on.
_PASSED_ON = re.compile(r"(PATH|HOME|LANG|LC_.*|TMPDIR|LD_.*|DYLD_.*|PYTHON.*|OMP_.*|VIRTUAL_ENV)\Z")

# -- what it needs ------------------------------------------------------------------------------------------


def missing_requirement(
    cpuinfo: Path = Path("/proc/cpuinfo"), gomp: str = "libgomp.so.1"
) -> ModelRefused | None:
    """Return why the built-in model cannot run on this machine, as a reply for people; None if it can."""
    if not has_extra("local"):
        return ModelRefused(
            "The built-in model cannot run: its runtime is not installed.",
            f"Install it with `{install_extra('local')}`, or use `talaria setup`.",
        )
    if not has_avx2(cpuinfo):
        return ModelRefused(
            "The built-in model cannot run: this processor lacks AVX2.",
            "Choose another model with `talaria setup`.",
        )
    if sys.platform == "linux" and not _loads(gomp):
        return _no_gomp()
    return None


def has_avx2(cpuinfo: Path) -> bool:
    """Return True also if the flags cannot be read: the process will say otherwise."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return True
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return True
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not flags or "avx2" in flags.split()


def memory_limit(folder: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this machine, or the container, has in all; None if they are unknown.

    `folder` is the root of the file system.
    """
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (folder / "proc/meminfo").read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemTotal:")).split()[1]) << 10)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # the word `max` means no limit
            found.append(int((folder / "sys/fs/cgroup" / name).read_text()))
    return min(found, default=None)


def _loads(library: str) -> bool:
    import ctypes  # noqa: PLC0415 - costs a start some milliseconds

    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _no_gomp() -> ModelRefused:
    return ModelRefused(
        "The built-in model cannot run: the system library libgomp is missing.",
        "Install it (Debian, Ubuntu: `apt-get install libgomp1`) and send your message again.",
    )


# -- its life -----------------------------------------------------------------------------------------------


class ChildAddress(NamedTuple):
    """The address of the process, and the key that it was given."""

    url: str
    key: str


class ModelProcess:
    """At most one process at a time. Its methods are not for concurrent use; the endpoint holds a permit."""

    def __init__(self, clock: Clock, threads: int = 1, command: Sequence[str] = COMMAND) -> None:
        self._clock = clock
        self._threads = threads
        self._command = tuple(command)
        self._child: asyncio.subprocess.Process | None = None
        self._address: ChildAddress | None = None
        self._name = ""
        self._log_reader: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=20)
        self._started_at = 0.0
        self._failures = 0
        self.starts = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self.is_running else None  # type: ignore[union-attr]

    @property
    def is_running(self) -> bool:
        return self._address is not None and self._child is not None and self._child.returncode is None

    def serves(self, name: str) -> bool:
        return self.is_running and self._name == name

    async def start(self, name: str, weights: Path, loading: Callable[[], None]) -> ChildAddress:
        """Return the address of the process for these weights, starting it if needed. Raises `ModelError`.

        A process for other weights is stopped first. `loading` is called before a start.
        """
        if self.serves(name):
            assert self._address is not None
            return self._address
        await self._clear()
        loading()
        await self._clock.sleep(_BACKOFF.pause(self._failures))
        self.starts += 1
        self._started_at = self._clock.elapsed()
        try:
            self._address = await self._start(name, weights)
        except BaseException:
            self._failures += 1
            await self.stop()
            raise
        self._name = name
        _log.info("%s runs in process %s", name, self.pid)
        return self._address

    async def exit_reason(self) -> str | None:
        """Return how the process ended, after a failed call; None if it still runs."""
        child = self._child
        if child is None or self._address is None:
            return None
        with contextlib.suppress(TimeoutError):  # the system takes a moment to report an exit
            async with asyncio.timeout(_EXIT_SECONDS):
                await child.wait()
        return None if child.returncode is None else _describe_exit(child.returncode)

    async def unload(self) -> None:
        """Stop a healthy process to free its memory."""
        self._failures = 0
        await self.stop()

    async def stop(self) -> None:
        """Close the process's input, which ends it; kill it if it does not end in time."""
        child, self._child, self._address = self._child, None, None
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
        assert self._log_reader is not None
        await asyncio.gather(self._log_reader, return_exceptions=True)

    async def _clear(self) -> None:
        """Stop the process if there is one. Count it as a failure if it had died by itself."""
        if self._child is not None and self._child.returncode is not None:
            lived = self._clock.elapsed() - self._started_at
            self._failures = 1 if lived > _STEADY_SECONDS else self._failures + 1
            how = _describe_exit(self._child.returncode)
            _log.warning("the process of the built-in model ended (%s)", how)
        elif self._child is not None:
            self._failures = 0
        await self.stop()

    async def _start(self, name: str, weights: Path) -> ChildAddress:
        self._last_lines.clear()
        key = secrets.token_urlsafe(24)
        try:
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command,
                env={name: value for name, value in os.environ.items() if _PASSED_ON.match(name)},
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
        self._log_reader = asyncio.create_task(self._read_log(child.stderr), name="built-in model's log")
        orders = {"weights": str(weights), "name": name, "key": key, "threads": self._threads}
        child.stdin.write(json.dumps(orders).encode() + b"\n")
        reply: dict[str, str] = {"error": "it did not load in time"}
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(LOAD_SECONDS):
                line = await child.stdout.readline()
                reply = json.loads(line) if line else {"error": _describe_exit(await child.wait())}
        if not (url := reply.get("url")):
            raise self._load_error(reply.get("error", ""))
        return ChildAddress(url, key)

    async def _read_log(self, stderr: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stderr.readline()
            except ValueError:  # longer than the reader's buffer
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()[:_LONGEST_LINE]
            self._last_lines.append(text)
            _log.debug("%s", text)

    def _load_error(self, reason: str) -> ModelError:
        if "libgomp" in reason:
            return _no_gomp()
        if "illegal instruction" in reason:
            return ModelRefused(
                "The built-in model cannot run: this processor lacks an instruction that it needs.",
                "Choose another model with `talaria setup`.",
            )
        for line in self._last_lines:
            _log.warning("the built-in model said: %s", line)
        return ModelUnavailable(
            f"The built-in model could not be loaded: {reason.rstrip('.')}.",
            "Try again; if it stays so, see `talaria doctor`, or choose another with `talaria setup`.",
        )


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    try:
        name = signal.Signals(-status)
    except ValueError:
        return f"it was ended by signal {-status}"
    return "illegal instruction" if name is signal.SIGILL else f"it was ended by {name.name}"
