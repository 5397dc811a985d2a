"""The files of a background process, as its shim writes them: record, ring of output, exit."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from talaria.core.ids import SessionId, TurnId
from talaria.workspace.sandbox import shim
from talaria.workspace.sandbox.group import start_time

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
