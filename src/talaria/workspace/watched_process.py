"""A background process: starting its shim, watching it, ending it, and its input."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from talaria.core.background import ProcessInfo, ProcessState
from talaria.core.errors import ToolError
from talaria.workspace.process_files import (
    ProcessExit,
    ProcessFacts,
    ProcessRecord,
    boot_id,
    read_exit,
    read_record,
    read_ring,
    trim_ring,
)
from talaria.workspace.sandbox import shim
from talaria.workspace.sandbox.port import Launch
from talaria.workspace.sandbox.process import SPAWNER

RING_BYTES = 1 << 20
_GRACE = 2.0  # seconds that a command has to end politely
_PATIENCE = 3.0  # seconds until a shim that does not end is killed itself
_INPUT_SECONDS = 5.0  # that a write waits for a process which does not read
_LOST = "It ended together with its keeper, so its exit code is unknown."
_REBOOTED = "The machine was restarted meanwhile, so its exit code is unknown."


class WatchedProcess:
    """A process that this gateway started or found. `watch` has to be called on the event loop."""

    def __init__(self, record: ProcessRecord, folder: Path, *, is_told: bool = False) -> None:
        self.record = record
        self.folder = folder
        self.is_told = is_told
        self.is_waking = False  # the news of its end is a message that is on its way
        self.state = ProcessState.RUNNING
        self.end: ProcessExit | None = None
        self.why = ""
        self.gone = asyncio.Event()
        self._pidfd: int | None = None
        self._burying: asyncio.Task[None] | None = None

    def watch(self, on_end: Callable[[WatchedProcess], None]) -> None:
        """Call `on_end` once it has ended or is lost, which may be at once."""
        self._pidfd = self.record.open_shim()
        if self._pidfd is None:
            self._settle(on_end)
        else:
            asyncio.get_running_loop().add_reader(self._pidfd, self._settle, on_end)

    async def buried(self) -> None:
        """Wait until a process whose shim is gone counts as ended or lost. Returns at once if it runs."""
        if self._burying is not None:
            await self._burying

    def unwatch(self) -> None:
        """Let the process be. It goes on."""
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._burying is not None:
            self._burying.cancel()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the shim, if it runs."""
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _settle(self, on_end: Callable[[WatchedProcess], None]) -> None:
        """The shim has ended. Without an exit code the command is lost, and whatever is left of it goes."""
        self.unwatch()
        _reap(self.record.pid)
        self.end = read_exit(self.folder)
        if self.end is not None:
            self._conclude(ProcessState.ENDED, self.end.error, on_end)
        else:
            self._burying = asyncio.create_task(self._bury(on_end), name=f"bury {self.record.id}")

    async def _bury(self, on_end: Callable[[WatchedProcess], None]) -> None:
        why = _LOST if self.record.boot == boot_id() else _REBOOTED
        record = read_record(self.folder) or self.record  # the shim has added the namespace meanwhile
        for fd in record.open_command():
            try:
                # The launcher ends the command on SIGTERM. On SIGKILL it may leave the command running.
                for number, seconds in ((signal.SIGTERM, _PATIENCE), (signal.SIGKILL, None)):
                    with suppress(ProcessLookupError, TimeoutError):
                        signal.pidfd_send_signal(fd, number)
                        async with asyncio.timeout(seconds):
                            await until_readable(fd)
                        break
            finally:
                os.close(fd)
        self._burying = None
        self._conclude(ProcessState.LOST, why, on_end)

    def _conclude(self, state: ProcessState, why: str, on_end: Callable[[WatchedProcess], None]) -> None:
        trim_ring(self.folder)  # nothing writes to it any more
        self.state, self.why = state, why
        self.gone.set()
        on_end(self)

    async def kill(self) -> None:
        """End it. Returns when no process of it is left."""
        for number, seconds in (
            (signal.SIGTERM, _GRACE + _PATIENCE),
            (signal.SIGTERM, _PATIENCE),
            (signal.SIGKILL, None),
        ):
            self.signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.gone.wait()
                    return

    def info(self) -> ProcessInfo:
        record, end = self.record, self.end
        return ProcessInfo(
            record.id,
            record.session_id,
            record.command,
            self.state,
            record.started_at,
            end.at if end else None,
            end.code if end else None,
            read_ring(self.folder, None, 0).written,
            record.wakes,
            self.why,
        )


class StartingShim:
    """A shim whose command has not been let go yet. The caller calls `go` or `abandon`."""

    def __init__(self, launch: Launch, folder: Path, facts: ProcessFacts, leash: Path | None = None) -> None:
        """Start it; `launch` is closed. Raises `OSError`."""
        background = {
            "folder": str(folder),
            "ring": RING_BYTES,
            "grace": _GRACE,
            "facts": msgspec.to_builtins(facts),
        }
        try:
            self._link = SPAWNER.send(launch.order(leash, background), (launch.status, *launch.fds))
        finally:
            launch.close()

    async def recorded(self) -> None:
        """Wait until the record is on the disk. Raises `ToolError` if that failed."""
        told = await asyncio.get_running_loop().sock_recv(self._link, 500)
        if told != b"+":
            why = told[1:].decode(errors="replace") or "its keeper did not start"
            raise ToolError(f"The background process cannot be started: {why}.", "Look at the disk.")

    def go(self) -> None:
        """Let the command run."""
        self._link.send(b"+")
        self._link.close()

    async def abandon(self) -> None:
        """Do not run the command. Returns when its shim is gone."""
        self._link.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(self._link, 500):
                pass
        self._link.close()


def _reap(pid: int) -> None:
    """Take note of the end of a process that has ended, if it is a child of this one."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def until_readable(fd: int) -> None:
    """Wait until there is something to read; of a pidfd: until the process has ended."""
    await _until(fd, asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)


async def _until(
    fd: int, add: Callable[[int, Callable[[], None]], object], remove: Callable[[int], object]
) -> None:
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)


async def write_input(folder: Path, content: bytes) -> int:
    """Write to the process's input without blocking, and return how many bytes were taken.

    Gives up when the process has not read for some seconds. Raises `OSError` if nothing reads any more.
    """
    fd = os.open(folder / shim.INPUT, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    loop = asyncio.get_running_loop()
    taken = 0
    try:
        while taken < len(content):
            try:
                taken += os.write(fd, content[taken : taken + 4096])
            except BlockingIOError:
                try:
                    async with asyncio.timeout(_INPUT_SECONDS):
                        await _until(fd, loop.add_writer, loop.remove_writer)
                except TimeoutError:
                    break
            else:
                await asyncio.sleep(0)
    finally:
        os.close(fd)
    return taken
