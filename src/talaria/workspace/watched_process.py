"""A background process: its files, starting its shim, watching it, ending it, and its input."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from talaria.core.errors import ToolError
from talaria.core.ids import SessionId, TurnId
from talaria.core.shells import ProcessInfo, ProcessState
from talaria.workspace.sandbox import shim
from talaria.workspace.sandbox.command import Launch
from talaria.workspace.sandbox.group import start_time
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


# -- the files, as the shim writes them: record, ring of output, exit

POLLED, TOLD = "polled", "told"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the gateway knows of a process when it starts it."""

    id: str
    session_id: SessionId
    turn_id: TurnId
    command: str
    started_at: float
    wakes: bool = False


class ProcessRecord(ProcessFacts, frozen=True, kw_only=True):
    """A process that was about to run. A pid means a process only together with its start time and boot.

    `pid` is the shim's, `launch` that of the sandbox's launcher, `first` the first process of a namespace of
    its own, 0 if there is none.
    """

    pid: int
    start: int
    boot: str
    launch: int
    launch_start: int
    first: int = 0
    first_start: int = 0

    def open_shim(self) -> int | None:
        """Return a pidfd of the shim; None if it is gone."""
        return self._open(self.pid, self.start)

    def open_command(self) -> list[int]:
        """Return pidfds of the processes that hold the command together, as far as they are there."""
        found = (self._open(self.launch, self.launch_start), self._open(self.first, self.first_start))
        return [fd for fd in found if fd is not None]

    def _open(self, pid: int, start: int) -> int | None:
        if not pid or not start or self.boot != boot_id():
            return None
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        if start_time(pid) == start:  # as of now the pid is that of the descriptor
            return fd
        os.close(fd)
        return None


class ProcessExit(msgspec.Struct, frozen=True):
    """The end of a process. `is_cut_off`: its gateway was without the cluster for too long."""

    code: int
    at: float
    error: str = ""
    is_cut_off: bool = False


class RingPart(NamedTuple):
    """A part of the output from the offset `begin` on. `written` is the length of the whole output."""

    begin: int
    content: bytes
    written: int


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return _BOOT.read_text().strip()


def read_record(folder: Path) -> ProcessRecord | None:
    """Return the record; None if the command never ran. Blocks."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((folder / shim.RECORD).read_bytes(), type=ProcessRecord)
    return None


def read_exit(folder: Path) -> ProcessExit | None:
    """Return the end; None if the process runs or is lost. Blocks."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((folder / shim.EXIT).read_bytes(), type=ProcessExit)
    return None


def read_ring(folder: Path, begin: int | None, limit: int) -> RingPart:
    """Return up to `limit` bytes of output from the offset `begin` on, or the last ones. Blocks.

    Bytes that the ring has no more are left out, and so are those that are overwritten meanwhile.
    """
    try:
        fd = os.open(folder / shim.OUTPUT, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return RingPart(0, b"", 0)
    try:
        size, written = _number(fd, shim.SIZE_AT), _number(fd, shim.WRITTEN_AT)
        if os.pread(fd, len(shim.MAGIC), 0) != shim.MAGIC or not size:
            return RingPart(0, b"", 0)
        first = max(0, written - limit) if begin is None else min(begin, written)
        first = max(first, written - size)
        end = min(written, first + limit)
        content = _read(fd, size, first, end)
        whole = max(first, _number(fd, shim.RESERVED_AT) - size)  # from here on nothing was overwritten
        return RingPart(min(whole, end), content[whole - first :], written)
    finally:
        os.close(fd)


def trim_ring(folder: Path) -> None:
    """Release the reserved space that the output of an ended process does not need. Blocks. Best effort: the
    next gateway tries again."""
    with suppress(OSError), open(folder / shim.OUTPUT, "r+b") as file:  # noqa: PTH123
        fd = file.fileno()
        size, written = _number(fd, shim.SIZE_AT), _number(fd, shim.WRITTEN_AT)
        if os.fstat(fd).st_size > shim.HEADER + min(written, size):
            os.ftruncate(fd, shim.HEADER + min(written, size))


def _read(fd: int, size: int, first: int, end: int) -> bytes:
    pieces = []
    while first < end:
        at = first % size
        piece = os.pread(fd, min(end - first, size - at), shim.HEADER + at)
        if not piece:
            break
        pieces.append(piece)
        first += len(piece)
    return b"".join(pieces)


def _number(fd: int, at: int) -> int:
    return int.from_bytes(os.pread(fd, 8, at), "little")


def read_number(path: Path) -> int:
    """Return the number in a file; 0 if there is none. Blocks."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return 0


def without_cut_character(content: bytes) -> bytes:
    """Return the content without a UTF-8 character at its end that is not complete yet."""
    for back in range(1, min(4, len(content) + 1)):
        byte = content[-back]
        if byte >= 0xC0:  # the first byte of a character
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return content[:-back] if length > back else content
        if byte < 0x80:
            break
    return content
