"""A copy of the spawner: keeps one background command with its input, output and end, without the gateway.

It is in a session of its own, so that it outlives the gateway. The command runs only if the gateway lives
when the record is on the disk. From then on everything is in the process's folder:

    record   who runs: the pids of shim and launcher with their start times, and the boot
    input    a FIFO, from which the command reads
    output   a ring with the last bytes of stdout and stderr
    exit     the exit code and the time, once no process of the command is left

SIGTERM ends the command: politely, and by force after some seconds or at the second SIGTERM. SIGUSR1 closes
its input. If the shim is killed, the launcher ends the command, because its parent has died, and the spawner
ends what is left then. In a cluster the command also ends when the place's leash does (`cluster.leash`),
whatever has become of the gateway.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from contextlib import suppress
from typing import Any

from talaria.workspace.sandbox import group
from talaria.workspace.sandbox.group import NOT_RUN, ProcessGroup, start_time

RECORD, INPUT, OUTPUT, EXIT = "record", "input", "output", "exit"
HEADER = 32  # bytes of the ring before its content: the magic, then three numbers
MAGIC = b"TALRING1"
SIZE_AT, WRITTEN_AT, RESERVED_AT = 8, 16, 24
_PIECE = 64 << 10
_EXIT_BYTES = 4096
_MAX_STATUS = 64 << 10
_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1)
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE)


class Ring:
    """The file of the last `size` bytes of output.

    A byte at the offset n of the whole output is at n % size of the content. `reserved` is written before the
    content and `written` after it: a reader knows which bytes are whole, whenever the writer dies.
    """

    def __init__(self, path: str, size: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._fd, 0, HEADER + size)  # a disk that is full later does no harm
        os.pwrite(self._fd, MAGIC + size.to_bytes(8, "little") + bytes(16), 0)
        self._size = size
        self._written = 0

    def write(self, content: bytes) -> None:
        view = memoryview(content)
        while view:
            at = self._written % self._size
            piece = view[: self._size - at]
            self._set(RESERVED_AT, self._written + len(piece))
            os.pwrite(self._fd, piece, HEADER + at)
            self._written += len(piece)
            self._set(WRITTEN_AT, self._written)
            view = view[len(piece) :]

    def _set(self, at: int, number: int) -> None:
        os.pwrite(self._fd, number.to_bytes(8, "little"), at)


# -- the shim


class Shim:
    """A background command. `order` is that of the spawner, and its part `background` has the process's
    `folder`, the size of the `ring`, the seconds of `grace`, and the `facts` of the record."""

    def __init__(self, order: dict[str, Any], status: int) -> None:
        self._order = order
        self._background: dict[str, Any] = order["background"]
        self._folder: str = self._background["folder"]
        self._status = status
        self._ring = Ring(f"{self._folder}/{OUTPUT}", self._background["ring"])
        self._exit = os.open(
            f"{self._folder}/{EXIT}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        os.posix_fallocate(self._exit, 0, _EXIT_BYTES)
        os.mkfifo(f"{self._folder}/{INPUT}", 0o600)
        self._input = os.open(f"{self._folder}/{INPUT}", os.O_RDWR | os.O_CLOEXEC)  # without it: end of file
        self._output, self._sink = os.pipe()
        self._wakes, wake = os.pipe()
        for fd in (self._output, self._wakes, wake, status):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake)
        for number in _HEARD:
            signal.signal(number, lambda *_: None)  # the number arrives at the descriptor
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._group: ProcessGroup | None = None
        self._launched_at = 0
        self._first = 0
        self._told = b""
        self._stops = 0
        self._force_at = 0.0
        self._leash: str = order["leash"]
        self._is_cut_off = False

    @property
    def group(self) -> ProcessGroup:
        assert self._group is not None
        return self._group

    def start(self, given: list[int]) -> int:
        """Start the launcher, which waits. Return the descriptor that lets it go."""
        waits, go = os.pipe()
        reads = os.open(f"{self._folder}/{INPUT}", os.O_RDONLY | os.O_CLOEXEC)
        self._group = ProcessGroup(self._order, (reads, self._sink, self._sink), given, waits, go)
        for fd in (waits, reads, self._sink, *given):
            os.close(fd)
        self._launched_at = start_time(self.group.pid)
        return go

    def record(self) -> None:
        """Write who runs, so that a later gateway finds this process again, or knows that it is lost."""
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        here = os.getpid()
        record = {
            "pid": here,
            "start": start_time(here),
            "boot": boot,
            "launch": self.group.pid,
            "launch_start": self._launched_at,
            "first": self._first,
            "first_start": start_time(self._first) if self._first else 0,
            **self._background["facts"],
        }
        new = f"{self._folder}/{RECORD}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.write(fd, json.dumps(record).encode())
        os.fsync(fd)
        os.close(fd)
        os.rename(new, f"{self._folder}/{RECORD}")
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)

    def forget(self) -> None:
        """The command is not to run."""
        os.unlink(f"{self._folder}/{RECORD}")
        group.end_children()

    def run(self) -> None:
        """Keep the command until no process of it is left, and write its end."""
        poll = select.poll()
        for fd in (self._wakes, self._output, self._status):
            poll.register(fd, select.POLLIN)
        while self.group.code is None:
            for fd, _ in poll.poll(self._patience()):
                if fd == self._output:
                    self._take_output(poll)
                elif fd == self._wakes:
                    self._obey(os.read(self._wakes, 512))
                else:
                    self._hear(poll)
            is_due = self._force_at and time.monotonic() >= self._force_at
            if self._leash and group.left_on_leash(self._leash, group.PROCESSES_AT) <= 0:
                self._leash, self._is_cut_off = "", True
                is_due = True
            if is_due or self.group.is_ending:
                self._force_at = 0.0
                self.group.end()
        group.end_children()
        self._take_output(None)
        self._write_exit()

    def _patience(self) -> float | None:
        seconds = []
        if self._force_at:
            seconds.append(self._force_at - time.monotonic())
        if self._leash:
            seconds += (group.LOOK_SECONDS, group.left_on_leash(self._leash, group.PROCESSES_AT))
        if self.group.is_ending:
            seconds.append(0.2)
        return max(0.0, min(seconds)) * 1000 if seconds else None

    def _take_output(self, poll: select.poll | None) -> None:
        """Take what there is: one piece while the command runs, all of it at the end."""
        while True:
            try:
                piece = os.read(self._output, _PIECE)
            except BlockingIOError:
                return
            self._ring.write(piece)
            if not piece and poll is not None:
                poll.unregister(self._output)
            if not piece or poll is not None:
                return

    def _hear(self, poll: select.poll) -> None:
        """Read what the launcher tells. It may name the first process of a namespace."""
        heard = os.read(self._status, _MAX_STATUS)
        self._told += heard
        if not heard or len(self._told) > _MAX_STATUS:
            poll.unregister(self._status)
        if not self._first and (first := group.parse_status(self._told).get("child-pid")):
            self._first = first
            self.record()

    def _obey(self, signals: bytes) -> None:
        """Do what these signals ask for."""
        for number in signals:
            if number == signal.SIGTERM:
                self._stop()
            elif number == signal.SIGUSR1 and self._input >= 0:
                os.close(self._input)
                self._input = -1
        self.group.reap()

    def _stop(self) -> None:
        self._stops += 1
        command = [pid for pid in group.below(self.group.pid) if pid != self._first]
        if self._stops > 1 or not command:
            self.group.end()
            return
        for pid in command:
            group.kill(pid, signal.SIGTERM)
        self._force_at = time.monotonic() + self._background["grace"]

    def _write_exit(self) -> None:
        with suppress(BlockingIOError):
            while heard := os.read(self._status, _MAX_STATUS):
                self._told += heard
        exited = group.parse_status(self._told).get("exit-code")
        code, error = self.group.code if exited is None else exited, ""
        if exited is None and code == NOT_RUN:
            error = self._told.decode(errors="replace")[-500:] or "see its output"
        told = {"code": code, "at": time.time(), "error": error, "is_cut_off": self._is_cut_off}
        content = json.dumps(told).encode()
        os.pwrite(self._exit, content, 0)
        os.ftruncate(self._exit, len(content))
        os.fsync(self._exit)
        os.rename(f"{self._folder}/{EXIT}.new", f"{self._folder}/{EXIT}")


def main(order: dict[str, Any], link: int, status: int, given: list[int]) -> None:
    """Keep a background command. `link` leads to the gateway until the command runs."""
    group.prctl(group.SUBREAPER, 1)
    try:
        shim = Shim(order, status)
        go = shim.start(given)
        shim.record()
    except OSError as error:
        os.write(link, f"-{error.strerror}".encode())
        group.end_children()
        return
    os.write(link, b"+")
    if not os.read(link, 1):  # the gateway has died, or does not want it any more
        shim.forget()
        return
    os.close(link)
    os.write(go, b"+")
    os.close(go)
    shim.run()
